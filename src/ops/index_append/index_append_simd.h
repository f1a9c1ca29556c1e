/* The body of index_append_avx2.c and index_append_avx512.c. */
#ifndef GM_OPS_INDEX_APPEND_SIMD_H
#define GM_OPS_INDEX_APPEND_SIMD_H
#include "ops/index_append/index_append_internal.h"
#include "ops/simd.h"

#include "ops/cache_row.h"

#include <math.h>

static inline vf load_x(const float *p, int64_t n)
{
    return n == GM_VF ? vf_load(p) : vf_load_n(p, n);
}

static inline vf load_tail(const uint8_t *tail, int64_t at, int64_t n, bool bf16)
{
    if (!bf16) return load_x((const float *)(const void *)(tail + 4 * at), n);
    return n == GM_VF ? vf_load_bf16(tail + 2 * at) : vf_load_bf16_n(tail + 2 * at, n);
}

static inline void store_key(const gm_index_cache *c, uint8_t *to, const float *key)
{
    int64_t d = c->d, i = 0;
    if (c->dtype == GM_KV_F32) {
        memcpy(to, key, (size_t)d * 4);
    } else if (c->dtype == GM_KV_BF16) {
        for (; i + GM_VF <= d; i += GM_VF) vf_store_bf16(to + 2 * i, vf_load(key + i));
        if (i < d) vf_store_bf16_n(to + 2 * i, vf_load_n(key + i, d - i), d - i);
    } else if (c->dtype == GM_KV_F16) {
        for (; i + GM_VF <= d; i += GM_VF) vf_store_f16(to + 2 * i, vf_load(key + i));
        if (i < d) vf_store_f16_n(to + 2 * i, vf_load_n(key + i, d - i), d - i);
    } else {
        vf most = vf_set1(1e-4f);
        for (; i + GM_VF <= d; i += GM_VF) most = vf_max(vf_abs(vf_load(key + i)), most);
        if (i < d) most = vf_max(vf_abs(vf_load_n(key + i, d - i)), most);
        float scale = exp2f(ceilf(log2f(vf_hmax(most) / 448.0f)));
        vf by = vf_set1(scale);
        for (i = 0; i + GM_VF <= d; i += GM_VF) vf_store_e4m3(to + i, vf_div(vf_load(key + i), by));
        if (i < d) vf_store_e4m3_n(to + i, vf_div(vf_load_n(key + i, d - i), by), d - i);
        memcpy(to + d, &scale, 4);
    }
}

/* GM_VF channels of the pool whose last token is row r. */
static inline void pool_channels(const gm_index_append_args *a, const gm_slice *s, int64_t r, int64_t c, int64_t n,
                                 float *key)
{
    int64_t pool = a->cache.pool, d = a->cache.d, p = a->rows->pos[r].tok;
    const uint8_t *tail = a->tail + s->slot.id * a->slot_stride;
    vf k[GM_INDEX_POOL_MAX], e[GM_INDEX_POOL_MAX], most = vf_set1(-INFINITY), sum = vf_zero(), out = vf_zero();
    for (int64_t j = 0; j < pool; j++) {
        int64_t back = pool - 1 - j;
        if (p - back >= s->begin.tok) {
            k[j] = load_x(a->k + (r - back) * a->ldk + c, n);
            e[j] = load_x(a->e + (r - back) * a->lde + c, n);
            if (a->bf16) {
                k[j] = vf_round_bf16(k[j]);
                e[j] = vf_round_bf16(e[j]);
            }
        } else {
            k[j] = load_tail(tail, j * 2 * d + c, n, a->bf16);
            e[j] = load_tail(tail, j * 2 * d + d + c, n, a->bf16);
        }
        e[j] = vf_add(e[j], load_x(a->ape + j * d + c, n));
        most = vf_max(e[j], most);
    }
    for (int64_t j = 0; j < pool; j++) {
        e[j] = vf_exp(vf_sub(e[j], most));
        sum = vf_add(sum, e[j]);
    }
    for (int64_t j = 0; j < pool; j++) out = vf_fma(vf_div(e[j], sum), k[j], out);
    if (n == GM_VF) vf_store(key + c, out);
    else vf_store_n(key + c, out, n);
}

void GM_VARIANT(gm_index_append)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_index_append_args *a = args;
    int32_t pool = a->cache.pool, d = a->cache.d;
    float key[GM_INDEX_D_MAX];
    for (int64_t r = begin; r < end; r++) {
        int32_t p = a->rows->pos[r].tok;
        if (p % pool != pool - 1) continue;
        const gm_slice *s = &a->rows->slices[a->rows->slice_of[r]];
        for (int32_t c = 0; c < d; c += GM_VF) {
            int64_t n = d - c < GM_VF ? d - c : GM_VF;
            if (a->e) {
                pool_channels(a, s, r, c, n, key);
                continue;
            }
            vf k = load_x(a->k + r * a->ldk + c, n);
            if (a->bf16) k = vf_round_bf16(k);
            if (n == GM_VF) vf_store(key + c, k);
            else vf_store_n(key + c, k, n);
        }
        store_key(&a->cache, gm_index_key(&a->cache, s, (gm_pool_pos){p / pool}), key);
    }
}

#endif
