/* The body of index_score_avx2.c and index_score_avx512.c.
 *
 * The keys of an item are laid out by channel, so that a lane is a pool: a tile of 6 heads x 2 vectors of pools takes
 * one channel after another, broadcasting q. No sums across lanes. Bound by multiply-adds (pools x heads x d);
 * the keys themselves are 1/32 of the work. */
#ifndef GM_OPS_INDEX_SCORE_SIMD_H
#define GM_OPS_INDEX_SCORE_SIMD_H

#include "ops/cache_load_simd.h"
#include "ops/cache_row.h"
#include "ops/index_score/index_score_internal.h"

#include <math.h>

enum { POOLS = GM_INDEX_SCORE_POOLS, HEADS = 6, STRIP = 2 * GM_VF };

/* keys[pool / STRIP][c][STRIP]; pools behind `last` are zeros. */
static void load_keys(const gm_index_score_args *a, const gm_slice *s, int32_t first, int32_t last, float *keys)
{
    int64_t d = a->cache.d, padded = (d + 7) / 8 * 8;
    _Alignas(64) float eight[8 * (GM_INDEX_SCORE_D_MAX + 8)];
    for (int32_t p = 0; p < POOLS; p += 8) {
        memset(eight, 0, (size_t)(8 * padded) * 4);
        for (int32_t i = 0; i < 8 && first + p + i < last; i++)
            vf_index_load(&a->cache, gm_index_key(&a->cache, s, (gm_pool_pos){first + p + i}), eight + i * padded);
        for (int64_t c = 0; c < padded; c += 8) vf_transpose_8x8(eight + c, padded, keys + (p / STRIP * padded + c) * STRIP + p % STRIP, STRIP);
    }
}

/* nh heads, q [nh][d]; weight [nh] has the head scale in it; score [POOLS] is added to. */
static inline __attribute__((always_inline)) void score_heads(const float *q, int64_t d, const float *weight,
                                                              float dot_scale, const float *keys, float *score, int nh)
{
    int64_t padded = (d + 7) / 8 * 8;
    for (int64_t p = 0; p < POOLS; p += STRIP) {
        const float *strip = keys + p * padded;
        vf acc[HEADS][2];
        for (int h = 0; h < nh; h++) acc[h][0] = acc[h][1] = vf_zero();
        for (int64_t c = 0; c < d; c++) {
            vf k0 = vf_load(strip + c * STRIP), k1 = vf_load(strip + c * STRIP + GM_VF);
            for (int h = 0; h < nh; h++) {
                vf x = vf_set1(q[h * d + c]);
                acc[h][0] = vf_fma(x, k0, acc[h][0]);
                acc[h][1] = vf_fma(x, k1, acc[h][1]);
            }
        }
        vf s0 = vf_load(score + p), s1 = vf_load(score + p + GM_VF), scale = vf_set1(dot_scale);
        for (int h = 0; h < nh; h++) { /* NaN is the second operand of max and stays */
            vf w = vf_set1(weight[h]);
            s0 = vf_fma(w, vf_max(vf_zero(), vf_mul(acc[h][0], scale)), s0);
            s1 = vf_fma(w, vf_max(vf_zero(), vf_mul(acc[h][1], scale)), s1);
        }
        vf_store(score + p, s0);
        vf_store(score + p + GM_VF, s1);
    }
}

static void score_item(const gm_index_score_args *a, int32_t r, int32_t first, int32_t last)
{
    int64_t d = a->cache.d, H = a->n_heads;
    _Alignas(64) float keys[(GM_INDEX_SCORE_D_MAX + 8) * POOLS], score[POOLS] = {0};
    float q[HEADS * GM_INDEX_SCORE_D_MAX], weight[HEADS];
    float head_scale = 1.0f / sqrtf((float)H), dot_scale = 1.0f / sqrtf((float)d);
    load_keys(a, &a->rows->slices[a->rows->slice_of[r]], first, last, keys);
    for (int64_t h = 0; h < H; h += HEADS) {
        int64_t n = H - h < HEADS ? H - h : HEADS, i = 0;
        const float *from = a->q + r * a->ldq + h * d;
        if (a->act == GM_ACT_BF16) {
            for (; i + GM_VF <= n * d; i += GM_VF) vf_store(q + i, vf_round_bf16(vf_load(from + i)));
            for (; i < n * d; i++) q[i] = gm_round_bf16(from[i]);
        } else {
            memcpy(q, from, (size_t)(n * d) * 4);
        }
        for (i = 0; i < n; i++) weight[i] = a->w[r * a->ldw + h + i] * head_scale;
        if (n == HEADS) {
            score_heads(q, d, weight, dot_scale, keys, score, HEADS);
            continue;
        }
        for (i = 0; i + 2 <= n; i += 2) score_heads(q + i * d, d, weight + i, dot_scale, keys, score, 2);
        if (i < n) score_heads(q + i * d, d, weight + i, dot_scale, keys, score, 1);
    }
    memcpy(a->scores + (int64_t)(r - a->row_begin) * a->lds + first, score, (size_t)(last - first) * 4);
}

void GM_VARIANT(gm_index_score)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_index_score_job *j = args;
    for (int64_t item = begin; item < end; item++) {
        int32_t r, first, last;
        if (gm_index_score_item(j, item, &r, &first, &last)) score_item(j->a, r, first, last);
    }
}

#endif
