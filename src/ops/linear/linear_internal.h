/* The inner part of a matrix product, shared with the experts: some rows of W against some rows of x. */
#ifndef GM_OPS_LINEAR_INTERNAL_H
#define GM_OPS_LINEAR_INTERNAL_H
#include "ops/linear/linear.h"
#include "ops/variant.h"

typedef struct gm_linear_part {
    const gm_matrix *w;
    int32_t row_begin, row_end;
    const void *x;         /* FP32, or BF16 where x_bf16; already rounded */
    const int32_t *x_rows; /* row t is x_rows[t] of x; NULL: t */
    int64_t ldx;           /* elements */
    int32_t n;             /* at most GM_LINEAR_TOKENS */
    bool x_bf16;           /* only where gm_linear_impl.bf16_dot and W is not F32 */
    bool accumulate;
    float *y; /* value of row_begin of token t at y[t * ldy] */
    int64_t ldy;
    void *scratch; /* GM_LINEAR_SCRATCH bytes of this worker, 64-byte aligned */
} gm_linear_part;

enum {
    GM_LINEAR_TOKENS = 256,             /* rows of x in one pass over W */
    GM_LINEAR_GROUP_FLOATS = 1 << 16,   /* rounded x of one group and worker */
    GM_LINEAR_SCRATCH = 384 << 10,
    GM_LINEAR_PAD = 32, /* elements behind a row of rounded x: rows of 2^n bytes would share their cache sets */
};

typedef struct gm_linear_impl {
    void (*part)(const gm_linear_part *p);
    void (*round_f32)(float *to, const float *from, int64_t n);     /* values rounded to BF16, kept as FP32 */
    void (*round_bf16)(uint16_t *to, const float *from, int64_t n); /* NULL without BF16 dot products */
} gm_linear_impl;

/* Best first, at most `isa`; *found says which. Each covers every dtype and shape. */
const gm_linear_impl *gm_linear_impl_of(gm_isa isa, gm_isa *found);
extern const gm_linear_impl gm_linear_impl_ref, gm_linear_impl_avx2, gm_linear_impl_avx512;

/* Whether the variant wants x as BF16 for this weight. FP8 scale blocks must then be whole vectors. */
static inline bool gm_linear_wants_bf16(const gm_linear_impl *impl, const gm_matrix *w, gm_act act)
{
    if (act != GM_ACT_BF16 || w->dtype == GM_F32 || !impl->round_bf16) return false;
    return w->dtype != GM_F8E4M3 || w->block_cols % 32 == 0 || w->block_cols >= w->cols;
}

#endif
