#include "ops/mla_attn/mla_attn_internal.h"

#include "ops/cache_row.h"

static gm_items_fn *const ROWS[GM_N_ISA] = {gm_mla_attn_ref, GM_X86(gm_mla_rows_avx2), GM_X86(gm_mla_rows_avx512)};
static gm_items_fn *const UNITS[GM_N_ISA] = {NULL, GM_X86(gm_mla_units_avx2), GM_X86(gm_mla_units_avx512)};
static gm_items_fn *const MERGE[GM_N_ISA] = {NULL, GM_X86(gm_mla_merge_avx2), GM_X86(gm_mla_merge_avx512)};

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

gm_mla_room gm_mla_room_of(int32_t n_heads, int32_t n_select, int32_t pool, int32_t d_latent, int32_t d_rope)
{
    int64_t keys = (gm_mla_keys_max(n_select, pool) + 15) / 16 * 16, width = gm_mla_pad(d_latent) + gm_mla_pad(d_rope);
    gm_mla_room m = {0};
    m.panel = keys * 4;
    m.turned = m.panel + GM_MLA_BLOCK * (width + GM_MLA_SKEW) * 4;
    m.scores = m.turned + GM_MLA_BLOCK * width * 4;
    m.part = m.scores + GM_MLA_BLOCK * GM_MLA_HEADS * 4;
    m.size = m.part + 2 * gm_mla_part_floats(d_latent) * 4;
    m.all_scores = m.panel;
    m.block = m.all_scores + keys * 4 * n_heads;
    int64_t ref = m.block + GM_MLA_REF_KEYS * width * 4;
    if (ref > m.size) m.size = ref;
    return m;
}

static int64_t units_of_row(int32_t n_heads, int32_t n_select, int32_t pool, int64_t *groups, int64_t *splits)
{
    *groups = ((int64_t)n_heads + GM_MLA_HEADS - 1) / GM_MLA_HEADS;
    *splits = (gm_mla_keys_max(n_select, pool) + GM_MLA_SPLIT - 1) / GM_MLA_SPLIT;
    return *groups * *splits;
}

/* Rows whose units are dealt out together: enough for all threads. */
static int64_t wave_rows(gm_device *dev, int64_t units)
{
    int64_t rows = 4 * (int64_t)gm_device_threads(dev) / units;
    return rows < 1 ? 1 : rows;
}

int64_t gm_mla_attn_workspace(gm_device *dev, int32_t n_heads, int32_t n_select, int32_t pool, int32_t d_latent,
                              int32_t d_rope)
{
    int64_t groups, splits, units = units_of_row(n_heads, n_select, pool, &groups, &splits);
    return gm_device_threads(dev) * gm_mla_room_of(n_heads, n_select, pool, d_latent, d_rope).size +
           wave_rows(dev, units) * units * gm_mla_part_floats(d_latent) * 4;
}

void gm_mla_attn(const gm_mla_attn_args *a)
{
    const gm_latent_cache *c = &a->cache;
    GM_ASSERT(c->row_bytes >= gm_latent_row_bytes(c->dtype, c->d_latent, c->d_rope));
    GM_ASSERT(c->d_rope == 0 || a->q_rope);
    gm_isa isa = gm_variant_pick(GM_OP_mla_attn, a->dev, ROWS);
    gm_mla_job j = {.a = a, .workspace = a->workspace};
    int64_t threads = gm_device_threads(a->dev), n = a->rows->n_rows;
    j.worker_bytes = gm_mla_room_of(a->n_heads, a->n_select, a->pool, c->d_latent, c->d_rope).size;
    if (isa == GM_ISA_REF) {
        gm_items_run(a->dev, ROWS[isa], &j, n, 1);
        return;
    }
    int64_t units = units_of_row(a->n_heads, a->n_select, a->pool, &j.head_groups, &j.splits);
    if (n * j.head_groups >= 2 * threads) {
        gm_items_run(a->dev, ROWS[isa], &j, n * j.head_groups, 1);
        return;
    }
    j.parts = (float *)(j.workspace + threads * j.worker_bytes);
    int64_t wave = wave_rows(a->dev, units);
    for (; j.row_begin < n; j.row_begin += wave) {
        int64_t rows = n - j.row_begin < wave ? n - j.row_begin : wave;
        gm_items_run(a->dev, UNITS[isa], &j, rows * units, 1);
        gm_items_run(a->dev, MERGE[isa], &j, rows * a->n_heads, 2);
    }
}
