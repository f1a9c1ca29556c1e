/* Cache rows back to FP32, with vectors: the same values as in cache_load.h. */
#ifndef GM_OPS_CACHE_LOAD_SIMD_H
#define GM_OPS_CACHE_LOAD_SIMD_H

#include "ops/cache_load.h"
#include "ops/simd.h"

static inline void vf_widen_bf16(float *to, const uint8_t *from, int64_t n)
{
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store(to + i, vf_load_bf16(from + 2 * i));
    if (i < n) vf_store_n(to + i, vf_load_bf16_n(from + 2 * i, n - i), n - i);
}

static inline void vf_widen_f16(float *to, const uint8_t *from, int64_t n)
{
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store(to + i, vf_load_f16(from + 2 * i));
    if (i < n) vf_store_n(to + i, vf_load_f16_n(from + 2 * i, n - i), n - i);
}

static inline void vf_widen_e4m3(float *to, const uint8_t *from, int64_t n, float f)
{
    vf scale = vf_set1(f);
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store(to + i, vf_mul(vf_load_e4m3(from + i), scale));
    if (i < n) vf_store_n(to + i, vf_mul(vf_load_e4m3_n(from + i, n - i), scale), n - i);
}

/* d_latent values to `to`, d_rope values to `rope`. */
static inline void vf_latent_load(const gm_latent_cache *c, const uint8_t *row, float *to, float *rope)
{
    int64_t d = c->d_latent;
    if (c->dtype == GM_KV_F32) {
        memcpy(to, row, (size_t)d * 4);
        memcpy(rope, row + 4 * d, (size_t)c->d_rope * 4);
    } else if (c->dtype == GM_KV_BF16) {
        vf_widen_bf16(to, row, d);
        vf_widen_bf16(rope, row + 2 * d, c->d_rope);
    } else {
        for (int64_t i = 0; i < d; i += GM_LATENT_GROUP) {
            float scale;
            gm_load_bf16(&scale, row + d + i / GM_LATENT_GROUP * 2, 1);
            vf_widen_e4m3(to + i, row + i, d - i < GM_LATENT_GROUP ? d - i : GM_LATENT_GROUP, scale);
        }
        vf_widen_bf16(rope, row + d + 2 * gm_latent_groups(d), c->d_rope);
    }
}

static inline void vf_index_load(const gm_index_cache *c, const uint8_t *key, float *to)
{
    if (c->dtype == GM_KV_F32) memcpy(to, key, (size_t)c->d * 4);
    else if (c->dtype == GM_KV_BF16) vf_widen_bf16(to, key, c->d);
    else if (c->dtype == GM_KV_F16) vf_widen_f16(to, key, c->d);
    else {
        float scale;
        memcpy(&scale, key + c->d, 4);
        vf_widen_e4m3(to, key, c->d, scale);
    }
}

#endif
