/* One group of a latent row to E4M3 with a scale. The sums have a fixed tree, so that all variants write the same bytes.
 *
 * E4M3's error depends on where values lie between powers of two, so the scale is searched: of 16 candidates over one
 * octave, from amax / 448 up, the one with the least squared error (ties: the smallest). That takes a quarter off the
 * error of a scale from the maximum alone. */
#ifndef GM_OPS_FP8_GROUP_H
#define GM_OPS_FP8_GROUP_H
#include "config/kv_dtype.h"
#include "ops/tensor.h"

#include <string.h>

/* v >= 0 rounded to E4M3's grid: nearest, ties to even; below 2^-6 the grid is 2^-9 wide. */
static inline float gm_e4m3_round(float v)
{
    union {
        float f;
        uint32_t u;
    } n = {.f = v};
    n.u = (n.u + 0x7FFFFu + (n.u >> 20 & 1u)) & 0xFFF00000u;
    float small = (v + 24576.0f) - 24576.0f; /* ulp 2^-9 there */
    float r = v < 0.015625f ? small : n.f;
    return r > 448.0f ? 448.0f : r;
}

static inline float gm_fp8_error(const float *mag, float scale)
{
    float e[GM_LATENT_GROUP];
    for (int i = 0; i < GM_LATENT_GROUP; i++) {
        float d = gm_e4m3_round(mag[i] / scale) * scale - mag[i];
        e[i] = d * d;
    }
    for (int half = GM_LATENT_GROUP / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) e[i] += e[i + half];
    return e[0];
}

/* The scale of x[0..n), n <= GM_LATENT_GROUP. A NaN does not enter it. mag has room for GM_LATENT_GROUP. */
static inline float gm_fp8_scale(float *mag, const float *x, int64_t n, float (*error)(const float *mag, float scale))
{
    enum { CANDIDATES = 16 };
    static const float steps[CANDIDATES] = {1.0f,        1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f,
                                            1.29683955f, 1.35425555f, 1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f,
                                            1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
    float amax = 0, best = 0, least = 0;
    memset(mag, 0, GM_LATENT_GROUP * sizeof *mag);
    for (int64_t i = 0; i < n; i++) {
        mag[i] = x[i] == x[i] ? __builtin_fabsf(x[i]) : 0;
        if (mag[i] > amax) amax = mag[i];
    }
    if (!(amax <= 1e37f)) amax = 1e37f; /* infinities saturate */
    float base = amax / 448.0f > 1e-30f ? amax / 448.0f : 1e-30f;
    for (int k = 0; k < CANDIDATES; k++) {
        /* up to the next BF16, so that amax stays within 448 */
        float scale = gm_bf16_to_f32((uint16_t)(gm_f32_to_bf16(base * steps[k]) + (gm_round_bf16(base * steps[k]) < base)));
        float e = error(mag, scale);
        if (k == 0 || e < least) {
            least = e;
            best = scale;
        }
    }
    return best;
}

/* x[0..n) to codes and the scale. A NaN stays a NaN of its own. */
static inline void gm_fp8_group(uint8_t *codes, uint8_t *scale_at, const float *x, int64_t n)
{
    float mag[GM_LATENT_GROUP];
    float scale = gm_fp8_scale(mag, x, n, gm_fp8_error);
    for (int64_t i = 0; i < n; i++) codes[i] = gm_f32_to_e4m3(x[i] / scale);
    uint16_t s = gm_f32_to_bf16(scale);
    memcpy(scale_at, &s, 2);
}


#endif
