/* The n_select visible pools with the largest score; ties: lower pool first; NaN counts as -infinity.
 * sel[r] lists them in rising pool order (so that attention does not depend on the order of the scores), n_sel[r] says
 * how many; entries behind are -1. A row with at most n_select visible pools selects all of them and its scores are
 * not read. */
#ifndef GM_OPS_INDEX_TOPK_H
#define GM_OPS_INDEX_TOPK_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_index_topk_args {
    const float *scores; /* [row_end - row_begin][lds] */
    int64_t lds;
    const gm_rows *rows;
    int32_t row_begin, row_end;
    int32_t pool, n_select;
    gm_pool_pos *sel; /* [n_rows][n_select]: row r at sel + r * n_select */
    int32_t *n_sel;   /* [n_rows] */
    gm_device *dev;
} gm_index_topk_args;
void gm_index_topk(const gm_index_topk_args *a);
#endif
