#include "ops/linear/linear_internal.h"

static const gm_linear_impl *const IMPLS[GM_N_ISA] = {&gm_linear_impl_ref, GM_X86(&gm_linear_impl_avx2),
                                                     GM_X86(&gm_linear_impl_avx512)};

const gm_linear_impl *gm_linear_impl_of(gm_isa isa, gm_isa *found)
{
    while (!IMPLS[isa]) isa--;
    *found = isa;
    return IMPLS[isa];
}

/* Workspace: GM_LINEAR_SCRATCH a worker, then the rounded x: of one pass of tokens where there is one group, else
 * of the group that a worker has in hand, a piece a worker. */
static int64_t group_bytes(void)
{
    return (int64_t)GM_LINEAR_GROUP_FLOATS * 4;
}

int64_t gm_linear_workspace(gm_device *dev, int32_t n_max, int32_t k_max, int32_t n_groups_max)
{
    int64_t threads = gm_device_threads(dev);
    int64_t pass = n_max < GM_LINEAR_TOKENS ? n_max : GM_LINEAR_TOKENS;
    int64_t shared = (pass * (k_max + GM_LINEAR_PAD) * 4 + 63) / 64 * 64;
    int64_t groups = n_groups_max > 1 ? threads * group_bytes() : 0;
    return threads * GM_LINEAR_SCRATCH + (shared > groups ? shared : groups);
}

typedef struct job {
    const gm_linear_args *a;
    const gm_linear_impl *impl;
    bool round, x_bf16;
    uint8_t *scratch, *rounded;
    int32_t t_begin, n; /* the tokens of this pass */
    int64_t row_blocks; /* for groups */
    int32_t block_rows;
} job;

static void round_row(const job *j, void *to, int64_t at, const float *from, int64_t n)
{
    if (j->x_bf16) j->impl->round_bf16((uint16_t *)to + at, from, n);
    else j->impl->round_f32((float *)to + at, from, n);
}

/* One group: all workers share the rounded x of the pass. */
static void round_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const job *j = ctx;
    int64_t k = j->a->w->cols;
    for (int64_t t = begin; t < end; t++) round_row(j, j->rounded, t * (k + GM_LINEAR_PAD), j->a->x + (j->t_begin + t) * j->a->ldx, k);
}

static void run_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const job *j = ctx;
    const gm_linear_args *a = j->a;
    gm_linear_part p = {
        .w = a->w,
        .row_begin = (int32_t)begin,
        .row_end = (int32_t)end,
        .x = j->round ? (const void *)j->rounded : (const void *)(a->x + j->t_begin * a->ldx),
        .ldx = j->round ? a->w->cols + GM_LINEAR_PAD : a->ldx,
        .n = j->n,
        .x_bf16 = j->x_bf16,
        .accumulate = a->accumulate,
        .y = a->y + j->t_begin * a->ldy + begin,
        .ldy = a->ldy,
        .scratch = j->scratch + (int64_t)worker * GM_LINEAR_SCRATCH,
    };
    j->impl->part(&p);
}

/* Rows that are worth a thread: 16 thousand weights at least, whole register tiles (or, where there are rows enough for
 * all threads, panels) and some cache lines of y. */
static int64_t row_grain(const gm_linear_args *a, int64_t n)
{
    int64_t unit = n > 4 && a->w->rows >= 48 * (int64_t)gm_device_threads(a->dev) ? 24 : 8;
    int64_t rows = 16384 / (a->w->cols * n) + 1;
    return (rows + unit - 1) / unit * unit;
}

static void run_one_group(job *j)
{
    const gm_linear_args *a = j->a;
    int64_t k = a->w->cols;
    for (int32_t t = 0; t < a->n; t += GM_LINEAR_TOKENS) {
        j->t_begin = t;
        j->n = a->n - t < GM_LINEAR_TOKENS ? a->n - t : GM_LINEAR_TOKENS;
        if (j->round) gm_device_parallel(a->dev, j->n, gm_grain(k), round_rows, j);
        gm_device_parallel(a->dev, a->w->rows, row_grain(a, j->n), run_rows, j);
    }
}

/* Several groups: an item is a block of rows of one group, for all tokens. The worker rounds the x it needs. */
static void run_group_items(void *ctx, int64_t begin, int64_t end, int worker)
{
    const job *j = ctx;
    const gm_linear_args *a = j->a;
    int64_t k = a->w->cols;
    int32_t pass = (int32_t)(GM_LINEAR_GROUP_FLOATS / k);
    if (pass > GM_LINEAR_TOKENS) pass = GM_LINEAR_TOKENS;
    uint8_t *rounded = j->rounded + (int64_t)worker * group_bytes();
    for (int64_t item = begin; item < end; item++) {
        int64_t g = item / j->row_blocks;
        int32_t row = (int32_t)(item % j->row_blocks) * j->block_rows;
        int32_t row_end = row + j->block_rows < a->w->rows ? row + j->block_rows : a->w->rows;
        for (int32_t t = 0; t < a->n; t += pass) {
            int32_t n = a->n - t < pass ? a->n - t : pass;
            const float *x = a->x + t * a->ldx + g * a->x_group;
            if (j->round)
                for (int32_t i = 0; i < n; i++) round_row(j, rounded, i * k, x + i * a->ldx, k);
            gm_linear_part p = {
                .w = &a->w[g],
                .row_begin = row,
                .row_end = row_end,
                .x = j->round ? (const void *)rounded : (const void *)x,
                .ldx = j->round ? k : a->ldx,
                .n = n,
                .x_bf16 = j->x_bf16,
                .accumulate = a->accumulate,
                .y = a->y + t * a->ldy + g * a->y_group + row,
                .ldy = a->ldy,
                .scratch = j->scratch + (int64_t)worker * GM_LINEAR_SCRATCH,
            };
            j->impl->part(&p);
        }
    }
}

static void run_groups(job *j)
{
    const gm_linear_args *a = j->a;
    j->block_rows = a->w->rows < 256 ? a->w->rows : 256;
    j->row_blocks = ((int64_t)a->w->rows + j->block_rows - 1) / j->block_rows;
    int64_t cost = (int64_t)a->w->cols * j->block_rows * a->n;
    gm_device_parallel(a->dev, a->n_groups * j->row_blocks, 65536 / cost + 1, run_group_items, j);
}

void gm_linear(const gm_linear_args *a)
{
    const gm_matrix *w = a->w;
    GM_ASSERT(w->rows > 0 && w->cols > 0);
    GM_ASSERT(w->dtype != GM_F8E4M3 || (w->scale && w->block_rows > 0 && w->block_cols > 0));
    GM_ASSERT(a->n_groups == 1 || w->cols <= GM_LINEAR_GROUP_FLOATS);
    if (a->n <= 0 || a->n_groups <= 0) return;
    gm_isa isa;
    job j = {.a = a, .impl = gm_linear_impl_of(gm_device_isa(a->dev), &isa)};
    gm_variant_note(GM_OP_linear, isa);
    j.round = a->act == GM_ACT_BF16;
    j.x_bf16 = gm_linear_wants_bf16(j.impl, w, a->act);
    j.scratch = a->workspace;
    j.rounded = j.scratch + (int64_t)gm_device_threads(a->dev) * GM_LINEAR_SCRATCH;
    if (a->n_groups == 1) run_one_group(&j);
    else run_groups(&j);
}
