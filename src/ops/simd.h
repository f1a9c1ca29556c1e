/* A vector of floats as wide as the file's instruction set makes it: 8 with AVX2, 16 with AVX-512. A variant's body
 * is written once against these names and compiled in x_avx2.c and in x_avx512.c; GM_VARIANT(f) is f_avx2 or
 * f_avx512. Included by those files only.
 *
 * Loads with _n read n < GM_VF values and fill with zeros. Sums of lanes have one fixed order. vf_exp is within 2 ulp
 * of the exact value, gives 0 and infinity where FP32 does, and passes NaN on. */
#ifndef GM_OPS_SIMD_H
#define GM_OPS_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)

#define GM_VARIANT(name) name##_avx512
enum { GM_VF = 16 };
typedef __m512 vf;

static inline __mmask16 vf_mask(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

static inline vf vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf vf_set1(float f) { return _mm512_set1_ps(f); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vf_mask(n), p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline void vf_store_n(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, vf_mask(n), v); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
/* Where either is NaN: b. */
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }

static inline __m256 vf_fold(vf v)
{
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

static inline float vf_hmax(vf v) { return _mm512_reduce_max_ps(v); }

static inline vf vf_round_int(vf v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* v * 2^n, n integral; no overflow on the way. */
static inline vf vf_scale2(vf v, vf n) { return _mm512_scalef_ps(v, n); }
static inline vf vf_scale2_mid(vf v, vf n) { return _mm512_scalef_ps(v, n); }

static inline vf vf_from_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline vf vf_load_bf16(const void *p) { return vf_from_bf16(_mm256_loadu_si256((const __m256i *)p)); }

static inline vf vf_load_bf16_n(const void *p, int64_t n)
{
    return vf_from_bf16(_mm256_maskz_loadu_epi16(vf_mask(n), p));
}

/* To BF16, nearest even, NaN stays NaN, subnormals kept (the machine's own conversion flushes them). */
static inline __m256i vf_to_bf16(vf v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}

static inline vf vf_round_bf16(vf v) { return vf_from_bf16(vf_to_bf16(v)); }
static inline void vf_store_bf16(void *p, vf v) { _mm256_storeu_si256((__m256i *)p, vf_to_bf16(v)); }
static inline void vf_store_bf16_n(void *p, vf v, int64_t n) { _mm256_mask_storeu_epi16(p, vf_mask(n), vf_to_bf16(v)); }

/* E4M3 as half floats: sign kept, four exponent and three mantissa bits moved, so the value is 2^-8 times too small. */
static inline vf vf_from_e4m3(__m128i codes)
{
    __m256i w = _mm256_cvtepi8_epi16(codes);
    __m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xBFFF));
    __m256i nan = _mm256_cmpeq_epi16(_mm256_or_si256(h, _mm256_set1_epi16((short)0x8000)), _mm256_set1_epi16((short)0xBF80));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(h, nan)), _mm512_set1_ps(256.0f));
}

static inline vf vf_load_e4m3(const uint8_t *p) { return vf_from_e4m3(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_e4m3_n(const uint8_t *p, int64_t n) { return vf_from_e4m3(_mm_maskz_loadu_epi8(vf_mask(n), p)); }

/* To E4M3: nearest even, saturated at 448, NaN gives 0x7F. */
static inline void vf_store_e4m3(uint8_t *p, vf v)
{
    vf a = vf_min(vf_set1(448.0f), vf_abs(v));
    __m512i u = _mm512_castps_si512(a), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 20), one);
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF))), 20);
    r = _mm512_sub_epi32(r, _mm512_set1_epi32(120 << 3));
    __mmask16 small = _mm512_cmp_ps_mask(a, vf_set1(0.015625f), _CMP_LT_OQ), nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_mov_epi32(r, small, _mm512_cvtps_epi32(vf_mul(a, vf_set1(512.0f))));
    r = _mm512_or_si512(r, _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(v), 24), _mm512_set1_epi32(0x80)));
    r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7F));
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(r));
}

/* IEEE half; storing saturates at 65504, NaN stays NaN (the limits come first, min and max give their second operand) */
static inline vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_f16_n(const void *p, int64_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vf_mask(n), p)); }
static inline __m256i vf_to_f16(vf v)
{
    v = _mm512_max_ps(_mm512_set1_ps(-65504.0f), _mm512_min_ps(_mm512_set1_ps(65504.0f), v));
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline void vf_store_f16(void *p, vf v) { _mm256_storeu_si256((__m256i *)p, vf_to_f16(v)); }
static inline void vf_store_f16_n(void *p, vf v, int64_t n) { _mm256_mask_storeu_epi16(p, vf_mask(n), vf_to_f16(v)); }

#else

#define GM_VARIANT(name) name##_avx2
enum { GM_VF = 8 };
typedef __m256 vf;

static inline __m256i vf_mask(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_zero(void) { return _mm256_setzero_ps(); }
static inline vf vf_set1(float f) { return _mm256_set1_ps(f); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf vf_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, vf_mask(n)); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline void vf_store_n(float *p, vf v, int64_t n) { _mm256_maskstore_ps(p, vf_mask(n), v); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
/* Where either is NaN: b. */
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline __m256 vf_fold(vf v) { return v; }

static inline float vf_hmax(vf v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

static inline vf vf_round_int(vf v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* v * 2^n, n integral, |n| < 253: in two steps, so that neither factor leaves the range. */
static inline vf vf_scale2(vf v, vf n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(v, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

/* |n| <= 126. */
static inline vf vf_scale2_mid(vf v, vf n)
{
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(v, _mm256_castsi256_ps(power));
}

static inline vf vf_from_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline vf vf_load_bf16(const void *p) { return vf_from_bf16(_mm_loadu_si128((const __m128i *)p)); }

static inline vf vf_load_bf16_n(const void *p, int64_t n)
{
    uint16_t t[8] = {0};
    memcpy(t, p, (size_t)n * 2);
    return vf_load_bf16(t);
}

/* As 32-bit numbers. */
static inline __m256i vf_to_bf16_wide(vf v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_srli_epi32(r, 16);
}

static inline vf vf_round_bf16(vf v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(vf_to_bf16_wide(v), 16));
}

static inline void vf_store_bf16(void *p, vf v)
{
    __m256i w = vf_to_bf16_wide(v);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

static inline void vf_store_bf16_n(void *p, vf v, int64_t n)
{
    uint16_t t[8];
    vf_store_bf16(t, v);
    memcpy(p, t, (size_t)n * 2);
}

/* E4M3 as half floats: sign kept, four exponent and three mantissa bits moved, so the value is 2^-8 times too small. */
static inline vf vf_from_e4m3(__m128i codes)
{
    __m128i w = _mm_cvtepi8_epi16(codes);
    __m128i h = _mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16((short)0xBFFF));
    __m128i nan = _mm_cmpeq_epi16(_mm_or_si128(h, _mm_set1_epi16((short)0x8000)), _mm_set1_epi16((short)0xBF80));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(h, nan)), _mm256_set1_ps(256.0f));
}

static inline vf vf_load_e4m3(const uint8_t *p) { return vf_from_e4m3(_mm_loadl_epi64((const __m128i *)p)); }

static inline vf vf_load_e4m3_n(const uint8_t *p, int64_t n)
{
    uint8_t t[8] = {0};
    memcpy(t, p, (size_t)n);
    return vf_load_e4m3(t);
}

static inline vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

static inline vf vf_load_f16_n(const void *p, int64_t n)
{
    uint16_t t[8] = {0};
    memcpy(t, p, (size_t)n * 2);
    return vf_load_f16(t);
}

/* saturates at 65504; NaN stays NaN: min and max give their second operand where one is NaN */
static inline void vf_store_f16(void *p, vf v)
{
    v = _mm256_max_ps(_mm256_set1_ps(-65504.0f), _mm256_min_ps(_mm256_set1_ps(65504.0f), v));
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void vf_store_f16_n(void *p, vf v, int64_t n)
{
    uint16_t t[8];
    vf_store_f16(t, v);
    memcpy(p, t, (size_t)n * 2);
}

/* To E4M3: nearest even, saturated at 448, NaN gives 0x7F. */
static inline void vf_store_e4m3(uint8_t *p, vf v)
{
    vf a = vf_min(vf_set1(448.0f), vf_abs(v));
    __m256i u = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 20), one);
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFFF))), 20);
    r = _mm256_sub_epi32(r, _mm256_set1_epi32(120 << 3));
    __m256i small = _mm256_castps_si256(_mm256_cmp_ps(a, vf_set1(0.015625f), _CMP_LT_OQ));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_cvtps_epi32(vf_mul(a, vf_set1(512.0f))), small);
    r = _mm256_or_si256(r, _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(v), 24), _mm256_set1_epi32(0x80)));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7F), nan);
    __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(w, w));
}

#endif

static inline void vf_store_e4m3_n(uint8_t *p, vf v, int64_t n)
{
    uint8_t t[GM_VF];
    vf_store_e4m3(t, v);
    memcpy(p, t, (size_t)n);
}

/* Lanes added in a fixed tree. */
static inline float vf_sum(vf v)
{
    __m256 f = vf_fold(v);
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* e^(x - n ln 2) for the nearest n. */
static inline vf vf_exp_rest(vf x, vf n)
{
    vf r = vf_fnma(n, vf_set1(-2.12194440e-4f), vf_fnma(n, vf_set1(0.693359375f), x));
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), r);
    return vf_add(p, vf_set1(1.0f));
}

static inline vf vf_exp(vf x)
{
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x)); /* NaN is the second operand and stays */
    vf n = vf_round_int(vf_mul(x, vf_set1(1.44269504088896341f)));
    return vf_scale2(vf_exp_rest(x, n), n);
}

/* The same for arguments that are cut to -87 .. 87: never 0 nor infinity, and quicker. */
static inline vf vf_exp_mid(vf x)
{
    x = vf_min(vf_set1(87.0f), vf_max(vf_set1(-87.0f), x));
    vf n = vf_round_int(vf_mul(x, vf_set1(1.44269504088896341f)));
    return vf_scale2_mid(vf_exp_rest(x, n), n);
}

/* Below -87 it stays at 1.6e-38. */
static inline vf vf_sigmoid(vf x)
{
    vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp_mid(vf_sub(vf_zero(), x))));
}

/* to[c * ld_to + r] = from[r * ld + c] for 8 x 8 values. */
static inline void vf_transpose_8x8(const float *from, int64_t ld, float *to, int64_t ld_to)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + i * ld);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * ld_to, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * ld_to, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* Dot product of floats. */
static inline float vf_dot(const float *a, const float *b, int64_t n)
{
    vf s = vf_zero();
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) s = vf_fma(vf_load(a + i), vf_load(b + i), s);
    if (i < n) s = vf_fma(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i), s);
    return vf_sum(s);
}

#endif
