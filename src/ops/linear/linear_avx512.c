#include "ops/linear/linear_simd.h"

/* BF16 activations against BF16 or FP8 weights: dot products of BF16 pairs with FP32 sums (products of subnormals
 * count as zero there). A lane adds pairs k = 2 i, 2 i + 1, then those 32 further on. E4M3 is exact in BF16, so four
 * rows of FP8 weights are converted to scratch and used for all tokens (up to 4 tokens: in registers), and each scale
 * block's sum is multiplied by its scale. Tiles of 4 tokens x 4 rows. One order for every n. */
enum { DOT_TOKENS = 4, DOT_ROWS = 4, PAIRS = 32 };

/* 32 codes. Subnormals come from a table by their three bits. */
INLINE __m512i e4m3_to_bf16(__m256i codes)
{
    const __m512i subnormal = _mm512_set4_epi64(0, 0, 0x3C603C403C203C00, 0x3BC03B803B000000);
    __m512i w = _mm512_cvtepu8_epi16(codes), m = _mm512_and_si512(w, _mm512_set1_epi16(0x7F));
    __m512i r = _mm512_add_epi16(_mm512_slli_epi16(m, 4), _mm512_set1_epi16(0x3C00));
    r = _mm512_mask_permutexvar_epi16(r, _mm512_cmplt_epu16_mask(m, _mm512_set1_epi16(8)), m, subnormal);
    r = _mm512_mask_mov_epi16(r, _mm512_cmpeq_epi16_mask(m, _mm512_set1_epi16(0x7F)), _mm512_set1_epi16(0x7FC0));
    return _mm512_ternarylogic_epi32(r, _mm512_slli_epi16(w, 8), _mm512_set1_epi16((short)0x8000), 0xF8);
}

static void convert_codes(uint16_t *to, const uint8_t *from, int64_t n)
{
    int64_t k = 0;
    for (; k + PAIRS <= n; k += PAIRS)
        _mm512_storeu_si512(to + k, e4m3_to_bf16(_mm256_loadu_si256((const __m256i *)(from + k))));
    if (k < n) _mm512_storeu_si512(to + k, e4m3_to_bf16(_mm256_maskz_loadu_epi8((__mmask32)((1u << (n - k)) - 1), from + k)));
}

INLINE __m512i load_pairs(const uint16_t *p, int64_t n)
{
    return n >= PAIRS ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}

/* n weights of a row from k on: BF16, or codes. */
INLINE __m512i load_weights(const void *w, int64_t k, int64_t n, bool codes)
{
    if (!codes) return load_pairs((const uint16_t *)w + k, n);
    const uint8_t *p = (const uint8_t *)w + k;
    if (n >= PAIRS) return e4m3_to_bf16(_mm256_loadu_si256((const __m256i *)p));
    return e4m3_to_bf16(_mm256_maskz_loadu_epi8((__mmask32)((1u << n) - 1), p));
}

/* scales: of the rows' blocks, NULL for BF16 weights; codes: w is FP8 as stored. */
INLINE void dot_tile(const gm_linear_part *p, const void *const *w, const float *const *scales, int64_t block,
                     int64_t row, int64_t token, int nt, int nr, bool codes)
{
    int64_t K = p->w->cols;
    const uint16_t *x[DOT_TOKENS];
    vf total[DOT_ROWS][DOT_TOKENS];
    for (int t = 0; t < nt; t++) {
        x[t] = (const uint16_t *)p->x + (p->x_rows ? p->x_rows[token + t] : token + t) * p->ldx;
        for (int r = 0; r < nr; r++) total[r][t] = vf_zero();
    }
    for (int64_t k = 0, b = 0; k < K; b++) {
        int64_t end = k + block < K ? k + block : K;
        vf acc[DOT_ROWS][DOT_TOKENS];
        for (int r = 0; r < nr; r++)
            for (int t = 0; t < nt; t++) acc[r][t] = vf_zero();
        for (; k + PAIRS <= end; k += PAIRS) {
            __m512i wv[DOT_ROWS];
            for (int r = 0; r < nr; r++) wv[r] = load_weights(w[r], k, PAIRS, codes);
            for (int t = 0; t < nt; t++) {
                __m512i xv = _mm512_loadu_si512(x[t] + k);
                for (int r = 0; r < nr; r++) acc[r][t] = _mm512_dpbf16_ps(acc[r][t], (__m512bh)wv[r], (__m512bh)xv);
            }
        }
        if (k < end) { /* only at the end of a row */
            for (int r = 0; r < nr; r++) {
                __m512i wv = load_weights(w[r], k, end - k, codes);
                for (int t = 0; t < nt; t++)
                    acc[r][t] = _mm512_dpbf16_ps(acc[r][t], (__m512bh)wv, (__m512bh)load_pairs(x[t] + k, end - k));
            }
            k = end;
        }
        for (int r = 0; r < nr; r++)
            for (int t = 0; t < nt; t++)
                total[r][t] = scales ? vf_fma(acc[r][t], vf_set1(scales[r][b]), total[r][t]) : acc[r][t];
    }
    for (int r = 0; r < nr; r++)
        for (int t = 0; t < nt; t++) put(p, token + t, row + r, vf_sum(total[r][t]));
}

INLINE void dot_rows(const gm_linear_part *p, const void *const *w, const float *const *scales, int64_t block,
                     int64_t row, int nr, bool codes)
{
    int64_t t = 0;
    for (; p->n - t >= 4; t += 4) dot_tile(p, w, scales, block, row, t, 4, nr, codes);
    if (p->n - t == 3) dot_tile(p, w, scales, block, row, t, 3, nr, codes);
    else if (p->n - t == 2) dot_tile(p, w, scales, block, row, t, 2, nr, codes);
    else if (p->n - t == 1) dot_tile(p, w, scales, block, row, t, 1, nr, codes);
}

INLINE void dot_part(const gm_linear_part *p, int64_t row, int nr)
{
    const gm_matrix *m = p->w;
    int64_t K = m->cols, padded = (K + PAIRS - 1) / PAIRS * PAIRS;
    const void *w[DOT_ROWS];
    const float *scales[DOT_ROWS];
    for (int r = 0; r < nr; r++) w[r] = row_data(m, row + r);
    if (m->dtype == GM_BF16) {
        dot_rows(p, w, NULL, K, row, nr, false);
        return;
    }
    int64_t block = m->block_cols < K ? m->block_cols : K;
    for (int r = 0; r < nr; r++) scales[r] = row_scale(m, row + r);
    if (p->n <= DOT_TOKENS) {
        dot_rows(p, w, scales, block, row, nr, true);
        return;
    }
    for (int r = 0; r < nr; r++) {
        uint16_t *to = (uint16_t *)p->scratch + r * padded;
        convert_codes(to, row_data(m, row + r), K);
        w[r] = to;
    }
    dot_rows(p, w, scales, block, row, nr, false);
}

static void part_dot(const gm_linear_part *p)
{
    GM_ASSERT(p->w->dtype == GM_BF16 || (p->w->cols + PAIRS) * (int64_t)(DOT_ROWS * 2) <= GM_LINEAR_SCRATCH);
    int64_t row = p->row_begin;
    for (; row + DOT_ROWS <= p->row_end; row += DOT_ROWS) dot_part(p, row, DOT_ROWS);
    for (; row < p->row_end; row++) dot_part(p, row, 1);
}

static void part(const gm_linear_part *p)
{
    if (p->x_bf16) part_dot(p);
    else part_f32(p);
}

static void round_bf16(uint16_t *to, const float *from, int64_t n)
{
    int64_t i = 0;
    for (; i + GM_VF <= n; i += GM_VF) vf_store_bf16(to + i, vf_load(from + i));
    if (i < n) vf_store_bf16_n(to + i, vf_load_n(from + i, n - i), n - i);
}

const gm_linear_impl gm_linear_impl_avx512 = {part, round_f32, round_bf16};
