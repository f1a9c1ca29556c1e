/* The gated delta rule, per sequence and head, state S[D][D] (rows: key channel, columns: value channel), FP32:
 *   S[i][j] <- decay[i] S[i][j];  u[j] = sum_i k[i] S[i][j];  S[i][j] += k[i] beta (v[j] - u[j]);
 *   o[j] = sum_i q[i] S[i][j]                                     (q, k as gm_kda_prep leaves them)
 * one token after another. The columns of S are independent, so a variant may keep a block of columns close while it
 * walks all tokens of the slice: a whole chunk costs one read and one write of the state, and a prompt gives the very
 * same bits whether it comes in one step or token by token.
 * (gm_kda_chunk_ref() is the algebraic 64-token form that matrix hardware uses; the test holds both to each other.)
 *
 * State of a slot: [H][D][D] FP32 at state + slot * slot_stride (bytes). begin 0 starts from zeros. */
#ifndef GM_OPS_KDA_SCAN_H
#define GM_OPS_KDA_SCAN_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_kda_scan_args {
    const float *q, *k, *v; /* [n_rows][H][D], stride ldq for all three */
    const float *decay;     /* [n_rows][H][D] */
    const float *beta;      /* [n_rows][H] */
    float *o;               /* [n_rows][H][D] */
    uint8_t *state;
    int64_t slot_stride; /* bytes */
    const gm_rows *rows;
    int32_t n_heads, d_head; /* D at most 256 */
    int64_t ldq;
    gm_device *dev;
} gm_kda_scan_args;
void gm_kda_scan(const gm_kda_scan_args *a);

/* The chunked form on one head: n <= 64 tokens, q k v decay_log [n][D], beta [n], S [D][D] in and out, o [n][D].
 * decay_log is the logarithm of decay. scratch: 64*64*2 + 64*D*3 + D*D doubles. Reference only. */
void gm_kda_chunk_ref(int32_t n, int32_t D, const float *q, const float *k, const float *v, const float *decay_log,
                      const float *beta, float *S, float *o, double *scratch);
#endif
