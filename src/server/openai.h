/* The OpenAI dialect, inward: the JSON body of a request to a checked struct. No sockets, no engine, no text: what is
 * accepted here has the right types and bounds, and what is refused carries the status and body that clients know.
 *
 * Messages never echo a request's values beyond a short prefix of a name, so that an error body stays small. */
#ifndef GM_SERVER_OPENAI_H
#define GM_SERVER_OPENAI_H

#include "base/json.h"
#include "base/mem.h"

#define GM_API_PROMPTS_MAX 1024
#define GM_API_CHOICES_MAX 16384
#define GM_API_STOPS_MAX 16
#define GM_API_BAD_WORDS_MAX 128

typedef struct gm_api_error {
    int status;
    const char *type;
    char param[128]; /* "": null */
    char message[1024];
    int retry_after; /* seconds; 0: no header */
} gm_api_error;

/* Fill e; returns GM_EARG, so that it can end a function. */
gm_status gm_api_fail(gm_api_error *e, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The validator's form: one error at `param` ("body.x"), status 400, type "Bad Request". */
gm_status gm_api_invalid(gm_api_error *e, const char *param, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* {"error":{...}} */
void gm_api_error_put(const gm_api_error *e, gm_str *out);
/* The one line that goes into a stream after 200, blanks included. */
void gm_api_error_put_stream(const gm_api_error *e, gm_str *out);

typedef enum gm_api_kind { GM_API_CHAT, GM_API_COMPLETION, GM_API_TOKENIZE, GM_API_DETOKENIZE } gm_api_kind;

/* Values that a request without its own gets: from generation_config.json. */
typedef struct gm_api_defaults {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int64_t max_new_tokens;     /* 0: none */
    int64_t max_new_tokens_cap; /* from --override-generation-config; 0: none */
} gm_api_defaults;
#define GM_API_DEFAULTS ((gm_api_defaults){.temperature = 1, .top_p = 1, .repetition_penalty = 1})

typedef struct gm_api_rules {
    int32_t vocab_size, model_len;
    int64_t max_logprobs; /* -1: the vocabulary */
    bool has_tokenizer, auto_tools;
    bool clamp_max_tokens, force_usage;
    int64_t stream_interval;
    gm_api_defaults defaults;
} gm_api_rules;

typedef enum gm_tool_choice { GM_TOOLS_NONE, GM_TOOLS_AUTO } gm_tool_choice;

/* One prompt of a completion: text or ids, borrowed from the body. */
typedef struct gm_api_prompt {
    const char *text;
    size_t len;
    const json_t *ids;
} gm_api_prompt;

typedef struct gm_api_request {
    gm_api_kind kind;
    json_t *body;
    gm_arena arena; /* the arrays below */

    const char *model; /* NULL: the first served name */
    int64_t n;
    bool stream, include_usage, continuous_usage;
    int64_t stream_interval;

    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, min_tokens, priority, think_budget;
    bool has_seed, ignore_eos;
    bool has_max_tokens;
    int64_t max_tokens;
    const char *max_tokens_name;

    const char **stops;
    size_t *stop_lens;
    int n_stops;
    bool include_stop;
    int32_t *stop_ids;
    int32_t n_stop_ids;
    int32_t *bias_ids;
    float *bias_values;
    int32_t n_bias;
    int32_t *allowed_ids;
    int32_t n_allowed;
    const char **bad_words;
    int n_bad_words;

    bool want_logprobs;
    int64_t logprobs; /* -1: the vocabulary */
    bool want_prompt_logprobs;
    int64_t prompt_logprobs;
    bool skip_special, return_token_ids, tokens_as_ids;

    /* prompts */
    gm_api_prompt *prompts;
    int n_prompts;
    bool echo;
    int64_t truncate; /* 0: no; -1: to what is left beside max_tokens */
    bool truncate_right;

    /* chat, and the chat form of tokenize */
    const json_t *messages, *tools, *effort, *kwargs;
    gm_tool_choice tool_choice;
    bool parallel_calls, include_reasoning, add_generation_prompt, continue_final;

    /* tokenize, detokenize */
    const json_t *tokens;
    bool return_token_strs;

    const char *cache_salt; /* NULL: none */
    const char *request_id; /* NULL: none, or too long to be used as a label */
} gm_api_request;

/* Takes the text of a body. On failure nothing is left to release. */
gm_status gm_api_parse(gm_api_request *out, gm_api_kind kind, const char *text, size_t len, const gm_api_rules *rules,
                       gm_api_error *err);
void gm_api_request_fini(gm_api_request *r);

/* Ids of a JSON list that was checked by gm_api_parse, appended to out[0..). */
int32_t gm_api_id(const json_t *v);

#endif
