/* The body of kv_append_avx2.c and kv_append_avx512.c. */
#ifndef GM_OPS_KV_APPEND_SIMD_H
#define GM_OPS_KV_APPEND_SIMD_H
#include "ops/kv_append/kv_append_internal.h"
#include "ops/simd.h"

#include "ops/cache_row.h"
#include "ops/kv_append/fp8_group.h"

static inline void put_bf16(uint8_t *to, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store_bf16(to + 2 * i, vf_load(x + i));
    if (i < n) vf_store_bf16_n(to + 2 * i, vf_load_n(x + i, n - i), n - i);
}

static inline void put_fp8(uint8_t *codes, uint8_t *scales, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += GM_LATENT_GROUP)
        gm_fp8_group(codes + i, scales + i / GM_LATENT_GROUP * 2, x + i, n - i < GM_LATENT_GROUP ? n - i : GM_LATENT_GROUP);
}

void GM_VARIANT(gm_kv_append)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kv_append_args *a = args;
    const gm_latent_cache *cache = &a->cache;
    int64_t d = cache->d_latent;
    for (int64_t r = begin; r < end; r++) {
        uint8_t *to = gm_latent_row(cache, &a->rows->slices[a->rows->slice_of[r]], a->rows->pos[r]);
        const float *c = a->c + r * a->ldc, *kr = cache->d_rope ? a->kr + r * a->ldr : NULL;
        switch (cache->dtype) {
        case GM_KV_F32:
            memcpy(to, c, (size_t)d * 4);
            if (kr) memcpy(to + 4 * d, kr, (size_t)cache->d_rope * 4);
            break;
        case GM_KV_BF16:
            put_bf16(to, c, d);
            if (kr) put_bf16(to + 2 * d, kr, cache->d_rope);
            break;
        case GM_KV_FP8:
            put_fp8(to, to + d, c, d);
            if (kr) put_bf16(to + d + 2 * gm_latent_groups(d), kr, cache->d_rope);
            break;
        case GM_KV_F16: GM_ASSERT(!"latent rows are never FP16");
        }
    }
}

#endif
