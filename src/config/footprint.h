/* Bytes of cache and of weights, from the config alone. One source for the allocator, the start-up log, `inspect`
 * and the planner. */
#ifndef GM_CONFIG_FOOTPRINT_H
#define GM_CONFIG_FOOTPRINT_H

#include "config/kv_dtype.h"
#include "config/model_config.h"

typedef struct gm_footprint_params {
    gm_kv_dtype latent_dtype;
    gm_kv_dtype index_dtype; /* engines differ: GPU servers keep FP8 index keys beside BF16 latent rows */
    bool bf16;               /* activations are BF16: convolution state and index tail are kept as BF16 */
} gm_footprint_params;

typedef struct gm_footprint {
    int32_t page_tokens; /* 64, or the next multiple of the pool size */
    int64_t latent_row_bytes, index_key_bytes; /* per token and layer; per pool and indexer layer */
    int32_t n_mla, n_index, n_kda;             /* layers that hold latent rows, index keys, recurrent state */
    int64_t page_bytes;    /* page_tokens tokens of all layers */
    double token_bytes;    /* page_bytes / page_tokens */
    int64_t slot_bytes;    /* per running sequence, whatever its length; 0: the model keeps no state */
    int64_t state_bytes, conv_bytes, tail_bytes; /* of one layer: a KDA layer's state and convolution, an indexer's tail */
    int64_t params_total, params_active; /* parameters of the trunk; those one token touches (embedding row left out) */
} gm_footprint;

gm_footprint gm_footprint_compute(const gm_model_config *c, const gm_footprint_params *p);

/* Pages that a sequence of n_tokens needs. */
int32_t gm_footprint_pages(const gm_footprint *f, int64_t n_tokens);

#endif
