/* The pre-split: a regular expression (PCRE2, UTF and Unicode classes, JIT) whose matches are words; what
 * lies between two matches is a word as well. */
#ifndef GM_TEXT_PRESPLIT_H
#define GM_TEXT_PRESPLIT_H

#include "base/status.h"

typedef struct gm_presplit gm_presplit;         /* the compiled pattern: immutable, shared by threads */
typedef struct gm_presplit_run gm_presplit_run; /* one thread's working memory */

gm_status gm_presplit_create(gm_presplit **out, const char *pattern, size_t len, const char *what,
                             gm_error *err);
void gm_presplit_destroy(gm_presplit *p);

gm_presplit_run *gm_presplit_start(const gm_presplit *p);
void gm_presplit_stop(gm_presplit_run *r);
/* The end of the word that begins at `at` (at < len). text is valid UTF-8. Words are asked for in order; a
 * run remembers a match that it found behind an unmatched part, so `restart` is true for the first word of a
 * text. */
gm_status gm_presplit_next(gm_presplit_run *r, const char *text, size_t len, size_t at, bool restart,
                           size_t *end, gm_error *err);

#endif
