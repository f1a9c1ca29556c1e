/* The body of mla_attn_avx2.c and mla_attn_avx512.c.
 *
 * A block of 32 keys is dequantised once for a group of 32 heads, as it lies ([key][channel]) and turned
 * ([channel][key]). Scores: a lane is a key, tiles of 6 heads x 2 vectors, channel after channel. Values: a lane is a
 * channel, tiles of 6 heads x 2 vectors, key after key. Between blocks the result is scaled by exp(old max - new max).
 * Bound by multiply-adds (2 x keys x heads x 512); all that a unit touches lies in the second-level cache. */
#ifndef GM_OPS_MLA_ATTN_SIMD_H
#define GM_OPS_MLA_ATTN_SIMD_H

#include "ops/cache_load_simd.h"
#include "ops/cache_row.h"
#include "ops/mla_attn/mla_attn_internal.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = GM_MLA_BLOCK, HEADS = GM_MLA_HEADS, TILE = 6, STRIP = 2 * GM_VF };

typedef struct unit {
    const gm_mla_attn_args *a;
    int64_t r, head, n_heads;      /* heads head .. head + n_heads - 1 */
    const int32_t *pos;            /* of this split */
    int32_t n_keys;
    int64_t dp, width, ld;         /* padded latent width; that and the padded rotary width; a panel row */
    float *panel, *turned, *scores;
    float *o, *max, *sum;          /* the unit's result */
} unit;

static int32_t load_block(const unit *u, int32_t first)
{
    const gm_latent_cache *c = &u->a->cache;
    const gm_slice *s = &u->a->rows->slices[u->a->rows->slice_of[u->r]];
    int32_t n = u->n_keys - first < BLOCK ? u->n_keys - first : BLOCK;
    for (int32_t i = 0; i < n; i++) {
        float *row = u->panel + i * u->ld;
        vf_latent_load(c, gm_latent_row(c, s, (gm_pos){u->pos[first + i]}), row, row + u->dp);
    }
    if (n < BLOCK) memset(u->panel + n * u->ld, 0, (size_t)((BLOCK - n) * u->ld) * 4);
    for (int32_t i = 0; i < n; i += 8)
        for (int64_t x = 0; x < u->width; x += 8)
            vf_transpose_8x8(u->panel + i * u->ld + x, u->ld, u->turned + (i / STRIP * u->width + x) * STRIP + i % STRIP,
                             STRIP);
    return n;
}

/* scores[h][BLOCK] of nh heads; keys behind n give whatever, and are set to -infinity by the caller. */
INLINE void score_tile(const unit *u, int64_t h, int32_t n, int nh)
{
    const gm_mla_attn_args *a = u->a;
    int64_t d = a->cache.d_latent;
    const float *q[TILE], *qr[TILE];
    for (int i = 0; i < nh; i++) {
        q[i] = a->q_lat + (u->r * a->n_heads + u->head + h + i) * d;
        qr[i] = a->cache.d_rope ? a->q_rope + u->r * a->ldr + (u->head + h + i) * a->rope_stride : NULL;
    }
    for (int64_t k = 0; k < n; k += STRIP) {
        const float *strip = u->turned + k * u->width;
        vf acc[TILE][2];
        for (int i = 0; i < nh; i++) acc[i][0] = acc[i][1] = vf_zero();
        for (int64_t x = 0; x < d; x++) {
            vf k0 = vf_load(strip + x * STRIP), k1 = vf_load(strip + x * STRIP + GM_VF);
            for (int i = 0; i < nh; i++) {
                vf b = vf_set1(q[i][x]);
                acc[i][0] = vf_fma(b, k0, acc[i][0]);
                acc[i][1] = vf_fma(b, k1, acc[i][1]);
            }
        }
        for (int64_t x = 0; x < a->cache.d_rope; x++) {
            const float *t = strip + (u->dp + x) * STRIP;
            for (int i = 0; i < nh; i++) {
                vf b = vf_set1(qr[i][x]);
                acc[i][0] = vf_fma(b, vf_load(t), acc[i][0]);
                acc[i][1] = vf_fma(b, vf_load(t + GM_VF), acc[i][1]);
            }
        }
        vf scale = vf_set1(a->scale);
        for (int i = 0; i < nh; i++) {
            vf_store(u->scores + (h + i) * BLOCK + k, vf_mul(acc[i][0], scale));
            vf_store(u->scores + (h + i) * BLOCK + k + GM_VF, vf_mul(acc[i][1], scale));
        }
    }
}

/* From scores to weights, with the running maximum and sum; returns what the result so far is to be scaled by. */
static float weigh(const unit *u, int64_t h, int32_t n)
{
    float *s = u->scores + h * BLOCK;
    for (int32_t i = n; i < BLOCK; i++) s[i] = -INFINITY;
    vf most = vf_set1(-INFINITY), sum = vf_zero();
    for (int32_t i = 0; i < BLOCK; i += GM_VF) most = vf_max(vf_load(s + i), most);
    float max = vf_hmax(most);
    if (u->max[h] > max) max = u->max[h];
    /* All scores -infinity: 0 - 0 instead of a NaN made here; the reference gives NaN then, and so does 0 / 0 later. */
    float base = max == -INFINITY ? 0.0f : max;
    for (int32_t i = 0; i < BLOCK; i += GM_VF) {
        vf p = vf_exp(vf_sub(vf_load(s + i), vf_set1(base)));
        vf_store(s + i, p);
        sum = vf_add(sum, p);
    }
    float shrink = expf(u->max[h] - base);
    u->sum[h] = u->sum[h] * shrink + vf_sum(sum);
    u->max[h] = max;
    return shrink;
}

/* o[h] = o[h] * shrink[h] + sum_j p[h][j] c_j */
INLINE void value_tile(const unit *u, int64_t h, int32_t n, const float *shrink, int nh)
{
    for (int64_t x = 0; x < u->dp; x += 2 * GM_VF) {
        bool two = x + GM_VF < u->dp;
        vf acc[TILE][2];
        for (int i = 0; i < nh; i++) {
            const float *o = u->o + (h + i) * u->dp + x;
            acc[i][0] = vf_mul(vf_load(o), vf_set1(shrink[i]));
            acc[i][1] = two ? vf_mul(vf_load(o + GM_VF), vf_set1(shrink[i])) : vf_zero();
        }
        for (int32_t k = 0; k < n; k++) {
            const float *c = u->panel + k * u->ld + x;
            vf c0 = vf_load(c), c1 = two ? vf_load(c + GM_VF) : vf_zero();
            for (int i = 0; i < nh; i++) {
                vf p = vf_set1(u->scores[(h + i) * BLOCK + k]);
                acc[i][0] = vf_fma(p, c0, acc[i][0]);
                acc[i][1] = vf_fma(p, c1, acc[i][1]);
            }
        }
        for (int i = 0; i < nh; i++) {
            float *o = u->o + (h + i) * u->dp + x;
            vf_store(o, acc[i][0]);
            if (two) vf_store(o + GM_VF, acc[i][1]);
        }
    }
}

static void run_unit(const unit *u)
{
    memset(u->o, 0, (size_t)(u->n_heads * u->dp) * 4);
    for (int64_t h = 0; h < u->n_heads; h++) {
        u->max[h] = -INFINITY;
        u->sum[h] = 0;
    }
    for (int32_t first = 0; first < u->n_keys; first += BLOCK) {
        int32_t n = load_block(u, first);
        for (int64_t h = 0; h < u->n_heads; h += TILE) {
            float shrink[TILE];
            int64_t nh = u->n_heads - h < TILE ? u->n_heads - h : TILE, i = 0;
            if (nh == TILE) score_tile(u, h, n, TILE);
            for (i = nh == TILE ? nh : 0; i + 2 <= nh; i += 2) score_tile(u, h + i, n, 2);
            if (i < nh) score_tile(u, h + i, n, 1);
            for (i = 0; i < nh; i++) shrink[i] = weigh(u, h + i, n);
            if (nh == TILE) value_tile(u, h, n, shrink, TILE);
            for (i = nh == TILE ? nh : 0; i + 2 <= nh; i += 2) value_tile(u, h + i, n, shrink + i, 2);
            if (i < nh) value_tile(u, h + i, n, shrink + i, 1);
        }
    }
}

static void set_part(unit *u, float *part)
{
    u->o = part;
    u->max = part + HEADS * u->dp;
    u->sum = u->max + HEADS;
}

static unit unit_of(const gm_mla_job *j, int64_t r, int64_t group, int worker)
{
    const gm_mla_attn_args *a = j->a;
    gm_mla_room m = gm_mla_room_of(a->n_heads, a->n_select, a->pool, a->cache.d_latent, a->cache.d_rope);
    uint8_t *room = j->workspace + worker * j->worker_bytes;
    unit u = {.a = a, .r = r, .head = group * HEADS};
    u.n_heads = a->n_heads - u.head < HEADS ? a->n_heads - u.head : HEADS;
    u.dp = gm_mla_pad(a->cache.d_latent);
    u.width = u.dp + gm_mla_pad(a->cache.d_rope);
    u.ld = u.width + GM_MLA_SKEW;
    u.panel = (float *)(void *)(room + m.panel);
    u.turned = (float *)(void *)(room + m.turned);
    u.scores = (float *)(void *)(room + m.scores);
    /* Columns of padding are read, and never stored to by the loads. */
    if (u.width != a->cache.d_latent + a->cache.d_rope) memset(u.panel, 0, (size_t)(BLOCK * u.ld) * 4);
    int32_t *pos = (int32_t *)(void *)(room + m.pos);
    u.n_keys = gm_mla_positions(a, r, pos);
    u.pos = pos;
    set_part(&u, (float *)(void *)(room + m.part));
    return u;
}

/* Merge head h of the unit's result `from` into the row's `to`, which holds the keys before it. */
static void merge(const unit *u, float *to, const float *from, int64_t h)
{
    float *max = to + HEADS * u->dp, *sum = max + HEADS;
    const float *max1 = from + HEADS * u->dp, *sum1 = max1 + HEADS;
    float m = max[h] > max1[h] ? max[h] : max1[h], base = m == -INFINITY ? 0.0f : m;
    float a = expf(max[h] - base), b = expf(max1[h] - base);
    vf va = vf_set1(a), vb = vf_set1(b);
    for (int64_t x = 0; x < u->dp; x += GM_VF) {
        float *o = to + h * u->dp + x;
        vf_store(o, vf_fma(vf_load(from + h * u->dp + x), vb, vf_mul(vf_load(o), va)));
    }
    sum[h] = sum[h] * a + sum1[h] * b;
    max[h] = m;
}

static void finish(const unit *u, const float *part, int64_t h)
{
    int64_t d = u->a->cache.d_latent, x = 0;
    float *o = u->a->o + (u->r * u->a->n_heads + u->head + h) * d;
    if (u->n_keys == 0) {
        memset(o, 0, (size_t)d * 4);
        return;
    }
    const float *from = part + h * u->dp;
    vf s = vf_set1(part[HEADS * u->dp + HEADS + h]);
    for (; x + GM_VF <= d; x += GM_VF) vf_store(o + x, vf_div(vf_load(from + x), s));
    if (x < d) vf_store_n(o + x, vf_div(vf_load(from + x), s), d - x);
}

/* One split of what the row attends to. */
static void run_split(const unit *row, int64_t split, float *part)
{
    unit u = *row;
    u.pos += split * GM_MLA_SPLIT;
    u.n_keys = row->n_keys - (int32_t)split * GM_MLA_SPLIT;
    if (u.n_keys > GM_MLA_SPLIT) u.n_keys = GM_MLA_SPLIT;
    set_part(&u, part);
    run_unit(&u);
}

void GM_VARIANT(gm_mla_rows)(const void *args, int64_t begin, int64_t end, int worker)
{
    const gm_mla_job *j = args;
    for (int64_t item = begin; item < end; item++) {
        unit u = unit_of(j, item / j->head_groups, item % j->head_groups, worker);
        float *next = u.o + gm_mla_part_floats(j->a->cache.d_latent);
        for (int64_t s = 0; s * GM_MLA_SPLIT < u.n_keys; s++) {
            run_split(&u, s, s ? next : u.o);
            for (int64_t h = 0; s && h < u.n_heads; h++) merge(&u, u.o, next, h);
        }
        for (int64_t h = 0; h < u.n_heads; h++) finish(&u, u.o, h);
    }
}

void GM_VARIANT(gm_mla_units)(const void *args, int64_t begin, int64_t end, int worker)
{
    const gm_mla_job *j = args;
    int64_t floats = gm_mla_part_floats(j->a->cache.d_latent), per_row = j->head_groups * j->splits;
    for (int64_t item = begin; item < end; item++) {
        unit u = unit_of(j, j->row_begin + item / per_row, item % per_row / j->splits, worker);
        int64_t s = item % j->splits;
        if (s * GM_MLA_SPLIT < u.n_keys) run_split(&u, s, j->parts + item * floats);
    }
}

void GM_VARIANT(gm_mla_merge)(const void *args, int64_t begin, int64_t end, int worker)
{
    const gm_mla_job *j = args;
    int64_t floats = gm_mla_part_floats(j->a->cache.d_latent), H = j->a->n_heads;
    for (int64_t item = begin; item < end;) {
        int64_t row = item / H, group = item % H / HEADS;
        unit u = unit_of(j, j->row_begin + row, group, worker);
        float *parts = j->parts + (row * j->head_groups + group) * j->splits * floats;
        for (int64_t h = item % H - u.head; h < u.n_heads && item < end; h++, item++) {
            for (int64_t s = 1; s * GM_MLA_SPLIT < u.n_keys; s++) merge(&u, parts, parts + s * floats, h);
            finish(&u, parts, h);
        }
    }
}

#endif
