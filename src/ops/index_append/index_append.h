/* Write the index keys that are complete after this step.
 *
 * Without compression (e NULL, pool 1) the key of token p is k[p]. With it, pool q (tokens pool*q .. pool*q+pool-1):
 *   a_j[c] = softmax over j of (e_{pool q + j}[c] + ape[j][c]), per channel;  P_q[c] = sum_j a_j[c] k_{pool q + j}[c]
 * A pool's key is written once, when its last token arrives. Tokens of the unfinished pool wait in the slot's tail:
 * [pool][2][d] (k, then e), position p at row p % pool, at tail + slot * slot_stride (bytes); FP32, or BF16 with bf16.
 * bf16: k and e are rounded to BF16 on entry, so that the cut into steps does not show; the pooled key is rounded to
 * what the cache holds. */
#ifndef GM_OPS_INDEX_APPEND_H
#define GM_OPS_INDEX_APPEND_H
#include "ops/slice.h"
#include "ops/tensor.h"

#define GM_INDEX_POOL_MAX 64

typedef struct gm_index_append_args {
    const float *k;   /* [n_rows][d], stride ldk */
    const float *e;   /* [n_rows][d], stride lde; NULL without compression */
    const float *ape; /* [pool][d]; NULL without compression */
    int64_t ldk, lde;
    uint8_t *tail; /* NULL where pool is 1 */
    int64_t slot_stride;
    const gm_rows *rows;
    gm_index_cache cache;
    bool bf16;
    gm_device *dev;
} gm_index_append_args;
void gm_index_append(const gm_index_append_args *a);
#endif
