/* The variants of index_append. */
#ifndef GM_OPS_INDEX_APPEND_INTERNAL_H
#define GM_OPS_INDEX_APPEND_INTERNAL_H
#include "ops/index_append/index_append.h"
#include "ops/variant.h"

#include <string.h>

enum { GM_INDEX_D_MAX = 512 };

/* Value i of a slot's tail ([pool][2][d]: k, then e), FP32 or BF16. */
static inline float gm_index_tail_load(const uint8_t *tail, int64_t i, bool bf16)
{
    float f;
    uint16_t h;
    if (bf16) {
        memcpy(&h, tail + 2 * i, 2);
        return gm_bf16_to_f32(h);
    }
    memcpy(&f, tail + 4 * i, 4);
    return f;
}

static inline void gm_index_tail_store(uint8_t *tail, int64_t i, float f, bool bf16)
{
    uint16_t h = gm_f32_to_bf16(f);
    if (bf16) memcpy(tail + 2 * i, &h, 2);
    else memcpy(tail + 4 * i, &f, 4);
}

/* args: gm_index_append_args; items: rows. A row that completes a pool writes its key; others do nothing. */
gm_items_fn gm_index_append_ref, gm_index_append_avx2, gm_index_append_avx512;
#endif
