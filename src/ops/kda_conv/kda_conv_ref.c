#include "ops/kda_conv/kda_conv_internal.h"

#include <math.h>
#include <string.h>

static float load_state(const uint8_t *p, int64_t i, bool bf16)
{
    if (bf16) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        return gm_bf16_to_f32(h);
    }
    float f;
    memcpy(&f, p + 4 * i, 4);
    return f;
}

static void store_state(uint8_t *p, int64_t i, float f, bool bf16)
{
    uint16_t h = gm_f32_to_bf16(f);
    if (bf16) memcpy(p + 2 * i, &h, 2);
    else memcpy(p + 4 * i, &f, 4);
}

static void walk(const gm_kda_conv_args *a, const gm_slice *s, int64_t c)
{
    int32_t K = a->taps;
    uint8_t *state = a->state + s->slot.id * a->slot_stride;
    float window[GM_KDA_TAPS_MAX] = {0}; /* the last K inputs, oldest first */
    for (int32_t j = 0; j < K - 1 && s->begin.tok > 0; j++)
        window[j + 1] = load_state(state, j * (int64_t)a->channels + c, a->bf16);
    for (int64_t r = s->token_begin; r < s->token_begin + s->n.tok; r++) {
        memmove(window, window + 1, (size_t)(K - 1) * sizeof *window);
        float x = a->x[r * a->ldx + c];
        window[K - 1] = a->bf16 ? gm_round_bf16(x) : x;
        float sum = 0;
        for (int32_t j = 0; j < K; j++) sum += a->w[c * K + j] * window[j];
        a->y[r * a->ldy + c] = sum / (1.0f + expf(-sum));
    }
    for (int32_t j = 0; j < K - 1; j++) store_state(state, j * (int64_t)a->channels + c, window[j + 1], a->bf16);
}

void gm_kda_conv_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_kda_conv_args *a = args;
    int64_t blocks = ((int64_t)a->channels + GM_KDA_CONV_BLOCK - 1) / GM_KDA_CONV_BLOCK;
    for (int64_t item = begin; item < end; item++) {
        const gm_slice *s = &a->rows->slices[item / blocks];
        int64_t c = item % blocks * GM_KDA_CONV_BLOCK;
        for (int64_t last = c + GM_KDA_CONV_BLOCK; c < last && c < a->channels; c++) walk(a, s, c);
    }
}
