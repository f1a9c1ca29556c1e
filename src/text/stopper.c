/* One Knuth-Morris-Pratt automaton a stop string: after each byte its state is the length of the longest
 * suffix of the text that begins the string, so the longest of all is exactly what must be held back. */
#include "text/detok.h"

#include <string.h>

#include "base/mem.h"

typedef struct pattern {
    char *text;
    size_t len;
    size_t *border; /* [len] longest proper border of text[0..i] */
    size_t state;
} pattern;

struct gm_stopper {
    pattern *patterns;
    int n;
    bool include_stop, done;
    gm_str held;
};

static void pattern_init(pattern *p, const char *text, size_t len)
{
    p->text = gm_strndup(text, len);
    p->len = len;
    p->border = gm_new_array(size_t, len ? len : 1);
    for (size_t i = 1, k = 0; i < len; i++) {
        while (k && text[i] != text[k]) k = p->border[k - 1];
        if (text[i] == text[k]) k++;
        p->border[i] = k;
    }
}

/* True: the pattern ends with this byte. */
static bool pattern_step(pattern *p, char c)
{
    if (!p->len) return false;
    size_t k = p->state;
    while (k && p->text[k] != c) k = p->border[k - 1];
    if (p->text[k] == c) k++;
    p->state = k;
    return k == p->len;
}

gm_stopper *gm_stopper_create(const char *const *stops, const size_t *lens, int n, bool include_stop)
{
    gm_stopper *s = gm_new(gm_stopper);
    s->patterns = gm_new_array(pattern, n > 0 ? n : 1);
    s->n = n;
    s->include_stop = include_stop;
    for (int i = 0; i < n; i++) pattern_init(&s->patterns[i], stops[i], lens[i]);
    return s;
}

void gm_stopper_destroy(gm_stopper *s)
{
    if (!s) return;
    for (int i = 0; i < s->n; i++) {
        gm_free(s->patterns[i].text);
        gm_free(s->patterns[i].border);
    }
    gm_free(s->patterns);
    gm_str_fini(&s->held);
    gm_free(s);
}

/* s[0..n) without a character that is cut off at its end. */
static size_t whole_chars(const char *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++)
        if (((unsigned char)s[n - k] & 0xC0) != 0x80) return gm_utf8_incomplete(s + n - k, k) ? n - k : n;
    return n;
}

/* Show held[0..n), but no part of a character. */
static void show(gm_stopper *s, size_t n, gm_str *out)
{
    n = n ? whole_chars(s->held.data, n) : 0;
    gm_str_append(out, s->held.data, n);
    gm_str_erase_head(&s->held, n);
}

static int step_all(gm_stopper *s, char c, size_t *longest)
{
    int hit = -1;
    *longest = 0;
    for (int i = 0; i < s->n; i++) {
        if (pattern_step(&s->patterns[i], c) && hit < 0) hit = i;
        if (s->patterns[i].state > *longest) *longest = s->patterns[i].state;
    }
    return hit;
}

int gm_stopper_push(gm_stopper *s, const char *text, size_t len, gm_str *out)
{
    size_t keep = 0;
    if (s->done || !len) return -1;
    for (size_t i = 0; i < len; i++) {
        int hit = step_all(s, text[i], &keep);
        if (hit < 0) continue;
        gm_str_append(&s->held, text, i + 1);
        show(s, s->include_stop ? s->held.len : s->held.len - s->patterns[hit].len, out);
        s->done = true;
        gm_str_clear(&s->held);
        return hit;
    }
    gm_str_append(&s->held, text, len);
    show(s, s->held.len - keep, out);
    return -1;
}

void gm_stopper_finish(gm_stopper *s, gm_str *out)
{
    gm_str_append(out, s->held.data, s->held.len);
    gm_str_clear(&s->held);
    s->done = true;
}
