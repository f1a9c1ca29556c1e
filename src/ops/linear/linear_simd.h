/* The body of linear_avx2.c and linear_avx512.c: products in FP32.
 *
 * One output has one accumulator of GM_VF lanes. Lane i takes k = i, i + GM_VF, ... in rising order, one fused
 * multiply-add each; FP8 weights are scaled before (code * scale, rounded to FP32); at the end the lanes are added in
 * vf_sum's tree. Every path below keeps to that, so that they give the same bits:
 *   direct  few tokens: weights are converted in registers on their way from memory. Bound by reading W.
 *   panel   more: PANEL_ROWS x PANEL_K weights are converted to FP32 once (24 KiB, in L1) and multiplied with tiles of
 *           4 tokens x 3 rows; between the k-blocks the accumulators wait in memory. Bound by multiply-adds.
 * A NaN among FP8 codes is looked for beforehand, for the conversion by shifts would make 480 of it. */
#ifndef GM_OPS_LINEAR_SIMD_H
#define GM_OPS_LINEAR_SIMD_H

#include "ops/linear/linear_internal.h"
#include "ops/simd.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum { DIRECT_TOKENS = 12, PANEL_ROWS = 24, PANEL_K = 256, PANEL_TOKENS = 64, TILE_TOKENS = 4, TILE_ROWS = 3 };

/* Two vectors of FP8 codes, times scale (which has the 2^8 in it). */
INLINE void load2_e4m3(const uint8_t *p, vf scale, vf *a, vf *b)
{
#if defined(__AVX512F__)
    __m512i w = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
    __m512i h = _mm512_and_si512(_mm512_slli_epi16(w, 7), _mm512_set1_epi16((short)0xBFFF));
    *a = vf_mul(_mm512_cvtph_ps(_mm512_castsi512_si256(h)), scale);
    *b = vf_mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)), scale);
#else
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xBFFF));
    *a = vf_mul(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), scale);
    *b = vf_mul(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), scale);
#endif
}

/* One vector of FP8 codes: exponent and mantissa moved to where FP32 has them make the value times 2^-120 (subnormal
 * codes a subnormal FP32); scale has the 2^120 in it, and must be below SCALE_MAX for that. The quickest way where
 * nothing else is done to the weights. */
#define SCALE_MAX 64.0f
INLINE vf load_e4m3_fast(const uint8_t *p, vf scale)
{
#if defined(__AVX512F__)
    __m512i w = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
    w = _mm512_and_si512(_mm512_slli_epi32(w, 20), _mm512_set1_epi32((int)0x87F00000u));
    return vf_mul(_mm512_castsi512_ps(w), scale);
#else
    __m256i w = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
    w = _mm256_and_si256(_mm256_slli_epi32(w, 20), _mm256_set1_epi32((int)0x87F00000u));
    return vf_mul(_mm256_castsi256_ps(w), scale);
#endif
}

/* n <= GM_VF codes; the rest are zeros. */
INLINE vf load_e4m3_n(const uint8_t *p, int64_t n, vf scale)
{
    uint8_t t[2 * GM_VF] = {0};
    vf a, b;
    memcpy(t, p, (size_t)n);
    load2_e4m3(t, scale, &a, &b);
    return a;
}

INLINE void load2(gm_dtype type, const uint8_t *p, vf scale, vf *a, vf *b)
{
    if (type == GM_F32) {
        *a = vf_load((const float *)(const void *)p);
        *b = vf_load((const float *)(const void *)p + GM_VF);
    } else if (type == GM_BF16) {
        *a = vf_load_bf16(p);
        *b = vf_load_bf16(p + 2 * GM_VF);
    } else {
        load2_e4m3(p, scale, a, b);
    }
}

INLINE vf load_n(gm_dtype type, const uint8_t *p, int64_t n, vf scale)
{
    if (type == GM_F32) return vf_load_n((const float *)(const void *)p, n);
    if (type == GM_BF16) return vf_load_bf16_n(p, n);
    return load_e4m3_n(p, n, scale);
}

/* 2 * GM_VF codes, to look for NaN in. */
INLINE __m256i load_codes(const uint8_t *p)
{
#if defined(__AVX512F__)
    return _mm256_loadu_si256((const __m256i *)p);
#else
    return _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
#endif
}

static bool has_nan_code(const uint8_t *p, int64_t n)
{
    __m256i sign = _mm256_set1_epi8((char)0x80), most = sign;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        most = _mm256_max_epu8(most, _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(p + i)), sign));
    bool found = _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, _mm256_set1_epi8((char)0xFF))) != 0;
    for (; i < n; i++) found |= (p[i] | 0x80) == 0xFF;
    return found;
}

static const uint8_t *row_data(const gm_matrix *w, int64_t row)
{
    return (const uint8_t *)w->data + row * w->cols * gm_dtype_size(w->dtype);
}

static const float *row_scale(const gm_matrix *w, int64_t row)
{
    return w->dtype == GM_F8E4M3 ? w->scale + (w->row0 + row) / w->block_rows * w->scale_cols : NULL;
}

static const float *x_row(const gm_linear_part *p, int64_t t)
{
    return (const float *)p->x + (p->x_rows ? p->x_rows[t] : t) * p->ldx;
}

INLINE void put(const gm_linear_part *p, int64_t t, int64_t row, float v)
{
    float *y = p->y + t * p->ldy + (row - p->row_begin);
    *y = p->accumulate ? *y + v : v;
}

/* nt tokens against nr rows, straight from memory. */
INLINE void direct_tile(const gm_linear_part *p, gm_dtype type, int64_t row, int64_t token, int nt, int nr)
{
    const gm_matrix *w = p->w;
    int64_t K = w->cols, size = type == GM_F32 ? 4 : type == GM_BF16 ? 2 : 1;
    int64_t block = type == GM_F8E4M3 ? w->block_cols : K;
    const uint8_t *wr[4];
    const float *scales[4], *x[4];
    bool nan[4] = {false};
    vf acc[4][4], scale[4];
    __m256i sign = _mm256_set1_epi8((char)0x80), most = sign; /* of all rows; which one it was is asked afterwards */
    for (int r = 0; r < nr; r++) {
        wr[r] = row_data(w, row + r);
        scales[r] = row_scale(w, row + r);
        scale[r] = vf_zero();
        for (int t = 0; t < nt; t++) acc[r][t] = vf_zero();
    }
    for (int t = 0; t < nt; t++) x[t] = x_row(p, token + t);

    for (int64_t k = 0, b = 0; k < K; b++) {
        int64_t end = k + block < K ? k + block : K;
        if (type == GM_F8E4M3) {
            bool small = true;
            for (int r = 0; r < nr; r++) small &= fabsf(scales[r][b]) < SCALE_MAX;
            for (int r = 0; r < nr; r++) scale[r] = vf_set1(scales[r][b] * 0x1p120f);
            for (; small && k + 2 * GM_VF <= end; k += 2 * GM_VF) {
                for (int r = 0; r < nr; r++)
                    most = _mm256_max_epu8(most, _mm256_or_si256(load_codes(wr[r] + k), sign));
                if (k % 64 == 0)
                    for (int r = 0; r < nr; r++) _mm_prefetch((const char *)wr[r] + k + nr * K, _MM_HINT_T0);
                for (int v = 0; v < 2; v++) {
                    vf xv[4];
                    for (int t = 0; t < nt; t++) xv[t] = vf_load(x[t] + k + v * GM_VF);
                    for (int r = 0; r < nr; r++) {
                        vf wv = load_e4m3_fast(wr[r] + k + v * GM_VF, scale[r]);
                        for (int t = 0; t < nt; t++) acc[r][t] = vf_fma(wv, xv[t], acc[r][t]);
                    }
                }
            }
            for (int r = 0; r < nr; r++) {
                scale[r] = vf_set1(scales[r][b] * 256.0f);
                if (k < end) nan[r] |= has_nan_code(wr[r] + k, end - k);
            }
        }
        for (; k + 2 * GM_VF <= end; k += 2 * GM_VF) {
            vf x0[4], x1[4];
            for (int t = 0; t < nt; t++) {
                x0[t] = vf_load(x[t] + k);
                x1[t] = vf_load(x[t] + k + GM_VF);
            }
            for (int r = 0; r < nr; r++) {
                vf w0, w1;
                load2(type, wr[r] + k * size, scale[r], &w0, &w1);
                for (int t = 0; t < nt; t++) acc[r][t] = vf_fma(w1, x1[t], vf_fma(w0, x0[t], acc[r][t]));
            }
        }
        for (; k < end; k += GM_VF) {
            int64_t n = end - k < GM_VF ? end - k : GM_VF;
            vf wv[4];
            for (int r = 0; r < nr; r++) {
                if (n == GM_VF && type == GM_F32) wv[r] = vf_load((const float *)(const void *)(wr[r] + k * size));
                else if (n == GM_VF && type == GM_BF16) wv[r] = vf_load_bf16(wr[r] + k * size);
                else wv[r] = load_n(type, wr[r] + k * size, n, scale[r]);
            }
            for (int t = 0; t < nt; t++) {
                vf xv = n == GM_VF ? vf_load(x[t] + k) : vf_load_n(x[t] + k, n);
                for (int r = 0; r < nr; r++) acc[r][t] = vf_fma(wv[r], xv, acc[r][t]);
            }
            if (n < GM_VF) k = end - GM_VF; /* the last of all: blocks are whole vectors */
        }
    }
    if (type == GM_F8E4M3 && _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, _mm256_set1_epi8((char)0xFF))))
        for (int r = 0; r < nr; r++) nan[r] = has_nan_code(wr[r], K);
    for (int r = 0; r < nr; r++)
        for (int t = 0; t < nt; t++) put(p, token + t, row + r, nan[r] ? NAN : vf_sum(acc[r][t]));
}

/* nr rows against all tokens, four at a time; the rows stay in the first-level cache meanwhile. */
INLINE void direct_tokens(const gm_linear_part *p, gm_dtype type, int64_t row, int nr)
{
    int64_t t = 0;
    for (; p->n - t >= 4; t += 4) {
        if (nr == 4) direct_tile(p, type, row, t, 4, 2), direct_tile(p, type, row + 2, t, 4, 2);
        else direct_tile(p, type, row, t, 4, nr);
    }
    if (p->n - t == 3) {
        if (nr == 4) direct_tile(p, type, row, t, 3, 2), direct_tile(p, type, row + 2, t, 3, 2);
        else direct_tile(p, type, row, t, 3, nr);
    } else if (p->n - t == 2) {
        direct_tile(p, type, row, t, 2, nr);
    } else if (p->n - t == 1) {
        direct_tile(p, type, row, t, 1, nr);
    }
}

INLINE void direct(const gm_linear_part *p, gm_dtype type)
{
    int64_t row = p->row_begin;
    for (; row + 4 <= p->row_end; row += 4) direct_tokens(p, type, row, 4);
    for (; row < p->row_end; row++) direct_tokens(p, type, row, 1);
}

/* Weights k .. k+n-1 of a row as FP32, zeros up to a whole vector. */
static void convert_row(const gm_matrix *w, int64_t row, int64_t k, int64_t n, float *to)
{
    const uint8_t *from = row_data(w, row) + k * gm_dtype_size(w->dtype);
    int64_t i = 0;
    if (w->dtype == GM_F32) {
        memcpy(to, from, (size_t)n * 4);
        i = n;
    } else if (w->dtype == GM_BF16) {
        for (; i + GM_VF <= n; i += GM_VF) vf_store(to + i, vf_load_bf16(from + 2 * i));
        for (; i < n; i++) to[i] = gm_bf16_to_f32(((const uint16_t *)(const void *)from)[i]);
    } else {
        const float *scales = row_scale(w, row);
        while (i < n) {
            int64_t b = (k + i) / w->block_cols, end = (b + 1) * w->block_cols - k;
            if (end > n) end = n;
            vf scale = vf_set1(scales[b] * 256.0f);
            for (; i + 2 * GM_VF <= end; i += 2 * GM_VF) {
                vf v0, v1;
                load2_e4m3(from + i, scale, &v0, &v1);
                vf_store(to + i, v0);
                vf_store(to + i + GM_VF, v1);
            }
            for (; i < end; i++) to[i] = gm_e4m3_to_f32(from[i]) * 0.00390625f * (scales[b] * 256.0f);
        }
    }
    for (; i % GM_VF; i++) to[i] = 0;
}

/* nt tokens against nr rows of the panel: n_vec whole vectors, then `rest` values. acc[t * PANEL_ROWS + r]. */
INLINE void panel_tile(const float *const *x, const float *panel, int64_t n_vec, int64_t rest, vf *acc, bool first,
                       int nt, int nr)
{
    vf a[TILE_TOKENS][TILE_ROWS];
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < nr; r++) a[t][r] = first ? vf_zero() : acc[t * PANEL_ROWS + r];
    int64_t k = 0;
    for (; k < n_vec * GM_VF; k += GM_VF) {
        vf w[TILE_ROWS];
        for (int r = 0; r < nr; r++) w[r] = vf_load(panel + r * PANEL_K + k);
        for (int t = 0; t < nt; t++) {
            vf xv = vf_load(x[t] + k);
            for (int r = 0; r < nr; r++) a[t][r] = vf_fma(w[r], xv, a[t][r]);
        }
    }
    if (rest) {
        for (int t = 0; t < nt; t++) {
            vf xv = vf_load_n(x[t] + k, rest);
            for (int r = 0; r < nr; r++) a[t][r] = vf_fma(vf_load(panel + r * PANEL_K + k), xv, a[t][r]);
        }
    }
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < nr; r++) acc[t * PANEL_ROWS + r] = a[t][r];
}

INLINE void panel_rows(const float *const *x, const float *panel, int64_t rows, int64_t n_vec, int64_t rest, vf *acc,
                       bool first, int nt)
{
    int64_t r = 0;
    for (; r + 3 <= rows; r += 3) panel_tile(x, panel + r * PANEL_K, n_vec, rest, acc + r, first, nt, 3);
    if (rows - r == 2) panel_tile(x, panel + r * PANEL_K, n_vec, rest, acc + r, first, nt, 2);
    else if (rows - r == 1) panel_tile(x, panel + r * PANEL_K, n_vec, rest, acc + r, first, nt, 1);
}

/* Up to PANEL_ROWS rows against tokens t_begin .. t_begin+n-1. */
static void panel_block(const gm_linear_part *p, int64_t row, int64_t rows, int64_t t_begin, int64_t n)
{
    const gm_matrix *w = p->w;
    int64_t K = w->cols;
    float *panel = p->scratch;
    vf *acc = (vf *)(void *)((uint8_t *)p->scratch + PANEL_ROWS * PANEL_K * 4); /* [n][PANEL_ROWS] */
    for (int64_t k = 0; k < K; k += PANEL_K) {
        int64_t kn = K - k < PANEL_K ? K - k : PANEL_K;
        for (int64_t r = 0; r < rows; r++) convert_row(w, row + r, k, kn, panel + r * PANEL_K);
        for (int64_t t = 0; t < n; t += TILE_TOKENS) {
            const float *x[TILE_TOKENS];
            int64_t nt = n - t < TILE_TOKENS ? n - t : TILE_TOKENS;
            for (int64_t i = 0; i < nt; i++) x[i] = x_row(p, t_begin + t + i) + k;
            vf *at = acc + t * PANEL_ROWS;
            switch (nt) {
            case 1: panel_rows(x, panel, rows, kn / GM_VF, kn % GM_VF, at, k == 0, 1); break;
            case 2: panel_rows(x, panel, rows, kn / GM_VF, kn % GM_VF, at, k == 0, 2); break;
            case 3: panel_rows(x, panel, rows, kn / GM_VF, kn % GM_VF, at, k == 0, 3); break;
            default: panel_rows(x, panel, rows, kn / GM_VF, kn % GM_VF, at, k == 0, 4); break;
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        bool nan = w->dtype == GM_F8E4M3 && has_nan_code(row_data(w, row + r), K);
        for (int64_t t = 0; t < n; t++) put(p, t_begin + t, row + r, nan ? NAN : vf_sum(acc[t * PANEL_ROWS + r]));
    }
}

static void part_f32(const gm_linear_part *p)
{
    const gm_matrix *w = p->w;
    /* Direct tiles need scale blocks of whole vectors; other blocks are converted value by value. */
    bool whole = w->dtype != GM_F8E4M3 || w->block_cols % GM_VF == 0 || w->block_cols >= w->cols;
    if (p->n <= DIRECT_TOKENS && whole) {
        if (w->dtype == GM_F32) direct(p, GM_F32);
        else if (w->dtype == GM_BF16) direct(p, GM_BF16);
        else direct(p, GM_F8E4M3);
        return;
    }
    for (int64_t t = 0; t < p->n; t += PANEL_TOKENS)
        for (int64_t row = p->row_begin; row < p->row_end; row += PANEL_ROWS)
            panel_block(p, row, p->row_end - row < PANEL_ROWS ? p->row_end - row : PANEL_ROWS, t,
                        p->n - t < PANEL_TOKENS ? p->n - t : PANEL_TOKENS);
}

static void round_f32(float *to, const float *from, int64_t n)
{
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store(to + i, vf_round_bf16(vf_load(from + i)));
    for (; i < n; i++) to[i] = gm_round_bf16(from[i]);
}

_Static_assert(PANEL_ROWS * PANEL_K * 4 + PANEL_TOKENS * PANEL_ROWS * GM_VF * 4 <= GM_LINEAR_SCRATCH, "scratch");

#endif
