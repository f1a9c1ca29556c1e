/* Router: s = sigmoid(logits); experts are chosen by s + bias (bias FP32, for choosing only), largest first, ties:
 * lower id. With n_groups > 1 first the topk_groups groups with the largest sum of their two best choices win (ties:
 * lower group); experts of other groups count as -inf.
 * weight = s (without the bias), divided by (sum of the chosen s + 1e-20) when norm_topk, times scale.
 * ids come out in rising order: the sum over experts is then the same whoever computes it. */
#ifndef GM_OPS_MOE_ROUTE_H
#define GM_OPS_MOE_ROUTE_H
#include "ops/tensor.h"

#define GM_EXPERTS_MAX 1024

typedef struct gm_moe_route_args {
    const float *logits; /* [n][E] */
    const float *bias;   /* [E] */
    int32_t *ids;        /* [n][k] */
    float *weights;      /* [n][k] */
    int32_t n, n_experts, n_active, n_groups, topk_groups;
    float scale;
    bool norm_topk;
    gm_device *dev;
} gm_moe_route_args;
void gm_moe_route(const gm_moe_route_args *a);
#endif
