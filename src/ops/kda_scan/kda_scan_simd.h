/* The body of kda_scan_avx2.c and kda_scan_avx512.c. */
#ifndef GM_OPS_KDA_SCAN_SIMD_H
#define GM_OPS_KDA_SCAN_SIMD_H
#include "ops/kda_scan/kda_scan_internal.h"
#include "ops/simd.h"

/* A block of columns of one head over all tokens of a slice. A prompt's block is copied to the stack (D * 32 floats,
 * 16 KiB at D 128: it stays in L1) and back: one read and one write of the state for the whole slice. With few tokens
 * it is worked on where it is.
 *
 * Per token two passes over the block, with kg_i = k_i decay_i:
 *   u = sum kg_i S_i;   S_i = decay_i S_i + k_i step;   o = sum q_i S_i
 * Rows go to U_SUMS (O_SUMS) sums in turn, which are added at the end: eight (four) chains of multiply-adds are needed to
 * keep the units busy.
 * The order of a column's sums depends on nothing else. Bound by multiply-adds with a prompt, by reading and writing
 * the state with single tokens. */
enum { NV = GM_KDA_SCAN_COLS / GM_VF, U_SUMS = 8 / NV, O_SUMS = 4 / NV, COPY_TOKENS = 4 };

static inline vf load_col(const float *p, int64_t left)
{
    return left >= GM_VF ? vf_load(p) : left > 0 ? vf_load_n(p, left) : vf_zero();
}

static inline void store_col(float *p, vf v, int64_t left)
{
    if (left >= GM_VF) vf_store(p, v);
    else if (left > 0) vf_store_n(p, v, left);
}

/* Row i of the block at S + i * ld; `cols` columns of it exist. */
static inline __attribute__((always_inline)) void token(const gm_kda_scan_args *a, int64_t r, int64_t h, int64_t col,
                                                        float *S, int64_t ld, int64_t cols)
{
    int64_t D = a->d_head, i = 0;
    const float *q = a->q + r * a->ldq + h * D, *k = a->k + r * a->ldq + h * D;
    const float *v = a->v + r * a->ldq + h * D + col, *decay = a->decay + (r * a->n_heads + h) * D;
    float kg[GM_KDA_HEAD_MAX];
    for (; i + GM_VF <= D; i += GM_VF) vf_store(kg + i, vf_mul(vf_load(k + i), vf_load(decay + i)));
    for (; i < D; i++) kg[i] = k[i] * decay[i];

    vf u[U_SUMS][NV], o[O_SUMS][NV], step[NV], beta = vf_set1(a->beta[r * a->n_heads + h]);
    for (int x = 0; x < NV; x++) {
        for (int y = 0; y < U_SUMS; y++) u[y][x] = vf_zero();
        for (int y = 0; y < O_SUMS; y++) o[y][x] = vf_zero();
    }
    for (i = 0; i + U_SUMS <= D; i += U_SUMS)
        for (int y = 0; y < U_SUMS; y++) {
            vf ki = vf_set1(kg[i + y]);
            for (int x = 0; x < NV; x++)
                u[y][x] = vf_fma(ki, load_col(S + (i + y) * ld + x * GM_VF, cols - x * GM_VF), u[y][x]);
        }
    for (; i < D; i++)
        for (int x = 0; x < NV; x++)
            u[0][x] = vf_fma(vf_set1(kg[i]), load_col(S + i * ld + x * GM_VF, cols - x * GM_VF), u[0][x]);
    for (int x = 0; x < NV; x++) {
        for (int y = 1; y < U_SUMS; y++) u[0][x] = vf_add(u[0][x], u[y][x]);
        step[x] = vf_mul(beta, vf_sub(load_col(v + x * GM_VF, cols - x * GM_VF), u[0][x]));
    }
    for (i = 0; i < D; i += O_SUMS)
        for (int y = 0; y < O_SUMS && i + y < D; y++) {
            vf g = vf_set1(decay[i + y]), ki = vf_set1(k[i + y]), qi = vf_set1(q[i + y]);
            for (int x = 0; x < NV; x++) {
                float *at = S + (i + y) * ld + x * GM_VF;
                vf t = vf_fma(ki, step[x], vf_mul(g, load_col(at, cols - x * GM_VF)));
                store_col(at, t, cols - x * GM_VF);
                o[y][x] = vf_fma(qi, t, o[y][x]);
            }
        }
    float *out = a->o + (r * a->n_heads + h) * D + col;
    for (int x = 0; x < NV; x++) {
        for (int y = 1; y < O_SUMS; y++) o[0][x] = vf_add(o[0][x], o[y][x]);
        store_col(out + x * GM_VF, o[0][x], cols - x * GM_VF);
    }
}

void GM_VARIANT(gm_kda_scan)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_scan_args *a = args;
    int64_t D = a->d_head, blocks = gm_kda_scan_blocks(a), per_slice = blocks * a->n_heads;
    _Alignas(64) float block[GM_KDA_HEAD_MAX * GM_KDA_SCAN_COLS];
    for (int64_t item = begin; item < end; item++) {
        const gm_slice *s = &a->rows->slices[item / per_slice];
        int64_t h = item % per_slice / blocks, col = item % blocks * GM_KDA_SCAN_COLS;
        int64_t n = D - col < GM_KDA_SCAN_COLS ? D - col : GM_KDA_SCAN_COLS;
        float *S = (float *)(void *)(a->state + s->slot.id * a->slot_stride) + h * D * D + col;
        int64_t last = s->token_begin + s->n.tok;
        if (s->begin.tok == 0)
            for (int64_t i = 0; i < D; i++) memset(S + i * D, 0, (size_t)n * 4);
        if (n < GM_KDA_SCAN_COLS) { /* the right edge of an odd width */
            for (int64_t r = s->token_begin; r < last; r++) token(a, r, h, col, S, D, n);
        } else if (s->n.tok < COPY_TOKENS) {
            for (int64_t r = s->token_begin; r < last; r++) token(a, r, h, col, S, D, GM_KDA_SCAN_COLS);
        } else {
            for (int64_t i = 0; i < D; i++) memcpy(block + i * GM_KDA_SCAN_COLS, S + i * D, GM_KDA_SCAN_COLS * 4);
            for (int64_t r = s->token_begin; r < last; r++)
                token(a, r, h, col, block, GM_KDA_SCAN_COLS, GM_KDA_SCAN_COLS);
            for (int64_t i = 0; i < D; i++) memcpy(S + i * D, block + i * GM_KDA_SCAN_COLS, GM_KDA_SCAN_COLS * 4);
        }
    }
}

#endif
