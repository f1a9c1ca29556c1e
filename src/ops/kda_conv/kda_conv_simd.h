/* The body of kda_conv_avx2.c and kda_conv_avx512.c. */
#ifndef GM_OPS_KDA_CONV_SIMD_H
#define GM_OPS_KDA_CONV_SIMD_H
#include "ops/kda_conv/kda_conv_internal.h"
#include "ops/simd.h"

/* Up to GM_VF channels of one slice: the window of K inputs lives in registers while the tokens go by. n < GM_VF at
 * the right edge only; lanes outside compute on zeros and are not stored. */
static inline vf load_x(const float *p, int64_t n)
{
    return n == GM_VF ? vf_load(p) : vf_load_n(p, n);
}

static inline vf load_state(const uint8_t *state, int64_t at, bool bf16, int64_t n)
{
    if (bf16) return n == GM_VF ? vf_load_bf16(state + 2 * at) : vf_load_bf16_n(state + 2 * at, n);
    return load_x((const float *)(const void *)(state + 4 * at), n);
}

static inline void store_state(uint8_t *state, int64_t at, vf v, bool bf16, int64_t n)
{
    float *f = (float *)(void *)(state + 4 * at);
    if (bf16 && n == GM_VF) vf_store_bf16(state + 2 * at, v);
    else if (bf16) vf_store_bf16_n(state + 2 * at, v, n);
    else if (n == GM_VF) vf_store(f, v);
    else vf_store_n(f, v, n);
}

/* Four taps of GM_VF channels, from [channel][tap] to [tap][channel]. */
static inline void turn_taps(const float *w, float taps[][GM_VF])
{
    for (int i = 0; i < GM_VF; i += 4) {
        __m128 a = _mm_loadu_ps(w + 4 * i), b = _mm_loadu_ps(w + 4 * i + 4);
        __m128 c = _mm_loadu_ps(w + 4 * i + 8), d = _mm_loadu_ps(w + 4 * i + 12);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(taps[0] + i, a);
        _mm_storeu_ps(taps[1] + i, b);
        _mm_storeu_ps(taps[2] + i, c);
        _mm_storeu_ps(taps[3] + i, d);
    }
}

static inline __attribute__((always_inline)) void walk(const gm_kda_conv_args *a, const gm_slice *s, int64_t c,
                                                       int64_t n, int K)
{
    uint8_t *state = a->state + s->slot.id * a->slot_stride;
    vf tap[GM_KDA_TAPS_MAX], window[GM_KDA_TAPS_MAX];
    float taps[GM_KDA_TAPS_MAX][GM_VF] = {{0}};
    if (K == 4 && n == GM_VF) {
        turn_taps(a->w + c * 4, taps);
    } else {
        for (int j = 0; j < K; j++)
            for (int64_t i = 0; i < n; i++) taps[j][i] = a->w[(c + i) * K + j];
    }
    for (int j = 0; j < K; j++) {
        tap[j] = vf_load(taps[j]);
        window[j] = vf_zero();
    }
    if (s->begin.tok > 0)
        for (int j = 0; j < K - 1; j++) window[j + 1] = load_state(state, j * (int64_t)a->channels + c, a->bf16, n);
    for (int64_t r = s->token_begin; r < s->token_begin + s->n.tok; r++) {
        vf x = load_x(a->x + r * a->ldx + c, n), sum = vf_zero();
        for (int j = 0; j < K - 1; j++) window[j] = window[j + 1];
        window[K - 1] = a->bf16 ? vf_round_bf16(x) : x;
        for (int j = 0; j < K; j++) sum = vf_fma(tap[j], window[j], sum);
        vf y = vf_mul(sum, vf_sigmoid(sum));
        if (n == GM_VF) vf_store(a->y + r * a->ldy + c, y);
        else vf_store_n(a->y + r * a->ldy + c, y, n);
    }
    for (int j = 0; j < K - 1; j++) store_state(state, j * (int64_t)a->channels + c, window[j + 1], a->bf16, n);
}

void GM_VARIANT(gm_kda_conv)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_conv_args *a = args;
    int64_t blocks = ((int64_t)a->channels + GM_KDA_CONV_BLOCK - 1) / GM_KDA_CONV_BLOCK;
    for (int64_t item = begin; item < end; item++) {
        const gm_slice *s = &a->rows->slices[item / blocks];
        int64_t c = item % blocks * GM_KDA_CONV_BLOCK;
        int64_t last = c + GM_KDA_CONV_BLOCK < a->channels ? c + GM_KDA_CONV_BLOCK : a->channels;
        for (; c < last; c += GM_VF) {
            int64_t n = last - c < GM_VF ? last - c : GM_VF;
            if (a->taps == 4 && n == GM_VF) walk(a, s, c, GM_VF, 4);
            else walk(a, s, c, n, a->taps);
        }
    }
}

#endif
