#include "ops/mla_attn/mla_attn_internal.h"

#include "ops/cache_load.h"
#include "ops/cache_row.h"

#include <math.h>

typedef struct row_view {
    const gm_mla_attn_args *a;
    const gm_slice *slice;
    int64_t r;
    const int32_t *pos;
    int32_t n_keys;
    float *scores; /* [H][n_keys] */
    float *block;  /* [GM_MLA_REF_KEYS][d_latent + d_rope] */
} row_view;

/* Keys first .. first+n-1 of the row, dequantised. */
static int32_t load_block(const row_view *v, int32_t first)
{
    const gm_latent_cache *c = &v->a->cache;
    int32_t n = v->n_keys - first < GM_MLA_REF_KEYS ? v->n_keys - first : GM_MLA_REF_KEYS;
    for (int32_t i = 0; i < n; i++)
        gm_latent_load(c, gm_latent_row(c, v->slice, (gm_pos){v->pos[first + i]}),
                       v->block + (int64_t)i * (c->d_latent + c->d_rope));
    return n;
}

static void score_block(const row_view *v, int32_t first, int32_t n)
{
    const gm_mla_attn_args *a = v->a;
    int64_t d = a->cache.d_latent, d_rope = a->cache.d_rope;
    for (int32_t h = 0; h < a->n_heads; h++) {
        const float *q = a->q_lat + (v->r * a->n_heads + h) * d;
        const float *q_rope = d_rope ? a->q_rope + v->r * a->ldr + h * a->rope_stride : NULL;
        for (int32_t i = 0; i < n; i++) {
            const float *c = v->block + i * (d + d_rope);
            float sum = 0;
            for (int64_t x = 0; x < d; x++) sum += q[x] * c[x];
            for (int64_t x = 0; x < d_rope; x++) sum += q_rope[x] * c[d + x];
            v->scores[(int64_t)h * v->n_keys + first + i] = sum * a->scale;
        }
    }
}

static void softmax(float *s, int32_t n)
{
    float max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (s[i] > max) max = s[i];
    for (int32_t i = 0; i < n; i++) sum += s[i] = expf(s[i] - max);
    for (int32_t i = 0; i < n; i++) s[i] /= sum;
}

static void attend(const row_view *v)
{
    const gm_mla_attn_args *a = v->a;
    int64_t d = a->cache.d_latent, stride = d + a->cache.d_rope;
    float *o = a->o + v->r * a->n_heads * d;
    for (int64_t i = 0; i < a->n_heads * d; i++) o[i] = 0;
    if (v->n_keys == 0) return;
    for (int32_t first = 0; first < v->n_keys; first += GM_MLA_REF_KEYS) score_block(v, first, load_block(v, first));
    for (int32_t h = 0; h < a->n_heads; h++) softmax(v->scores + (int64_t)h * v->n_keys, v->n_keys);
    for (int32_t first = 0; first < v->n_keys; first += GM_MLA_REF_KEYS) {
        int32_t n = load_block(v, first);
        for (int32_t h = 0; h < a->n_heads; h++)
            for (int32_t i = 0; i < n; i++) {
                float p = v->scores[(int64_t)h * v->n_keys + first + i];
                for (int64_t x = 0; x < d; x++) o[h * d + x] += p * v->block[i * stride + x];
            }
    }
}

void gm_mla_attn_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    const gm_mla_job *j = args;
    const gm_mla_attn_args *a = j->a;
    gm_mla_room m = gm_mla_room_of(a->n_heads, a->n_select, a->pool, a->cache.d_latent, a->cache.d_rope);
    uint8_t *room = j->workspace + worker * j->worker_bytes;
    for (int64_t r = begin; r < end; r++) {
        row_view v = {.a = a, .slice = &a->rows->slices[a->rows->slice_of[r]], .r = r};
        v.n_keys = gm_mla_positions(a, r, (int32_t *)(room + m.pos));
        v.pos = (int32_t *)(room + m.pos);
        v.scores = (float *)(room + m.all_scores);
        v.block = (float *)(room + m.block);
        attend(&v);
    }
}
