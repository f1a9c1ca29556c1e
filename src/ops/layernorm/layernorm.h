/* y = (x - mean) * rsqrt(var + eps) * w + b over each row; var is the biased variance. y may be x.
 * round_bf16: the result is rounded to BF16 (index keys are cached in that precision). */
#ifndef GM_OPS_LAYERNORM_H
#define GM_OPS_LAYERNORM_H
#include "ops/tensor.h"

typedef struct gm_layernorm_args {
    const float *x;
    float *y;
    const float *w, *b; /* [d] */
    int32_t n, d;
    int64_t ldx, ldy;
    float eps;
    bool round_bf16;
    gm_device *dev;
} gm_layernorm_args;
void gm_layernorm(const gm_layernorm_args *a);
#endif
