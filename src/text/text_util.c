#include "text/text_internal.h"

#include <string.h>

size_t gm_text_scrub(gm_str *out, const char *s, size_t len, bool more)
{
    size_t i = 0;
    for (;;) {
        size_t ok = gm_utf8_valid_len(s + i, len - i);
        gm_str_append(out, s + i, ok);
        i += ok;
        if (i == len) return i;
        size_t bad = 1; /* the longest part that a character could begin with */
        while (bad < 3 && bad < len - i && gm_utf8_incomplete(s + i, bad + 1)) bad++;
        if (more && i + bad == len && gm_utf8_incomplete(s + i, bad)) return i;
        gm_str_put_utf8(out, 0xFFFD);
        i += bad;
    }
}

/* Length of the white space character at s, 0 where there is none. */
static size_t space_len(const unsigned char *s, size_t len)
{
    if (len >= 1 && ((s[0] >= 9 && s[0] <= 13) || (s[0] >= 0x1C && s[0] <= 0x20))) return 1;
    if (len >= 2 && s[0] == 0xC2 && (s[1] == 0x85 || s[1] == 0xA0)) return 2;
    if (len < 3) return 0;
    uint32_t c = (uint32_t)s[0] << 16 | (uint32_t)s[1] << 8 | s[2];
    bool hit = c == 0xE19A80                       /* U+1680 */
               || (c >= 0xE28080 && c <= 0xE2808A) /* U+2000..200A */
               || c == 0xE280A8 || c == 0xE280A9   /* U+2028, 2029 */
               || c == 0xE280AF || c == 0xE2819F   /* U+202F, 205F */
               || c == 0xE38080;                   /* U+3000 */
    return hit ? 3 : 0;
}

const char *gm_text_strip(const char *s, size_t *len)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t n = *len, k;
    while (n && (k = space_len(p, n))) {
        p += k;
        n -= k;
    }
    bool more = true;
    while (n && more) {
        more = false;
        for (k = 1; k <= 3 && k <= n; k++)
            if (space_len(p + n - k, k) == k) {
                n -= k;
                more = true;
                break;
            }
    }
    *len = n;
    return (const char *)p;
}

const char *gm_text_find(const char *s, size_t len, const char *needle)
{
    return len ? memmem(s, len, needle, strlen(needle)) : NULL;
}
