/* Cache rows back to FP32: the plain definition of what a stored value means. */
#ifndef GM_OPS_CACHE_LOAD_H
#define GM_OPS_CACHE_LOAD_H

#include "ops/slice.h"
#include "ops/tensor.h"

#include <string.h>

static inline void gm_load_bf16(float *to, const uint8_t *from, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, from + 2 * (int64_t)i, 2);
        to[i] = gm_bf16_to_f32(v);
    }
}

/* One latent row: d_latent values, then d_rope values. */
static inline void gm_latent_load(const gm_latent_cache *c, const uint8_t *row, float *to)
{
    int32_t d = c->d_latent, all = d + c->d_rope;
    switch (c->dtype) {
    case GM_KV_F32: memcpy(to, row, (size_t)all * 4); break;
    case GM_KV_BF16: gm_load_bf16(to, row, all); break;
    case GM_KV_FP8:
        for (int32_t g = 0; g < gm_latent_groups(d); g++) {
            float scale;
            gm_load_bf16(&scale, row + d + 2 * g, 1);
            for (int32_t i = g * GM_LATENT_GROUP; i < d && i < (g + 1) * GM_LATENT_GROUP; i++)
                to[i] = gm_e4m3_to_f32(row[i]) * scale;
        }
        gm_load_bf16(to + d, row + d + 2 * gm_latent_groups(d), c->d_rope);
        break;
    case GM_KV_F16: GM_ASSERT(false && "latent rows are never FP16");
    }
}

/* One pooled index key: d values. */
static inline void gm_index_load(const gm_index_cache *c, const uint8_t *key, float *to)
{
    switch (c->dtype) {
    case GM_KV_F32: memcpy(to, key, (size_t)c->d * 4); break;
    case GM_KV_BF16: gm_load_bf16(to, key, c->d); break;
    case GM_KV_F16:
        for (int32_t i = 0; i < c->d; i++) {
            uint16_t h;
            memcpy(&h, key + 2 * (int64_t)i, 2);
            to[i] = gm_f16_to_f32(h);
        }
        break;
    case GM_KV_FP8: {
        float scale;
        memcpy(&scale, key + c->d, 4);
        for (int32_t i = 0; i < c->d; i++) to[i] = gm_e4m3_to_f32(key[i]) * scale;
        break;
    }
    }
}

#endif
