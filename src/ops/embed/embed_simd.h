/* The body of embed_avx2.c and embed_avx512.c. */
#ifndef GM_OPS_EMBED_SIMD_H
#define GM_OPS_EMBED_SIMD_H
#include "ops/embed/embed_internal.h"
#include "ops/simd.h"

static inline void widen(float *y, const uint16_t *from, int64_t d)
{
    int64_t i = 0;
    for (; i + GM_VF <= d; i += GM_VF) vf_store(y + i, vf_load_bf16(from + i));
    for (; i < d; i++) y[i] = gm_bf16_to_f32(from[i]);
}

void GM_VARIANT(gm_embed)(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_embed_args *a = args;
    int64_t d = a->table->cols;
    for (int64_t r = begin; r < end; r++) {
        float *y = a->y + r * a->n_copies * d;
        int64_t first = a->ids[r] * d;
        if (a->table->dtype == GM_F32) memcpy(y, (const float *)a->table->data + first, (size_t)d * 4);
        else widen(y, (const uint16_t *)a->table->data + first, d);
        for (int32_t s = 1; s < a->n_copies; s++) memcpy(y + s * d, y, (size_t)d * 4);
    }
}

#endif
