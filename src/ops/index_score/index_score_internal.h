/* The variants of index_score: items are blocks of GM_INDEX_SCORE_POOLS pools, row after row. */
#ifndef GM_OPS_INDEX_SCORE_INTERNAL_H
#define GM_OPS_INDEX_SCORE_INTERNAL_H
#include "ops/index_score/index_score.h"
#include "ops/variant.h"

enum { GM_INDEX_SCORE_POOLS = 64, GM_INDEX_SCORE_D_MAX = 512, GM_INDEX_SCORE_HEADS_MAX = 256 };

typedef struct gm_index_score_job {
    const gm_index_score_args *a;
    int64_t blocks; /* a row, enough for the one that sees most */
} gm_index_score_job;

/* args: gm_index_score_job */
gm_items_fn gm_index_score_ref, gm_index_score_avx2, gm_index_score_avx512;

/* An item as a row and pools first .. last-1 of it; false where nothing is to be done. */
bool gm_index_score_item(const gm_index_score_job *j, int64_t item, int32_t *row, int32_t *first, int32_t *last);

#endif
