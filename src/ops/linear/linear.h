/* y[r][g][o] = sum_k x[r][g][k] * W_g[o][k], for groups g < n_groups (attention heads; 1 for an ordinary layer).
 *
 * The sum of one output runs over k in an order that depends only on the variant and on W's shape, never on n: a
 * token's result is the same alone and in any batch. act BF16 rounds x to BF16 first. Weights: F32, BF16, FP8 blocks
 * (a partial sum per block column, then times its scale). Tolerance against the reference: 1e-5 * sum |x w|.
 * accumulate: y += instead of =. x and y do not overlap. */
#ifndef GM_OPS_LINEAR_H
#define GM_OPS_LINEAR_H
#include "ops/tensor.h"

typedef struct gm_linear_args {
    const float *x; /* row r, group g at x + r * ldx + g * x_group */
    float *y;       /* row r, group g at y + r * ldy + g * y_group */
    const gm_matrix *w; /* [n_groups] matrices of equal shape and dtype */
    int32_t n, n_groups;
    int64_t ldx, ldy, x_group, y_group; /* in elements */
    gm_act act;
    bool accumulate;
    gm_device *dev;
    void *workspace; /* gm_linear_workspace() bytes, 64-byte aligned; NULL where that is 0 */
} gm_linear_args;
int64_t gm_linear_workspace(gm_device *dev, int32_t n_max, int32_t k_max, int32_t n_groups_max);
void gm_linear(const gm_linear_args *a);
#endif
