/* The body of mhc_mix_avx2.c and mhc_mix_avx512.c. The product with fn (a megabyte and a half of F32 at S 4, d 4096) is
 * bound by reading fn where tokens are few, by multiply-adds otherwise: tiles of 1 to 4 tokens by 1 to 3 values. */
#ifndef GM_OPS_MHC_MIX_SIMD_H
#define GM_OPS_MHC_MIX_SIMD_H

#include "ops/mhc_mix/mhc_mix_internal.h"
#include "ops/simd.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

INLINE vf fn_at(const gm_matrix *fn, int64_t at)
{
    return fn->dtype == GM_F32 ? vf_load((const float *)fn->data + at) : vf_load_bf16((const uint16_t *)fn->data + at);
}

INLINE vf fn_at_n(const gm_matrix *fn, int64_t at, int64_t n)
{
    return fn->dtype == GM_F32 ? vf_load_n((const float *)fn->data + at, n)
                               : vf_load_bf16_n((const uint16_t *)fn->data + at, n);
}

INLINE void dot_tile(const gm_mhc_pre_job *j, int64_t t, int64_t v, int nt, int nv)
{
    const gm_matrix *fn = j->a->fn;
    int64_t K = fn->cols, k = 0;
    const float *f = j->a->h + (j->t_begin + t) * K;
    vf acc[4][3];
    for (int x = 0; x < nt; x++)
        for (int i = 0; i < nv; i++) acc[x][i] = vf_zero();
    for (; k + GM_VF <= K; k += GM_VF) {
        vf w[3];
        for (int i = 0; i < nv; i++) w[i] = fn_at(fn, (v + i) * K + k);
        for (int x = 0; x < nt; x++) {
            vf fx = vf_load(f + x * K + k);
            for (int i = 0; i < nv; i++) acc[x][i] = vf_fma(w[i], fx, acc[x][i]);
        }
    }
    if (k < K) {
        for (int x = 0; x < nt; x++) {
            vf fx = vf_load_n(f + x * K + k, K - k);
            for (int i = 0; i < nv; i++) acc[x][i] = vf_fma(fn_at_n(fn, (v + i) * K + k, K - k), fx, acc[x][i]);
        }
    }
    for (int x = 0; x < nt; x++)
        for (int i = 0; i < nv; i++) j->m[(t + x) * fn->rows + v + i] = vf_sum(acc[x][i]);
}

INLINE void dot_values(const gm_mhc_pre_job *j, int64_t t, int64_t v, int nv)
{
    int64_t left = j->n - t;
    if (left >= 4) dot_tile(j, t, v, 4, nv);
    else if (left == 3) dot_tile(j, t, v, 3, nv);
    else if (left == 2) dot_tile(j, t, v, 2, nv);
    else dot_tile(j, t, v, 1, nv);
}

void GM_VARIANT(gm_mhc_dot)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_pre_job *j = args;
    int64_t rows = j->a->fn->rows, groups = (rows + j->group - 1) / j->group;
    for (int64_t item = begin; item < end; item++) {
        int64_t v = item % groups * j->group, t = item / groups * GM_MHC_TILE;
        int64_t last = v + j->group < rows ? v + j->group : rows;
        for (; v + 3 <= last; v += 3) dot_values(j, t, v, 3);
        for (; v < last; v++) dot_values(j, t, v, 1);
    }
}

void GM_VARIANT(gm_mhc_pre)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_pre_job *job = args;
    const gm_mhc_pre_args *a = job->a;
    int64_t S = a->n_streams, d = a->d, n_values = S * (2 + S);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = job->t_begin + i, k = 0;
        const float *h = a->h + t * S * d;
        float *y = a->y + t * d, pre[GM_STREAMS_MAX];
        float r = 1.0f / sqrtf(vf_dot(h, h, S * d) / (float)(S * d) + a->rms_eps);
        gm_mhc_coefficients(a, job->m + i * n_values, r, pre, a->post + t * S, a->comb + t * S * S);

        vf squares = vf_zero();
        for (; k < d; k += GM_VF) {
            int64_t n = d - k < GM_VF ? d - k : GM_VF;
            vf x = vf_zero();
            for (int64_t s = 0; s < S; s++) {
                vf hs = n == GM_VF ? vf_load(h + s * d + k) : vf_load_n(h + s * d + k, n);
                x = vf_fma(vf_set1(pre[s]), hs, x);
            }
            squares = vf_fma(x, x, squares);
            if (n == GM_VF) vf_store(y + k, x);
            else vf_store_n(y + k, x, n);
        }
        vf scale = vf_set1(1.0f / sqrtf(vf_sum(squares) / (float)d + a->rms_eps));
        for (k = 0; k + GM_VF <= d; k += GM_VF)
            vf_store(y + k, vf_mul(vf_mul(vf_load(y + k), scale), vf_load(a->norm_w + k)));
        if (k < d) {
            vf v = vf_mul(vf_mul(vf_load_n(y + k, d - k), scale), vf_load_n(a->norm_w + k, d - k));
            vf_store_n(y + k, v, d - k);
        }
    }
}

INLINE void post_columns(const gm_mhc_post_args *a, int64_t t, int64_t k, int64_t n, int S)
{
    int64_t d = a->d;
    float *h = a->h + t * S * d + k;
    const float *post = a->post + t * S, *comb = a->comb + t * S * S;
    vf old[GM_STREAMS_MAX], y = n == GM_VF ? vf_load(a->y + t * d + k) : vf_load_n(a->y + t * d + k, n);
    for (int i = 0; i < S; i++) old[i] = n == GM_VF ? vf_load(h + i * d) : vf_load_n(h + i * d, n);
    for (int j = 0; j < S; j++) {
        vf v = vf_mul(vf_set1(post[j]), y);
        for (int i = 0; i < S; i++) v = vf_fma(vf_set1(comb[i * S + j]), old[i], v);
        if (n == GM_VF) vf_store(h + j * d, v);
        else vf_store_n(h + j * d, v, n);
    }
}

void GM_VARIANT(gm_mhc_post)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_post_args *a = args;
    int64_t d = a->d, spans = (d + GM_MHC_SPAN - 1) / GM_MHC_SPAN;
    for (int64_t item = begin; item < end; item++) {
        int64_t t = item / spans, k = item % spans * GM_MHC_SPAN;
        int64_t last = k + GM_MHC_SPAN < d ? k + GM_MHC_SPAN : d;
        for (; k < last; k += GM_VF) {
            int64_t n = last - k < GM_VF ? last - k : GM_VF;
            if (a->n_streams == 4) post_columns(a, t, k, n, 4);
            else post_columns(a, t, k, n, a->n_streams);
        }
    }
}

void GM_VARIANT(gm_mhc_mean)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_mhc_mean_args *a = args;
    int64_t S = a->n_streams, d = a->d;
    vf count = vf_set1((float)S);
    for (int64_t o = begin; o < end; o++) {
        const float *h = a->h + (a->rows ? a->rows[o] : o) * S * d;
        float *y = a->y + o * d;
        for (int64_t k = 0; k < d; k += GM_VF) {
            int64_t n = d - k < GM_VF ? d - k : GM_VF;
            vf sum = vf_zero();
            for (int64_t s = 0; s < S; s++)
                sum = vf_add(sum, n == GM_VF ? vf_load(h + s * d + k) : vf_load_n(h + s * d + k, n));
            if (n == GM_VF) vf_store(y + k, vf_div(sum, count));
            else vf_store_n(y + k, vf_div(sum, count), n);
        }
    }
}

#endif
