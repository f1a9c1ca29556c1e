/* From a body to submitted engine requests: parse, render, tokenize, check the lengths. Runs on a worker. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/server_internal.h"

#define PROMPT_LOGPROBS_MAX (1ll << 25) /* values in one answer; each is about 60 bytes of JSON */

static size_t count_chars(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += (s[i] & 0xC0) != 0x80;
    return n;
}

/* What a request may still ask for: O of the length rules. */
static int64_t asked_output(const gm_job *j)
{
    return j->req.has_max_tokens && !j->srv->p.rules.clamp_max_tokens ? j->req.max_tokens : 0;
}

static gm_status check_output(const gm_job *j, gm_api_error *e)
{
    int64_t o = asked_output(j), len = j->srv->p.rules.model_len;
    if (o <= len) return GM_OK;
    return gm_api_fail(e, 400, j->req.max_tokens_name,
                       "%s=%lld cannot be greater than max_model_len=%lld. Please request fewer output tokens.",
                       j->req.max_tokens_name, (long long)o, (long long)len);
}

/* Text that is too long whatever its tokens are is refused before it is tokenized. */
static gm_status check_chars(const gm_job *j, const char *text, size_t len, gm_api_error *e)
{
    int64_t o = asked_output(j), max = j->srv->p.rules.model_len, k = max - o;
    int64_t most = k * gm_tokenizer_longest_token(j->srv->p.tokenizer);
    if (j->req.truncate || (int64_t)len <= most) return GM_OK;
    int64_t n = (int64_t)count_chars(text, len);
    if (n <= most) return GM_OK;
    return gm_api_fail(e, 400, "input_text",
                       "This model's maximum context length is %lld tokens. However, you requested %lld output tokens and your "
                       "prompt contains %lld characters (more than %lld characters, which is the upper bound for %lld input "
                       "tokens). Please reduce the length of the input prompt or the number of requested output tokens.",
                       (long long)max, (long long)o, (long long)n, (long long)most, (long long)k);
}

static void truncate_prompt(const gm_job *j, gm_ids *p)
{
    int64_t keep = j->req.truncate < 0 ? j->srv->p.rules.model_len - asked_output(j) : j->req.truncate;
    if (!j->req.truncate || (int64_t)p->n <= keep) return;
    if (!j->req.truncate_right) memmove(p->data, p->data + p->n - (size_t)keep, (size_t)keep * sizeof *p->data);
    p->n = (size_t)keep;
}

static gm_status check_length(const gm_job *j, gm_ids *p, gm_api_error *e)
{
    int64_t o = asked_output(j), max = j->srv->p.rules.model_len;
    truncate_prompt(j, p);
    int64_t n = (int64_t)p->n;
    if (n == 0) return gm_api_fail(e, 400, NULL, "The decoder prompt cannot be empty");
    if (n > max - o)
        return gm_api_fail(e, 400, "input_tokens",
                           "This model's maximum context length is %lld tokens. However, you requested %lld output tokens and "
                           "your prompt contains %lld input tokens, for a total of %lld tokens. Please reduce the length of "
                           "the input prompt or the number of requested output tokens.",
                           (long long)max, (long long)o, (long long)n, (long long)(n + o));
    if (n == max && j->req.kind == GM_API_CHAT) return gm_api_fail(e, 400, NULL, "max_tokens must be at least 1, got 0.");
    if (n == max)
        return gm_api_fail(e, 400, NULL,
                           "The decoder prompt (length %lld) plus the number of requested output tokens (at least 1) is longer "
                           "than the maximum model length of %lld. Make sure that `max_model_len` is no smaller than the number "
                           "of text tokens.",
                           (long long)n, (long long)max);
    return GM_OK;
}

static gm_status from_status(gm_status st, const gm_error *err, gm_api_error *e)
{
    bool theirs = st == GM_EARG || st == GM_EFORMAT || st == GM_ENOTSUP;
    return gm_api_fail(e, theirs ? 400 : 500, NULL, "%.900s", err->message);
}

/* Default arguments of the template under the request's own. The caller owns it; NULL: none. */
static json_t *merge_kwargs(const json_t *under, const json_t *over)
{
    if (!under && !over) return NULL;
    json_t *k = under ? json_copy((json_t *)(uintptr_t)under) : json_object();
    if (over) json_object_update(k, (json_t *)(uintptr_t)over);
    return k;
}

static gm_status render_chat(gm_job *j, gm_ids *ids, gm_api_error *e)
{
    const gm_server_params *p = &j->srv->p;
    const gm_api_request *r = &j->req;
    gm_chat_prompt prompt = {0};
    gm_error err = {0};
    json_t *kwargs = merge_kwargs(p->default_kwargs, r->kwargs);
    bool hide = r->kind == GM_API_CHAT && r->tool_choice == GM_TOOLS_NONE && p->exclude_tools_when_none;
    gm_chat_request req = {.messages = r->messages,
                           .tools = hide ? NULL : r->tools,
                           .reasoning_effort = r->effort,
                           .kwargs = kwargs,
                           .add_generation_prompt = r->add_generation_prompt,
                           .continue_final_message = r->continue_final};
    gm_status st = gm_chat_render(&prompt, p->chat, &req, &err);
    if (st) {
        from_status(st, &err, e);
    } else if (r->kind != GM_API_TOKENIZE && (st = check_chars(j, gm_str_c(&prompt.text), prompt.text.len, e))) {
    } else if ((st = gm_chat_encode(&prompt, p->tokenizer, p->special_in_text, ids, &err))) {
        from_status(st, &err, e);
    }
    j->thinking = prompt.thinking;
    gm_chat_prompt_fini(&prompt);
    json_decref(kwargs);
    return st;
}

static gm_status encode_prompt(gm_job *j, const gm_api_prompt *p, gm_ids *ids, gm_api_error *e)
{
    gm_error err = {0};
    gm_status st;
    if (p->ids) {
        size_t n = json_array_size(p->ids);
        for (size_t i = 0; i < n; i++) gm_ids_push(ids, gm_api_id(json_array_get(p->ids, i)));
        return GM_OK;
    }
    if (j->req.kind != GM_API_TOKENIZE && (st = check_chars(j, p->text, p->len, e))) return st;
    st = gm_tokenizer_encode(j->srv->p.tokenizer, p->text, p->len, GM_ADDED_MATCH, ids, &err);
    return st ? from_status(st, &err, e) : GM_OK;
}

static gm_status make_prompts(gm_job *j, gm_api_error *e)
{
    bool chat = j->req.messages != NULL;
    gm_status st = j->req.kind == GM_API_TOKENIZE ? GM_OK : check_output(j, e);
    if (st) return st;
    j->n_prompts = chat ? 1 : j->req.n_prompts;
    j->prompts = gm_new_array(gm_ids, j->n_prompts);
    for (int i = 0; i < j->n_prompts && !st; i++) {
        st = chat ? render_chat(j, &j->prompts[i], e) : encode_prompt(j, &j->req.prompts[i], &j->prompts[i], e);
        if (!st && j->req.kind != GM_API_TOKENIZE) st = check_length(j, &j->prompts[i], e);
        j->prompt_tokens += (int64_t)j->prompts[i].n;
    }
    return st;
}

/* ---- tokenize, detokenize ---- */

static void put_ids(gm_str *out, const gm_ids *ids)
{
    gm_str_putc(out, '[');
    for (size_t i = 0; i < ids->n; i++) gm_str_printf(out, i ? ",%d" : "%d", (int)ids->data[i]);
    gm_str_putc(out, ']');
}

static void answer_tokenize(gm_job *j)
{
    gm_str out = {0}, tok = {0};
    const gm_ids *ids = &j->prompts[0];
    gm_str_printf(&out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids->n, (int)j->srv->p.rules.model_len);
    put_ids(&out, ids);
    gm_str_puts(&out, ",\"token_strs\":");
    if (j->req.return_token_strs) {
        gm_str_putc(&out, '[');
        for (size_t i = 0; i < ids->n; i++) {
            gm_str_clear(&tok);
            gm_tokenizer_token_string(j->srv->p.tokenizer, ids->data[i], &tok);
            if (i) gm_str_putc(&out, ',');
            gm_json_put_string(&out, gm_str_c(&tok), tok.len);
        }
        gm_str_puts(&out, "]}");
    } else {
        gm_str_puts(&out, "null}");
    }
    gm_str_fini(&tok);
    gm_job_answer(j, 200, &out);
}

static gm_status answer_detokenize(gm_job *j, gm_api_error *e)
{
    gm_ids ids = {0};
    gm_str text = {0}, out = {0};
    gm_error err = {0};
    size_t n = json_array_size(j->req.tokens);
    for (size_t i = 0; i < n; i++) gm_ids_push(&ids, gm_api_id(json_array_get(j->req.tokens, i)));
    gm_status st = gm_tokenizer_decode(j->srv->p.tokenizer, ids.data, ids.n, false, &text, &err);
    if (!st) {
        gm_str_puts(&out, "{\"prompt\":");
        gm_json_put_string(&out, gm_str_c(&text), text.len);
        gm_str_putc(&out, '}');
        gm_job_answer(j, 200, &out);
    } else {
        gm_api_fail(e, 400, "tokens", "%.900s", err.message);
    }
    gm_ids_fini(&ids);
    gm_str_fini(&text);
    return st;
}

/* ---- submitting ---- */

typedef struct bad_words {
    gm_ids ids;
    int32_t lens[2 * GM_API_BAD_WORDS_MAX];
    int32_t n;
} bad_words;

/* Each word as it stands at the beginning of a text and after a blank. */
static gm_status encode_bad_words(const gm_job *j, bad_words *b, gm_api_error *e)
{
    gm_str s = {0};
    gm_error err = {0};
    if (j->req.n_bad_words && !j->srv->p.tokenizer) return gm_api_fail(e, 400, "bad_words", "bad_words needs a tokenizer.");
    for (int i = 0; i < 2 * j->req.n_bad_words; i++) {
        size_t before = b->ids.n;
        const char *w = j->req.bad_words[i / 2];
        gm_str_clear(&s);
        gm_str_printf(&s, "%s%s", i & 1 ? " " : "", w + strspn(w, " "));
        gm_tokenizer_encode(j->srv->p.tokenizer, gm_str_c(&s), s.len, GM_ADDED_MATCH, &b->ids, &err);
        if (b->ids.n > before) b->lens[b->n++] = (int32_t)(b->ids.n - before);
    }
    gm_str_fini(&s);
    return GM_OK;
}

static int32_t output_limit(const gm_job *j, int64_t prompt)
{
    const gm_api_defaults *d = &j->srv->p.rules.defaults;
    int64_t n = j->srv->p.rules.model_len - prompt;
    int64_t asked = j->req.has_max_tokens ? j->req.max_tokens : d->max_new_tokens;
    if (asked > 0 && asked < n) n = asked;
    if (j->req.has_max_tokens && j->req.max_tokens == 0) n = 1; /* echo alone: the token is computed and dropped */
    if (d->max_new_tokens_cap > 0 && d->max_new_tokens_cap < n) n = d->max_new_tokens_cap;
    return (int32_t)n;
}

static gm_sampling sampling_of(const gm_job *j, const bad_words *bad)
{
    const gm_api_request *r = &j->req;
    gm_sampling s = GM_SAMPLING_DEFAULT;
    s.temperature = r->temperature < 1e-5 ? 0 : (float)r->temperature;
    s.top_p = (float)r->top_p;
    s.top_k = (int32_t)r->top_k;
    s.min_p = (float)r->min_p;
    s.repetition_penalty = (float)r->repetition_penalty;
    s.presence_penalty = (float)r->presence_penalty;
    s.frequency_penalty = (float)r->frequency_penalty;
    s.has_seed = r->has_seed;
    s.seed = r->seed;
    if (r->want_logprobs) {
        s.logprobs = r->logprobs < 0 ? 0 : (int32_t)r->logprobs;
        s.all_logprobs = r->logprobs < 0;
    }
    s.min_tokens = (int32_t)r->min_tokens;
    s.ignore_eos = r->ignore_eos;
    s.stop_token_ids = r->stop_ids;
    s.n_stop_token_ids = r->n_stop_ids;
    s.bias_ids = r->bias_ids;
    s.bias_values = r->bias_values;
    s.n_bias = r->n_bias;
    s.allowed_ids = r->allowed_ids;
    s.n_allowed = r->n_allowed;
    s.bad_ids = bad->ids.data;
    s.bad_lens = bad->lens;
    s.n_bad = bad->n;
    if (r->think_budget >= 0 && j->thinking && j->srv->p.tokenizer) {
        s.think_budget = (int32_t)r->think_budget;
        s.think_end = gm_tokenizer_added_id(j->srv->p.tokenizer, "</think>");
    }
    return s;
}

static void ask_prompt_logprobs(const gm_job *j, gm_sampling *s)
{
    const gm_api_request *r = &j->req;
    bool echo = r->echo && r->want_logprobs;
    int64_t n = r->want_prompt_logprobs ? r->prompt_logprobs : r->logprobs;
    if (!r->want_prompt_logprobs && !echo) return;
    s->prompt_logprobs = n < 0 ? 0 : (int32_t)n;
    s->all_prompt_logprobs = n < 0;
}

static gm_status check_prompt_logprobs(const gm_job *j, gm_api_error *e)
{
    const gm_api_request *r = &j->req;
    if (!r->want_prompt_logprobs && !(r->echo && r->want_logprobs)) return GM_OK;
    int64_t each = r->want_prompt_logprobs ? r->prompt_logprobs : r->logprobs;
    if (each < 0) each = j->srv->p.rules.vocab_size;
    if ((each + 1) * j->prompt_tokens <= PROMPT_LOGPROBS_MAX) return GM_OK;
    return gm_api_fail(e, 400, "prompt_logprobs", "prompt_logprobs times the prompt's length is larger than %lld values.",
                       PROMPT_LOGPROBS_MAX);
}

static gm_status submit_failed(gm_status st, const gm_error *err, gm_api_error *e)
{
    switch (st) {
    case GM_ECAPACITY:
    case GM_ECANCELED:
        gm_api_fail(e, 503, NULL, "The server is busy: %.800s. Please try again later.", err->message);
        e->retry_after = 1;
        return st;
    case GM_EARG: gm_api_fail(e, 400, NULL, "%.900s", err->message); return st;
    default: gm_api_fail(e, 500, NULL, "%.900s", err->message); return st;
    }
}

static gm_status submit_choice(gm_job *j, int32_t i, const gm_sampling *base, gm_api_error *e)
{
    gm_choice *c = &j->choices[i];
    const gm_ids *ids = &j->prompts[c->prompt];
    int64_t k = i % j->req.n;
    gm_submit s = {.prompt = ids->data,
                   .n_prompt = (int32_t)ids->n,
                   .sampling = *base,
                   .priority = j->has_header_priority ? j->header_priority : j->req.priority,
                   .arrived_us = j->arrived_us,
                   .cache_salt = j->req.cache_salt,
                   .sink = {gm_job_sink, c}};
    s.sampling.max_tokens = output_limit(j, s.n_prompt);
    if (s.sampling.min_tokens > s.sampling.max_tokens) s.sampling.min_tokens = s.sampling.max_tokens;
    s.sampling.seed += k;
    if (k == 0) ask_prompt_logprobs(j, &s.sampling);
    gm_error err = {0};
    gm_request_id id = 0;
    gm_job_ref(j); /* until its FINISH was handled */
    gm_status st = gm_engine_submit(j->srv->p.engine, &s, &id, &err);
    if (st) {
        gm_job_unref(j);
        return submit_failed(st, &err, e);
    }
    pthread_mutex_lock(&j->lock);
    c->id = id;
    c->submitted = true;
    bool gone = j->gone;
    pthread_mutex_unlock(&j->lock);
    if (gone) gm_engine_cancel(j->srv->p.engine, id);
    return GM_OK;
}

static void name_job(gm_job *j)
{
    char made[20];
    gm_random_hex(made, 16);
    const char *given = j->header_id ? j->header_id : j->req.request_id;
    snprintf(j->id, sizeof j->id, "%s-%s", j->req.kind == GM_API_CHAT ? "chatcmpl" : "cmpl", given ? given : made);
    j->created = (int64_t)gm_wall_s();
}

static void log_request(const gm_job *j)
{
    const gm_api_request *r = &j->req;
    if (!j->srv->p.log_requests) return;
    gm_info("Received request %s: prompts=%d prompt_tokens=%lld n=%lld stream=%d temperature=%g top_p=%g top_k=%lld min_p=%g "
            "max_tokens=%lld stop_strings=%d",
            j->id, j->n_prompts, (long long)j->prompt_tokens, (long long)r->n, r->stream, r->temperature, r->top_p,
            (long long)r->top_k, r->min_p, r->has_max_tokens ? (long long)r->max_tokens : -1ll, r->n_stops);
}

static gm_status generate(gm_job *j, gm_api_error *e)
{
    bad_words *bad = gm_new(bad_words);
    gm_status st = check_prompt_logprobs(j, e);
    if (!st) st = encode_bad_words(j, bad, e);
    if (st) {
        gm_ids_fini(&bad->ids);
        gm_free(bad);
        return st;
    }
    name_job(j);
    j->parsing = j->req.kind == GM_API_CHAT && (j->srv->p.reasoning_parser || j->srv->p.tool_parser);
    int32_t n = (int32_t)(j->n_prompts * j->req.n);
    gm_choice *choices = gm_new_array(gm_choice, n);
    for (int32_t i = 0; i < n; i++) gm_choice_init(&choices[i], j, i, (int32_t)(i / j->req.n));
    j->n_open = n;
    pthread_mutex_lock(&j->lock);
    j->choices = choices;
    j->n_choices = n;
    j->writer_busy = true; /* events only gather until all are submitted */
    pthread_mutex_unlock(&j->lock);
    log_request(j);
    gm_sampling base = sampling_of(j, bad);
    for (int32_t i = 0; i < n && !st; i++) st = submit_choice(j, i, &base, e);
    gm_ids_fini(&bad->ids);
    gm_free(bad);
    gm_metrics_observe(&j->srv->metrics, &j->srv->metrics.params_n, (double)j->req.n);
    if (st) {
        j->failed = true;
        gm_job_cancel(j);
    } else if (j->req.stream) {
        gm_job_start_stream(j);
    }
    gm_job_to_writer(j); /* also after a failure: events of the others may be there */
    return st;
}

/* Refuse before the work of tokenizing; the engine's own test at submission has the last word. */
static gm_status check_queue(gm_job *j, gm_api_error *e)
{
    gm_error err = {0};
    gm_status st = gm_engine_has_room(j->srv->p.engine, &err);
    return st ? submit_failed(st, &err, e) : GM_OK;
}

static gm_status check_model(gm_job *j, gm_api_error *e)
{
    const char *m = j->req.model;
    if (!m || !*m) return GM_OK;
    for (int i = 0; i < j->srv->p.n_names; i++)
        if (!strcmp(j->srv->names[i], m)) return GM_OK;
    return gm_api_fail(e, 404, "model", "The model `%.200s` does not exist.", m);
}

static gm_status prepare(gm_job *j, gm_api_error *e)
{
    gm_status st = gm_api_parse(&j->req, j->route_api, gm_str_c(&j->body), j->body.len, &j->srv->p.rules, e);
    if (st) return st;
    atomic_fetch_sub(&j->srv->body_bytes, (long long)j->body.cap);
    gm_str_fini(&j->body);
    if ((st = check_model(j, e))) return st;
    if (j->req.kind == GM_API_DETOKENIZE) return answer_detokenize(j, e);
    bool generation = j->req.kind != GM_API_TOKENIZE;
    if (generation && (st = check_queue(j, e))) return st;
    if ((st = make_prompts(j, e))) return st;
    if (generation) return generate(j, e);
    answer_tokenize(j);
    return GM_OK;
}

/* Waits for the engine to come between two steps. */
static void answer_reset(gm_job *j)
{
    enum { RESET_WAIT_S = 10 };
    gm_str out = {0};
    bool ok = gm_engine_reset_prefix_cache(j->srv->p.engine, RESET_WAIT_S);
    gm_str_puts(&out, ok ? "{\"success\":true}" : "{\"success\":false}");
    gm_job_answer(j, 200, &out);
}

void gm_job_prepare(gm_job *j)
{
    gm_api_error e = {.status = 500, .type = "InternalServerError"};
    if (j->route->kind == R_RESET) {
        answer_reset(j);
        return;
    }
    if (prepare(j, &e)) gm_job_answer_error(j, &e);
}
