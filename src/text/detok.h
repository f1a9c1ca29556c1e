/* Incremental detokenizer: token by token in, whole characters out. Bytes of a character that is not complete yet
 * are held back; bytes that can no longer become one turn into U+FFFD. The concatenation of what comes out equals
 * gm_tokenizer_decode() of all ids, however they were grouped. */
#ifndef GM_TEXT_DETOK_H
#define GM_TEXT_DETOK_H

#include "text/tokenizer.h"

typedef struct gm_detok {
    const gm_tokenizer *t;
    bool skip_special;
    unsigned char held[4];
    int n_held;
} gm_detok;

void gm_detok_init(gm_detok *d, const gm_tokenizer *t, bool skip_special);
/* Append what id adds to out. An id without text is an error. */
gm_status gm_detok_push(gm_detok *d, int32_t id, gm_str *out, gm_error *err);
/* At the end: a truncated character becomes U+FFFD. */
void gm_detok_finish(gm_detok *d, gm_str *out);

/* Stop strings over streamed text: holds back what may be the beginning of a stop string. */
typedef struct gm_stopper gm_stopper;
gm_stopper *gm_stopper_create(const char *const *stops, const size_t *lens, int n, bool include_stop);
void gm_stopper_destroy(gm_stopper *s);
/* Append text; what may be shown goes to out. Returns the index of the stop string that completed first (ties: the
 * earlier in the list), or -1. After a hit nothing more is shown. */
int gm_stopper_push(gm_stopper *s, const char *text, size_t len, gm_str *out);
void gm_stopper_finish(gm_stopper *s, gm_str *out); /* at a normal end: what was held back */

#endif
