/* Index scores of rows row_begin .. row_end-1 against the complete pools visible to each:
 *   score[r][p] = sum_h w[r][h] * H^-0.5 * relu( (q[r][h] . P_p) * d^-0.5 ),  p < floor((pos[r] + 1) / pool)
 * The sum over h and the dot products run in a fixed order per (row, pool), whatever else is in the batch.
 * Scores beyond the visible pools are not written. A row with at most pools_skip visible pools is left out.
 * Tolerance of the variants: 1e-5 of the same sum over the terms' magnitudes. */
#ifndef GM_OPS_INDEX_SCORE_H
#define GM_OPS_INDEX_SCORE_H
#include "ops/slice.h"
#include "ops/tensor.h"

typedef struct gm_index_score_args {
    const float *q; /* [n_rows][H][d], stride ldq */
    const float *w; /* [n_rows][H], stride ldw */
    int64_t ldq, ldw;
    const gm_rows *rows;
    int32_t row_begin, row_end;
    int32_t n_heads;
    gm_index_cache cache;
    int32_t pools_skip; /* rows with at most this many visible pools need no scores */
    float *scores; /* [row_end - row_begin][lds] */
    int64_t lds;   /* >= the largest number of visible pools of these rows */
    gm_act act;    /* BF16: q is rounded to BF16 first */
    gm_device *dev;
} gm_index_score_args;
void gm_index_score(const gm_index_score_args *a);
#endif
