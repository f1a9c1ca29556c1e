/* The body of kda_scan_avx2.c and kda_scan_avx512.c. */
#ifndef GM_OPS_KDA_SCAN_SIMD_H
#define GM_OPS_KDA_SCAN_SIMD_H
#include "ops/kda_scan/kda_scan_internal.h"
#include "ops/simd.h"

/* GM_VF * NV columns of one head, all tokens of a slice. The block of S is copied to the stack (D * 32 floats, 16 KiB
 * at D 128: it stays in L1), walked, and copied back: one read and one write of the state for the whole slice. Per
 * token two passes over the block: decay and k.S, then update and q.S; each column sums over i in rising order, in one
 * fused multiply-add a term, whatever the block is. */
static inline __attribute__((always_inline)) void walk_columns(const gm_kda_scan_args *a, const gm_slice *s, int64_t h,
                                                               int64_t col, int nv, float *block)
{
    int64_t D = a->d_head;
    for (int64_t r = s->token_begin; r < s->token_begin + s->n.tok; r++) {
        const float *q = a->q + r * a->ldq + h * D, *k = a->k + r * a->ldq + h * D;
        const float *v = a->v + r * a->ldq + h * D + col;
        const float *decay = a->decay + (r * a->n_heads + h) * D;
        vf u[4], o[4], step[4], beta = vf_set1(a->beta[r * a->n_heads + h]);
        for (int x = 0; x < nv; x++) u[x] = o[x] = vf_zero();
        for (int64_t i = 0; i < D; i++) {
            float *S = block + i * nv * GM_VF;
            vf g = vf_set1(decay[i]), ki = vf_set1(k[i]);
            for (int x = 0; x < nv; x++) {
                vf t = vf_mul(vf_load(S + x * GM_VF), g);
                vf_store(S + x * GM_VF, t);
                u[x] = vf_fma(ki, t, u[x]);
            }
        }
        for (int x = 0; x < nv; x++) {
            int64_t left = D - col - x * GM_VF;
            vf vx = left >= GM_VF ? vf_load(v + x * GM_VF) : left > 0 ? vf_load_n(v + x * GM_VF, left) : vf_zero();
            step[x] = vf_mul(beta, vf_sub(vx, u[x]));
        }
        for (int64_t i = 0; i < D; i++) {
            float *S = block + i * nv * GM_VF;
            vf ki = vf_set1(k[i]), qi = vf_set1(q[i]);
            for (int x = 0; x < nv; x++) {
                vf t = vf_fma(ki, step[x], vf_load(S + x * GM_VF));
                vf_store(S + x * GM_VF, t);
                o[x] = vf_fma(qi, t, o[x]);
            }
        }
        float *out = a->o + (r * a->n_heads + h) * D + col;
        for (int x = 0; x < nv; x++) {
            int64_t left = D - col - x * GM_VF;
            if (left >= GM_VF) vf_store(out + x * GM_VF, o[x]);
            else if (left > 0) vf_store_n(out + x * GM_VF, o[x], left);
        }
    }
}

void GM_VARIANT(gm_kda_scan)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    enum { NV = GM_KDA_SCAN_COLS / GM_VF };
    const gm_kda_scan_args *a = args;
    int64_t D = a->d_head, blocks = gm_kda_scan_blocks(a), per_slice = blocks * a->n_heads;
    _Alignas(64) float block[GM_KDA_HEAD_MAX * GM_KDA_SCAN_COLS];
    for (int64_t item = begin; item < end; item++) {
        const gm_slice *s = &a->rows->slices[item / per_slice];
        int64_t h = item % per_slice / blocks, col = item % blocks * GM_KDA_SCAN_COLS;
        int64_t n = D - col < GM_KDA_SCAN_COLS ? D - col : GM_KDA_SCAN_COLS;
        float *S = (float *)(void *)(a->state + s->slot.id * a->slot_stride) + h * D * D + col;
        if (s->begin.tok == 0 || n < GM_KDA_SCAN_COLS) memset(block, 0, (size_t)D * GM_KDA_SCAN_COLS * 4);
        for (int64_t i = 0; i < D && s->begin.tok > 0; i++) memcpy(block + i * GM_KDA_SCAN_COLS, S + i * D, (size_t)n * 4);
        walk_columns(a, s, h, col, NV, block);
        for (int64_t i = 0; i < D; i++) memcpy(S + i * D, block + i * GM_KDA_SCAN_COLS, (size_t)n * 4);
    }
}

#endif
