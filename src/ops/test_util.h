/* What the op tests share: devices of every instruction set, arrays filled with noise or NaN, comparisons that look
 * at NaN and infinity masks before values, and batches of sequences over scattered pages. */
#ifndef GM_OPS_TEST_UTIL_H
#define GM_OPS_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/device.h"
#include "ops/slice.h"
#include "ops/tensor.h"
#include "ops/variant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TU_EACH_ISA(isa) for (gm_isa isa = GM_ISA_REF; isa <= gm_isa_detect(); isa++)
#define TU_LEN(a) (sizeof(a) / sizeof *(a))

/* Devices live as long as the program; threads 1 to 3. */
static gm_device *tu_devices[GM_N_ISA][4];

static void tu_close_devices(void)
{
    for (int i = 0; i < GM_N_ISA; i++)
        for (int t = 1; t < 4; t++) gm_device_close(tu_devices[i][t]);
}

static inline gm_device *tu_device(gm_isa isa, int threads)
{
    static bool registered;
    if (!registered) atexit(tu_close_devices);
    registered = true;
    gm_device **d = &tu_devices[isa][threads];
    if (!*d) assert_int_equal(gm_device_open_cpu(d, isa, threads, NULL), GM_OK);
    return *d;
}

/* Exact sizes from malloc, so that a sanitizer sees the first byte behind. */
static inline void *tu_bytes(size_t n)
{
    GM_ASSERT(n < (size_t)1 << 40);
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

static inline float *tu_normal(size_t n, float scale, uint64_t seed)
{
    float *p = tu_bytes(n * sizeof *p);
    gm_rng r;
    gm_rng_init(&r, seed);
    for (size_t i = 0; i < n; i++) p[i] = scale * (float)gm_rng_normal(&r);
    return p;
}

static inline void tu_fill_nan(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = NAN;
}

static inline float *tu_nan(size_t n)
{
    float *p = tu_bytes(n * sizeof *p);
    tu_fill_nan(p, n);
    return p;
}

static inline float *tu_copy(const float *from, size_t n)
{
    float *p = tu_bytes(n * sizeof *p);
    memcpy(p, from, n * sizeof *p);
    return p;
}

static inline void *tu_workspace(int64_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, bytes > 0 ? (size_t)bytes : 64), 0);
    memset(p, 0xFF, (size_t)(bytes > 0 ? bytes : 64)); /* NaN, whatever is read from it too early */
    return p;
}

static inline int tu_class(float f)
{
    return isnan(f) ? 1 : isinf(f) ? (f > 0 ? 2 : 3) : 0;
}

/* |got - want| <= abs + rel * |want|, where both are finite; otherwise of the same kind. */
static inline void tu_near(const char *what, const float *got, const float *want, size_t n, double rel, double abs)
{
    for (size_t i = 0; i < n; i++)
        if (tu_class(got[i]) != tu_class(want[i]))
            fail_msg("%s[%zu]: got %g, want %g", what, i, (double)got[i], (double)want[i]);
    for (size_t i = 0; i < n; i++) {
        if (tu_class(want[i])) continue;
        double off = fabs((double)got[i] - (double)want[i]);
        if (off > abs + rel * fabs((double)want[i]))
            fail_msg("%s[%zu]: got %.9g, want %.9g, off by %.3g", what, i, (double)got[i], (double)want[i], off);
    }
}

static inline void tu_same(const char *what, const void *got, const void *want, size_t n)
{
    const uint8_t *g = got, *w = want;
    for (size_t i = 0; i < n; i++)
        if (g[i] != w[i]) fail_msg("%s: byte %zu is %02x, want %02x", what, i, g[i], w[i]);
}

/* The variant of this very isa must have run since `before` was read. */
static inline void tu_ran(gm_op op, gm_isa isa, int64_t before)
{
    if (gm_variant_count(op, isa) <= before)
        fail_msg("%s: the %s variant did not run", gm_op_name(op), gm_isa_name(isa));
}

/* Sequences over scattered pages: sequence i holds begin[i] tokens and gets n[i] more. */
typedef struct tu_batch {
    gm_rows rows;
    gm_slice *slices;
    gm_pos *pos;
    int32_t *slice_of;
    gm_page *pages[64];
    int32_t n_pages; /* of the pool */
} tu_batch;

static inline void tu_batch_init(tu_batch *b, int32_t n_slices, const int32_t *begin, const int32_t *n,
                                 int32_t page_tokens)
{
    memset(b, 0, sizeof *b);
    b->slices = tu_bytes((size_t)n_slices * sizeof *b->slices);
    int32_t rows = 0, pages = 0;
    for (int32_t i = 0; i < n_slices; i++) {
        rows += n[i];
        pages += (begin[i] + n[i] + page_tokens - 1) / page_tokens;
    }
    b->n_pages = pages + 3; /* some pages belong to nobody */
    int32_t *order = tu_bytes((size_t)b->n_pages * sizeof *order);
    gm_rng r;
    gm_rng_init(&r, 77);
    for (int32_t i = 0; i < b->n_pages; i++) order[i] = i;
    for (int32_t i = b->n_pages - 1; i > 0; i--) {
        int32_t j = (int32_t)gm_rng_below(&r, (uint64_t)i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    b->pos = tu_bytes((size_t)rows * sizeof *b->pos);
    b->slice_of = tu_bytes((size_t)rows * sizeof *b->slice_of);
    int32_t row = 0, page = 0;
    for (int32_t i = 0; i < n_slices; i++) {
        int32_t np = (begin[i] + n[i] + page_tokens - 1) / page_tokens;
        b->pages[i] = tu_bytes((size_t)np * sizeof(gm_page));
        for (int32_t k = 0; k < np; k++) b->pages[i][k].id = order[page++];
        b->slices[i] = (gm_slice){.token_begin = row, .n = {n[i]}, .begin = {begin[i]}, .pages = b->pages[i],
                                  .n_pages = np, .slot = {n_slices - 1 - i}};
        for (int32_t k = 0; k < n[i]; k++, row++) {
            b->pos[row].tok = begin[i] + k;
            b->slice_of[row] = i;
        }
    }
    free(order);
    b->rows = (gm_rows){rows, b->pos, b->slice_of, b->slices, n_slices};
}

/* The same rows, only those from row_begin on, n of them, of slice i: for running a batch piece by piece. */
static inline void tu_batch_cut(tu_batch *to, const tu_batch *from, int32_t i, int32_t first, int32_t n)
{
    memset(to, 0, sizeof *to);
    to->n_pages = from->n_pages;
    to->slices = tu_bytes(sizeof *to->slices);
    to->slices[0] = from->slices[i];
    to->slices[0].token_begin = 0;
    to->slices[0].n.tok = n;
    to->slices[0].begin.tok += first;
    to->pos = tu_bytes((size_t)n * sizeof *to->pos);
    to->slice_of = tu_bytes((size_t)n * sizeof *to->slice_of);
    for (int32_t k = 0; k < n; k++) {
        to->pos[k].tok = from->slices[i].begin.tok + first + k;
        to->slice_of[k] = 0;
    }
    to->rows = (gm_rows){n, to->pos, to->slice_of, to->slices, 1};
}

static inline void tu_batch_fini(tu_batch *b)
{
    for (size_t i = 0; i < TU_LEN(b->pages); i++) free(b->pages[i]);
    free(b->slices);
    free(b->pos);
    free(b->slice_of);
}

/* Pages behind a canary on each side. */
typedef struct tu_region {
    uint8_t *all, *base;
    size_t size;
} tu_region;
enum { TU_CANARY = 4096 };

static inline tu_region tu_region_new(int64_t size)
{
    tu_region g = {.size = (size_t)size};
    g.all = tu_bytes((size_t)size + 2 * TU_CANARY);
    memset(g.all, 0xC5, (size_t)size + 2 * TU_CANARY);
    g.base = g.all + TU_CANARY;
    return g;
}

static inline void tu_region_check(const tu_region *g)
{
    for (size_t i = 0; i < TU_CANARY; i++) {
        assert_int_equal(g->all[i], 0xC5);
        assert_int_equal(g->base[g->size + i], 0xC5);
    }
}

#endif
