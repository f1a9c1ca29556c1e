/* What the files of this folder share: the bound weights of each layer kind. */
#ifndef GM_MODEL_MODEL_INTERNAL_H
#define GM_MODEL_MODEL_INTERNAL_H

#include "base/mem.h"
#include "io/safetensors.h"
#include "model/weights.h"
#include "ops/tensor.h"

typedef struct gm_indexer_weights {
    gm_matrix wq_b, wk, head_weights; /* [H_i d_i][q_lora], [d_i][d], [H_i][d] */
    const float *k_norm_w, *k_norm_b; /* [d_i] */
    gm_matrix pool_gate;              /* [d_i][d]; only with compression */
    const float *pool_ape;            /* [pool][d_i] */
} gm_indexer_weights;

typedef struct gm_mla_weights {
    gm_matrix q_a, q_b, kv_a, o;
    const float *q_a_norm, *kv_a_norm;
    gm_matrix *uk; /* [n_heads] of [d_latent][d_nope]: W_uk transposed, so that q' = W_ukᵀ q is an ordinary product */
    gm_matrix *uv; /* [n_heads] of [d_v][d_latent] */
    gm_indexer_weights index; /* only where the layer owns an indexer */
} gm_mla_weights;

typedef struct gm_kda_weights {
    gm_matrix q, k, v, f_a, f_b, g_a, g_b, b, o;
    const float *conv; /* [3 H D][taps], channels in the order q, k, v */
    const float *A_log, *dt_bias, *o_norm;
} gm_kda_weights;

typedef struct gm_mlp_weights {
    gm_matrix gate, up, down;
} gm_mlp_weights;

typedef struct gm_moe_weights {
    gm_matrix router;
    const float *bias;
    gm_matrix *gate, *up, *down; /* [n_experts] each */
    gm_mlp_weights shared;       /* width d_expert * n_shared; only where n_shared > 0 */
} gm_moe_weights;

typedef struct gm_hc_weights {
    gm_matrix fn;
    const float *base, *scale;
} gm_hc_weights;

typedef struct gm_layer_weights {
    const float *input_norm, *post_norm; /* [d] */
    gm_hc_weights hc_attn, hc_ffn;       /* only with several streams */
    gm_mla_weights mla;
    gm_kda_weights kda;
    gm_mlp_weights mlp;
    gm_moe_weights moe;
} gm_layer_weights;

struct gm_weights {
    gm_model_config config;
    gm_matrix embed, head;
    const float *norm;
    gm_layer_weights *layers; /* [n_layers] */

    gm_checkpoint *checkpoint; /* NULL: dummy weights */
    gm_arena arena;            /* converted vectors, matrix arrays */
    struct gm_weights_block *blocks; /* large converted or made-up matrices */
    int64_t bytes;
    gm_str skipped;
};

/* Memory that lives as long as the weights; NULL when there is none left. */
void *gm_weights_block_alloc(gm_weights *w, size_t size);

/* Fill n elements of a made-up tensor: values that depend on (seed, name, index) alone. kind says how they spread. */
typedef enum gm_fill { GM_FILL_MATRIX, GM_FILL_ONES, GM_FILL_BIAS, GM_FILL_A_LOG } gm_fill;
void gm_dummy_fill(void *data, gm_st_dtype dtype, int64_t n, int64_t fan_in, gm_fill fill, uint64_t seed, const char *name,
                   gm_device *dev);

#endif
