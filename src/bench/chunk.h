/* What one chunk of a streamed answer says to somebody who measures: read without building a tree, because at
 * 100,000 chunks a second a tree of each would be the client's main work. */
#ifndef GM_BENCH_CHUNK_H
#define GM_BENCH_CHUNK_H

#include "base/str.h"

typedef struct gm_chunk {
    bool choices;  /* a non-empty list of choices */
    bool content;  /* some choice carries text, reasoning or a tool call that is not empty */
    bool finished; /* some choice has a finish_reason */
    bool usage;
    int64_t prompt_tokens, completion_tokens, cached_tokens; /* -1: not said */
    bool error;
} gm_chunk;

/* json[0..len) is one JSON object. Text of the choices is appended to *text, an error's message to *error;
 * either may be NULL. GM_EFORMAT: not a JSON object. */
gm_status gm_chunk_read(gm_chunk *out, const char *json, size_t len, gm_str *text, gm_str *error);

#endif
