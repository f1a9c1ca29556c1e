/* From rows of logits to events: tokens, stop rules, log-probabilities. */
#include "engine/engine_internal.h"

#include "base/clock.h"

/* ---- log-probabilities ---- */

/* One row; values are log-probabilities of the whole vocabulary. The n best go to place i of the job. */
static gm_logprob_row make_row(gm_engine *e, gm_job *j, int32_t i, int32_t token, const float *values,
                               int32_t n, bool all)
{
    gm_logprob_row row = {
        .token = token, .logprob = values[token], .rank = gm_rank(e->sampler, values, token)};
    if (all) {
        row.n_top = e->params.vocab_size;
        row.top_logprobs = values;
        return row;
    }
    int32_t *ids = j->row_ids + (int64_t)i * j->top_cap;
    float *best = j->row_values + (int64_t)i * j->top_cap;
    if (n > j->top_cap) n = j->top_cap;
    row.n_top = n > 0 ? gm_top_n(e->sampler, values, n, ids, best) : 0;
    row.top_ids = ids;
    row.top_logprobs = best;
    return row;
}

void gm_engine_prompt_row(gm_engine *e, gm_job *j, gm_pos pos, float *logits)
{
    gm_log_softmax(e->sampler, logits, logits);
    j->rows[j->n_rows] = make_row(e, j, j->n_rows, j->tokens[pos.tok + 1], logits,
                                  j->sampling.prompt_logprobs, j->sampling.all_prompt_logprobs);
    j->n_rows++;
    if (j->n_rows == j->rows_cap) gm_engine_flush_rows(e, j);
}

void gm_engine_flush_rows(gm_engine *e, gm_job *j)
{
    if (j->n_rows == 0) return;
    gm_event ev = {.kind = GM_EVENT_PROMPT_LOGPROBS,
                   .row_begin = j->request.rows_next.tok,
                   .n_rows = j->n_rows,
                   .rows = j->rows};
    j->request.rows_next.tok += j->n_rows; /* delivered: not again, not even after preemption */
    j->n_rows = 0;
    gm_engine_emit(e, j, &ev);
}

/* ---- the next token ---- */

static bool think_budget_spent(const gm_job *j)
{
    const gm_sampling *p = &j->sampling;
    return p->think_budget >= 0 && !j->think_ended && gm_job_n_output(j) >= p->think_budget;
}

static int32_t choose_token(gm_engine *e, gm_job *j, float *logits)
{
    const gm_sampling *p = &j->sampling;
    if (think_budget_spent(j)) return p->think_end;
    int32_t n_output = gm_job_n_output(j);
    gm_sample_args a = {
        .logits = logits,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .counts = j->penalized ? &j->counts : NULL,
        .repetition = p->repetition_penalty,
        .presence = p->presence_penalty,
        .frequency = p->frequency_penalty,
        .allowed_ids = p->allowed_ids,
        .n_allowed = p->n_allowed,
        .banned_ids = j->end_ids,
        .n_banned = n_output < p->min_tokens ? j->n_end_ids : 0,
        .bias_ids = p->bias_ids,
        .bias_values = p->bias_values,
        .n_bias = p->n_bias,
        .bad_ids = p->bad_ids,
        .bad_lens = p->bad_lens,
        .n_bad = p->n_bad,
        .output = j->tokens + j->request.n_prompt,
        .n_output = n_output,
        .u = gm_sample_uniform(j->stream, n_output),
    };
    return gm_sample(e->sampler, &a);
}

static bool is_in(int32_t id, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static gm_ending stop_check(const gm_engine *e, const gm_job *j, int32_t token)
{
    const gm_sampling *p = &j->sampling;
    gm_ending none = {.finish = GM_FINISH_NONE, .stop_token = -1};
    if (gm_job_n_output(j) < p->min_tokens) return none;
    if (!p->ignore_eos && is_in(token, e->params.eos, e->params.n_eos))
        return (gm_ending){.finish = GM_FINISH_STOP, .stop_token = token, .stop_is_eos = true};
    if (is_in(token, p->stop_token_ids, p->n_stop_token_ids))
        return (gm_ending){.finish = GM_FINISH_STOP, .stop_token = token};
    if (j->request.n_tokens == j->request.n_tokens_max)
        return (gm_ending){.finish = GM_FINISH_LENGTH, .stop_token = -1};
    return none;
}

static void append(gm_engine *e, gm_job *j, int32_t token)
{
    j->tokens[j->request.n_tokens] = token;
    gm_sched_append(e->sched, &j->request);
    if (j->penalized) gm_token_counts_add(&j->counts, token, true);
    if (token == j->sampling.think_end) j->think_ended = true;

    int64_t now_us = gm_now_us();
    pthread_mutex_lock(&e->lock);
    gm_stats_token(e, j, now_us);
    pthread_mutex_unlock(&e->lock);
}

bool gm_engine_sample_row(gm_engine *e, gm_job *j, float *logits)
{
    const gm_sampling *p = &j->sampling;
    bool with_row = p->logprobs >= 0 || p->all_logprobs;
    if (with_row) gm_log_softmax(e->sampler, logits, e->raw); /* before the logits are edited */

    int32_t token = choose_token(e, j, logits);
    if (token < 0) {
        gm_engine_end(
            e, j,
            &(gm_ending){.finish = GM_FINISH_ERROR,
                         .stop_token = -1,
                         .message = "no token can be sampled: every logit is masked or not a number"});
        return false;
    }
    append(e, j, token);
    gm_ending ending = stop_check(e, j, token);

    gm_event ev = {.kind = GM_EVENT_TOKENS, .tokens = &token, .n_tokens = 1};
    if (with_row) {
        j->rows[0] = make_row(e, j, 0, token, e->raw, p->logprobs, p->all_logprobs);
        ev.logprobs = j->rows;
    }
    gm_engine_emit(e, j, &ev);
    if (ending.finish == GM_FINISH_NONE) return true;
    gm_engine_end(e, j, &ending);
    return false;
}
