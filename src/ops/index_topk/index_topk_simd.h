/* The body of index_topk_avx2.c and index_topk_avx512.c: the reference's selection in three passes over the scores.
 * Count them by the upper 11 bits of their keys; gather the keys of the bin where the n_select-th lies and find it
 * among those; then list what is larger, and as many equals as are left. The passes after the first look at GM_VF
 * scores at once, most of which fail. */
#ifndef GM_OPS_INDEX_TOPK_SIMD_H
#define GM_OPS_INDEX_TOPK_SIMD_H

#include "ops/cache_row.h"
#include "ops/index_topk/index_topk_internal.h"
#include "ops/simd.h"

#include <math.h>

enum { SHIFT = 21, BINS = 1 << (32 - SHIFT), GATHER_MAX = 4096 };

/* The scores that are at least `least` (a key), as bits. NaN counts as -infinity: it passes where that does. */
static inline uint32_t at_least(const float *p, uint32_t least)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = least & 0x80000000u ? least & 0x7FFFFFFFu : ~least};
    bool all = least <= gm_score_key(-INFINITY);
#if defined(__AVX512F__)
    return all ? 0xFFFFu : _mm512_cmp_ps_mask(vf_load(p), vf_set1(v.f), _CMP_GE_OQ);
#else
    return all ? 0xFFu : (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(vf_load(p), vf_set1(v.f), _CMP_GE_OQ));
#endif
}

/* GM_VF keys, as gm_score_key() makes them. */
static inline void keys_of(const float *p, uint32_t *keys)
{
#if defined(__AVX512F__)
    __m512 f = vf_add(vf_load(p), vf_zero());
    __m512i u = _mm512_castps_si512(f);
    u = _mm512_mask_mov_epi32(u, _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q), _mm512_set1_epi32((int)0xFF800000u));
    __m512i flip = _mm512_or_si512(_mm512_srai_epi32(u, 31), _mm512_set1_epi32((int)0x80000000u));
    _mm512_storeu_si512(keys, _mm512_xor_si512(u, flip));
#else
    __m256 f = vf_add(vf_load(p), vf_zero());
    __m256i u = _mm256_castps_si256(f);
    u = _mm256_blendv_epi8(u, _mm256_set1_epi32((int)0xFF800000u), _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q)));
    __m256i flip = _mm256_or_si256(_mm256_srai_epi32(u, 31), _mm256_set1_epi32((int)0x80000000u));
    _mm256_storeu_si256((__m256i *)(void *)keys, _mm256_xor_si256(u, flip));
#endif
}

/* The bin of the k-th largest; *above: how many lie in higher bins. Two counters, for equal bins follow each other. */
static uint32_t find_bin(const float *scores, int32_t n, int32_t k, int32_t *above)
{
    int32_t count[2][BINS] = {{0}}, i = 0, bin = BINS - 1, sum = 0;
    for (; i + GM_VF <= n; i += GM_VF) {
        uint32_t keys[GM_VF];
        keys_of(scores + i, keys);
        for (int x = 0; x < GM_VF; x += 2) {
            count[0][keys[x] >> SHIFT]++;
            count[1][keys[x + 1] >> SHIFT]++;
        }
    }
    for (; i < n; i++) count[0][gm_score_key(scores[i]) >> SHIFT]++;
    while (sum + count[0][bin] + count[1][bin] < k) {
        sum += count[0][bin] + count[1][bin];
        bin--;
    }
    *above = sum;
    return (uint32_t)bin;
}

/* The k-th largest of keys, by halving the range of values: at most 21 rounds. */
static uint32_t kth_key(const uint32_t *keys, int32_t n, int32_t k, uint32_t low, uint32_t high)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2 + 1;
        int32_t more = 0;
        for (int32_t i = 0; i < n; i++) more += keys[i] >= mid;
        if (more >= k) low = mid;
        else high = mid - 1;
    }
    return low;
}

/* The n_select-th largest key. False where too many scores share its bin. */
static bool find_least(const float *scores, int32_t n, int32_t n_select, uint32_t *least)
{
    int32_t above, found = 0, i = 0;
    uint32_t bin = find_bin(scores, n, n_select, &above), low = bin << SHIFT, high = low | ((1u << SHIFT) - 1);
    uint32_t keys[GATHER_MAX];
    for (; i < n; i += GM_VF) {
        uint32_t hits = n - i >= GM_VF ? at_least(scores + i, low) : (1u << (n - i)) - 1;
        for (; hits; hits &= hits - 1) {
            uint32_t key = gm_score_key(scores[i + __builtin_ctz(hits)]);
            if (key < low || key > high) continue;
            if (found == GATHER_MAX) return false;
            keys[found++] = key;
        }
    }
    *least = kth_key(keys, found, n_select - above, low, high);
    return true;
}

static void list(const float *scores, int32_t n, uint32_t least, int32_t n_select, gm_pool_pos *sel)
{
    int32_t above = 0, have = 0, i;
    for (i = 0; i < n; i += GM_VF) {
        uint32_t hits = n - i >= GM_VF ? at_least(scores + i, least) : (1u << (n - i)) - 1;
        for (; hits; hits &= hits - 1) above += gm_score_key(scores[i + __builtin_ctz(hits)]) > least;
    }
    int32_t equal_left = n_select - above;
    for (i = 0; have < n_select; i += GM_VF) {
        uint32_t hits = n - i >= GM_VF ? at_least(scores + i, least) : (1u << (n - i)) - 1;
        for (; hits && have < n_select; hits &= hits - 1) {
            int32_t p = i + __builtin_ctz(hits);
            uint32_t key = gm_score_key(scores[p]);
            if (key > least || (key == least && equal_left-- > 0)) sel[have++].pool = p;
        }
    }
}

void GM_VARIANT(gm_index_topk)(const void *args, int64_t begin, int64_t end, int worker)
{
    const gm_index_topk_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        int64_t r = a->row_begin + i;
        int32_t visible = gm_pools_visible(a->rows->pos[r], a->pool);
        uint32_t least;
        if (visible <= a->n_select || !find_least(a->scores + i * a->lds, visible, a->n_select, &least)) {
            gm_index_topk_ref(args, i, i + 1, worker);
            continue;
        }
        list(a->scores + i * a->lds, visible, least, a->n_select, a->sel + r * a->n_select);
        a->n_sel[r] = a->n_select;
    }
}

#endif
