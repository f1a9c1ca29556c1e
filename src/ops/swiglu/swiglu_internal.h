/* The variants of swiglu: items are spans of GM_SWIGLU_SPAN values, row after row. */
#ifndef GM_OPS_SWIGLU_INTERNAL_H
#define GM_OPS_SWIGLU_INTERNAL_H
#include "ops/swiglu/swiglu.h"
#include "ops/variant.h"

enum { GM_SWIGLU_SPAN = 512 };

gm_items_fn gm_swiglu_ref, gm_swiglu_avx2, gm_swiglu_avx512;
gm_items_fn *gm_swiglu_of(gm_isa isa); /* for the experts */
#endif
