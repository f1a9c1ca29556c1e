#include "ops/index_score/index_score_internal.h"

#include "ops/cache_row.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_index_score_ref, GM_X86(gm_index_score_avx2), GM_X86(gm_index_score_avx512)};

bool gm_index_score_item(const gm_index_score_job *j, int64_t item, int32_t *row, int32_t *first, int32_t *last)
{
    const gm_index_score_args *a = j->a;
    *row = a->row_begin + (int32_t)(item / j->blocks);
    int32_t visible = gm_pools_visible(a->rows->pos[*row], a->cache.pool);
    if (visible <= a->pools_skip) return false;
    int64_t begin = item % j->blocks * GM_INDEX_SCORE_POOLS;
    if (begin >= visible) return false;
    *first = (int32_t)begin;
    *last = (int32_t)(begin + GM_INDEX_SCORE_POOLS < visible ? begin + GM_INDEX_SCORE_POOLS : visible);
    return true;
}

void gm_index_score(const gm_index_score_args *a)
{
    GM_ASSERT(a->cache.d <= GM_INDEX_SCORE_D_MAX && a->n_heads <= GM_INDEX_SCORE_HEADS_MAX);
    GM_ASSERT(a->row_begin >= 0 && a->row_end <= a->rows->n_rows);
    int32_t most = 0;
    for (int32_t r = a->row_begin; r < a->row_end; r++) {
        int32_t visible = gm_pools_visible(a->rows->pos[r], a->cache.pool);
        if (visible > a->pools_skip && visible > most) most = visible;
    }
    if (most == 0) return;
    GM_ASSERT(most <= a->lds);
    gm_index_score_job j = {a, ((int64_t)most + GM_INDEX_SCORE_POOLS - 1) / GM_INDEX_SCORE_POOLS};
    gm_op_run(GM_OP_index_score, a->dev, VARIANTS, &j, (a->row_end - a->row_begin) * j.blocks,
              gm_grain((int64_t)GM_INDEX_SCORE_POOLS * a->n_heads * a->cache.d / 8));
}
