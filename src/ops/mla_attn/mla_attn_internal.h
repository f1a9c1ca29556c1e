/* The variants of mla_attn.
 *
 * The vector variants cut a row's work into units: GM_MLA_HEADS heads by GM_MLA_SPLIT keys, each with a softmax of its
 * own (maximum, sum, unscaled result); a row's units are then merged in rising order of keys. The cut depends on the
 * row alone. With many rows a thread takes all keys of a row's heads and merges as it goes; with few rows the units are
 * dealt out to all threads and merged afterwards, by the same function: the bits are the same. */
#ifndef GM_OPS_MLA_ATTN_INTERNAL_H
#define GM_OPS_MLA_ATTN_INTERNAL_H
#include "ops/mla_attn/mla_attn.h"
#include "ops/variant.h"

enum { GM_MLA_HEADS = 32, GM_MLA_SPLIT = 128, GM_MLA_BLOCK = 32, GM_MLA_REF_KEYS = 32,
       GM_MLA_SKEW = 16 /* floats behind a panel row: rows of 2 KiB would share their cache sets */ };

typedef struct gm_mla_job {
    const gm_mla_attn_args *a;
    uint8_t *workspace;    /* worker_bytes each */
    int64_t worker_bytes;
    float *parts;          /* results of the units of rows row_begin .. , gm_mla_part_floats() each */
    int64_t row_begin;
    int64_t head_groups, splits; /* splits: of the longest row possible */
} gm_mla_job;

/* Most tokens that one row can attend to. */
static inline int64_t gm_mla_keys_max(int32_t n_select, int32_t pool)
{
    return (int64_t)n_select * pool + pool;
}

/* Channels, up to whole vectors of 16. */
static inline int64_t gm_mla_pad(int64_t d)
{
    return (d + 15) / 16 * 16;
}

/* A unit's result: o [GM_MLA_HEADS][pad(d)], then max and sum [GM_MLA_HEADS] each. */
static inline int64_t gm_mla_part_floats(int64_t d_latent)
{
    return GM_MLA_HEADS * gm_mla_pad(d_latent) + 2 * GM_MLA_HEADS;
}

/* The tokens that row r attends to, rising; returns how many. */
int32_t gm_mla_positions(const gm_mla_attn_args *a, int64_t r, int32_t *pos);

/* args: gm_mla_job; items: rows. */
gm_items_fn gm_mla_attn_ref;
/* Items: head groups, row after row. Complete. */
gm_items_fn gm_mla_rows_avx2, gm_mla_rows_avx512;
/* Items: splits, head group after head group, row after row from row_begin. To parts. */
gm_items_fn gm_mla_units_avx2, gm_mla_units_avx512;
/* Items: heads, row after row from row_begin. From parts to o. */
gm_items_fn gm_mla_merge_avx2, gm_mla_merge_avx512;

/* A worker's room, in bytes from its start; every piece is 64-byte aligned. */
typedef struct gm_mla_room {
    int64_t pos;                         /* int32 [keys_max] */
    int64_t panel, turned, scores, part; /* vector variants */
    int64_t all_scores, block;           /* reference */
    int64_t size;
} gm_mla_room;
gm_mla_room gm_mla_room_of(int32_t n_heads, int32_t n_select, int32_t pool, int32_t d_latent, int32_t d_rope);

#endif
