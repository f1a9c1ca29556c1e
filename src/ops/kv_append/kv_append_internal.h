/* The variants of kv_append: items are rows. */
#ifndef GM_OPS_KV_APPEND_INTERNAL_H
#define GM_OPS_KV_APPEND_INTERNAL_H
#include "ops/kv_append/kv_append.h"
#include "ops/variant.h"

gm_items_fn gm_kv_append_ref, gm_kv_append_avx2, gm_kv_append_avx512;
#endif
