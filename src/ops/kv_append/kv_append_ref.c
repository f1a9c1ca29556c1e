#include "ops/kv_append/kv_append_internal.h"
#include "ops/cache_row.h"
#include "ops/kv_append/fp8_group.h"

static void put_bf16(uint8_t *to, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint16_t v = gm_f32_to_bf16(x[i]);
        memcpy(to + 2 * (int64_t)i, &v, 2);
    }
}

static void put_fp8(uint8_t *codes, uint8_t *scales, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += GM_LATENT_GROUP)
        gm_fp8_group(codes + i, scales + i / GM_LATENT_GROUP * 2, x + i, n - i < GM_LATENT_GROUP ? n - i : GM_LATENT_GROUP);
}

void gm_kv_append_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kv_append_args *a = args;
    const gm_latent_cache *cache = &a->cache;
    for (int64_t r = begin; r < end; r++) {
        const gm_slice *s = &a->rows->slices[a->rows->slice_of[r]];
        uint8_t *to = gm_latent_row(cache, s, a->rows->pos[r]);
        const float *c = a->c + r * a->ldc, *kr = cache->d_rope ? a->kr + r * a->ldr : NULL;
        int32_t d = cache->d_latent;
        switch (cache->dtype) {
        case GM_KV_F32:
            memcpy(to, c, (size_t)d * 4);
            if (kr) memcpy(to + 4 * (int64_t)d, kr, (size_t)cache->d_rope * 4);
            break;
        case GM_KV_BF16:
            put_bf16(to, c, d);
            if (kr) put_bf16(to + 2 * (int64_t)d, kr, cache->d_rope);
            break;
        case GM_KV_FP8:
            put_fp8(to, to + d, c, d);
            if (kr) put_bf16(to + d + 2 * gm_latent_groups(d), kr, cache->d_rope);
            break;
        case GM_KV_F16: GM_ASSERT(false && "latent rows are never FP16");
        }
    }
}
