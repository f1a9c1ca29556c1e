/* Manifold-constrained hyper-connections: the residual is n_streams (S) vectors (GLM-5.3-Flash, spec of mHC).
 *
 * gm_mhc_pre, per token, all in FP32:
 *   f = the S*d stream values; r = rsqrt(mean f^2 + rms_eps); m = r * (fn f), S*(2+S) values
 *   pre[s]  = sigmoid(scale[0] m[s] + base[s]) + hc_eps
 *   post[s] = 2 sigmoid(scale[1] m[S+s] + base[S+s])
 *   C[i][j] = softmax over j of (scale[2] m[2S + S i + j] + base[2S + S i + j]), + hc_eps; then each column divided
 *             by (its sum + hc_eps); then iters - 1 times: rows by (sum + hc_eps), columns by (sum + hc_eps)
 *   x = sum_s pre[s] h[s];  y = x * rsqrt(mean x^2 + rms_eps) * norm_w    (the RMSNorm that always follows)
 * gm_mhc_post: h'[j] = post[j] y + sum_i C[i][j] h[i]   (i: old stream, j: new stream), in place.
 * gm_mhc_mean: y = mean_s h[s]. */
#ifndef GM_OPS_MHC_MIX_H
#define GM_OPS_MHC_MIX_H
#include "ops/tensor.h"

#define GM_STREAMS_MAX 8

typedef struct gm_mhc_pre_args {
    const float *h;      /* [n][S][d] */
    const gm_matrix *fn; /* [S*(2+S)][S*d], F32 or BF16 */
    const float *base;   /* [S*(2+S)] */
    const float *scale;  /* [3] */
    const float *norm_w; /* [d] */
    float *y;            /* [n][d] */
    float *post;         /* [n][S] */
    float *comb;         /* [n][S][S] */
    int32_t n, n_streams, d, iters;
    float rms_eps, hc_eps;
    gm_device *dev;
} gm_mhc_pre_args;
void gm_mhc_pre(const gm_mhc_pre_args *a);

typedef struct gm_mhc_post_args {
    float *h;          /* [n][S][d], updated */
    const float *y;    /* [n][d], what the sub-block returned */
    const float *post; /* [n][S] */
    const float *comb; /* [n][S][S] */
    int32_t n, n_streams, d;
    gm_device *dev;
} gm_mhc_post_args;
void gm_mhc_post(const gm_mhc_post_args *a);

typedef struct gm_mhc_mean_args {
    const float *h; /* [n][S][d] */
    const int32_t *rows; /* [n_out] rows wanted; NULL: rows 0 .. n_out-1 */
    float *y;            /* [n_out][d] */
    int32_t n_out, n_streams, d;
    gm_device *dev;
} gm_mhc_mean_args;
void gm_mhc_mean(const gm_mhc_mean_args *a);
#endif
