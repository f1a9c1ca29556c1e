/* config.json as a checked struct: the one place that knows the key names of glm5_next (GLM-5.3-Flash) and
 * glm_moe_dsa (GLM-5, 5.1, 5.2). Everything below reads this struct and no model name.
 *
 * A key that is missing, of the wrong type, out of bounds or asks for something that is not implemented is
 * refused with a message that names it: nothing is guessed. */
#ifndef GM_CONFIG_MODEL_CONFIG_H
#define GM_CONFIG_MODEL_CONFIG_H

#include "base/json.h"

#define GM_LAYERS_MAX 512
#define GM_EOS_MAX 16

typedef enum gm_family {
    GM_FAMILY_GLM5_NEXT,   /* GLM-5.3-Flash */
    GM_FAMILY_GLM_MOE_DSA, /* GLM-5, 5.1, 5.2 */
} gm_family;

typedef enum gm_mixer { GM_MIXER_KDA, GM_MIXER_MLA } gm_mixer;
typedef enum gm_index_kind {
    GM_INDEX_NONE,   /* a KDA layer */
    GM_INDEX_OWN,    /* the layer runs its own indexer */
    GM_INDEX_SHARED, /* the layer reuses the selection of the nearest earlier owner, in the same pass */
} gm_index_kind;
typedef enum gm_ffn { GM_FFN_DENSE, GM_FFN_MOE } gm_ffn;

typedef struct gm_layer_kind {
    gm_mixer mixer;
    gm_index_kind index;
    gm_ffn ffn;
} gm_layer_kind;

typedef struct gm_model_config {
    gm_family family;
    char model_type[32];   /* as in the file */
    char architecture[64]; /* architectures[0] */

    int32_t vocab_size, d_model, n_layers, n_mtp_layers; /* MTP layers are stored behind the n_layers trunk layers */
    int32_t max_positions;
    float rms_eps;
    gm_layer_kind layers[GM_LAYERS_MAX];
    bool tie_embeddings;

    /* MLA */
    int32_t n_heads, q_lora_rank, d_latent /* kv_lora_rank */, d_nope, d_rope, d_v;
    float rope_theta;     /* 0 where d_rope is 0 */
    float latent_eps;     /* q_a_layernorm and kv_a_layernorm */

    /* indexer */
    int32_t index_n_heads, index_d_head, index_topk; /* index_topk in tokens; a multiple of index_pool */
    int32_t index_pool;     /* tokens a pooled key covers; 1 without pooling */
    bool index_compress;    /* pooled keys are learned averages (glm5_next); false: the key itself */
    bool index_tail;        /* the unfinished pool's tokens are always selected */

    /* KDA; zero where no layer is KDA */
    int32_t kda_n_heads, kda_d_head, kda_conv;
    float kda_gate_lower; /* negative: g = lower * sigmoid(...) */

    /* feed-forward */
    int32_t d_ffn, d_expert, n_experts, n_shared, n_active;
    int32_t n_groups, topk_groups;
    float routed_scale;
    bool norm_topk;
    float swiglu_limit; /* 0: no clamp */

    /* residual streams (mHC); n_streams == 1: plain residual */
    int32_t n_streams, sinkhorn_iters;
    float hc_eps;

    /* tokens that end a turn: union of config.json and (added by the caller) generation_config.json */
    int32_t eos[GM_EOS_MAX], n_eos;
    int32_t pad_token; /* -1: none */

    /* quantization_config */
    bool fp8;             /* block-scaled E4M3 weights announced; the tensors' own dtypes decide */
    int32_t fp8_block[2]; /* rows, columns */
} gm_model_config;

/* Parse a config (an object as config.json holds). `what` names the source in messages. */
gm_status gm_model_config_parse(gm_model_config *out, const json_t *config, const char *what, gm_error *err);

/* <dir>/config.json with hf_overrides (may be NULL: an object merged in deeply, as --hf-overrides does). */
gm_status gm_model_config_load(gm_model_config *out, const char *dir, const json_t *hf_overrides, gm_error *err);

/* Add the eos ids of an integer or a list of integers; ids already there are kept once. */
gm_status gm_model_config_add_eos(gm_model_config *c, const json_t *ids, const char *what, gm_error *err);

int32_t gm_model_config_count(const gm_model_config *c, gm_mixer mixer);
int32_t gm_model_config_index_owners(const gm_model_config *c);

#endif
