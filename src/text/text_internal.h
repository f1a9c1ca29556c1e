/* What the files of this folder share. */
#ifndef GM_TEXT_INTERNAL_H
#define GM_TEXT_INTERNAL_H

#include "base/json.h"
#include "text/tokenizer.h"

/* A part of a text in which added tokens may match. Ranges are in order and do not overlap. */
typedef struct gm_text_range {
    size_t begin, end;
} gm_text_range;

/* As gm_tokenizer_encode(), with added tokens matched only where the whole literal lies inside one range.
 * Elsewhere a range's edge means nothing: the text between two matches is split and merged as one piece. text
 * must be UTF-8. */
gm_status gm_tokenizer_encode_ranges(const gm_tokenizer *t, const char *text, size_t len,
                                     const gm_text_range *ranges, size_t n_ranges, gm_ids *ids,
                                     gm_error *err);

/* Append s[0..len), each maximal part that no character can hold replaced by one U+FFFD (as Python's and
 * Rust's decoders do). With `more` a cut-off character at the end is left alone; returns how many bytes were
 * used. */
size_t gm_text_scrub(gm_str *out, const char *s, size_t len, bool more);

/* s[0..*len) without leading and trailing white space as Python's str.strip() sees it. */
const char *gm_text_strip(const char *s, size_t *len);
/* The blanks that separate tags: space, tab, line feed, carriage return, vertical tab, form feed. */
static inline bool gm_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* First occurrence of a literal; NULL: none. */
const char *gm_text_find(const char *s, size_t len, const char *needle);

#endif
