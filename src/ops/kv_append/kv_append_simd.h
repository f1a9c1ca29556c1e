/* The body of kv_append_avx2.c and kv_append_avx512.c. */
#ifndef GM_OPS_KV_APPEND_SIMD_H
#define GM_OPS_KV_APPEND_SIMD_H
#include "ops/kv_append/kv_append_internal.h"
#include "ops/simd.h"

#include "ops/cache_row.h"

#include <float.h>
#include <math.h>

static inline void put_bf16(uint8_t *to, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store_bf16(to + 2 * i, vf_load(x + i));
    if (i < n) vf_store_bf16_n(to + 2 * i, vf_load_n(x + i, n - i), n - i);
}

static inline void put_fp8(uint8_t *codes, uint8_t *scales, const float *x, int64_t n)
{
    for (int64_t first = 0; first < n; first += 128) {
        int64_t last = first + 128 < n ? first + 128 : n, i = first;
        vf most = vf_zero();
        /* max gives its second operand where the first is NaN: a NaN does not enter the scale */
        for (; i + GM_VF <= last; i += GM_VF) most = vf_max(vf_abs(vf_load(x + i)), most);
        if (i < last) most = vf_max(vf_abs(vf_load_n(x + i, last - i)), most);
        float amax = vf_hmax(most);
        float scale = amax / 448.0f > FLT_MIN ? amax / 448.0f : FLT_MIN;
        for (i = first; i < last; i++) codes[i] = gm_f32_to_e4m3(x[i] / scale);
        memcpy(scales + first / 128 * 4, &scale, 4);
    }
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
            if (kr) put_bf16(to + d + (d + 127) / 128 * 4, kr, cache->d_rope);
            break;
        }
    }
}

#endif
