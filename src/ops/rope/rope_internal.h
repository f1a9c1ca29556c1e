/* The variants of rope: items are rows. */
#ifndef GM_OPS_ROPE_INTERNAL_H
#define GM_OPS_ROPE_INTERNAL_H
#include "ops/rope/rope.h"
#include "ops/variant.h"

gm_items_fn gm_rope_ref;
#endif
