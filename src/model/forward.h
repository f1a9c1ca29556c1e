/* One step of the model over a flat batch of tokens: embed, layers, final norm; then logits on demand.
 *
 * A model is a list of op calls made from gm_model_config. Rows of several sequences are laid one after another;
 * a prompt chunk and a decode are the same thing (a slice of n_tokens >= 1 of one sequence). The result of a token
 * does not depend on the other slices of the step, nor on how its sequence was cut into steps. */
#ifndef GM_MODEL_FORWARD_H
#define GM_MODEL_FORWARD_H

#include "ops/slice.h"
#include "ops/tensor.h"
#include "model/weights.h"

typedef struct gm_batch {
    const int32_t *token_ids; /* [n_tokens] */
    int32_t n_tokens;
    const gm_slice *slices; /* [n_slices] */
    int32_t n_slices;
    const int32_t *out_rows; /* [n_out] rows of the flat batch whose final hidden state is wanted, ascending */
    int32_t n_out;
    bool (*stop)(void *user); /* asked before each layer; true: nobody wants the result any more. NULL: never */
    void *stop_user;
} gm_batch;

typedef struct gm_model_params {
    gm_act act;
    gm_kv_dtype kv_dtype;    /* of the latent rows */
    gm_kv_dtype index_dtype; /* of the index keys */
    int32_t page_tokens;  /* from gm_footprint; a multiple of index_pool */
    int32_t n_pages;      /* pages of the cache */
    int32_t n_slots;      /* slots for recurrent state; 0 where the model has none */
    int32_t batch_tokens_max; /* rows of the largest step */
    int32_t batch_slices_max;
    int32_t positions_max; /* longest sequence */
} gm_model_params;

typedef struct gm_model gm_model;

/* Takes all memory a step needs: cache, workspace, tables. The weights are borrowed and must outlive the model. */
gm_status gm_model_create(gm_model **out, const gm_weights *w, const gm_model_params *params, gm_device *dev,
                          gm_error *err);
void gm_model_destroy(gm_model *m);

/* Run the step. GM_ECANCELED when batch->stop said so: the rows of these sequences are then in doubt and must not be used
 * again. Token ids must be < vocab_size, pages and slots inside the pools (asserted). Allocates nothing.
 * Afterwards the n_out hidden rows are kept until the next step. */
gm_status gm_model_step(gm_model *m, const gm_batch *batch, gm_error *err);

/* Logits [n_rows][vocab_size] of kept rows out_begin .. out_begin + n_rows - 1 of the last step. */
gm_status gm_model_logits(gm_model *m, int32_t out_begin, int32_t n_rows, float *logits, gm_error *err);

/* Copy recurrent state between slots, one copy after another. Between two steps. */
gm_status gm_model_copy_slots(gm_model *m, const gm_slot_copy *copies, int32_t n, gm_error *err);

/* Bytes taken from the system: cache and workspace. */
int64_t gm_model_cache_bytes(const gm_model *m);
int64_t gm_model_workspace_bytes(const gm_model *m);

#endif
