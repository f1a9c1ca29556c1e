#include "base/str.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void gm_str_reserve(gm_str *s, size_t extra)
{
    if (s->cap - s->len > extra) return;
    size_t cap = s->cap ? s->cap : 32;
    while (cap - s->len <= extra) {
        GM_ASSERT(cap < SIZE_MAX / 2);
        cap *= 2;
    }
    s->data = gm_realloc_array(s->data, cap, 1);
    s->cap = cap;
    s->data[s->len] = 0;
}

void gm_str_append(gm_str *s, const void *bytes, size_t n)
{
    gm_str_reserve(s, n);
    if (n) memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = 0;
}

void gm_str_puts(gm_str *s, const char *text)
{
    gm_str_append(s, text, strlen(text));
}

void gm_str_putc(gm_str *s, char c)
{
    gm_str_append(s, &c, 1);
}

void gm_str_vprintf(gm_str *s, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    GM_ASSERT(n >= 0);
    gm_str_reserve(s, (size_t)n);
    vsnprintf(s->data + s->len, (size_t)n + 1, fmt, ap);
    s->len += (size_t)n;
}

void gm_str_printf(gm_str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    gm_str_vprintf(s, fmt, ap);
    va_end(ap);
}

void gm_str_clear(gm_str *s)
{
    s->len = 0;
    if (s->data) s->data[0] = 0;
}

void gm_str_erase_head(gm_str *s, size_t n)
{
    GM_ASSERT(n <= s->len);
    if (!n) return;
    memmove(s->data, s->data + n, s->len - n + 1);
    s->len -= n;
}

void gm_str_fini(gm_str *s)
{
    gm_free(s->data);
    *s = (gm_str){0};
}

const char *gm_str_c(const gm_str *s)
{
    return s->data ? s->data : "";
}

char *gm_str_take(gm_str *s)
{
    char *p = s->data ? s->data : gm_strdup("");
    *s = (gm_str){0};
    return p;
}

/* Bytes of the sequence that lead byte c opens; 0 where c opens none. */
static size_t utf8_need(unsigned char c)
{
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF) return 2;
    if (c >= 0xE0 && c <= 0xEF) return 3;
    if (c >= 0xF0 && c <= 0xF4) return 4;
    return 0;
}

/* True where the first `have` bytes are a prefix of some valid sequence of `need` bytes. */
static bool utf8_prefix_ok(const unsigned char *p, size_t have)
{
    if (have > 1) {
        unsigned char lo = 0x80, hi = 0xBF;
        if (p[0] == 0xE0) lo = 0xA0;
        if (p[0] == 0xED) hi = 0x9F; /* surrogates */
        if (p[0] == 0xF0) lo = 0x90;
        if (p[0] == 0xF4) hi = 0x8F;
        if (p[1] < lo || p[1] > hi) return false;
    }
    for (size_t i = 2; i < have; i++)
        if (p[i] < 0x80 || p[i] > 0xBF) return false;
    return true;
}

size_t gm_utf8_valid_len(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;
    while (i < len) {
        size_t need = utf8_need(p[i]);
        if (need == 0 || need > len - i || !utf8_prefix_ok(p + i, need)) break;
        i += need;
    }
    return i;
}

bool gm_utf8_incomplete(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    if (len == 0) return true;
    size_t need = utf8_need(p[0]);
    return need > len && utf8_prefix_ok(p, len);
}

void gm_str_put_utf8(gm_str *s, uint32_t c)
{
    char b[4];
    size_t n;
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
    if (c < 0x80) {
        b[0] = (char)c;
        n = 1;
    } else if (c < 0x800) {
        b[0] = (char)(0xC0 | c >> 6);
        b[1] = (char)(0x80 | (c & 0x3F));
        n = 2;
    } else if (c < 0x10000) {
        b[0] = (char)(0xE0 | c >> 12);
        b[1] = (char)(0x80 | (c >> 6 & 0x3F));
        b[2] = (char)(0x80 | (c & 0x3F));
        n = 3;
    } else {
        b[0] = (char)(0xF0 | c >> 18);
        b[1] = (char)(0x80 | (c >> 12 & 0x3F));
        b[2] = (char)(0x80 | (c >> 6 & 0x3F));
        b[3] = (char)(0x80 | (c & 0x3F));
        n = 4;
    }
    gm_str_append(s, b, n);
}
