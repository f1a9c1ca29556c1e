/* y[r][h][:] = x[r][h][:] * rsqrt(mean x^2 + eps) * w[:] * sigmoid(g[r][h][:]), over each head's D values, FP32.
 * y may be x. */
#ifndef GM_OPS_GATED_NORM_H
#define GM_OPS_GATED_NORM_H
#include "ops/tensor.h"

typedef struct gm_gated_norm_args {
    const float *x, *g; /* [n][H][D] */
    const float *w;     /* [D] */
    float *y;           /* [n][H][D] */
    int32_t n, n_heads, d_head;
    float eps;
    gm_device *dev;
} gm_gated_norm_args;
void gm_gated_norm(const gm_gated_norm_args *a);
#endif
