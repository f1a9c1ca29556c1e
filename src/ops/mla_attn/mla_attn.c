#include "ops/mla_attn/mla_attn_internal.h"

#include "ops/cache_row.h"

static gm_items_fn *const VARIANTS[GM_N_ISA] = {gm_mla_attn_ref, NULL, NULL};

int32_t gm_mla_positions(const gm_mla_attn_args *a, int64_t r, int32_t *pos)
{
    int32_t visible = gm_pools_visible(a->rows->pos[r], a->pool), n = 0;
    const gm_pool_pos *sel = a->sel + r * a->n_select;
    GM_ASSERT(a->n_sel[r] >= 0 && a->n_sel[r] <= a->n_select);
    for (int32_t i = 0; i < a->n_sel[r]; i++) {
        GM_ASSERT(sel[i].pool >= 0 && sel[i].pool < visible);
        for (int32_t j = 0; j < a->pool; j++) pos[n++] = sel[i].pool * a->pool + j;
    }
    if (a->tail)
        for (int32_t p = visible * a->pool; p <= a->rows->pos[r].tok; p++) pos[n++] = p;
    return n;
}

static int64_t align64(int64_t n)
{
    return (n + 63) / 64 * 64;
}

static int64_t worker_bytes(int32_t n_heads, int32_t n_select, int32_t pool, int32_t d_latent, int32_t d_rope)
{
    int64_t keys = gm_mla_keys_max(n_select, pool);
    int64_t ref = align64(keys * 4) * n_heads + align64((int64_t)(d_latent + d_rope) * 4 * GM_MLA_REF_KEYS);
    return align64(keys * 4) + ref;
}

int64_t gm_mla_attn_workspace(gm_device *dev, int32_t n_heads, int32_t n_select, int32_t pool, int32_t d_latent,
                              int32_t d_rope)
{
    return gm_device_threads(dev) * worker_bytes(n_heads, n_select, pool, d_latent, d_rope);
}

void gm_mla_attn(const gm_mla_attn_args *a)
{
    const gm_latent_cache *c = &a->cache;
    GM_ASSERT(c->row_bytes >= gm_latent_row_bytes(c->dtype, c->d_latent, c->d_rope));
    GM_ASSERT(c->d_rope == 0 || a->q_rope);
    gm_mla_job j = {a, a->workspace, worker_bytes(a->n_heads, a->n_select, a->pool, c->d_latent, c->d_rope)};
    gm_op_run(GM_OP_mla_attn, a->dev, VARIANTS, &j, a->rows->n_rows, 1);
}
