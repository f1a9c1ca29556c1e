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
typedef enum gm_fill { GM_FILL_MATRIX, GM_FILL_ONES, GM_FILL_BIAS, GM_FILL_A_LOG, GM_FILL_SCALE } gm_fill;
void gm_dummy_fill(void *data, gm_st_dtype dtype, int64_t n, int64_t fan_in, gm_fill fill, uint64_t seed, const char *name,
                   gm_device *dev);

/* ---- the forward pass ---- */

#include "config/footprint.h"
#include "model/forward.h"

/* Rows of activations, all FP32. One scratch region serves the three kinds of sub-block in turn. */
typedef struct gm_scratch_kda {
    float *raw, *qkv, *low, *f, *g, *b, *o; /* [B][3W], [B][3W], [B][D], [B][W], [B][W], [B][H], [B][W] */
} gm_scratch_kda;

typedef struct gm_scratch_mla {
    float *ql, *q, *kv, *q_lat, *o_lat, *ov; /* [B][q_lora], [B][H qk], [B][d_latent + d_rope], [B][H d_latent] x 2, [B][H d_v] */
    float *iq, *ik, *ie, *iw;                /* [B][H_i d_i], [B][d_i], [B][d_i], [B][H_i] */
    float *scores;                           /* blocks of rows x visible pools */
    int64_t scores_n;
} gm_scratch_mla;

typedef struct gm_scratch_ffn {
    float *gate, *up, *logits, *weights;
    int32_t *ids;
} gm_scratch_ffn;

struct gm_model {
    const gm_weights *w;
    const gm_model_config *c;
    gm_device *dev;
    gm_model_params p;
    gm_footprint foot;
    gm_act act;

    /* cache */
    uint8_t *pages; /* latent rows and index keys, one region a layer */
    uint8_t *slots; /* [n_slots] of slot_bytes */
    int64_t pages_bytes, slots_bytes;
    int64_t *latent_at, *index_at; /* [n_layers] offsets into pages */
    int64_t *state_at, *conv_at, *tail_at; /* [n_layers] offsets into a slot */

    /* workspace */
    uint8_t *work;
    int64_t work_bytes;
    float *h, *x, *y, *post, *comb; /* [B][S][d], [B][d], [B][d], [B][S], [B][S][S] */
    float *out;                     /* [B][d]: the kept rows, normalised */
    gm_pos *pos;                    /* [B] */
    int32_t *slice_of;              /* [B] */
    gm_pool_pos *sel;               /* [B][n_select]: selection of the nearest owner */
    int32_t *n_sel;                 /* [B] */
    void *linear_ws, *attn_ws, *moe_ws;
    gm_scratch_kda kda;
    gm_scratch_mla mla;
    gm_scratch_ffn ffn;

    /* the running step */
    gm_rows rows;
    int32_t n_out;
    int64_t pools_max; /* visible to any row of the step */

    /* tests: called with the residual before layer i, and with the normalised output rows for i = n_layers */
    void (*trace)(void *user, int32_t layer, const float *data, int64_t n);
    void *trace_user;
};

/* y [n][d] = the sub-block applied to x [n][d], rows and cache as the step says */
void gm_layer_kda(gm_model *m, int32_t layer);
void gm_layer_mla(gm_model *m, int32_t layer);
void gm_layer_dense(gm_model *m, int32_t layer);
void gm_layer_moe(gm_model *m, int32_t layer);

/* x W^T for all rows of the step: y = or += */
void gm_model_linear(gm_model *m, const gm_matrix *w, const float *x, int64_t ldx, float *y, int64_t ldy, gm_act act);

#endif
