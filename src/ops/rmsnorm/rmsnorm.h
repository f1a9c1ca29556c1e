/* y[r][i] = x[r][i] * rsqrt(mean_i x[r][i]^2 + eps) * w[i]; statistics in FP32, nothing rounded between.
 * y may be x. Tolerance of the variants: relative 2e-6. */
#ifndef GM_OPS_RMSNORM_H
#define GM_OPS_RMSNORM_H
#include "ops/tensor.h"

typedef struct gm_rmsnorm_args {
    const float *x; /* [n][d], stride ldx */
    float *y;       /* [n][d], stride ldy */
    const float *w; /* [d] */
    int32_t n, d;
    int64_t ldx, ldy;
    float eps;
    gm_device *dev;
} gm_rmsnorm_args;
void gm_rmsnorm(const gm_rmsnorm_args *a);
#endif
