/* The variants of index_append. */
#ifndef GM_OPS_INDEX_APPEND_INTERNAL_H
#define GM_OPS_INDEX_APPEND_INTERNAL_H
#include "ops/index_append/index_append.h"
#include "ops/variant.h"

enum { GM_INDEX_D_MAX = 512 };

/* args: gm_index_append_args; items: rows. A row that completes a pool writes its key; others do nothing. */
gm_items_fn gm_index_append_ref;
#endif
