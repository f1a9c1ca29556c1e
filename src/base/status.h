/* Status codes and error messages: the one error convention of the whole tree.
 *
 * A function that can fail returns gm_status; zero is success. The place that
 * knows the cause writes the message once with gm_fail(); callers pass the
 * status on or put words in front with gm_context(). `err` may be NULL where
 * nobody wants the text. */
#ifndef GM_BASE_STATUS_H
#define GM_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GM_STATUS_LIST(X)                                                                                    \
    X(OK, "ok")                                                                                              \
    X(EARG, "bad argument")                                                                                  \
    X(EFORMAT, "malformed input")                                                                            \
    X(EIO, "input or output failed")                                                                         \
    X(ENOTFOUND, "not found")                                                                                \
    X(ENOTSUP, "not supported")                                                                              \
    X(ECAPACITY, "no room")                                                                                  \
    X(ENOMEM, "out of memory")                                                                               \
    X(ECANCELED, "cancelled")                                                                                \
    X(ETIMEOUT, "timed out")                                                                                 \
    X(EDEVICE, "device failed")                                                                              \
    X(EINTERNAL, "internal error")

typedef enum gm_status {
#define X(name, text) GM_##name,
    GM_STATUS_LIST(X)
#undef X
} gm_status;

typedef struct gm_error {
    gm_status status;
    char message[1024];
} gm_error;

/* The fixed text of a code, for instance "no room". */
const char *gm_status_text(gm_status st);

/* Write the message (truncated to fit) and return st. err may be NULL. */
gm_status gm_fail(gm_error *err, gm_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "<words>: " in front of the message that is there; returns err->status. */
gm_status gm_context(gm_error *err, gm_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A broken invariant of ours (never bad input): says where and aborts. On in release builds too. */
#define GM_ASSERT(cond) ((cond) ? (void)0 : gm_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void gm_assert_failed(const char *cond, const char *file, int line);

#endif
