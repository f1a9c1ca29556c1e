#include "ops/index_append/index_append_internal.h"

#include "ops/cache_row.h"

#include <math.h>
#include <string.h>

static void store_key(const gm_index_cache *c, uint8_t *to, const float *key)
{
    if (c->dtype == GM_KV_F32) {
        memcpy(to, key, (size_t)c->d * 4);
    } else if (c->dtype == GM_KV_BF16) {
        for (int32_t i = 0; i < c->d; i++) {
            uint16_t h = gm_f32_to_bf16(key[i]);
            memcpy(to + 2 * (int64_t)i, &h, 2);
        }
    } else if (c->dtype == GM_KV_F16) {
        for (int32_t i = 0; i < c->d; i++) {
            uint16_t h = gm_f32_to_f16(key[i]);
            memcpy(to + 2 * (int64_t)i, &h, 2);
        }
    } else {
        float amax = 1e-4f;
        for (int32_t i = 0; i < c->d; i++)
            if (fabsf(key[i]) > amax) amax = fabsf(key[i]);
        float scale = exp2f(ceilf(log2f(amax / 448.0f)));
        for (int32_t i = 0; i < c->d; i++) to[i] = gm_f32_to_e4m3(key[i] / scale);
        memcpy(to + c->d, &scale, 4);
    }
}

/* The row's token ends pool q. Its other tokens are rows of this slice, or wait in the tail. */
static void pool_key(const gm_index_append_args *a, const gm_slice *s, int64_t r, float *key)
{
    int32_t pool = a->cache.pool, d = a->cache.d, p = a->rows->pos[r].tok;
    const uint8_t *tail = a->tail ? a->tail + s->slot.id * a->slot_stride : NULL;
    for (int32_t c = 0; c < d; c++) {
        float k[GM_INDEX_POOL_MAX], e[GM_INDEX_POOL_MAX], max = -INFINITY, sum = 0, out = 0;
        for (int32_t j = 0; j < pool; j++) {
            int32_t back = pool - 1 - j;
            if (p - back >= s->begin.tok) {
                float kj = a->k[(r - back) * a->ldk + c], ej = a->e[(r - back) * a->lde + c];
                k[j] = a->bf16 ? gm_round_bf16(kj) : kj;
                e[j] = a->bf16 ? gm_round_bf16(ej) : ej;
            } else {
                k[j] = gm_index_tail_load(tail, (int64_t)j * 2 * d + c, a->bf16);
                e[j] = gm_index_tail_load(tail, (int64_t)j * 2 * d + d + c, a->bf16);
            }
            e[j] += a->ape[(int64_t)j * d + c];
            if (e[j] > max) max = e[j];
        }
        for (int32_t j = 0; j < pool; j++) sum += e[j] = expf(e[j] - max);
        for (int32_t j = 0; j < pool; j++) out += e[j] / sum * k[j];
        key[c] = out;
    }
}

void gm_index_append_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_index_append_args *a = args;
    int32_t pool = a->cache.pool, d = a->cache.d;
    float key[GM_INDEX_D_MAX];
    for (int64_t r = begin; r < end; r++) {
        int32_t p = a->rows->pos[r].tok;
        if (p % pool != pool - 1) continue;
        const gm_slice *s = &a->rows->slices[a->rows->slice_of[r]];
        if (a->e) {
            pool_key(a, s, r, key);
        } else {
            for (int32_t c = 0; c < d; c++)
                key[c] = a->bf16 ? gm_round_bf16(a->k[r * a->ldk + c]) : a->k[r * a->ldk + c];
        }
        store_key(&a->cache, gm_index_key(&a->cache, s, (gm_pool_pos){p / pool}), key);
    }
}
