/* The variants of index_topk: items are rows, counted from row_begin. */
#ifndef GM_OPS_INDEX_TOPK_INTERNAL_H
#define GM_OPS_INDEX_TOPK_INTERNAL_H
#include "ops/index_topk/index_topk.h"
#include "ops/variant.h"

gm_items_fn gm_index_topk_ref, gm_index_topk_avx2, gm_index_topk_avx512;

/* A score as a number that sorts the same way: NaN as -infinity, both zeros alike. */
static inline uint32_t gm_score_key(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f + 0.0f};
    if ((v.u & 0x7FFFFFFFu) > 0x7F800000u) v.u = 0xFF800000u;
    return v.u & 0x80000000u ? ~v.u : v.u | 0x80000000u;
}

#endif
