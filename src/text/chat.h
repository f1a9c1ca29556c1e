/* Chat prompts of the GLM-5 family, written natively: messages in OpenAI's form in, prompt text out. The released
 * templates are known by the SHA-256 of chat_template.jinja; see docs/chat.md for what each does. */
#ifndef GM_TEXT_CHAT_H
#define GM_TEXT_CHAT_H

#include "base/json.h"
#include "config/model_config.h"
#include "text/tokenizer.h"

typedef enum gm_chat_format {
    GM_CHAT_GLM5,      /* GLM-5 */
    GM_CHAT_GLM51,     /* GLM-5.1 */
    GM_CHAT_GLM52,     /* GLM-5.2 */
    GM_CHAT_GLM53,     /* GLM-5.3 and GLM-5.3-Flash */
} gm_chat_format;

/* Which format a checkpoint folder uses: by its chat_template.jinja's hash; without one, or with an unknown one, by
 * the config's family. *warning (caller frees, NULL: none) says so for an unknown template. */
gm_status gm_chat_detect(gm_chat_format *out, const char *dir, const gm_model_config *c, char **warning,
                         gm_error *err);
const char *gm_chat_format_name(gm_chat_format f);

typedef struct gm_chat_request {
    const json_t *messages; /* array, OpenAI form */
    const json_t *tools;    /* array or NULL */
    const json_t *reasoning_effort; /* any JSON value or NULL */
    const json_t *kwargs;   /* chat_template_kwargs: enable_thinking, clear_thinking, reasoning_effort ...; may be NULL */
    bool add_generation_prompt;
    bool continue_final_message; /* the last assistant message is left open */
} gm_chat_request;

/* A rendered prompt: text, and which parts of it came from the template (control) or from people (content). */
typedef struct gm_chat_span {
    size_t begin, end; /* bytes of text */
    bool content;      /* true: text of a user, system, tool or assistant message */
} gm_chat_span;
typedef struct gm_chat_prompt {
    gm_str text;
    gm_chat_span *spans;
    size_t n_spans, cap_spans;
    bool thinking; /* the prompt ends inside an open <think>: the reply starts as reasoning */
} gm_chat_prompt;

/* GM_EARG for messages that are malformed; the message names the path, e.g. "messages[3].role". */
gm_status gm_chat_render(gm_chat_prompt *out, gm_chat_format f, const gm_chat_request *req, gm_error *err);
void gm_chat_prompt_fini(gm_chat_prompt *p);

/* Encode: template parts with added tokens matched; content parts plainly, or matched too when special_in_text. */
gm_status gm_chat_encode(const gm_chat_prompt *p, const gm_tokenizer *t, bool special_in_text, gm_ids *ids,
                         gm_error *err);

/* JSON as Python's json.dumps(ensure_ascii=False) writes it: ", " and ": ", floats in repr form. */
void gm_chat_put_json(gm_str *out, const json_t *v);

#endif
