/* A request on its way in: checks, and one piece of memory for all it will ever need, so that steps allocate
 * nothing. Runs on the submitting thread and reads only what is constant in the engine. */
#include "engine/engine_internal.h"

#include "base/mem.h"
#include "base/clock.h"

#include <math.h>
#include <string.h>

/* ---- checks ---- */

static gm_status check_ids(const gm_engine *e, const char *what, const int32_t *ids, int64_t n, gm_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= e->params.vocab_size)
            return gm_fail(err, GM_EARG, "%s: Token id %d is out of vocabulary", what, ids[i]);
    return GM_OK;
}

static gm_status check_prompt(const gm_engine *e, const gm_submit *s, gm_error *err)
{
    int32_t max = e->params.model_len_max;
    if (s->n_prompt < 1) return gm_fail(err, GM_EARG, "The decoder prompt cannot be empty");
    if (s->n_prompt > max)
        return gm_fail(err, GM_EARG,
                       "The decoder prompt (length %d) is longer than the maximum model length of %d.",
                       s->n_prompt, max);
    if (s->n_prompt == max)
        return gm_fail(
            err, GM_EARG,
            "The decoder prompt (length %d) plus the number of requested output tokens (at least 1) is "
            "longer than the maximum model length of %d.",
            s->n_prompt, max);
    for (int32_t i = 0; i < s->n_prompt; i++)
        if (s->prompt[i] < 0 || s->prompt[i] >= e->params.vocab_size)
            return gm_fail(err, GM_EARG, "Token id %d is out of vocabulary", s->prompt[i]);
    return GM_OK;
}

static int64_t bad_total(const gm_sampling *p)
{
    int64_t total = 0;
    for (int32_t i = 0; i < p->n_bad; i++) total += p->bad_lens[i];
    return total;
}

static gm_status check_lists(const gm_engine *e, const gm_sampling *p, gm_error *err)
{
    if (p->n_stop_token_ids < 0 || p->n_bias < 0 || p->n_allowed < 0 || p->n_bad < 0)
        return gm_fail(err, GM_EARG, "sampling: a list of negative length");
    for (int32_t i = 0; i < p->n_bad; i++)
        if (p->bad_lens[i] < 1) return gm_fail(err, GM_EARG, "bad_words: an empty sequence");
    for (int32_t i = 0; i < p->n_bias; i++)
        if (!isfinite(p->bias_values[i]))
            return gm_fail(err, GM_EARG, "logit_bias: a value that is not finite");
    gm_status st = check_ids(e, "logit_bias", p->bias_ids, p->n_bias, err);
    if (!st) st = check_ids(e, "allowed_token_ids", p->allowed_ids, p->n_allowed, err);
    if (!st) st = check_ids(e, "bad_words", p->bad_ids, bad_total(p), err);
    if (!st && p->think_budget >= 0) st = check_ids(e, "thinking_token_budget", &p->think_end, 1, err);
    return st;
}

static gm_status check_sampling(const gm_engine *e, const gm_sampling *p, gm_error *err)
{
#define NEED(cond, what)                                                                                     \
    if (!(cond)) return gm_fail(err, GM_EARG, "sampling: %s", what)
    NEED(p->temperature >= 0 && isfinite(p->temperature), "temperature must be at least 0");
    NEED(p->top_p > 0 && p->top_p <= 1, "top_p must be in (0, 1]");
    NEED(p->top_k >= 0, "top_k must be at least 0");
    NEED(p->min_p >= 0 && p->min_p <= 1, "min_p must be in [0, 1]");
    NEED(p->repetition_penalty > 0 && isfinite(p->repetition_penalty), "repetition_penalty must be above 0");
    NEED(isfinite(p->presence_penalty) && isfinite(p->frequency_penalty), "penalties must be finite");
    NEED(p->max_tokens >= 1, "max_tokens must be at least 1");
    NEED(p->min_tokens >= 0 && p->min_tokens <= p->max_tokens, "min_tokens must be in [0, max_tokens]");
    NEED(p->logprobs >= -1 && p->prompt_logprobs >= -1, "logprobs must be at least -1");
#undef NEED
    return check_lists(e, p, err);
}

/* ---- layout ---- */

/* Hands out pieces of one block; without a base it only adds up how large the block must be. */
typedef struct carver {
    char *base;
    size_t used;
} carver;

static void *carve(carver *c, int64_t n, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += ((size_t)n * size + 15) & ~(size_t)15;
    return p;
}

static void *carve_copy(carver *c, const void *from, int64_t n, size_t size)
{
    void *p = carve(c, n, size);
    if (p && n > 0) memcpy(p, from, (size_t)n * size);
    return p;
}

static bool wants_logprobs(const gm_sampling *p)
{
    return p->logprobs >= 0 || p->all_logprobs;
}

static bool wants_prompt_logprobs(const gm_sampling *p)
{
    return p->prompt_logprobs >= 0 || p->all_prompt_logprobs;
}

static void lay_out_lists(carver *c, gm_sampling *p)
{
    int64_t n_bad_ids = bad_total(p);
    p->stop_token_ids = carve_copy(c, p->stop_token_ids, p->n_stop_token_ids, sizeof *p->stop_token_ids);
    p->bias_ids = carve_copy(c, p->bias_ids, p->n_bias, sizeof *p->bias_ids);
    p->bias_values = carve_copy(c, p->bias_values, p->n_bias, sizeof *p->bias_values);
    p->allowed_ids = carve_copy(c, p->allowed_ids, p->n_allowed, sizeof *p->allowed_ids);
    p->bad_ids = carve_copy(c, p->bad_ids, n_bad_ids, sizeof *p->bad_ids);
    p->bad_lens = carve_copy(c, p->bad_lens, p->n_bad, sizeof *p->bad_lens);
}

static void lay_out_rows(carver *c, gm_job *j, const gm_engine *e)
{
    const gm_sampling *p = &j->sampling;
    int32_t top = 0;
    if (!p->all_logprobs && p->logprobs > top) top = p->logprobs;
    if (!p->all_prompt_logprobs && p->prompt_logprobs > top) top = p->prompt_logprobs;
    j->top_cap = top < e->params.vocab_size ? top : e->params.vocab_size;
    j->rows_cap = wants_prompt_logprobs(p) ? e->logits_rows : wants_logprobs(p) ? 1 : 0;
    int32_t fit = j->top_cap > 0 ? GM_ROW_VALUES_MAX / j->top_cap : j->rows_cap;
    if (j->rows_cap > fit) j->rows_cap = fit > 1 ? fit : 1;
    j->rows = carve(c, j->rows_cap, sizeof *j->rows);
    j->row_ids = carve(c, (int64_t)j->rows_cap * j->top_cap, sizeof *j->row_ids);
    j->row_values = carve(c, (int64_t)j->rows_cap * j->top_cap, sizeof *j->row_values);
}

static void lay_out(carver *c, gm_job *j, const gm_engine *e, const gm_submit *s, int32_t n_total)
{
    const gm_sampling *p = &s->sampling;
    (void)carve(c, 1, sizeof *j);
    j->sampling = *p;
    j->sink = s->sink;
    j->tokens = carve(c, n_total, sizeof *j->tokens);
    if (c->base) memcpy(j->tokens, s->prompt, (size_t)s->n_prompt * sizeof *s->prompt);

    j->n_end_ids = e->params.n_eos + p->n_stop_token_ids;
    j->end_ids = carve(c, j->n_end_ids, sizeof *j->end_ids);
    for (int32_t i = 0; c->base && i < j->n_end_ids; i++)
        j->end_ids[i] = i < e->params.n_eos ? e->params.eos[i] : p->stop_token_ids[i - e->params.n_eos];

    lay_out_lists(c, &j->sampling);
    lay_out_rows(c, j, e);

    j->penalized = p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
    if (!j->penalized) return;
    int32_t distinct = n_total < e->params.vocab_size ? n_total : e->params.vocab_size;
    void *memory = carve(c, 1, gm_token_counts_size(distinct));
    if (!c->base) return;
    gm_token_counts_init(&j->counts, memory, distinct);
    for (int32_t i = 0; i < s->n_prompt; i++) gm_token_counts_add(&j->counts, s->prompt[i], false);
}

gm_status gm_job_create(gm_job **out, const gm_engine *e, const gm_submit *s, gm_error *err)
{
    gm_status st = check_prompt(e, s, err);
    if (!st) st = check_sampling(e, &s->sampling, err);
    if (st) return st;
    int64_t asked = (int64_t)s->n_prompt + s->sampling.max_tokens;
    int32_t n_total = asked < e->params.model_len_max ? (int32_t)asked : e->params.model_len_max;
    st = gm_sched_fits(e->sched, s->n_prompt, n_total, err);
    if (st) return st;

    gm_job measure = {0};
    carver c = {0};
    lay_out(&c, &measure, e, s, n_total);
    gm_job *j = gm_try_alloc(1, c.used);
    if (!j) return gm_fail(err, GM_ENOMEM, "no memory for a request of %d tokens", n_total);
    c = (carver){.base = (char *)j};
    lay_out(&c, j, e, s, n_total);

    st = gm_request_init(&j->request, e->params.page_tokens, s->n_prompt, n_total, err);
    if (st) {
        gm_free(j);
        return st;
    }
    if (j->sampling.min_tokens > n_total - s->n_prompt) j->sampling.min_tokens = n_total - s->n_prompt;
    j->request.priority = s->priority;
    j->request.arrived_us = s->arrived_us ? s->arrived_us : gm_now_us();
    j->request.tokens = j->tokens;
    if (s->cache_salt) j->request.salt = gm_prefix_salt_of(s->cache_salt, strlen(s->cache_salt));
    j->request.prompt_rows = wants_prompt_logprobs(&s->sampling);
    *out = j;
    return GM_OK;
}

void gm_job_destroy(gm_job *j)
{
    if (!j) return;
    gm_request_fini(&j->request);
    gm_free(j);
}

int32_t gm_job_n_output(const gm_job *j)
{
    return j->request.n_tokens - j->request.n_prompt;
}
