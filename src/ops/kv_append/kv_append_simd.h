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

/* gm_e4m3_round(). */
static inline vf round_e4m3(vf v)
{
#if defined(__AVX512F__)
    __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 20), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF)));
    vf normal = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xFFF00000u)));
    vf small = vf_sub(vf_add(v, vf_set1(24576.0f)), vf_set1(24576.0f));
    vf r = _mm512_mask_mov_ps(normal, _mm512_cmp_ps_mask(v, vf_set1(0.015625f), _CMP_LT_OQ), small);
#else
    __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 20), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFFF)));
    vf normal = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xFFF00000u)));
    vf small = vf_sub(vf_add(v, vf_set1(24576.0f)), vf_set1(24576.0f));
    vf r = _mm256_blendv_ps(normal, small, _mm256_cmp_ps(v, vf_set1(0.015625f), _CMP_LT_OQ));
#endif
    return vf_min(r, vf_set1(448.0f));
}

/* gm_fp8_error(): the same tree of additions (a vector's lanes fold in halves in vf_sum too). */
static inline float error_of(const float *mag, float scale)
{
    enum { N = GM_LATENT_GROUP / GM_VF };
    vf s = vf_set1(scale), e[N];
    for (int i = 0; i < N; i++) {
        vf m = vf_load(mag + i * GM_VF), d = vf_sub(vf_mul(round_e4m3(vf_div(m, s)), s), m);
        e[i] = vf_mul(d, d);
    }
    for (int half = N / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) e[i] = vf_add(e[i], e[i + half]);
    return vf_sum(e[0]);
}

static inline void put_group(uint8_t *codes, uint8_t *scale_at, const float *x, int64_t n)
{
    float mag[GM_LATENT_GROUP];
    float scale = gm_fp8_scale(mag, x, n, error_of);
    vf by = vf_set1(scale);
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store_e4m3(codes + i, vf_div(vf_load(x + i), by));
    if (i < n) vf_store_e4m3_n(codes + i, vf_div(vf_load_n(x + i, n - i), by), n - i);
    uint16_t s = gm_f32_to_bf16(scale);
    memcpy(scale_at, &s, 2);
}

static inline void put_fp8(uint8_t *codes, uint8_t *scales, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += GM_LATENT_GROUP)
        put_group(codes + i, scales + i / GM_LATENT_GROUP * 2, x + i, n - i < GM_LATENT_GROUP ? n - i : GM_LATENT_GROUP);
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
        case GM_KV_F16: GM_ASSERT(false && "latent rows are never FP16");
        }
    }
}

#endif
