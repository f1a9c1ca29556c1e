#include "bench/chunk.h"

#include <ctype.h>
#include <string.h>

enum { DEPTH_MAX = 64 };

typedef struct cursor {
    const char *p, *end;
} cursor;

typedef struct span {
    const char *p;
    size_t n;
} span;

static void blanks(cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\t' || *c->p == '\r')) c->p++;
}

static bool take(cursor *c, char ch)
{
    blanks(c);
    if (c->p == c->end || *c->p != ch) return false;
    c->p++;
    return true;
}

static char peek(cursor *c)
{
    blanks(c);
    return c->p < c->end ? *c->p : 0;
}

/* The inside of a string, escapes untouched. */
static bool string(cursor *c, span *out)
{
    if (!take(c, '"')) return false;
    const char *start = c->p;
    for (;;) {
        const char *q = memchr(c->p, '"', (size_t)(c->end - c->p));
        if (!q) return false;
        size_t slashes = 0;
        while (q - slashes > start && q[-1 - (ptrdiff_t)slashes] == '\\') slashes++;
        c->p = q + 1;
        if (slashes % 2 == 0) {
            *out = (span){start, (size_t)(q - start)};
            return true;
        }
    }
}

static bool skip(cursor *c, int depth);

/* One member after the other: false at the end, *bad on nonsense. */
static bool member(cursor *c, bool *first, span *key, bool *bad)
{
    if (take(c, '}')) return false;
    if ((!*first && !take(c, ',')) || !string(c, key) || !take(c, ':')) {
        *bad = true;
        return false;
    }
    *first = false;
    return true;
}

static bool element(cursor *c, bool *first, bool *bad)
{
    if (take(c, ']')) return false;
    if (!*first && !take(c, ',')) *bad = true;
    *first = false;
    return !*bad;
}

static bool skip(cursor *c, int depth)
{
    bool first = true, bad = false;
    span s;
    if (depth > DEPTH_MAX) return false;
    switch (peek(c)) {
    case '"':
        return string(c, &s);
    case '{':
        c->p++;
        while (member(c, &first, &s, &bad))
            if (!skip(c, depth + 1)) return false;
        return !bad;
    case '[':
        c->p++;
        while (element(c, &first, &bad))
            if (!skip(c, depth + 1)) return false;
        return !bad;
    default:
        break;
    }
    const char *start = c->p; /* a number, true, false, null */
    while (c->p < c->end && (isalnum((unsigned char)*c->p) || *c->p == '-' || *c->p == '+' || *c->p == '.'))
        c->p++;
    return c->p > start;
}

static bool is(span s, const char *word)
{
    return s.n == strlen(word) && !memcmp(s.p, word, s.n);
}

static int hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)p[i])) return -1;
        v = v * 16 + (isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    }
    return v;
}

static void unescape(span s, gm_str *out)
{
    const char *p = s.p, *end = s.p + s.n;
    while (p < end) {
        const char *b = memchr(p, '\\', (size_t)(end - p));
        if (!b) b = end;
        gm_str_append(out, p, (size_t)(b - p));
        if (b + 1 >= end) return;
        p = b + 2;
        static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
        const char *at = strchr(from, b[1]);
        if (b[1] != 'u') {
            gm_str_putc(out, at ? to[at - from] : b[1]);
            continue;
        }
        int hi = hex4(p, end), lo;
        if (hi < 0) return;
        p += 4;
        if (hi >= 0xd800 && hi < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u' &&
            (lo = hex4(p + 2, end)) >= 0xdc00 && lo < 0xe000) {
            gm_str_put_utf8(out, 0x10000u + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00));
            p += 6;
        } else {
            gm_str_put_utf8(out, (uint32_t)hi);
        }
    }
}

/* A string value: true (and appended) where it is one and is not empty. */
static bool text_value(cursor *c, gm_str *text, bool *bad)
{
    span s;
    if (peek(c) != '"') {
        *bad |= !skip(c, 0);
        return false;
    }
    if (!string(c, &s)) {
        *bad = true;
        return false;
    }
    if (text) unescape(s, text);
    return s.n > 0;
}

static void read_delta(cursor *c, gm_chunk *out, gm_str *text, bool *bad)
{
    bool first = true;
    span key;
    if (!take(c, '{')) {
        *bad |= !skip(c, 0);
        return;
    }
    while (!*bad && member(c, &first, &key, bad)) {
        if (is(key, "content") || is(key, "reasoning") || is(key, "reasoning_content")) {
            out->content |= text_value(c, text, bad);
        } else if (is(key, "tool_calls")) {
            blanks(c);
            const char *start = c->p;
            *bad |= !skip(c, 0);
            out->content |= !*bad && *start == '[' && c->p - start > 2;
        } else {
            *bad |= !skip(c, 0);
        }
    }
}

static void read_choice(cursor *c, gm_chunk *out, gm_str *text, bool *bad)
{
    bool first = true;
    span key;
    if (!take(c, '{')) {
        *bad = true;
        return;
    }
    while (!*bad && member(c, &first, &key, bad)) {
        if (is(key, "text")) {
            out->content |= text_value(c, text, bad);
        } else if (is(key, "delta")) {
            read_delta(c, out, text, bad);
        } else if (is(key, "finish_reason")) {
            out->finished |= peek(c) == '"';
            *bad |= !skip(c, 0);
        } else {
            *bad |= !skip(c, 0);
        }
    }
}

static int64_t count(cursor *c, bool *bad)
{
    int64_t v = 0;
    char ch = peek(c);
    cursor at = *c;
    *bad |= !skip(c, 0);
    if (ch < '0' || ch > '9') return -1;
    for (; at.p < c->p && isdigit((unsigned char)*at.p) && v < (int64_t)1 << 50; at.p++)
        v = 10 * v + (*at.p - '0');
    return v;
}

static void read_usage(cursor *c, gm_chunk *out, bool *bad)
{
    bool first = true, inner = true;
    span key;
    if (!take(c, '{')) {
        *bad |= !skip(c, 0);
        return;
    }
    out->usage = true;
    while (!*bad && member(c, &first, &key, bad)) {
        if (is(key, "prompt_tokens")) {
            out->prompt_tokens = count(c, bad);
        } else if (is(key, "completion_tokens")) {
            out->completion_tokens = count(c, bad);
        } else if (is(key, "prompt_tokens_details") && peek(c) == '{') {
            c->p++;
            while (!*bad && member(c, &inner, &key, bad)) {
                if (is(key, "cached_tokens")) out->cached_tokens = count(c, bad);
                else *bad |= !skip(c, 0);
            }
        } else {
            *bad |= !skip(c, 0);
        }
    }
}

/* {"message": "...", ...}, a bare string, or anything else that is not null. */
static void read_error(cursor *c, gm_chunk *out, gm_str *error, bool *bad)
{
    bool first = true;
    span key;
    blanks(c);
    const char *start = c->p;
    out->error = peek(c) != 'n';
    if (peek(c) == '"') {
        text_value(c, error, bad);
    } else if (peek(c) == '{') {
        bool said = false;
        c->p++;
        while (!*bad && member(c, &first, &key, bad)) {
            if (is(key, "message")) said |= text_value(c, error, bad);
            else *bad |= !skip(c, 0);
        }
        if (error && !said && !*bad) gm_str_append(error, start, (size_t)(c->p - start));
    } else {
        *bad |= !skip(c, 0);
    }
}

gm_status gm_chunk_read(gm_chunk *out, const char *json, size_t len, gm_str *text, gm_str *error)
{
    cursor c = {json, json + len};
    bool first = true, bad = false;
    span key;
    *out = (gm_chunk){.prompt_tokens = -1, .completion_tokens = -1, .cached_tokens = -1};
    if (!take(&c, '{')) return GM_EFORMAT;
    while (!bad && member(&c, &first, &key, &bad)) {
        if (is(key, "choices") && peek(&c) == '[') {
            bool f = true;
            c.p++;
            while (!bad && element(&c, &f, &bad)) {
                out->choices = true;
                read_choice(&c, out, text, &bad);
            }
        } else if (is(key, "usage")) {
            read_usage(&c, out, &bad);
        } else if (is(key, "error")) {
            read_error(&c, out, error, &bad);
        } else {
            bad |= !skip(&c, 0);
        }
    }
    blanks(&c);
    return bad || c.p != c.end ? GM_EFORMAT : GM_OK;
}
