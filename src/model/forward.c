#include "model/forward.h"

#include <string.h>

#include "model/model_internal.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear.h"
#include "ops/mhc_mix/mhc_mix.h"
#include "ops/mla_attn/mla_attn.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/residual_add/residual_add.h"
#include "ops/rmsnorm/rmsnorm.h"

/* ---- memory ---- */

/* Lays pieces one behind another; with base NULL it only measures. */
typedef struct layout {
    uint8_t *base;
    int64_t at;
} layout;

static void *place(layout *l, int64_t bytes)
{
    void *p = l->base ? l->base + l->at : NULL;
    l->at += (bytes + 63) / 64 * 64;
    return p;
}

static float *floats(layout *l, int64_t n, int64_t width)
{
    return place(l, n * width * (int64_t)sizeof(float));
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void place_kda(gm_model *m, layout *l)
{
    const gm_model_config *c = m->c;
    const int64_t B = m->p.batch_tokens_max, D = c->kda_d_head, W = c->kda_n_heads * D;
    if (!m->foot.n_kda) return;
    m->kda = (gm_scratch_kda){.raw = floats(l, B, 3 * W),
                              .qkv = floats(l, B, 3 * W),
                              .low = floats(l, B, D),
                              .f = floats(l, B, W),
                              .g = floats(l, B, W),
                              .b = floats(l, B, c->kda_n_heads),
                              .o = floats(l, B, W)};
}

static void place_mla(gm_model *m, layout *l)
{
    enum { SCORES_MAX = 16 << 20 }; /* 64 MiB of scores at a time, or one row if that is more */
    const gm_model_config *c = m->c;
    const int64_t B = m->p.batch_tokens_max, qk = c->d_nope + c->d_rope, H = c->n_heads, di = c->index_d_head;
    if (!m->foot.n_mla) return;
    int64_t pools = m->p.positions_max / c->index_pool + 1;
    int64_t scores = B * pools < SCORES_MAX ? B * pools : max64(SCORES_MAX, pools);
    m->mla = (gm_scratch_mla){.ql = floats(l, B, c->q_lora_rank),
                              .q = floats(l, B, H * qk),
                              .kv = floats(l, B, c->d_latent + c->d_rope),
                              .q_lat = floats(l, B, H * c->d_latent),
                              .o_lat = floats(l, B, H * c->d_latent),
                              .ov = floats(l, B, H * c->d_v),
                              .iq = floats(l, B, c->index_n_heads * di),
                              .ik = floats(l, B, di),
                              .ie = floats(l, B, di),
                              .iw = floats(l, B, c->index_n_heads),
                              .scores = floats(l, 1, scores),
                              .scores_n = scores};
}

static void place_ffn(gm_model *m, layout *l)
{
    const gm_model_config *c = m->c;
    const int64_t B = m->p.batch_tokens_max, f = max64(c->d_ffn, (int64_t)c->d_expert * c->n_shared);
    m->ffn = (gm_scratch_ffn){.gate = floats(l, B, f),
                              .up = floats(l, B, f),
                              .logits = floats(l, B, c->n_experts),
                              .weights = floats(l, B, c->n_active),
                              .ids = place(l, B * c->n_active * (int64_t)sizeof(int32_t))};
}

static int64_t widest_input(const gm_model_config *c)
{
    int64_t k = max64(c->d_model, max64(c->d_ffn, (int64_t)c->d_expert * (c->n_shared > 1 ? c->n_shared : 1)));
    k = max64(k, (int64_t)c->kda_n_heads * c->kda_d_head);
    k = max64(k, max64((int64_t)c->n_heads * c->d_v, c->q_lora_rank));
    return max64(k, max64(c->d_latent, c->d_nope));
}

static int64_t linear_bytes(const gm_model *m)
{
    const gm_model_config *c = m->c;
    int32_t B = m->p.batch_tokens_max, heads = c->n_heads ? c->n_heads : 1;
    int64_t whole = gm_linear_workspace(m->dev, B, (int32_t)widest_input(c), 1);
    int64_t by_head = gm_linear_workspace(m->dev, B, (int32_t)max64(c->d_latent, c->d_nope), heads);
    return max64(whole, by_head);
}

static void place_work(gm_model *m, layout *l)
{
    const gm_model_config *c = m->c;
    const int64_t B = m->p.batch_tokens_max, S = c->n_streams, d = c->d_model;
    m->h = floats(l, B, S * d);
    m->x = floats(l, B, d);
    m->y = floats(l, B, d);
    m->out = floats(l, B, d);
    m->post = floats(l, B, S);
    m->comb = floats(l, B, S * S);
    m->pos = place(l, B * (int64_t)sizeof *m->pos);
    m->slice_of = place(l, B * (int64_t)sizeof *m->slice_of);
    m->linear_ws = place(l, linear_bytes(m));
    if (m->foot.n_mla) {
        int32_t n_select = c->index_topk / c->index_pool;
        m->sel = place(l, B * n_select * (int64_t)sizeof *m->sel);
        m->n_sel = place(l, B * (int64_t)sizeof *m->n_sel);
        m->attn_ws = place(l, gm_mla_attn_workspace(m->dev, c->n_heads, n_select, c->index_pool, c->d_latent, c->d_rope));
    }
    if (c->n_experts)
        m->moe_ws = place(l, gm_moe_experts_workspace(m->dev, (int32_t)B, c->d_model, c->d_expert, c->n_experts, c->n_active));
    /* the sub-blocks run one after another: one region for all three */
    int64_t from = l->at, end = from;
    void (*const parts[])(gm_model *, layout *) = {place_kda, place_mla, place_ffn};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        l->at = from;
        parts[i](m, l);
        end = max64(end, l->at);
    }
    l->at = end;
}

/* Where each layer's rows and state lie. */
static void place_cache(gm_model *m)
{
    const gm_model_config *c = m->c;
    const gm_footprint *f = &m->foot;
    int64_t at = 0, slot = 0, n_pages = m->p.n_pages;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].mixer == GM_MIXER_KDA) {
            m->state_at[i] = slot;
            slot += f->state_bytes;
        } else {
            m->latent_at[i] = at;
            at += n_pages * f->page_tokens * f->latent_row_bytes;
        }
        if (c->layers[i].index == GM_INDEX_OWN) {
            m->index_at[i] = at;
            at += n_pages * (f->page_tokens / c->index_pool) * f->index_key_bytes;
        }
    }
    for (int32_t i = 0; i < c->n_layers; i++) { /* behind the states: what is aligned to less than four bytes */
        if (c->layers[i].mixer == GM_MIXER_KDA) {
            m->conv_at[i] = slot;
            slot += f->conv_bytes;
        }
        if (c->layers[i].index == GM_INDEX_OWN) {
            m->tail_at[i] = slot;
            slot += f->tail_bytes;
        }
    }
    GM_ASSERT(at == n_pages * f->page_bytes && slot <= f->slot_bytes);
    m->pages_bytes = at;
    m->slots_bytes = m->p.n_slots * f->slot_bytes;
}

static gm_status take_memory(gm_model *m, gm_error *err)
{
    layout l = {0};
    place_cache(m);
    place_work(m, &l);
    m->work_bytes = l.at;
    m->pages = gm_device_alloc(m->dev, (size_t)m->pages_bytes);
    m->slots = gm_device_alloc(m->dev, (size_t)m->slots_bytes);
    m->work = gm_device_alloc(m->dev, (size_t)m->work_bytes);
    if (!m->pages || !m->slots || !m->work)
        return gm_fail(err, GM_ENOMEM, "no memory for %.2f GiB of pages, %.2f GiB of state slots and %.2f GiB of workspace",
                       (double)m->pages_bytes / 0x1p30, (double)m->slots_bytes / 0x1p30, (double)m->work_bytes / 0x1p30);
    l = (layout){.base = m->work};
    place_work(m, &l);
    return GM_OK;
}

gm_status gm_model_create(gm_model **out, const gm_weights *w, const gm_model_params *params, gm_device *dev, gm_error *err)
{
    const gm_model_config *c = gm_weights_config(w);
    gm_model *m = gm_new(gm_model);
    *m = (gm_model){.w = w, .c = c, .dev = dev, .p = *params, .act = params->act};
    gm_footprint_params fp = {params->kv_dtype, params->index_dtype, params->act == GM_ACT_BF16};
    m->foot = gm_footprint_compute(c, &fp);
    size_t n = (size_t)c->n_layers;
    m->latent_at = gm_new_array(int64_t, n);
    m->index_at = gm_new_array(int64_t, n);
    m->state_at = gm_new_array(int64_t, n);
    m->conv_at = gm_new_array(int64_t, n);
    m->tail_at = gm_new_array(int64_t, n);
    gm_status st = GM_OK;
    if (params->page_tokens != m->foot.page_tokens)
        st = gm_fail(err, GM_EARG, "page_tokens is %d, this model's pages hold %d", params->page_tokens, m->foot.page_tokens);
    else if (m->foot.slot_bytes > 0 && params->n_slots < 1) st = gm_fail(err, GM_EARG, "this model needs state slots");
    else if (params->batch_tokens_max < 1 || params->n_pages < 1 || params->positions_max < 1)
        st = gm_fail(err, GM_EARG, "batch_tokens_max, n_pages and positions_max must be at least 1");
    if (!st) st = take_memory(m, err);
    if (st) gm_model_destroy(m);
    else *out = m;
    return st;
}

void gm_model_destroy(gm_model *m)
{
    if (!m) return;
    gm_device_free(m->dev, m->pages, (size_t)m->pages_bytes);
    gm_device_free(m->dev, m->slots, (size_t)m->slots_bytes);
    gm_device_free(m->dev, m->work, (size_t)m->work_bytes);
    gm_free(m->latent_at);
    gm_free(m->index_at);
    gm_free(m->state_at);
    gm_free(m->conv_at);
    gm_free(m->tail_at);
    gm_free(m);
}

int64_t gm_model_cache_bytes(const gm_model *m)
{
    return m->pages_bytes + m->slots_bytes;
}

int64_t gm_model_workspace_bytes(const gm_model *m)
{
    return m->work_bytes;
}

/* ---- a step ---- */

void gm_model_linear(gm_model *m, const gm_matrix *w, const float *x, int64_t ldx, float *y, int64_t ldy, gm_act act)
{
    gm_linear(&(gm_linear_args){.x = x,
                                .y = y,
                                .w = w,
                                .n = m->rows.n_rows,
                                .n_groups = 1,
                                .ldx = ldx,
                                .ldy = ldy,
                                .act = act,
                                .dev = m->dev,
                                .workspace = m->linear_ws});
}

static void check_slice(const gm_model *m, const gm_slice *s, int32_t row)
{
    int64_t end = (int64_t)s->begin.tok + s->n.tok;
    GM_ASSERT(s->token_begin == row && s->n.tok >= 1 && s->begin.tok >= 0);
    GM_ASSERT(end <= m->p.positions_max && end <= (int64_t)s->n_pages * m->p.page_tokens);
    GM_ASSERT(m->foot.slot_bytes == 0 || (s->slot.id >= 0 && s->slot.id < m->p.n_slots));
    for (int32_t i = 0; i < (end + m->p.page_tokens - 1) / m->p.page_tokens; i++)
        GM_ASSERT(s->pages[i].id >= 0 && s->pages[i].id < m->p.n_pages);
}

static void prepare_rows(gm_model *m, const gm_batch *b)
{
    GM_ASSERT(b->n_tokens >= 1 && b->n_tokens <= m->p.batch_tokens_max);
    GM_ASSERT(b->n_slices >= 1 && b->n_slices <= m->p.batch_slices_max);
    int32_t row = 0, last = 0;
    for (int32_t i = 0; i < b->n_slices; i++) {
        const gm_slice *s = &b->slices[i];
        check_slice(m, s, row);
        for (int32_t k = 0; k < s->n.tok; k++, row++) {
            m->pos[row].tok = s->begin.tok + k;
            m->slice_of[row] = i;
        }
        if (s->begin.tok + s->n.tok > last) last = s->begin.tok + s->n.tok;
    }
    GM_ASSERT(row == b->n_tokens);
    m->rows = (gm_rows){row, m->pos, m->slice_of, b->slices, b->n_slices};
    m->pools_max = last / m->c->index_pool;
}

/* What stands before a sub-block: x = the normalised input; with several streams also the mixing weights. */
static void residual_in(gm_model *m, const gm_hc_weights *hc, const float *norm)
{
    const gm_model_config *c = m->c;
    if (c->n_streams == 1) {
        gm_rmsnorm(&(gm_rmsnorm_args){.x = m->h,
                                      .y = m->x,
                                      .w = norm,
                                      .n = m->rows.n_rows,
                                      .d = c->d_model,
                                      .ldx = c->d_model,
                                      .ldy = c->d_model,
                                      .eps = c->rms_eps,
                                      .dev = m->dev});
        return;
    }
    gm_mhc_pre(&(gm_mhc_pre_args){.h = m->h,
                                  .fn = &hc->fn,
                                  .base = hc->base,
                                  .scale = hc->scale,
                                  .norm_w = norm,
                                  .y = m->x,
                                  .post = m->post,
                                  .comb = m->comb,
                                  .n = m->rows.n_rows,
                                  .n_streams = c->n_streams,
                                  .d = c->d_model,
                                  .iters = c->sinkhorn_iters,
                                  .rms_eps = c->rms_eps,
                                  .hc_eps = c->hc_eps,
                                  .dev = m->dev});
}

/* ... and after it: h takes y in. */
static void residual_out(gm_model *m)
{
    const gm_model_config *c = m->c;
    if (c->n_streams == 1)
        gm_residual_add(&(gm_residual_add_args){.h = m->h, .y = m->y, .n = (int64_t)m->rows.n_rows * c->d_model, .dev = m->dev});
    else
        gm_mhc_post(&(gm_mhc_post_args){.h = m->h,
                                        .y = m->y,
                                        .post = m->post,
                                        .comb = m->comb,
                                        .n = m->rows.n_rows,
                                        .n_streams = c->n_streams,
                                        .d = c->d_model,
                                        .dev = m->dev});
}

static void run_layer(gm_model *m, int32_t i)
{
    const gm_layer_weights *l = &m->w->layers[i];
    if (m->trace) m->trace(m->trace_user, i, m->h, (int64_t)m->rows.n_rows * m->c->n_streams * m->c->d_model);
    residual_in(m, &l->hc_attn, l->input_norm);
    if (m->c->layers[i].mixer == GM_MIXER_KDA) gm_layer_kda(m, i);
    else gm_layer_mla(m, i);
    residual_out(m);
    residual_in(m, &l->hc_ffn, l->post_norm);
    if (m->c->layers[i].ffn == GM_FFN_DENSE) gm_layer_dense(m, i);
    else gm_layer_moe(m, i);
    residual_out(m);
}

/* The wanted rows: mean of the streams (a plain copy of one), then the final norm. */
static void keep_rows(gm_model *m, const gm_batch *b)
{
    const gm_model_config *c = m->c;
    m->n_out = b->n_out;
    if (!b->n_out) return;
    gm_mhc_mean(&(gm_mhc_mean_args){.h = m->h,
                                    .rows = b->out_rows,
                                    .y = m->out,
                                    .n_out = b->n_out,
                                    .n_streams = c->n_streams,
                                    .d = c->d_model,
                                    .dev = m->dev});
    gm_rmsnorm(&(gm_rmsnorm_args){.x = m->out,
                                  .y = m->out,
                                  .w = m->w->norm,
                                  .n = b->n_out,
                                  .d = c->d_model,
                                  .ldx = c->d_model,
                                  .ldy = c->d_model,
                                  .eps = c->rms_eps,
                                  .dev = m->dev});
    if (m->trace) m->trace(m->trace_user, c->n_layers, m->out, (int64_t)b->n_out * c->d_model);
}

gm_status gm_model_step(gm_model *m, const gm_batch *batch, gm_error *err)
{
    prepare_rows(m, batch);
    gm_embed(&(gm_embed_args){.table = &m->w->embed,
                              .ids = batch->token_ids,
                              .y = m->h,
                              .n = batch->n_tokens,
                              .n_copies = m->c->n_streams,
                              .dev = m->dev});
    for (int32_t i = 0; i < m->c->n_layers; i++) {
        if (batch->stop && batch->stop(batch->stop_user)) return gm_fail(err, GM_ECANCELED, "the step was abandoned");
        run_layer(m, i);
    }
    keep_rows(m, batch);
    return GM_OK;
}

gm_status gm_model_copy_slots(gm_model *m, const gm_slot_copy *copies, int32_t n, gm_error *err)
{
    const int64_t bytes = m->foot.slot_bytes;
    (void)err;
    for (int32_t i = 0; i < n; i++) {
        int32_t from = copies[i].from.id, to = copies[i].to.id;
        GM_ASSERT(from >= 0 && from < m->p.n_slots && to >= 0 && to < m->p.n_slots);
        if (from != to) memcpy(m->slots + to * bytes, m->slots + from * bytes, (size_t)bytes);
    }
    return GM_OK;
}

gm_status gm_model_logits(gm_model *m, int32_t out_begin, int32_t n_rows, float *logits, gm_error *err)
{
    const gm_model_config *c = m->c;
    (void)err;
    GM_ASSERT(out_begin >= 0 && n_rows >= 0 && out_begin + n_rows <= m->n_out);
    if (!n_rows) return GM_OK;
    gm_linear(&(gm_linear_args){.x = m->out + (int64_t)out_begin * c->d_model,
                                .y = logits,
                                .w = &m->w->head,
                                .n = n_rows,
                                .n_groups = 1,
                                .ldx = c->d_model,
                                .ldy = c->vocab_size,
                                .act = m->act,
                                .dev = m->dev,
                                .workspace = m->linear_ws});
    return GM_OK;
}
