#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_texts[] = {
#define X(name, text) text,
    GM_STATUS_LIST(X)
#undef X
};

const char *gm_status_text(gm_status st)
{
    size_t n = sizeof status_texts / sizeof status_texts[0];
    return (size_t)st < n ? status_texts[st] : "unknown status";
}

gm_status gm_fail(gm_error *err, gm_status st, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->status = st;
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
    }
    return st;
}

gm_status gm_context(gm_error *err, gm_status st, const char *fmt, ...)
{
    if (err) {
        char words[sizeof err->message];
        char old[sizeof err->message];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(words, sizeof words, fmt, ap);
        va_end(ap);
        memcpy(old, err->message, sizeof old);
        size_t n = strlen(words);
        if (n > sizeof err->message - 3) n = sizeof err->message - 3;
        memcpy(err->message, words, n);
        memcpy(err->message + n, ": ", 2);
        size_t room = sizeof err->message - n - 3;
        size_t m = strnlen(old, sizeof old);
        if (m > room) m = room;
        memcpy(err->message + n + 2, old, m);
        err->message[n + 2 + m] = 0;
        err->status = st;
    }
    return st;
}

_Noreturn void gm_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "glimmer: %s:%d: broken invariant: %s\n", file, line, cond);
    abort();
}
