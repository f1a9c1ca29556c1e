/* The rows of a step by sequence: what the ops that read or write cache need to know of a batch. */
#ifndef GM_OPS_SLICE_H
#define GM_OPS_SLICE_H

#include "config/kv_dtype.h"
#include "kv/kv_types.h"

/* One sequence's share of a step. */
typedef struct gm_slice {
    int32_t token_begin;  /* first row of this slice in the flat arrays; slices follow one another without gaps */
    gm_chunk_len n;       /* rows of this slice, >= 1 */
    gm_pos begin;         /* tokens of the sequence already in the cache; 0 starts afresh (state is reset) */
    const gm_page *pages; /* page table of the sequence: at least ceil((begin + n) / page_tokens) entries */
    int32_t n_pages;
    gm_slot slot; /* GM_SLOT_NONE where the model keeps no per-sequence state */
} gm_slice;

/* All rows of a step, prepared once: row r is token pos[r] of slices[slice_of[r]]. */
typedef struct gm_rows {
    int32_t n_rows;
    const gm_pos *pos;        /* [n_rows] */
    const int32_t *slice_of;  /* [n_rows] */
    const gm_slice *slices;
    int32_t n_slices;
} gm_rows;

/* The latent rows of one layer in page-addressed memory: row of token p of a page table t starts at
 *   base + ((int64)t[p / page_tokens].id * page_tokens + p % page_tokens) * row_bytes.
 * Row: F32 or BF16: d_latent values, then d_rope values.
 *      FP8: d_latent E4M3 codes, one BF16 scale for each GM_LATENT_GROUP of them, then d_rope BF16 values; the rotary
 *           part is never quantised. */
typedef struct gm_latent_cache {
    uint8_t *base;
    int32_t n_pages, page_tokens;
    gm_kv_dtype dtype;
    int32_t d_latent, d_rope;
    int64_t row_bytes;
} gm_latent_cache;

/* The pooled index keys of one layer: key of pool q (tokens q*pool .. q*pool+pool-1), keys_per_page = page_tokens /
 * pool, starts at base + ((int64)t[q / keys_per_page].id * keys_per_page + q % keys_per_page) * key_bytes.
 * Key: F32, BF16 or F16: d values (F16 saturates at 65504). FP8: d codes, then one FP32 scale (unaligned), a power of
 *      two: 2^ceil(log2(max(amax, 1e-4) / 448)). */
typedef struct gm_index_cache {
    uint8_t *base;
    int32_t n_pages, page_tokens, pool;
    gm_kv_dtype dtype;
    int32_t d;
    int64_t key_bytes;
} gm_index_cache;

#endif
