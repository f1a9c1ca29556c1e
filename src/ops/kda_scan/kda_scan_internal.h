/* The variants of kda_scan: items are blocks of GM_KDA_SCAN_COLS columns of one head's state, head after head, slice
 * after slice. One item walks all tokens of its slice. */
#ifndef GM_OPS_KDA_SCAN_INTERNAL_H
#define GM_OPS_KDA_SCAN_INTERNAL_H
#include "ops/kda_scan/kda_scan.h"
#include "ops/variant.h"

enum { GM_KDA_SCAN_COLS = 32, GM_KDA_HEAD_MAX = 256 };

gm_items_fn gm_kda_scan_ref, gm_kda_scan_avx2, gm_kda_scan_avx512;

static inline int64_t gm_kda_scan_blocks(const gm_kda_scan_args *a)
{
    return ((int64_t)a->d_head + GM_KDA_SCAN_COLS - 1) / GM_KDA_SCAN_COLS;
}

#endif
