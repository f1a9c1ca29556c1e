#include "ops/embed/embed_internal.h"

#include <string.h>

void gm_embed_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_embed_args *a = args;
    int64_t d = a->table->cols;
    for (int64_t r = begin; r < end; r++) {
        float *y = a->y + r * a->n_copies * d;
        int64_t first = a->ids[r] * d;
        if (a->table->dtype == GM_F32) {
            memcpy(y, (const float *)a->table->data + first, (size_t)d * 4);
        } else {
            const uint16_t *t = (const uint16_t *)a->table->data + first;
            for (int64_t i = 0; i < d; i++) y[i] = gm_bf16_to_f32(t[i]);
        }
        for (int32_t s = 1; s < a->n_copies; s++) memcpy(y + s * d, y, (size_t)d * 4);
    }
}
