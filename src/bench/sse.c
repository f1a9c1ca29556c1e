#include "bench/sse.h"

#include <string.h>

static void deliver(gm_sse *s)
{
    if (s->has_data) s->on_event(s->user, gm_str_c(&s->data), s->data.len);
    gm_str_clear(&s->data);
    s->has_data = false;
}

static void take_line(gm_sse *s, const char *p, size_t n)
{
    if (!s->begun && n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3, n -= 3;
    s->begun = true;
    if (!n) {
        deliver(s);
        return;
    }
    if (n < 4 || memcmp(p, "data", 4) || (n > 4 && p[4] != ':')) return;
    if (s->has_data) gm_str_putc(&s->data, '\n');
    s->has_data = true;
    size_t skip = n == 4 ? 4 : n > 5 && p[5] == ' ' ? 6 : 5;
    gm_str_append(&s->data, p + skip, n - skip);
}

static size_t line_end(const char *p, size_t n)
{
    const char *lf = memchr(p, '\n', n);
    if (lf) n = (size_t)(lf - p);
    const char *cr = memchr(p, '\r', n);
    return cr ? (size_t)(cr - p) : n;
}

void gm_sse_push(gm_sse *s, const char *bytes, size_t len)
{
    size_t at = 0;
    while (at < len) {
        if (s->after_cr && bytes[at] == '\n') {
            s->after_cr = false;
            at++;
            continue;
        }
        s->after_cr = false;
        size_t n = line_end(bytes + at, len - at);
        if (at + n == len) {
            gm_str_append(&s->line, bytes + at, n);
            return;
        }
        if (s->line.len) {
            gm_str_append(&s->line, bytes + at, n);
            take_line(s, gm_str_c(&s->line), s->line.len);
            gm_str_clear(&s->line);
        } else {
            take_line(s, bytes + at, n);
        }
        s->after_cr = bytes[at + n] == '\r';
        at += n + 1;
    }
}

void gm_sse_finish(gm_sse *s)
{
    deliver(s);
}

void gm_sse_reset(gm_sse *s)
{
    gm_str_clear(&s->line);
    gm_str_clear(&s->data);
    s->has_data = s->after_cr = s->begun = false;
}

void gm_sse_fini(gm_sse *s)
{
    gm_str_fini(&s->line);
    gm_str_fini(&s->data);
}
