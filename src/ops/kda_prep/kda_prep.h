/* What stands between the KDA projections and its recurrence, per token and head h of width D:
 *   q <- q / sqrt(sum q^2 + 1e-6) * D^-0.5;  k <- k / sqrt(sum k^2 + 1e-6)      (in place; v is not touched)
 *   decay[h][d] = exp( lower * sigmoid( exp(A_log[h]) * (f[h][d] + dt_bias[h][d]) ) ), lower < 0
 *   beta[h]     = sigmoid(b[h]) */
#ifndef GM_OPS_KDA_PREP_H
#define GM_OPS_KDA_PREP_H
#include "ops/tensor.h"

typedef struct gm_kda_prep_args {
    float *q, *k;         /* [n][H][D], stride ldq for both */
    const float *f;       /* [n][H][D], stride H*D: output of f_b(f_a x) */
    const float *b;       /* [n][H]: output of b_proj */
    const float *A_log;   /* [H] */
    const float *dt_bias; /* [H][D] */
    float *decay;         /* [n][H][D]; may be f */
    float *beta;          /* [n][H]; may be b */
    int32_t n, n_heads, d_head;
    int64_t ldq;
    float lower;
    gm_device *dev;
} gm_kda_prep_args;
void gm_kda_prep(const gm_kda_prep_args *a);
#endif
