/* The variants of embed: items are rows. */
#ifndef GM_OPS_EMBED_INTERNAL_H
#define GM_OPS_EMBED_INTERNAL_H
#include "ops/embed/embed.h"
#include "ops/variant.h"

gm_items_fn gm_embed_ref, gm_embed_avx2, gm_embed_avx512;
#endif
