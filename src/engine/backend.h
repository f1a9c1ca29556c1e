/* What the engine runs steps on: the model, or in tests a script of token ids that stands in for it. */
#ifndef GM_ENGINE_BACKEND_H
#define GM_ENGINE_BACKEND_H

#include "model/forward.h"

typedef struct gm_backend gm_backend;
struct gm_backend {
    void *self;
    /* as gm_model_step() and gm_model_logits() */
    gm_status (*step)(void *self, const gm_batch *batch, gm_error *err);
    gm_status (*logits)(void *self, int32_t out_begin, int32_t n_rows, float *logits, gm_error *err);
    /* as gm_model_copy_slots(); asked for by prefix caching alone */
    gm_status (*copy_slots)(void *self, const gm_slot_copy *copies, int32_t n, gm_error *err);
};

/* The model as a backend; the model is borrowed. */
gm_backend gm_backend_from_model(gm_model *m);

/* A backend without a model, for tests of everything above it: greedy decoding of a sequence gives, at output
 * position i, script[i] of the script whose prompt's first token is its number (script_of = prompt[0] % n_scripts),
 * and `end` after its last token. Other ids get small logits that depend on the position, so that log-probabilities
 * and sampling have something to work on.
 *
 * It keeps token ids in the pages, as the model keeps latents, and checks each step as the model would: positions
 * follow on, ids, pages and slots are in bounds, no two sequences of a step share a slot or a page that one of them
 * writes, each page still holds what was stored there as the continuation of the pages before it, and the slot has seen
 * these tokens and no others. A breach is GM_EINTERNAL and says what it was.
 *
 * Where output begins it tells from the tokens: the longest end of the sequence that is a beginning of the script is
 * output. So a prompt should not end like its script begins. */
typedef struct gm_script {
    const int32_t *tokens;
    int32_t n;
} gm_script;
typedef struct gm_scripted gm_scripted;
gm_scripted *gm_scripted_create(const gm_script *scripts, int32_t n_scripts, int32_t vocab_size, int32_t end,
                                int32_t page_tokens, int32_t n_pages, int32_t n_slots);
void gm_scripted_set_step_us(gm_scripted *s, int64_t us); /* each step takes this long (real time) */
void gm_scripted_fail_after(gm_scripted *s, int64_t n_steps); /* the step after the next n fails; -1: never */
void gm_scripted_fail_copies(gm_scripted *s, int64_t n); /* the next n calls of copy_slots fail */
int64_t gm_scripted_copies(const gm_scripted *s); /* slots copied so far; not while a step may be running */
void gm_scripted_fail_count(gm_scripted *s, int64_t n_steps);  /* that many fail then in a row; 1 at first */
void gm_scripted_set_margin(gm_scripted *s, float margin); /* of the script's logit over the others; 20 at first */
int64_t gm_scripted_steps(const gm_scripted *s); /* steps so far; not while one may be running */
gm_backend gm_scripted_backend(gm_scripted *s);
void gm_scripted_destroy(gm_scripted *s);

#endif
