#include "ops/moe_experts/moe_experts.h"

#include "ops/linear/linear_internal.h"
#include "ops/swiglu/swiglu.h"
#include "ops/swiglu/swiglu_internal.h"

#include <string.h>

/* A pass takes PASS tokens: rounds x once, sorts the (token, expert) pairs by expert, then
 *   up:   items are blocks of hidden rows of one expert that has tokens: gate, up, swiglu -> hidden[pair][f]
 *   down: items are blocks of output rows; the worker walks the experts in rising order and adds
 *         weight * product to y, so that every y has its sum in the order of ids and no two workers share a y.
 * Both kinds of items are many even for one token, so that all threads read weights. */
enum { PASS = 512, UP_ROWS = 64, DOWN_ROWS = 48, TILE = GM_LINEAR_TOKENS };

typedef struct room { /* the workspace, cut up */
    uint8_t *scratch;     /* GM_LINEAR_SCRATCH a worker */
    float *tile;          /* 2 * TILE * UP_ROWS floats a worker */
    void *x;              /* [PASS][d] rounded */
    void *hidden;         /* [pairs][f] rounded */
    int32_t *pair_token;  /* [pairs]: token of a pair, pairs sorted by expert, then token */
    float *pair_weight;   /* [pairs] */
    int32_t *first;       /* [n_experts + 1]: first pair of an expert */
    int32_t *busy;        /* [n_experts]: experts that have pairs, rising */
} room;

typedef struct job {
    const gm_moe_experts_args *a;
    const gm_linear_impl *impl;
    gm_isa isa;
    gm_items_fn *swiglu;
    room m;
    bool round, x_bf16, h_bf16; /* forms of x and hidden */
    int32_t t_begin, n, n_busy;
    int64_t up_blocks;
} job;

static int64_t align64(int64_t n)
{
    return (n + 63) / 64 * 64;
}

/* Cut `at` up for the given sizes; returns the bytes needed. at may be NULL. */
static int64_t lay_out(room *m, uint8_t *at, int64_t threads, int64_t n, int64_t d, int64_t f, int64_t n_experts,
                       int64_t n_active)
{
    int64_t tokens = n < PASS ? n : PASS, pairs = tokens * n_active, used = 0;
    uint8_t *none = at;
#define PIECE(field, type, bytes)                                                                            \
    m->field = none ? (type *)(void *)(at + used) : NULL;                                                    \
    used += align64(bytes)
    PIECE(scratch, uint8_t, threads * GM_LINEAR_SCRATCH);
    PIECE(tile, float, threads * 2 * TILE * UP_ROWS * 4);
    PIECE(x, void, tokens * d * 4);
    PIECE(hidden, void, pairs * f * 4);
    PIECE(pair_token, int32_t, pairs * 4);
    PIECE(pair_weight, float, pairs * 4);
    PIECE(first, int32_t, (n_experts + 1) * 4);
    PIECE(busy, int32_t, n_experts * 4);
#undef PIECE
    return used;
}

int64_t gm_moe_experts_workspace(gm_device *dev, int32_t n_max, int32_t d, int32_t f, int32_t n_experts,
                                 int32_t n_active)
{
    room m;
    return lay_out(&m, NULL, gm_device_threads(dev), n_max, d, f, n_experts, n_active);
}

static void round_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *j = ctx;
    int64_t d = j->a->d;
    for (int64_t t = begin; t < end; t++) {
        const float *from = j->a->x + (j->t_begin + t) * d;
        if (!j->round) memcpy((float *)j->m.x + t * d, from, (size_t)d * 4);
        else if (j->x_bf16) j->impl->round_bf16((uint16_t *)j->m.x + t * d, from, d);
        else j->impl->round_f32((float *)j->m.x + t * d, from, d);
    }
}

/* Counting sort of the pass's pairs by expert; within an expert by token. */
static void sort_pairs(job *j)
{
    const gm_moe_experts_args *a = j->a;
    const int32_t *ids = a->ids + (int64_t)j->t_begin * a->n_active;
    const float *weights = a->weights + (int64_t)j->t_begin * a->n_active;
    int64_t n_pairs = (int64_t)j->n * a->n_active;
    int32_t *first = j->m.first;
    memset(first, 0, (size_t)(a->n_experts + 1) * 4);
    for (int64_t i = 0; i < n_pairs; i++) {
        GM_ASSERT(ids[i] < a->n_experts);
        if (ids[i] >= 0) first[ids[i] + 1]++;
    }
    j->n_busy = 0;
    for (int32_t e = 0; e < a->n_experts; e++) {
        if (first[e + 1] > 0) j->m.busy[j->n_busy++] = e;
        first[e + 1] += first[e];
    }
    for (int64_t i = 0; i < n_pairs; i++) {
        if (ids[i] < 0) continue;
        int32_t at = first[ids[i]]++;
        j->m.pair_token[at] = (int32_t)(i / a->n_active);
        j->m.pair_weight[at] = weights[i];
    }
    for (int32_t e = a->n_experts; e > 0; e--) first[e] = first[e - 1]; /* back to where each begins */
    first[0] = 0;
}

static void up_items(void *ctx, int64_t begin, int64_t end, int worker)
{
    const job *j = ctx;
    const gm_moe_experts_args *a = j->a;
    float *g = j->m.tile + (int64_t)worker * 2 * TILE * UP_ROWS, *u = g + TILE * UP_ROWS;
    for (int64_t item = begin; item < end; item++) {
        int32_t e = j->m.busy[item / j->up_blocks];
        int32_t row = (int32_t)(item % j->up_blocks) * UP_ROWS;
        int32_t rows = a->f - row < UP_ROWS ? a->f - row : UP_ROWS;
        for (int32_t p = j->m.first[e]; p < j->m.first[e + 1]; p += TILE) {
            int32_t n = j->m.first[e + 1] - p < TILE ? j->m.first[e + 1] - p : TILE;
            gm_linear_part part = {
                .w = &a->gate[e],
                .row_begin = row,
                .row_end = row + rows,
                .x = j->m.x,
                .x_rows = j->m.pair_token + p,
                .ldx = a->d,
                .n = n,
                .x_bf16 = j->x_bf16,
                .y = g,
                .ldy = rows,
                .scratch = j->m.scratch + (int64_t)worker * GM_LINEAR_SCRATCH,
            };
            j->impl->part(&part);
            part.w = &a->up[e];
            part.y = u;
            j->impl->part(&part);
            gm_swiglu_args s = {.g = g, .u = u, .y = g, .n = n, .d = rows, .ldg = rows, .ldu = rows, .ldy = rows,
                                .limit = a->limit};
            j->swiglu(&s, 0, n, worker);
            for (int32_t t = 0; t < n; t++) {
                int64_t at = (int64_t)(p + t) * a->f + row;
                if (!j->round) memcpy((float *)j->m.hidden + at, g + (int64_t)t * rows, (size_t)rows * 4);
                else if (j->h_bf16) j->impl->round_bf16((uint16_t *)j->m.hidden + at, g + (int64_t)t * rows, rows);
                else j->impl->round_f32((float *)j->m.hidden + at, g + (int64_t)t * rows, rows);
            }
        }
    }
}

static void down_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const job *j = ctx;
    const gm_moe_experts_args *a = j->a;
    float *out = j->m.tile + (int64_t)worker * 2 * TILE * UP_ROWS;
    for (int64_t row = begin; row < end; row += DOWN_ROWS) {
        int32_t rows = (int32_t)(end - row < DOWN_ROWS ? end - row : DOWN_ROWS);
        for (int32_t b = 0; b < j->n_busy; b++) {
            int32_t e = j->m.busy[b];
            for (int32_t p = j->m.first[e]; p < j->m.first[e + 1]; p += TILE) {
                int32_t n = j->m.first[e + 1] - p < TILE ? j->m.first[e + 1] - p : TILE;
                const uint8_t *hidden = j->m.hidden;
                gm_linear_part part = {
                    .w = &a->down[e],
                    .row_begin = (int32_t)row,
                    .row_end = (int32_t)row + rows,
                    .x = hidden + (int64_t)p * a->f * (j->h_bf16 ? 2 : 4),
                    .ldx = a->f,
                    .n = n,
                    .x_bf16 = j->h_bf16,
                    .y = out,
                    .ldy = rows,
                    .scratch = j->m.scratch + (int64_t)worker * GM_LINEAR_SCRATCH,
                };
                j->impl->part(&part);
                for (int32_t t = 0; t < n; t++) {
                    float *y = a->y + (int64_t)(j->t_begin + j->m.pair_token[p + t]) * a->d + row;
                    float weight = j->m.pair_weight[p + t];
                    for (int32_t i = 0; i < rows; i++) y[i] += weight * out[(int64_t)t * rows + i];
                }
            }
        }
    }
}

void gm_moe_experts(const gm_moe_experts_args *a)
{
    if (a->n <= 0) return;
    for (int32_t e = 0; e < a->n_experts; e++) {
        GM_ASSERT(a->gate[e].dtype == a->gate[0].dtype && a->up[e].dtype == a->gate[0].dtype);
        GM_ASSERT(a->down[e].dtype == a->down[0].dtype);
        GM_ASSERT(a->gate[e].block_cols == a->gate[0].block_cols && a->up[e].block_cols == a->gate[0].block_cols &&
                  a->down[e].block_cols == a->down[0].block_cols);
    }
    job j = {.a = a, .round = a->act == GM_ACT_BF16};
    j.impl = gm_linear_impl_of(gm_device_isa(a->dev), &j.isa);
    gm_variant_note(GM_OP_moe_experts, j.isa);
    j.swiglu = gm_swiglu_of(j.isa);
    j.x_bf16 = gm_linear_wants_bf16(j.impl, &a->gate[0], a->act);
    j.h_bf16 = gm_linear_wants_bf16(j.impl, &a->down[0], a->act);
    lay_out(&j.m, a->workspace, gm_device_threads(a->dev), a->n, a->d, a->f, a->n_experts, a->n_active);
    j.up_blocks = ((int64_t)a->f + UP_ROWS - 1) / UP_ROWS;
    for (int32_t t = 0; t < a->n; t += PASS) {
        j.t_begin = t;
        j.n = a->n - t < PASS ? a->n - t : PASS;
        sort_pairs(&j);
        gm_device_parallel(a->dev, j.n, gm_grain(a->d), round_rows, &j);
        gm_device_parallel(a->dev, j.n_busy * j.up_blocks, 1, up_items, &j);
        gm_device_parallel(a->dev, a->d, DOWN_ROWS, down_rows, &j);
    }
}
