/* A growing byte string, always NUL-terminated (the NUL is not counted). Zero-initialise it. */
#ifndef GM_BASE_STR_H
#define GM_BASE_STR_H

#include "base/status.h"

#include <stdarg.h>

typedef struct gm_str {
    char *data; /* NULL while nothing was ever appended; use gm_str_c() for a C string */
    size_t len, cap;
} gm_str;

void gm_str_append(gm_str *s, const void *bytes, size_t n);
void gm_str_puts(gm_str *s, const char *text);
void gm_str_putc(gm_str *s, char c);
void gm_str_printf(gm_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void gm_str_vprintf(gm_str *s, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void gm_str_reserve(gm_str *s, size_t extra);
void gm_str_clear(gm_str *s);     /* keeps the room */
void gm_str_erase_head(gm_str *s, size_t n); /* drops the first n bytes */
void gm_str_fini(gm_str *s);
const char *gm_str_c(const gm_str *s);
char *gm_str_take(gm_str *s); /* the caller owns the C string (gm_free); s is empty afterwards */

/* Length of the longest prefix of s[0..len) that is valid UTF-8 (no over-long forms, no surrogates,
 * at most U+10FFFF). A sequence that is merely cut off at the end stops it too. */
size_t gm_utf8_valid_len(const char *s, size_t len);
/* True where s[0..len), len < 4, may still become one valid character with more bytes. */
bool gm_utf8_incomplete(const char *s, size_t len);
/* Append code point c (a surrogate or out-of-range value becomes U+FFFD). */
void gm_str_put_utf8(gm_str *s, uint32_t c);

#endif
