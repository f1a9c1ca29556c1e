/* y[r] += sum over its k experts e in rising order of weights[r][i] * D_e swiglu(G_e x[r], U_e x[r]).
 * Tokens are gathered by expert so that each expert's weights are read once a step; every product has the order of
 * gm_linear, and the sum over experts is taken per token in the order of ids: a token's result does not depend on the
 * batch. act BF16 rounds x and the swiglu output to BF16 before their products. */
#ifndef GM_OPS_MOE_EXPERTS_H
#define GM_OPS_MOE_EXPERTS_H
#include "ops/tensor.h"

typedef struct gm_moe_experts_args {
    const float *x;       /* [n][d] */
    float *y;             /* [n][d] */
    const int32_t *ids;   /* [n][k], rising; -1: none (skipped) */
    const float *weights; /* [n][k] */
    const gm_matrix *gate, *up, *down; /* [n_experts] each: [f][d], [f][d], [d][f] */
    int32_t n, d, f, n_experts, n_active;
    float limit; /* swiglu clamp; 0: none */
    gm_act act;
    gm_device *dev;
    void *workspace; /* gm_moe_experts_workspace() bytes, 64-byte aligned */
} gm_moe_experts_args;
int64_t gm_moe_experts_workspace(gm_device *dev, int32_t n_max, int32_t d, int32_t f, int32_t n_experts,
                                 int32_t n_active);
void gm_moe_experts(const gm_moe_experts_args *a);
#endif
