/* Server-sent events from a byte stream that is cut anywhere: lines end in LF, CR LF or CR, comments and
 * other fields are skipped, several data lines of one event are joined by LF. What an event means is not
 * known here. */
#ifndef GM_BENCH_SSE_H
#define GM_BENCH_SSE_H

#include "base/str.h"

typedef struct gm_sse {
    gm_str line, data; /* of an unfinished line, of an unfinished event */
    bool has_data, after_cr, begun;
    /* One event's data, valid during the call. */
    void (*on_event)(void *user, const char *data, size_t len);
    void *user;
} gm_sse;

/* Zero-initialise, set on_event and user. */
void gm_sse_push(gm_sse *s, const char *bytes, size_t len);
/* The stream ended: an event whose data line is complete is delivered though its blank line never came; the
 * beginning of a line is dropped. */
void gm_sse_finish(gm_sse *s);
void gm_sse_reset(gm_sse *s); /* for the next stream; keeps the room */
void gm_sse_fini(gm_sse *s);

#endif
