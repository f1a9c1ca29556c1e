#include "ops/kda_scan/kda_scan_internal.h"

#include <math.h>
#include <string.h>

/* One column j of one head over the tokens of a slice. */
static void walk_column(const gm_kda_scan_args *a, const gm_slice *s, int64_t h, int64_t j)
{
    int32_t D = a->d_head;
    float *S = (float *)(a->state + s->slot.id * a->slot_stride) + h * D * D + j; /* row i at S[i * D] */
    if (s->begin.tok == 0)
        for (int64_t i = 0; i < D; i++) S[i * D] = 0;
    for (int64_t r = s->token_begin; r < s->token_begin + s->n.tok; r++) {
        const float *q = a->q + r * a->ldq + h * D, *k = a->k + r * a->ldq + h * D;
        const float *decay = a->decay + (r * a->n_heads + h) * D;
        float u = 0, o = 0;
        for (int64_t i = 0; i < D; i++) {
            S[i * D] *= decay[i];
            u += k[i] * S[i * D];
        }
        float step = a->beta[r * a->n_heads + h] * (a->v[r * a->ldq + h * D + j] - u);
        for (int64_t i = 0; i < D; i++) {
            S[i * D] += k[i] * step;
            o += q[i] * S[i * D];
        }
        a->o[(r * a->n_heads + h) * D + j] = o;
    }
}

void gm_kda_scan_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_scan_args *a = args;
    int64_t blocks = gm_kda_scan_blocks(a), per_slice = blocks * a->n_heads;
    for (int64_t item = begin; item < end; item++) {
        const gm_slice *s = &a->rows->slices[item / per_slice];
        int64_t h = item % per_slice / blocks, j = item % blocks * GM_KDA_SCAN_COLS;
        for (int64_t last = j + GM_KDA_SCAN_COLS; j < last && j < a->d_head; j++) walk_column(a, s, h, j);
    }
}

/* With G_i the running sum of decay_log, and rows of k, q scaled by exp of differences of G (never by exp(-G), which
 * overflows):
 *   A_ij = beta_i sum_c k_i k_j exp(G_i - G_j), j < i;  (I + A) U = beta V;  (I + A) W = beta K exp(G)
 *   V' = U - W S;  O = (Q exp(G)) S + P V', P_ij = sum_c q_i k_j exp(G_i - G_j), j <= i
 *   S <- exp(G_n) S + sum_i (k_i exp(G_n - G_i)) V'_i */
void gm_kda_chunk_ref(int32_t n, int32_t D, const float *q, const float *k, const float *v, const float *decay_log,
                      const float *beta, float *S, float *o, double *scratch)
{
    GM_ASSERT(n >= 1 && n <= 64);
    double *A = scratch, *P = A + 64 * 64, *G = P + 64 * 64, *U = G + 64 * (int64_t)D, *W = U + 64 * (int64_t)D;
    double *S0 = W + 64 * (int64_t)D;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < D; c++) G[i * D + c] = (i ? G[(i - 1) * D + c] : 0) + (double)decay_log[i * D + c];
    for (int64_t i = 0; i < (int64_t)D * D; i++) S0[i] = (double)S[i];

    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double kk = 0, qk = 0;
            for (int64_t c = 0; c < D; c++) {
                double e = exp(G[i * D + c] - G[j * D + c]);
                kk += (double)k[i * D + c] * (double)k[j * D + c] * e;
                qk += (double)q[i * D + c] * (double)k[j * D + c] * e;
            }
            A[i * 64 + j] = (double)beta[i] * kk;
            P[i * 64 + j] = qk;
        }

    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < D; c++) {
            double u = (double)beta[i] * (double)v[i * D + c];
            double w = (double)beta[i] * (double)k[i * D + c] * exp(G[i * D + c]);
            for (int64_t j = 0; j < i; j++) {
                u -= A[i * 64 + j] * U[j * D + c];
                w -= A[i * 64 + j] * W[j * D + c];
            }
            U[i * D + c] = u;
            W[i * D + c] = w;
        }

    for (int64_t i = 0; i < n; i++) /* U becomes V' */
        for (int64_t c = 0; c < D; c++)
            for (int64_t x = 0; x < D; x++) U[i * D + c] -= W[i * D + x] * S0[x * D + c];

    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < D; c++) {
            double sum = 0;
            for (int64_t x = 0; x < D; x++) sum += (double)q[i * D + x] * exp(G[i * D + x]) * S0[x * D + c];
            for (int64_t j = 0; j <= i; j++) sum += P[i * 64 + j] * U[j * D + c];
            o[i * D + c] = (float)sum;
        }

    const double *end = G + (int64_t)(n - 1) * D;
    for (int64_t x = 0; x < D; x++)
        for (int64_t c = 0; c < D; c++) {
            double sum = exp(end[x]) * S0[x * D + c];
            for (int64_t i = 0; i < n; i++)
                sum += (double)k[i * D + x] * exp(end[x] - G[i * D + x]) * U[i * D + c];
            S[x * D + c] = (float)sum;
        }
}
