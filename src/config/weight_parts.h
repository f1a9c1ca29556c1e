/* The weights of a model by part, and the bytes of them that one rank of a layout holds. Reads the config
 * only. */
#ifndef GM_CONFIG_WEIGHT_PARTS_H
#define GM_CONFIG_WEIGHT_PARTS_H

#include "config/model_config.h"

/* Parameters, summed over the trunk layers. "split" parts are cut over the ranks of tensor parallelism; the
 * others are whole on every rank. */
typedef struct gm_weight_parts {
    int64_t embed, head;          /* split by vocabulary rows */
    int64_t kda_split, kda_whole; /* whole: the low-rank gate inputs */
    int64_t mla_split, mla_whole; /* whole: the latent down-projections */
    int64_t index;                /* whole: one indexer serves all heads */
    int64_t dense, shared;        /* split */
    int64_t expert;               /* one routed expert of one layer */
    int64_t n_expert_layers, n_experts;
    int64_t rest;   /* whole: norms, routers, residual mixers */
    int64_t vision; /* whole; 0 where the checkpoint has no tower */
} gm_weight_parts;

gm_weight_parts gm_weight_parts_count(const gm_model_config *c);

typedef struct gm_rank_split {
    int32_t tp;       /* ranks that cut the split parts */
    int32_t n_ranks;  /* all ranks: the routed experts are cut over all of them */
    bool mla_as_bf16; /* the engine widens FP8 latent projections to BF16 at load */
} gm_rank_split;

/* Bytes on one rank. FP8 parts carry one FP32 scale for each block. */
typedef struct gm_rank_weights {
    double embed, head, kda, mla, index, dense, shared, experts, rest, vision;
    double total;
} gm_rank_weights;

gm_rank_weights gm_rank_weights_compute(const gm_model_config *c, const gm_weight_parts *p,
                                        const gm_rank_split *s);

/* Bytes of one parameter of the parts that an FP8 checkpoint stores as FP8. */
double gm_fp8_param_bytes(const gm_model_config *c);

#endif
