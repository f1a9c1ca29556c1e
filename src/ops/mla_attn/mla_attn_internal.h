/* The variants of mla_attn. */
#ifndef GM_OPS_MLA_ATTN_INTERNAL_H
#define GM_OPS_MLA_ATTN_INTERNAL_H
#include "ops/mla_attn/mla_attn.h"
#include "ops/variant.h"

/* Room of a worker in the workspace: positions of a row, then what the variant needs. */
typedef struct gm_mla_job {
    const gm_mla_attn_args *a;
    uint8_t *workspace;
    int64_t worker_bytes;
} gm_mla_job;

/* Most tokens that one row can attend to. */
static inline int64_t gm_mla_keys_max(int32_t n_select, int32_t pool)
{
    return (int64_t)n_select * pool + pool;
}

/* The tokens that row r attends to, rising; returns how many. */
int32_t gm_mla_positions(const gm_mla_attn_args *a, int64_t r, int32_t *pos);

/* args: gm_mla_job; items: rows. */
gm_items_fn gm_mla_attn_ref;
enum { GM_MLA_REF_KEYS = 32 };

#endif
