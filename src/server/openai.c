#include "server/openai.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

static const char *type_of_status(int status)
{
    switch (status) {
    case 404: return "NotFoundError";
    case 422: return "UnprocessableEntityError";
    case 501: return "NotImplementedError";
    case 503: return "Service Unavailable";
    case 500: return "InternalServerError";
    case 413: return "Request Entity Too Large";
    default: return "BadRequestError";
    }
}

gm_status gm_api_fail(gm_api_error *e, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    *e = (gm_api_error){.status = status, .type = type_of_status(status)};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return GM_EARG;
}

gm_status gm_api_invalid(gm_api_error *e, const char *param, const char *kind, const char *fmt, ...)
{
    char msg[512], loc[160] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    *e = (gm_api_error){.status = 400, .type = "Bad Request"};
    snprintf(e->param, sizeof e->param, "%s", param);
    /* 'body', 'a', 'b' out of body.a.b */
    size_t n = 0;
    for (const char *p = param; *p && n + 8 < sizeof loc;) {
        size_t len = strcspn(p, ".");
        n += (size_t)snprintf(loc + n, sizeof loc - n, "%s'%.*s'", n ? ", " : "", (int)(len < 64 ? len : 64), p);
        if (n >= sizeof loc) break;
        p += len + (p[len] == '.');
    }
    snprintf(e->message, sizeof e->message, "1 validation error:\n  {'type': '%s', 'loc': (%s), 'msg': '%s'}", kind, loc,
             msg);
    return GM_EARG;
}

void gm_api_error_put(const gm_api_error *e, gm_str *out)
{
    gm_str_puts(out, "{\"error\":{\"message\":");
    gm_json_put_string(out, e->message, strlen(e->message));
    gm_str_puts(out, ",\"type\":");
    gm_json_put_string(out, e->type, strlen(e->type));
    gm_str_puts(out, ",\"param\":");
    if (e->param[0]) gm_json_put_string(out, e->param, strlen(e->param));
    else gm_str_puts(out, "null");
    gm_str_printf(out, ",\"code\":%d}}", e->status);
}

void gm_api_error_put_stream(const gm_api_error *e, gm_str *out)
{
    gm_str_puts(out, "{\"error\": {\"message\": ");
    gm_json_put_string(out, e->message, strlen(e->message));
    gm_str_puts(out, ", \"type\": ");
    gm_json_put_string(out, e->type, strlen(e->type));
    gm_str_puts(out, ", \"param\": null, ");
    gm_str_printf(out, "\"code\": %d}}", e->status);
}

/* ---- one table of plain fields ---- */

typedef enum field_type { F_BOOL, F_INT, F_NUM, F_STR, F_OBJECT, F_ARRAY, F_ANY } field_type;

enum {
    K_CHAT = 1 << GM_API_CHAT,
    K_COMP = 1 << GM_API_COMPLETION,
    K_TOK = 1 << GM_API_TOKENIZE,
    K_DETOK = 1 << GM_API_DETOKENIZE,
    K_GEN = K_CHAT | K_COMP,
    K_MSG = K_CHAT | K_TOK,
    K_EVERY = K_GEN | K_TOK | K_DETOK,
};

typedef struct field {
    const char *name;
    field_type type;
    int kinds;
    int64_t offset; /* of gm_api_request; -1: only the type is checked here */
    double lo, hi;  /* lo > hi: no bounds */
    bool above;     /* lo itself is out */
} field;

#define AT(member) (int64_t) offsetof(gm_api_request, member)
#define FREE 1, 0, false

static const field fields[] = {
    {"model", F_STR, K_EVERY, AT(model), FREE},
    {"n", F_INT, K_GEN, AT(n), 1, GM_API_CHOICES_MAX, false},
    {"stream", F_BOOL, K_GEN, AT(stream), FREE},
    {"stream_interval", F_INT, K_GEN, AT(stream_interval), 1, 1e9, false},
    {"temperature", F_NUM, K_GEN, AT(temperature), 0, 2, false},
    {"top_p", F_NUM, K_GEN, AT(top_p), 0, 1, true},
    {"top_k", F_INT, K_GEN, AT(top_k), -1, 2147483647, false},
    {"min_p", F_NUM, K_GEN, AT(min_p), 0, 1, false},
    {"repetition_penalty", F_NUM, K_GEN, AT(repetition_penalty), 0, 1e6, true},
    {"presence_penalty", F_NUM, K_GEN, AT(presence_penalty), -2, 2, false},
    {"frequency_penalty", F_NUM, K_GEN, AT(frequency_penalty), -2, 2, false},
    {"seed", F_INT, K_GEN, AT(seed), FREE},
    {"min_tokens", F_INT, K_GEN, AT(min_tokens), 0, 2147483647, false},
    {"max_tokens", F_INT, K_GEN, -1, FREE},
    {"max_completion_tokens", F_INT, K_CHAT, -1, FREE},
    {"ignore_eos", F_BOOL, K_GEN, AT(ignore_eos), FREE},
    {"include_stop_str_in_output", F_BOOL, K_GEN, AT(include_stop), FREE},
    {"skip_special_tokens", F_BOOL, K_GEN, AT(skip_special), FREE},
    {"spaces_between_special_tokens", F_BOOL, K_GEN, -1, FREE},
    {"stop_token_ids", F_ARRAY, K_GEN, -1, FREE},
    {"logit_bias", F_OBJECT, K_GEN, -1, FREE},
    {"allowed_token_ids", F_ARRAY, K_GEN, -1, FREE},
    {"bad_words", F_ARRAY, K_GEN, -1, FREE},
    {"stream_options", F_OBJECT, K_GEN, -1, FREE},
    {"prompt_logprobs", F_INT, K_GEN, AT(prompt_logprobs), FREE},
    {"top_logprobs", F_INT, K_CHAT, -1, FREE},
    {"return_token_ids", F_BOOL, K_GEN, AT(return_token_ids), FREE},
    {"return_tokens_as_token_ids", F_BOOL, K_GEN, AT(tokens_as_ids), FREE},
    {"priority", F_INT, K_GEN, AT(priority), FREE},
    {"thinking_token_budget", F_INT, K_GEN, AT(think_budget), -1, 2147483647, false},
    {"truncate_prompt_tokens", F_INT, K_GEN, AT(truncate), -1, 2147483647, false},
    {"truncation_side", F_STR, K_GEN, -1, FREE},
    {"request_id", F_STR, K_GEN, AT(request_id), FREE},
    {"user", F_STR, K_GEN, -1, FREE},
    {"cache_salt", F_STR, K_GEN, -1, FREE},
    {"response_format", F_OBJECT, K_GEN, -1, FREE},
    {"structured_outputs", F_OBJECT, K_GEN, -1, FREE},
    {"use_beam_search", F_BOOL, K_GEN, -1, FREE},
    {"echo", F_BOOL, K_GEN, AT(echo), FREE},
    {"suffix", F_STR, K_COMP, -1, FREE},
    {"messages", F_ARRAY, K_MSG, AT(messages), FREE},
    {"tools", F_ARRAY, K_MSG, AT(tools), FREE},
    {"parallel_tool_calls", F_BOOL, K_CHAT, AT(parallel_calls), FREE},
    {"reasoning_effort", F_ANY, K_MSG, AT(effort), FREE},
    {"include_reasoning", F_BOOL, K_CHAT, AT(include_reasoning), FREE},
    {"chat_template_kwargs", F_OBJECT, K_MSG, AT(kwargs), FREE},
    {"chat_template", F_STR, K_MSG, -1, FREE},
    {"add_generation_prompt", F_BOOL, K_MSG, AT(add_generation_prompt), FREE},
    {"continue_final_message", F_BOOL, K_MSG, AT(continue_final), FREE},
    {"add_special_tokens", F_BOOL, K_GEN | K_TOK, -1, FREE},
    {"tokens", F_ARRAY, K_DETOK, AT(tokens), FREE},
    {"return_token_strs", F_BOOL, K_TOK, AT(return_token_strs), FREE},
};

static void *member(gm_api_request *r, int64_t offset)
{
    return (char *)r + offset;
}

static const json_t *get(const gm_api_request *r, const char *name)
{
    const json_t *v = json_object_get(r->body, name);
    return json_is_null(v) ? NULL : v;
}

/* A whole number; 5.0 counts as one, true does not. */
static bool int_of(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v)) return false;
    double d = json_real_value(v);
    if (fabs(d) > 9007199254740992.0 || d != floor(d)) return false;
    *out = (int64_t)d;
    return true;
}

static const char *const wanted[][2] = {
    [F_BOOL] = {"bool_type", "Input should be a valid boolean"},
    [F_INT] = {"int_type", "Input should be a valid integer"},
    [F_NUM] = {"float_type", "Input should be a valid number"},
    [F_STR] = {"string_type", "Input should be a valid string"},
    [F_OBJECT] = {"dict_type", "Input should be a valid dictionary"},
    [F_ARRAY] = {"list_type", "Input should be a valid list"},
};

static gm_status wrong_type(gm_api_error *err, const char *name, field_type t)
{
    char param[96];
    snprintf(param, sizeof param, "body.%s", name);
    return gm_api_invalid(err, param, wanted[t][0], "%s", wanted[t][1]);
}

static gm_status check_range(const field *f, double v, gm_api_error *err)
{
    if (f->lo > f->hi || ((f->above ? v > f->lo : v >= f->lo) && v <= f->hi)) return GM_OK;
    return gm_api_fail(err, 400, f->name, "%s must be in %c%g, %g], got %.9g.", f->name, f->above ? '(' : '[', f->lo, f->hi,
                       v);
}

static gm_status read_field(gm_api_request *r, const field *f, gm_api_error *err)
{
    const json_t *v = get(r, f->name);
    if (!v) return GM_OK;
    void *to = f->offset >= 0 ? member(r, f->offset) : NULL;
    int64_t i;
    switch (f->type) {
    case F_BOOL:
        if (!json_is_boolean(v)) break;
        if (to) *(bool *)to = json_is_true(v);
        return GM_OK;
    case F_INT:
        if (!int_of(v, &i)) break;
        if (to) *(int64_t *)to = i;
        return check_range(f, (double)i, err);
    case F_NUM: {
        if (!json_is_number(v)) break;
        double d = json_number_value(v);
        if (!isfinite(d)) break;
        if (to) *(double *)to = d;
        return check_range(f, d, err);
    }
    case F_STR:
        if (!json_is_string(v)) break;
        if (to) *(const char **)to = json_string_value(v);
        return GM_OK;
    case F_OBJECT:
        if (!json_is_object(v)) break;
        if (to) *(const json_t **)to = v;
        return GM_OK;
    case F_ARRAY:
        if (!json_is_array(v)) break;
        if (to) *(const json_t **)to = v;
        return GM_OK;
    case F_ANY:
        if (to) *(const json_t **)to = v;
        return GM_OK;
    }
    return wrong_type(err, f->name, f->type);
}

/* ---- fields with a shape of their own ---- */

static gm_status read_max_tokens(gm_api_request *r, gm_api_error *err)
{
    static const char *const names[] = {"max_completion_tokens", "max_tokens"};
    for (int i = r->kind == GM_API_CHAT ? 0 : 1; i < 2; i++) {
        const json_t *v = get(r, names[i]);
        int64_t least = r->kind == GM_API_COMPLETION && r->echo ? 0 : 1;
        if (!v) continue;
        int64_t n = 0;
        int_of(v, &n);
        if (n < least)
            return gm_api_fail(err, 400, names[i], "%s must be at least %lld, got %lld.", names[i], (long long)least,
                               (long long)n);
        if (r->has_max_tokens) continue;
        r->has_max_tokens = true;
        r->max_tokens = n;
        r->max_tokens_name = names[i];
    }
    if (r->kind == GM_API_COMPLETION && !r->has_max_tokens) {
        r->has_max_tokens = true;
        r->max_tokens = 16;
        r->max_tokens_name = "max_tokens";
    }
    return GM_OK;
}

static gm_status add_stop(gm_api_request *r, const json_t *v, gm_api_error *err)
{
    if (!json_is_string(v)) return wrong_type(err, "stop", F_STR);
    if (json_string_length(v) == 0) return gm_api_fail(err, 400, "stop", "stop cannot contain an empty string.");
    r->stops[r->n_stops] = json_string_value(v);
    r->stop_lens[r->n_stops++] = json_string_length(v);
    return GM_OK;
}

static gm_status read_stop(gm_api_request *r, gm_api_error *err)
{
    const json_t *v = get(r, "stop");
    if (!v) return GM_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > GM_API_STOPS_MAX)
        return gm_api_fail(err, 400, "stop", "stop has %zu strings; at most %d are allowed.", n, GM_API_STOPS_MAX);
    r->stops = gm_arena_alloc(&r->arena, (n + 1) * sizeof *r->stops);
    r->stop_lens = gm_arena_alloc(&r->arena, (n + 1) * sizeof *r->stop_lens);
    if (!json_is_array(v)) return add_stop(r, v, err);
    for (size_t i = 0; i < n; i++) {
        gm_status st = add_stop(r, json_array_get(v, i), err);
        if (st) return st;
    }
    return GM_OK;
}

static gm_status out_of_vocabulary(gm_api_error *err, const char *name, int64_t id)
{
    return gm_api_fail(err, 400, name, "Token id %lld is out of vocabulary", (long long)id);
}

static gm_status read_ids(gm_api_request *r, const char *name, int32_t **ids, int32_t *n, const gm_api_rules *rules,
                          gm_api_error *err)
{
    const json_t *v = get(r, name);
    if (!v) return GM_OK;
    size_t count = json_array_size(v);
    if (count > (size_t)rules->vocab_size)
        return gm_api_fail(err, 400, name, "%s has more entries than the vocabulary.", name);
    *ids = gm_arena_alloc(&r->arena, (count + 1) * sizeof **ids);
    for (size_t i = 0; i < count; i++) {
        int64_t id;
        if (!int_of(json_array_get(v, i), &id)) return wrong_type(err, name, F_INT);
        if (id < 0 || id >= rules->vocab_size) return out_of_vocabulary(err, name, id);
        (*ids)[(*n)++] = (int32_t)id;
    }
    return GM_OK;
}

static gm_status read_bias(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    const json_t *v = get(r, "logit_bias");
    const char *key;
    json_t *value;
    if (!v) return GM_OK;
    size_t n = json_object_size(v);
    if (n > (size_t)rules->vocab_size)
        return gm_api_fail(err, 400, "logit_bias", "logit_bias has more entries than the vocabulary.");
    r->bias_ids = gm_arena_alloc(&r->arena, (n + 1) * sizeof *r->bias_ids);
    r->bias_values = gm_arena_alloc(&r->arena, (n + 1) * sizeof *r->bias_values);
    json_t *obj = json_object_get(r->body, "logit_bias");
    json_object_foreach(obj, key, value) {
        char *end;
        int64_t id = strtoll(key, &end, 10);
        if (end == key || *end || strlen(key) > 20)
            return gm_api_fail(err, 400, "logit_bias", "logit_bias keys must be token ids.");
        if (!json_is_number(value)) return wrong_type(err, "logit_bias", F_NUM);
        if (id < 0 || id >= rules->vocab_size) return out_of_vocabulary(err, "logit_bias", id);
        double b = json_number_value(value);
        r->bias_ids[r->n_bias] = (int32_t)id;
        r->bias_values[r->n_bias++] = (float)(b > 100 ? 100 : b < -100 ? -100 : b);
    }
    return GM_OK;
}

static gm_status read_bad_words(gm_api_request *r, gm_api_error *err)
{
    const json_t *v = get(r, "bad_words");
    if (!v) return GM_OK;
    size_t n = json_array_size(v);
    if (n > GM_API_BAD_WORDS_MAX)
        return gm_api_fail(err, 400, "bad_words", "bad_words has %zu entries; at most %d are allowed.", n,
                           GM_API_BAD_WORDS_MAX);
    r->bad_words = gm_arena_alloc(&r->arena, (n + 1) * sizeof *r->bad_words);
    for (size_t i = 0; i < n; i++) {
        const json_t *w = json_array_get(v, i);
        if (!json_is_string(w)) return wrong_type(err, "bad_words", F_STR);
        if (!json_string_length(w)) return gm_api_fail(err, 400, "bad_words", "bad_words cannot contain an empty string.");
        r->bad_words[r->n_bad_words++] = json_string_value(w);
    }
    return GM_OK;
}

static gm_status check_logprob_count(const gm_api_rules *rules, const char *name, int64_t n, gm_api_error *err)
{
    if (n < -1) return gm_api_fail(err, 400, name, "%s must be non-negative or -1, got %lld.", name, (long long)n);
    int64_t asked = n < 0 ? rules->vocab_size : n;
    int64_t most = rules->max_logprobs < 0 ? rules->vocab_size : rules->max_logprobs;
    if (asked > most)
        return gm_api_fail(err, 400, name, "Requested %s of %lld, which is greater than max allowed: %lld", name,
                           (long long)asked, (long long)most);
    return GM_OK;
}

static gm_status read_logprobs(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    const json_t *v = get(r, "logprobs"), *top = get(r, "top_logprobs");
    gm_status st;
    if (r->kind == GM_API_CHAT) {
        if (v && !json_is_boolean(v)) return wrong_type(err, "logprobs", F_BOOL);
        r->want_logprobs = json_is_true(v);
        if (top) {
            int_of(top, &r->logprobs);
            if (r->logprobs != 0 && !r->want_logprobs)
                return gm_api_fail(err, 400, "top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
            if ((st = check_logprob_count(rules, "top_logprobs", r->logprobs, err))) return st;
        }
    } else if (v) {
        if (!int_of(v, &r->logprobs)) return wrong_type(err, "logprobs", F_INT);
        r->want_logprobs = true;
        if ((st = check_logprob_count(rules, "logprobs", r->logprobs, err))) return st;
    }
    if (get(r, "prompt_logprobs")) {
        r->want_prompt_logprobs = true;
        if (r->stream && r->prompt_logprobs != 0)
            return gm_api_fail(err, 400, "prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
        return check_logprob_count(rules, "prompt_logprobs", r->prompt_logprobs, err);
    }
    return GM_OK;
}

static gm_status read_stream_options(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    const json_t *v = get(r, "stream_options");
    static const char *const names[] = {"include_usage", "continuous_usage_stats"};
    bool set[2] = {false, false};
    if (v && !r->stream)
        return gm_api_fail(err, 400, "stream_options", "Stream options can only be defined when `stream=True`.");
    for (int i = 0; v && i < 2; i++) {
        const json_t *o = json_object_get(v, names[i]);
        if (!o || json_is_null(o)) continue;
        char path[64];
        snprintf(path, sizeof path, "stream_options.%s", names[i]);
        if (!json_is_boolean(o)) return wrong_type(err, path, F_BOOL);
        set[i] = json_is_true(o);
    }
    r->include_usage = r->stream && (set[0] || rules->force_usage);
    r->continuous_usage = r->include_usage && (set[1] || rules->force_usage);
    return GM_OK;
}

/* Asked-for constraints that we cannot enforce are refused: text that ignores a schema is worse than an error. */
static gm_status read_structure(gm_api_request *r, gm_api_error *err)
{
    const json_t *f = get(r, "response_format");
    if (f) {
        const char *type = json_string_value(json_object_get(f, "type"));
        if (!type) return gm_api_invalid(err, "body.response_format.type", "missing", "Field required");
        if (!strcmp(type, "json_schema") && !json_is_object(json_object_get(f, "json_schema")))
            return gm_api_fail(err, 400, "response_format",
                               "When response_format type is 'json_schema', the 'json_schema' field must be provided.");
        if (!strcmp(type, "json_schema") || !strcmp(type, "json_object") || !strcmp(type, "structural_tag"))
            return gm_api_fail(err, 501, "response_format", "response_format '%.32s' is not available.", type);
        if (strcmp(type, "text"))
            return gm_api_fail(err, 400, "response_format",
                               "response_format.type must be text, json_object, json_schema or structural_tag.");
    }
    const json_t *s = get(r, "structured_outputs");
    if (s && json_object_size(s)) return gm_api_fail(err, 501, "structured_outputs", "structured_outputs is not available.");
    if (json_is_true(get(r, "use_beam_search"))) return gm_api_fail(err, 501, "use_beam_search", "Beam search is not available.");
    if (get(r, "logprob_token_ids"))
        return gm_api_fail(err, 501, "logprob_token_ids", "logprob_token_ids is not available.");
    if (get(r, "repetition_detection"))
        return gm_api_fail(err, 501, "repetition_detection", "repetition_detection is not available.");
    return GM_OK;
}

/* ---- chat ---- */

static const char *tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static gm_status check_tools(gm_api_request *r, gm_api_error *err)
{
    if (!r->tools) return GM_OK;
    size_t n = json_array_size(r->tools);
    if (n == 0) return gm_api_fail(err, 400, "tools", "tools must not be an empty list; leave it out instead.");
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(r->tools, i);
        char path[64];
        snprintf(path, sizeof path, "body.tools.%zu", i);
        if (!json_is_object(t)) return gm_api_invalid(err, path, "dict_type", "Input should be a valid dictionary");
        const json_t *type = json_object_get(t, "type");
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function"))) {
            snprintf(path, sizeof path, "body.tools.%zu.type", i);
            return gm_api_invalid(err, path, "literal_error", "Input should be \\'function\\'");
        }
        if (!tool_name(t)) {
            snprintf(path, sizeof path, "body.tools.%zu.function.name", i);
            return gm_api_invalid(err, path, "missing", "Field required");
        }
    }
    return GM_OK;
}

static gm_status read_tool_choice(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    const json_t *c = get(r, "tool_choice");
    gm_status st = check_tools(r, err);
    if (st) return st;
    r->tool_choice = GM_TOOLS_NONE;
    const char *word = json_string_value(c);
    if (!c) {
        if (!r->tools) return GM_OK;
        r->tool_choice = rules->auto_tools ? GM_TOOLS_AUTO : GM_TOOLS_NONE;
        if (!rules->auto_tools) word = "auto";
    }
    if (word && !strcmp(word, "none")) return GM_OK;
    if (!r->tools) return gm_api_fail(err, 400, "tool_choice", "When using `tool_choice`, `tools` must be set.");
    if (json_is_object(c)) {
        const char *name = json_string_value(json_object_get(json_object_get(c, "function"), "name"));
        if (!name) return gm_api_invalid(err, "body.tool_choice.function.name", "missing", "Field required");
        for (size_t i = 0; i < json_array_size(r->tools); i++)
            if (!strcmp(tool_name(json_array_get(r->tools, i)), name))
                return gm_api_fail(err, 501, "tool_choice", "A named tool_choice is not available; use auto or none.");
        return gm_api_fail(err, 400, "tool_choice", "The tool specified in `tool_choice` does not match any of the "
                                                    "specified `tools`");
    }
    if (c && !word) return gm_api_invalid(err, "body.tool_choice", "type", "Input should be a string or a dictionary");
    if (word && !strcmp(word, "required"))
        return gm_api_fail(err, 501, "tool_choice", "tool_choice 'required' is not available; use auto or none.");
    if (word && strcmp(word, "auto"))
        return gm_api_fail(err, 400, "tool_choice", "tool_choice must be none, auto, required or a named function.");
    if (!rules->auto_tools)
        return gm_api_fail(err, 400, "tool_choice",
                           "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set");
    r->tool_choice = GM_TOOLS_AUTO;
    return GM_OK;
}

static gm_status read_chat(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    if (!r->messages) return gm_api_invalid(err, "body.messages", "missing", "Field required");
    if (!json_array_size(r->messages)) return gm_api_fail(err, 400, "messages", "messages must not be an empty list.");
    if (!rules->has_tokenizer)
        return gm_api_fail(err, 400, NULL, "The server has no tokenizer (--skip-tokenizer-init): only /v1/completions with "
                                           "token ids is available.");
    if (get(r, "chat_template"))
        return gm_api_fail(err, 400, "chat_template", "Chat template is passed with request, but "
                                                      "--trust-request-chat-template is not set. Refused request with "
                                                      "untrusted chat template.");
    if (r->add_generation_prompt && r->continue_final) {
        if (get(r, "add_generation_prompt"))
            return gm_api_fail(err, 400, NULL, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
        r->add_generation_prompt = false;
    }
    if (r->kind == GM_API_TOKENIZE) return check_tools(r, err);
    return read_tool_choice(r, rules, err);
}

/* ---- completions, tokenize, detokenize ---- */

static gm_status check_id_list(const json_t *ids, const char *name, const gm_api_rules *rules, gm_api_error *err)
{
    size_t n = json_array_size(ids);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        char path[64];
        if (!int_of(json_array_get(ids, i), &id)) {
            snprintf(path, sizeof path, "%s.%zu", name, i);
            return wrong_type(err, path, F_INT);
        }
        if (id < 0 || id >= rules->vocab_size) return out_of_vocabulary(err, name, id);
    }
    return GM_OK;
}

static gm_status add_prompt(gm_api_request *r, const json_t *v, const gm_api_rules *rules, gm_api_error *err)
{
    gm_api_prompt *p = &r->prompts[r->n_prompts++];
    if (json_is_string(v)) {
        if (!rules->has_tokenizer)
            return gm_api_fail(err, 400, "prompt", "The server has no tokenizer (--skip-tokenizer-init): prompts must be "
                                                   "token ids.");
        p->text = json_string_value(v);
        p->len = json_string_length(v);
        return GM_OK;
    }
    p->ids = v;
    return check_id_list(v, "prompt", rules, err);
}

static gm_status read_prompts(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    const json_t *v = get(r, "prompt");
    if (!v) return gm_api_invalid(err, "body.prompt", "missing", "Field required");
    bool list = json_is_array(v) && json_array_size(v) && !json_is_number(json_array_get(v, 0));
    size_t n = list ? json_array_size(v) : 1;
    if (!json_is_string(v) && !json_is_array(v))
        return gm_api_invalid(err, "body.prompt", "type", "Input should be a string, a list of strings, a list of integers or "
                                                          "a list of lists of integers");
    if (n > GM_API_PROMPTS_MAX)
        return gm_api_fail(err, 400, "prompt", "prompt has %zu entries; at most %d are allowed.", n, GM_API_PROMPTS_MAX);
    r->prompts = gm_arena_alloc(&r->arena, n * sizeof *r->prompts);
    if (!list) return add_prompt(r, v, rules, err);
    for (size_t i = 0; i < n; i++) {
        const json_t *p = json_array_get(v, i);
        if (!json_is_string(p) && !json_is_array(p))
            return gm_api_invalid(err, "body.prompt", "type", "Input should be a string or a list of integers");
        gm_status st = add_prompt(r, p, rules, err);
        if (st) return st;
    }
    return GM_OK;
}

static gm_status read_detokenize(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    if (!r->tokens) return gm_api_invalid(err, "body.tokens", "missing", "Field required");
    if (!rules->has_tokenizer)
        return gm_api_fail(err, 400, NULL, "The server has no tokenizer (--skip-tokenizer-init).");
    return check_id_list(r->tokens, "tokens", rules, err);
}

static gm_status read_tokenize(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    if (r->messages) return read_chat(r, rules, err);
    const json_t *v = get(r, "prompt");
    if (!v) return gm_api_invalid(err, "body.prompt", "missing", "Field required");
    if (!json_is_string(v)) return wrong_type(err, "prompt", F_STR);
    r->prompts = gm_arena_alloc(&r->arena, sizeof *r->prompts);
    return add_prompt(r, v, rules, err);
}

/* ---- all of it ---- */

static void set_defaults(gm_api_request *r, const gm_api_rules *rules)
{
    const gm_api_defaults *d = &rules->defaults;
    r->n = 1;
    r->stream_interval = rules->stream_interval > 0 ? rules->stream_interval : 1;
    r->temperature = d->temperature;
    r->top_p = d->top_p;
    r->top_k = d->top_k;
    r->min_p = d->min_p;
    r->repetition_penalty = d->repetition_penalty;
    r->think_budget = -1;
    r->skip_special = true;
    r->parallel_calls = r->include_reasoning = r->add_generation_prompt = true;
}

static gm_status read_generation(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    gm_status st;
    const char *side = json_string_value(get(r, "truncation_side"));
    if (rules->stream_interval > r->stream_interval) r->stream_interval = rules->stream_interval;
    r->has_seed = get(r, "seed") != NULL;
    if ((st = read_max_tokens(r, err)) || (st = read_stop(r, err)) || (st = read_bias(r, rules, err)) ||
        (st = read_bad_words(r, err)) ||
        (st = read_ids(r, "stop_token_ids", &r->stop_ids, &r->n_stop_ids, rules, err)) ||
        (st = read_ids(r, "allowed_token_ids", &r->allowed_ids, &r->n_allowed, rules, err)) ||
        (st = read_logprobs(r, rules, err)) || (st = read_stream_options(r, rules, err)) || (st = read_structure(r, err)))
        return st;
    if (get(r, "allowed_token_ids") && !r->n_allowed)
        return gm_api_fail(err, 400, "allowed_token_ids", "allowed_token_ids is not None and empty!");
    const json_t *salt = get(r, "cache_salt");
    if (salt && (!json_string_length(salt) || json_string_length(salt) > 1024))
        return gm_api_fail(err, 400, "cache_salt", "cache_salt must have 1 to 1024 characters.");
    r->cache_salt = json_string_value(salt);
    if (side && strcmp(side, "left") && strcmp(side, "right"))
        return gm_api_fail(err, 400, "truncation_side", "truncation_side must be left or right.");
    r->truncate_right = side && !strcmp(side, "right");
    if (get(r, "truncate_prompt_tokens") && r->truncate == 0)
        return gm_api_fail(err, 400, "truncate_prompt_tokens", "truncate_prompt_tokens must be at least 1, or -1.");
    if (r->has_max_tokens && r->min_tokens > r->max_tokens)
        return gm_api_fail(err, 400, "min_tokens", "min_tokens must be less than or equal to max_tokens=%lld, got %lld.",
                           (long long)r->max_tokens, (long long)r->min_tokens);
    if (r->temperature < 1e-5 && r->n > 1)
        return gm_api_fail(err, 400, "n", "n must be 1 when using greedy sampling, got %lld.", (long long)r->n);
    if (r->temperature >= 1e-5 && r->temperature < 0.01) r->temperature = 0.01;
    if (r->top_k < 0) r->top_k = 0;
    if (r->kind == GM_API_CHAT) {
        if (r->echo) return gm_api_fail(err, 501, "echo", "echo is not available for chat.");
        return GM_OK;
    }
    if (get(r, "suffix")) return gm_api_fail(err, 400, "suffix", "suffix is not currently supported");
    if (get(r, "prompt_embeds")) return gm_api_fail(err, 501, "prompt_embeds", "prompt_embeds is not available.");
    if (r->echo && !rules->has_tokenizer) return gm_api_fail(err, 400, "echo", "echo needs a tokenizer.");
    if (r->stream && r->echo) return gm_api_fail(err, 501, "echo", "echo is not available with stream.");
    return GM_OK;
}

static gm_status parse(gm_api_request *r, const gm_api_rules *rules, gm_api_error *err)
{
    gm_status st;
    set_defaults(r, rules);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if ((fields[i].kinds & (1 << r->kind)) && (st = read_field(r, &fields[i], err))) return st;
    if (r->request_id && strlen(r->request_id) > 256) r->request_id = NULL;
    switch (r->kind) {
    case GM_API_TOKENIZE: return read_tokenize(r, rules, err);
    case GM_API_DETOKENIZE: return read_detokenize(r, rules, err);
    case GM_API_CHAT: st = read_chat(r, rules, err); break;
    default: st = read_prompts(r, rules, err); break;
    }
    if (st) return st;
    if ((st = read_generation(r, rules, err))) return st;
    if (r->n * (r->n_prompts ? r->n_prompts : 1) > GM_API_CHOICES_MAX)
        return gm_api_fail(err, 400, "n", "n times the number of prompts must be at most %d.", GM_API_CHOICES_MAX);
    return GM_OK;
}

gm_status gm_api_parse(gm_api_request *out, gm_api_kind kind, const char *text, size_t len, const gm_api_rules *rules,
                       gm_api_error *err)
{
    gm_error e = {0};
    *out = (gm_api_request){.kind = kind};
    gm_status st = gm_json_parse(&out->body, text, len, "body", NULL, &e);
    if (st) {
        st = gm_api_invalid(err, "body", "json_invalid", "JSON decode error: %.200s", e.message);
    } else if (!json_is_object(out->body)) {
        st = gm_api_invalid(err, "body", "model_attributes_type", "Input should be a valid dictionary");
    } else {
        st = parse(out, rules, err);
    }
    if (st) gm_api_request_fini(out);
    return st;
}

void gm_api_request_fini(gm_api_request *r)
{
    json_decref(r->body);
    gm_arena_fini(&r->arena);
    *r = (gm_api_request){0};
}

int32_t gm_api_id(const json_t *v)
{
    int64_t id = -1;
    int_of(v, &id);
    return (int32_t)id;
}
