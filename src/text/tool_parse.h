/* The reply of a GLM model, cut into reasoning, content and tool calls while it streams.
 *
 * The parser is fed text (whole characters) and, where the tokenizer has them, tag tokens are plain text too: the
 * result is a function of the concatenated text and the start state alone, never of how it was cut into pieces.
 * Start state: reasoning when the prompt ended inside <think>. docs/chat.md has the grammar and the recoveries. */
#ifndef GM_TEXT_TOOL_PARSE_H
#define GM_TEXT_TOOL_PARSE_H

#include "base/json.h"

typedef struct gm_reply gm_reply;

typedef struct gm_reply_params {
    bool thinking;       /* the prompt ended inside an open <think> */
    bool reasoning;      /* split reasoning from content (a reasoning parser is on); false: all is content */
    const json_t *tools; /* the request's tools (borrowed for the parser's life); NULL: no tool parsing at all */
    bool parallel;       /* false: only the first call is shown */
} gm_reply_params;

typedef enum gm_reply_kind {
    GM_REPLY_REASONING, /* text */
    GM_REPLY_CONTENT,   /* text */
    GM_REPLY_CALL,      /* a call begins: name, index */
    GM_REPLY_ARGS,      /* text: a piece of the arguments' JSON of call `index` */
} gm_reply_kind;

typedef struct gm_reply_delta {
    gm_reply_kind kind;
    int32_t index; /* of the call, from 0 in call order */
    char *text;    /* name for CALL; owned by the list */
    size_t len;
} gm_reply_delta;
typedef struct gm_reply_deltas {
    gm_reply_delta *data;
    size_t n, cap;
} gm_reply_deltas;
void gm_reply_deltas_clear(gm_reply_deltas *d); /* frees the texts, keeps the room */
void gm_reply_deltas_fini(gm_reply_deltas *d);

gm_reply *gm_reply_create(const gm_reply_params *p);
void gm_reply_destroy(gm_reply *r);
/* Append what text adds. Adjacent pieces of the same kind and index are joined. */
void gm_reply_push(gm_reply *r, const char *text, size_t len, gm_reply_deltas *out);
/* The end of the reply. truncated: cut by a length limit, a stop string or a cancel: an open call is not closed. A
 * reply that ended by itself has its open call closed. What was held back comes out. */
void gm_reply_finish(gm_reply *r, bool truncated, gm_reply_deltas *out);
int32_t gm_reply_calls(const gm_reply *r); /* calls shown so far */
bool gm_reply_in_reasoning(const gm_reply *r); /* for counting reasoning tokens: the state after what was pushed */

#endif
