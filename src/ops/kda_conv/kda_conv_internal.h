/* The variants of kda_conv: items are blocks of GM_KDA_CONV_BLOCK channels, slice after slice. One item walks all
 * tokens of its slice. */
#ifndef GM_OPS_KDA_CONV_INTERNAL_H
#define GM_OPS_KDA_CONV_INTERNAL_H
#include "ops/kda_conv/kda_conv.h"
#include "ops/variant.h"

enum { GM_KDA_CONV_BLOCK = 256, GM_KDA_TAPS_MAX = 8 };

gm_items_fn gm_kda_conv_ref, gm_kda_conv_avx2, gm_kda_conv_avx512;
#endif
