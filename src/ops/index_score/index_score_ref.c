#include "ops/index_score/index_score_internal.h"

#include "ops/cache_load.h"
#include "ops/cache_row.h"

#include <math.h>

static float score(const gm_index_score_args *a, int64_t r, const float *key)
{
    int32_t d = a->cache.d;
    float head_scale = 1.0f / sqrtf((float)a->n_heads), dot_scale = 1.0f / sqrtf((float)d), sum = 0;
    for (int32_t h = 0; h < a->n_heads; h++) {
        const float *q = a->q + r * a->ldq + (int64_t)h * d;
        float dot = 0;
        for (int32_t c = 0; c < d; c++) dot += (a->act == GM_ACT_BF16 ? gm_round_bf16(q[c]) : q[c]) * key[c];
        dot *= dot_scale;
        if (!(dot <= 0)) sum += a->w[r * a->ldw + h] * head_scale * dot; /* NaN goes through */
    }
    return sum;
}

void gm_index_score_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_index_score_job *j = args;
    const gm_index_score_args *a = j->a;
    float key[GM_INDEX_SCORE_D_MAX];
    for (int64_t item = begin; item < end; item++) {
        int32_t r, first, last;
        if (!gm_index_score_item(j, item, &r, &first, &last)) continue;
        const gm_slice *s = &a->rows->slices[a->rows->slice_of[r]];
        for (int32_t p = first; p < last; p++) {
            gm_index_load(&a->cache, gm_index_key(&a->cache, s, (gm_pool_pos){p}), key);
            a->scores[(r - a->row_begin) * a->lds + p] = score(a, r, key);
        }
    }
}
