/* What a step costs: the bytes and operations of each part, divided by the machine's rates. Pure arithmetic;
 * the same numbers serve the simulator, `plan --explain` and the fit. docs/planner.md has the formulas in
 * words. */
#ifndef GM_PLAN_COST_H
#define GM_PLAN_COST_H

#include "plan/layout.h"

/* Parts of a step's time, in the order of --explain. */
#define GM_COST_PARTS(X)                                                                                     \
    X(fixed, "launches and small kernels")                                                                   \
    X(weights, "reading weights that every token uses")                                                      \
    X(experts, "reading the experts that were chosen")                                                       \
    X(state, "recurrent state, read and written")                                                            \
    X(latent, "cached latent rows read")                                                                     \
    X(index, "cached index keys scanned")                                                                    \
    X(dense_math, "matrix work outside the experts")                                                         \
    X(expert_math, "matrix work of the experts")                                                             \
    X(attn_math, "attention and index scores")                                                               \
    X(token, "passes over activations")                                                                      \
    X(reduce, "all-reduce between tensor-parallel ranks")                                                    \
    X(exchange, "expert exchange between data-parallel ranks")

typedef struct gm_step_cost {
#define X(part, what) double part; /* seconds */
    GM_COST_PARTS(X)
#undef X
} gm_step_cost;

double gm_step_cost_total(const gm_step_cost *c);

/* What one scheduler's ranks do in a step. */
typedef struct gm_rank_load {
    int64_t tokens;   /* query tokens */
    int64_t decodes;  /* of them, those that are the only one of their sequence in this step */
    int64_t seqs;     /* sequences with tokens in this step: each one's state is read and written */
    int64_t rows;     /* rows of logits */
    int64_t attended; /* sum over query tokens of the cached tokens each attends to */
    int64_t
        decode_attended; /* the part of `attended` that belongs to decodes: their rows are read once each */
    int64_t scored;      /* sum over query tokens of the index keys each is scored against */
    int64_t decode_scored;
} gm_rank_load;

typedef struct gm_cost {
    gm_model_config config;
    gm_machine machine;
    gm_layout layout;
    gm_weight_parts parts;
    gm_rank_weights weights;
    int32_t select;               /* most cached tokens a query attends to */
    double latent_row, index_key; /* bytes */
    double state_bytes;           /* one sequence, one rank, all layers */
    int32_t n_mla, n_index, n_kda, n_moe;
    /* filled once: seconds per unit */
    double s_per_byte, s_per_flop_bf16, s_per_flop_fp8;
} gm_cost;

void gm_cost_init(gm_cost *c, const gm_model_config *config, const gm_machine *m, const gm_layout *l,
                  const gm_server_limits *s);

/* Add a chunk of n tokens of one sequence that has `begin` tokens in the cache; samples: it yields a row of
 * logits. */
void gm_rank_load_add(gm_rank_load *load, const gm_cost *c, int64_t begin, int64_t n, bool samples);

/* The time of a step in which scheduler i does loads[i] (n of them, = layout.dp). All ranks step together;
 * the slowest one counts. parts may be NULL. */
double gm_cost_step(const gm_cost *c, const gm_rank_load *loads, int32_t n, gm_step_cost *parts);

#endif
