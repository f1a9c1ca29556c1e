#include "ops/index_topk/index_topk_internal.h"

#include "ops/cache_row.h"

#include <string.h>

enum { RADIX_BITS = 11, BINS = 1 << RADIX_BITS };

/* The k-th largest key, found 11 (11, 10) bits at a time: a count of the keys that share the prefix found so far, by
 * their next bits. Three passes whatever the scores are. *n_above: keys larger than it. */
static uint32_t kth_largest(const float *scores, int32_t n, int32_t k, int32_t *n_above)
{
    uint32_t prefix = 0, mask = 0;
    int32_t above = 0;
    for (int shift = 32 - RADIX_BITS, bits = RADIX_BITS; bits > 0;) {
        int32_t count[BINS] = {0};
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = gm_score_key(scores[i]);
            if ((key & mask) == prefix) count[key >> shift & ((1u << bits) - 1)]++;
        }
        int32_t bin = (1 << bits) - 1;
        while (above + count[bin] < k) above += count[bin--];
        prefix |= (uint32_t)bin << shift;
        mask |= ((1u << bits) - 1) << shift;
        bits = shift < RADIX_BITS ? shift : RADIX_BITS;
        shift -= bits;
    }
    *n_above = above;
    return prefix;
}

void gm_index_topk_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_index_topk_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        int64_t r = a->row_begin + i;
        int32_t visible = gm_pools_visible(a->rows->pos[r], a->pool), n = 0;
        gm_pool_pos *sel = a->sel + r * a->n_select;
        if (visible <= a->n_select) {
            for (; n < visible; n++) sel[n].pool = n;
        } else {
            const float *scores = a->scores + i * a->lds;
            int32_t n_above;
            uint32_t least = kth_largest(scores, visible, a->n_select, &n_above);
            int32_t equal_left = a->n_select - n_above;
            for (int32_t p = 0; n < a->n_select; p++) {
                uint32_t key = gm_score_key(scores[p]);
                if (key > least || (key == least && equal_left-- > 0)) sel[n++].pool = p;
            }
        }
        a->n_sel[r] = n;
        for (; n < a->n_select; n++) sel[n].pool = -1;
    }
}
