/* h[i] += y[i] */
#ifndef GM_OPS_RESIDUAL_ADD_H
#define GM_OPS_RESIDUAL_ADD_H
#include "ops/tensor.h"

typedef struct gm_residual_add_args {
    float *h;
    const float *y;
    int64_t n; /* elements */
    gm_device *dev;
} gm_residual_add_args;
void gm_residual_add(const gm_residual_add_args *a);
#endif
