/* A parallel layout, and what each of its ranks holds: weights, workspace, state and pages, with the rules by
 * which an engine cuts its memory. */
#ifndef GM_PLAN_LAYOUT_H
#define GM_PLAN_LAYOUT_H

#include "config/footprint.h"
#include "config/weight_parts.h"
#include "plan/machine.h"

typedef struct gm_layout {
    int32_t dp, tp; /* dp schedulers with a cache of their own, each over tp ranks */
    bool ep;        /* whole experts are spread over all ranks; otherwise each expert's width is cut */
    bool kv_shard;  /* pages are dealt out over the tp ranks, each token stored once (glimmer) */
} gm_layout;

/* "TP8", "DP8+EP8", "TP8+kv-shard", "DP2xTP4+EP8" */
void gm_layout_name(const gm_layout *l, char *buf, size_t len);
/* The layouts of n_gpus that a plan compares; returns how many, at most cap. */
int32_t gm_layout_list(gm_layout *out, int32_t cap, int32_t n_gpus);

/* Rules of the two engines that can be foreseen. */
typedef enum gm_engine_kind {
    GM_ENGINE_VLLM,    /* one pool of large blocks; recurrent state takes blocks of it */
    GM_ENGINE_GLIMMER, /* small pages and state slots, two pools */
} gm_engine_kind;

typedef struct gm_server_limits {
    double memory_share;  /* --gpu-memory-utilization */
    int32_t batch_tokens; /* --max-num-batched-tokens, of one scheduler */
    int32_t seqs;         /* --max-num-seqs, of one scheduler */
    int32_t model_len;    /* --max-model-len */
    gm_kv_dtype kv_dtype;
    gm_engine_kind engine;
} gm_server_limits;

/* The cache rows as that engine stores them. vLLM keeps FP8 index keys whatever the latent rows are, and its
 * FP8 rows have another form than ours. */
gm_footprint gm_engine_footprint(const gm_model_config *c, gm_engine_kind engine, gm_kv_dtype kv_dtype);

/* One rank's memory, in bytes, from the share of the device down to the pages. */
typedef struct gm_memory_map {
    double device, budget; /* all of it; times the share */
    gm_rank_weights weights;
    double workspace, reserve;
    double cache; /* budget - weights - workspace - reserve; negative: it does not fit */

    /* cache of one scheduler, as its ranks see it */
    int32_t page_tokens, seq_pages; /* seq_pages: pages of state that each sequence takes (vLLM) */
    double token_bytes, page_bytes; /* on one rank, all layers */
    double slot_bytes;              /* on one rank, of one sequence; 0: state is in pages, or there is none */
    int32_t n_pages, n_slots;       /* of one scheduler */
    double concurrency;             /* sequences of model_len at once, fractional as a server prints it */
    int64_t pool_tokens;            /* floor(concurrency * model_len): the "GPU KV cache size" line */
} gm_memory_map;

gm_memory_map gm_memory_map_compute(const gm_model_config *c, const gm_machine *m, const gm_layout *l,
                                    const gm_server_limits *s);

typedef enum gm_bound { GM_BOUND_PAGES, GM_BOUND_SLOTS, GM_BOUND_SEQS } gm_bound;

typedef struct gm_ceiling {
    int32_t per_rank; /* whole sequences of this length that one scheduler holds to their end */
    int32_t node;     /* dp times that: a sequence lives on one scheduler, so the floor is taken before */
    gm_bound bound;   /* what ends it */
    int32_t pages;    /* of one sequence, state included */
} gm_ceiling;

gm_ceiling gm_ceiling_compute(const gm_memory_map *map, const gm_layout *l, const gm_server_limits *s,
                              int64_t seq_tokens);
/* floor(pool_tokens / seq_tokens) * dp: what the printed pool size alone would say. */
int32_t gm_ceiling_naive(const gm_memory_map *map, const gm_layout *l, int64_t seq_tokens);

const char *gm_bound_name(gm_bound b);

#endif
