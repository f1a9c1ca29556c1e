/* y[i] = silu(min(g[i], limit)) * clamp(u[i], -limit, limit); limit 0: no clamp. The gate is clamped only from above,
 * and before silu. y may be g. */
#ifndef GM_OPS_SWIGLU_H
#define GM_OPS_SWIGLU_H
#include "ops/tensor.h"

typedef struct gm_swiglu_args {
    const float *g, *u; /* [n][d], strides ldg, ldu */
    float *y;           /* [n][d], stride ldy */
    int32_t n, d;
    int64_t ldg, ldu, ldy;
    float limit;
    gm_device *dev;
} gm_swiglu_args;
void gm_swiglu(const gm_swiglu_args *a);
#endif
