/* The body of kda_conv_avx2.c and kda_conv_avx512.c. */
#ifndef GM_OPS_KDA_CONV_SIMD_H
#define GM_OPS_KDA_CONV_SIMD_H
#include "ops/kda_conv/kda_conv_internal.h"
#include "ops/simd.h"

/* A block of channels of one slice: the last K inputs lie in a ring of rows in L1, beside the taps turned to
 * [tap][channel]. Rows of x and y are read and written a kilobyte at a time: token strides are large powers of two, and
 * narrower walks would fight for the same cache sets. Bound by memory with a prompt, by the sigmoid otherwise. */
enum { RING = GM_KDA_TAPS_MAX, BLOCK = GM_KDA_CONV_BLOCK };

typedef struct window {
    float taps[GM_KDA_TAPS_MAX][BLOCK], ring[RING][BLOCK]; /* input of time t in row t % RING */
} window;

static inline vf load_x(const float *p, int64_t n)
{
    return n >= GM_VF ? vf_load(p) : vf_load_n(p, n);
}

static inline void store_y(float *p, vf v, int64_t n)
{
    if (n >= GM_VF) vf_store(p, v);
    else vf_store_n(p, v, n);
}

static inline vf load_state(const uint8_t *state, int64_t at, bool bf16, int64_t n)
{
    if (bf16) return n >= GM_VF ? vf_load_bf16(state + 2 * at) : vf_load_bf16_n(state + 2 * at, n);
    return load_x((const float *)(const void *)(state + 4 * at), n);
}

static inline void store_state(uint8_t *state, int64_t at, vf v, bool bf16, int64_t n)
{
    if (!bf16) store_y((float *)(void *)(state + 4 * at), v, n);
    else if (n >= GM_VF) vf_store_bf16(state + 2 * at, v);
    else vf_store_bf16_n(state + 2 * at, v, n);
}

/* w [n][K] to [K][n]. */
static inline void turn_taps(const float *w, int64_t n, int K, float taps[][BLOCK])
{
    int64_t i = 0;
    for (; K == 4 && i + 4 <= n; i += 4) {
        __m128 a = _mm_loadu_ps(w + 4 * i), b = _mm_loadu_ps(w + 4 * i + 4);
        __m128 c = _mm_loadu_ps(w + 4 * i + 8), d = _mm_loadu_ps(w + 4 * i + 12);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(taps[0] + i, a);
        _mm_storeu_ps(taps[1] + i, b);
        _mm_storeu_ps(taps[2] + i, c);
        _mm_storeu_ps(taps[3] + i, d);
    }
    for (; i < n; i++)
        for (int j = 0; j < K; j++) taps[j][i] = w[i * K + j];
}

static inline __attribute__((always_inline)) void walk(const gm_kda_conv_args *a, const gm_slice *s, int64_t c,
                                                       int64_t n, int K, window *m)
{
    uint8_t *state = a->state + s->slot.id * a->slot_stride;
    turn_taps(a->w + c * K, n, K, m->taps);
    for (int j = 0; j < K - 1; j++) /* times -(K-1) .. -1 */
        for (int64_t i = 0; i < n; i += GM_VF)
            vf_store(m->ring[(j - (K - 1) + RING) % RING] + i,
                     s->begin.tok > 0 ? load_state(state, j * (int64_t)a->channels + c + i, a->bf16, n - i) : vf_zero());
    for (int64_t t = 0; t < s->n.tok; t++) {
        const float *x = a->x + (s->token_begin + t) * a->ldx + c, *past[GM_KDA_TAPS_MAX];
        float *y = a->y + (s->token_begin + t) * a->ldy + c, *now = m->ring[t % RING];
        for (int j = 0; j < K; j++) past[j] = m->ring[(t - (K - 1) + j + RING) % RING];
        for (int64_t i = 0; i < n; i += GM_VF) {
            vf v = load_x(x + i, n - i), sum = vf_zero();
            if (a->bf16) v = vf_round_bf16(v);
            vf_store(now + i, v);
            for (int j = 0; j < K - 1; j++) sum = vf_fma(vf_load(m->taps[j] + i), vf_load(past[j] + i), sum);
            sum = vf_fma(vf_load(m->taps[K - 1] + i), v, sum);
            store_y(y + i, vf_mul(sum, vf_sigmoid(sum)), n - i);
        }
    }
    for (int j = 0; j < K - 1; j++)
        for (int64_t i = 0; i < n; i += GM_VF)
            store_state(state, j * (int64_t)a->channels + c + i,
                        vf_load(m->ring[(s->n.tok - (K - 1) + j + RING) % RING] + i), a->bf16, n - i);
}

void GM_VARIANT(gm_kda_conv)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_conv_args *a = args;
    int64_t blocks = ((int64_t)a->channels + BLOCK - 1) / BLOCK;
    window m;
    memset(&m, 0, sizeof m); /* lanes behind the last channel compute on zeros */
    for (int64_t item = begin; item < end; item++) {
        const gm_slice *s = &a->rows->slices[item / blocks];
        int64_t c = item % blocks * BLOCK, n = a->channels - c < BLOCK ? a->channels - c : BLOCK;
        if (a->taps == 4) walk(a, s, c, n, 4, &m);
        else walk(a, s, c, n, a->taps, &m);
    }
}

#endif
