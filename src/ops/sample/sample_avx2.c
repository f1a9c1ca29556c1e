#include "ops/sample/sample_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <math.h>

static int32_t next_above(const float *x, int32_t begin, int32_t n, float v)
{
    const __m256 v8 = _mm256_set1_ps(v);
    int32_t i = begin;
    for (; i + 8 <= n; i += 8) {
        int mask = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), v8, _CMP_GT_OQ));
        if (mask) return i + __builtin_ctz((unsigned)mask);
    }
    for (; i < n; i++)
        if (x[i] > v) return i;
    return n;
}

static int32_t count_above(const float *x, int32_t n, float v)
{
    const __m256 v8 = _mm256_set1_ps(v);
    __m256i count8 = _mm256_setzero_si256();
    int32_t i = 0, count = 0, lanes[8];
    for (; i + 8 <= n; i += 8) /* a true comparison is -1 */
        count8 = _mm256_sub_epi32(count8,
                                  _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(x + i), v8, _CMP_GT_OQ)));
    _mm256_storeu_si256((__m256i *)(void *)lanes, count8);
    for (int32_t k = 0; k < 8; k++) count += lanes[k];
    for (; i < n; i++) count += x[i] > v;
    return count;
}

/* exp() for [GM_EXP_CUTOFF, 1], else 0; the polynomial of Cephes (S. Moshier), within 2 ulp. */
static inline __m256 exp8(__m256 x)
{
    __m256 valid = _mm256_cmp_ps(x, _mm256_set1_ps(GM_EXP_CUTOFF), _CMP_GE_OQ);
    __m256 k = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(k, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    __m256i two_k = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(valid, _mm256_mul_ps(p, _mm256_castsi256_ps(two_k)));
}

static inline double sum8(__m256 v)
{
    float lanes[8];
    double sum = 0;
    _mm256_storeu_ps(lanes, v);
    for (int i = 0; i < 8; i++) sum += (double)lanes[i];
    return sum;
}

static inline __m256 exp_at(const float *x, __m256 shift, __m256 scale)
{
    return exp8(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x), shift), scale));
}

static double exp_row(const float *x, int32_t n, float shift, float scale, float *w)
{
    const __m256 shift8 = _mm256_set1_ps(shift), scale8 = _mm256_set1_ps(scale);
    double sum = 0;
    int32_t i = 0;
    while (i + 8 <= n) {
        int32_t end = n - i < GM_SCAN_BLOCK ? n : i + GM_SCAN_BLOCK;
        __m256 acc = _mm256_setzero_ps();
        for (; i + 8 <= end; i += 8) {
            __m256 e = exp_at(x + i, shift8, scale8);
            if (w) _mm256_storeu_ps(w + i, e);
            acc = _mm256_add_ps(acc, e);
        }
        sum += sum8(acc);
    }
    if (i == n) return sum;
    float tail[8];
    for (int32_t k = 0; k < 8; k++) tail[k] = i + k < n ? x[i + k] : -INFINITY;
    __m256 e = exp_at(tail, shift8, scale8);
    _mm256_storeu_ps(tail, e);
    for (int32_t k = 0; w && i + k < n; k++) w[i + k] = tail[k];
    return sum + sum8(e);
}

static double sum_from(const float *w, int32_t n, float t)
{
    const __m256 t8 = _mm256_set1_ps(t);
    double sum = 0;
    int32_t i = 0;
    while (i + 8 <= n) {
        int32_t end = n - i < GM_SCAN_BLOCK ? n : i + GM_SCAN_BLOCK;
        __m256 acc = _mm256_setzero_ps();
        for (; i + 8 <= end; i += 8) {
            __m256 v = _mm256_loadu_ps(w + i);
            acc = _mm256_add_ps(acc, _mm256_and_ps(v, _mm256_cmp_ps(v, t8, _CMP_GE_OQ)));
        }
        sum += sum8(acc);
    }
    for (; i < n; i++)
        if (w[i] >= t) sum += (double)w[i];
    return sum;
}

const gm_scans gm_scans_avx2 = {"avx2", next_above, count_above, exp_row, sum_from};
#endif
