/* MLA over a sparse selection: latents, indexer (where the layer owns one), absorbed attention over pages.
 *
 * The selection stays in m->sel until the next owner writes it: layers that share it run in the same pass, on the
 * same rows. Index keys are appended whether or not any row needs scores, because later rows will. */
#include <math.h>

#include "model/model_internal.h"
#include "ops/index_append/index_append.h"
#include "ops/index_score/index_score.h"
#include "ops/index_topk/index_topk.h"
#include "ops/kv_append/kv_append.h"
#include "ops/layernorm/layernorm.h"
#include "ops/linear/linear.h"
#include "ops/mla_attn/mla_attn.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"

static void norm_rows(gm_model *m, float *x, int64_t ld, const float *w, int32_t d)
{
    gm_rmsnorm(&(gm_rmsnorm_args){.x = x,
                                  .y = x,
                                  .w = w,
                                  .n = m->rows.n_rows,
                                  .d = d,
                                  .ldx = ld,
                                  .ldy = ld,
                                  .eps = m->c->latent_eps,
                                  .dev = m->dev});
}

static void rotate(gm_model *m, float *x, int64_t ld, int64_t head_stride, int32_t n_heads)
{
    if (m->c->d_rope == 0) return;
    gm_rope(&(gm_rope_args){.x = x,
                            .ld = ld,
                            .head_stride = head_stride,
                            .pos = m->pos,
                            .n = m->rows.n_rows,
                            .n_heads = n_heads,
                            .d_rope = m->c->d_rope,
                            .theta = m->c->rope_theta,
                            .dev = m->dev});
}

static gm_latent_cache latent_cache(const gm_model *m, int32_t layer)
{
    return (gm_latent_cache){.base = m->pages + m->latent_at[layer],
                             .n_pages = m->p.n_pages,
                             .page_tokens = m->p.page_tokens,
                             .dtype = m->p.kv_dtype,
                             .d_latent = m->c->d_latent,
                             .d_rope = m->c->d_rope,
                             .row_bytes = m->foot.latent_row_bytes};
}

static gm_index_cache index_cache(const gm_model *m, int32_t layer)
{
    return (gm_index_cache){.base = m->pages + m->index_at[layer],
                            .n_pages = m->p.n_pages,
                            .page_tokens = m->p.page_tokens,
                            .pool = m->c->index_pool,
                            .dtype = m->p.index_dtype,
                            .d = m->c->index_d_head,
                            .key_bytes = m->foot.index_key_bytes};
}

static void append_index_keys(gm_model *m, int32_t layer, const gm_indexer_weights *w)
{
    const gm_model_config *c = m->c;
    const gm_scratch_mla *s = &m->mla;
    const int64_t di = c->index_d_head;
    const bool bf16 = m->act == GM_ACT_BF16, pooled = c->index_pool > 1; /* the average over one key is the key */
    gm_model_linear(m, &w->wk, m->x, c->d_model, s->ik, di, m->act);
    gm_layernorm(&(gm_layernorm_args){.x = s->ik,
                                      .y = s->ik,
                                      .w = w->k_norm_w,
                                      .b = w->k_norm_b,
                                      .n = m->rows.n_rows,
                                      .d = c->index_d_head,
                                      .ldx = di,
                                      .ldy = di,
                                      .eps = 1e-6f, /* fixed in the published code, not a config value */
                                      .round_bf16 = bf16,
                                      .dev = m->dev});
    rotate(m, s->ik, di, di, 1); /* the first d_rope values */
    if (pooled) gm_model_linear(m, &w->pool_gate, m->x, c->d_model, s->ie, di, m->act);
    gm_index_append(&(gm_index_append_args){.k = s->ik,
                                            .e = pooled ? s->ie : NULL,
                                            .ape = pooled ? w->pool_ape : NULL,
                                            .ldk = di,
                                            .lde = di,
                                            .tail = pooled ? m->slots + m->tail_at[layer] : NULL,
                                            .slot_stride = m->foot.slot_bytes,
                                            .rows = &m->rows,
                                            .cache = index_cache(m, layer),
                                            .bf16 = bf16,
                                            .dev = m->dev});
}

/* Scores and selection, in blocks of rows that fit the score buffer. Rows that see no more pools than may be selected
 * take all of them and need no scores; when that holds for the whole step the queries are not even computed. */
static void select_tokens(gm_model *m, int32_t layer, const gm_indexer_weights *w)
{
    const gm_model_config *c = m->c;
    const gm_scratch_mla *s = &m->mla;
    const int32_t n = m->rows.n_rows, n_select = c->index_topk / c->index_pool;
    const int64_t iq = (int64_t)c->index_n_heads * c->index_d_head;
    const bool score = m->pools_max > n_select;
    if (score) {
        gm_model_linear(m, &w->wq_b, s->ql, c->q_lora_rank, s->iq, iq, m->act);
        rotate(m, s->iq, iq, c->index_d_head, c->index_n_heads);
        /* The head weights are signed and decide near-ties: FP32 operands, whatever the activations are. */
        gm_model_linear(m, &w->head_weights, m->x, c->d_model, s->iw, c->index_n_heads, GM_ACT_F32);
    }
    int64_t lds = score ? m->pools_max : 1;
    int32_t block = score && s->scores_n / lds < n ? (int32_t)(s->scores_n / lds) : n;
    for (int32_t a = 0; a < n; a += block) {
        int32_t b = a + block < n ? a + block : n;
        if (score)
            gm_index_score(&(gm_index_score_args){.q = s->iq,
                                                  .w = s->iw,
                                                  .ldq = iq,
                                                  .ldw = c->index_n_heads,
                                                  .rows = &m->rows,
                                                  .row_begin = a,
                                                  .row_end = b,
                                                  .n_heads = c->index_n_heads,
                                                  .cache = index_cache(m, layer),
                                                  .pools_skip = n_select,
                                                  .scores = s->scores,
                                                  .lds = lds,
                                                  .act = m->act,
                                                  .dev = m->dev});
        gm_index_topk(&(gm_index_topk_args){.scores = s->scores,
                                            .lds = lds,
                                            .rows = &m->rows,
                                            .row_begin = a,
                                            .row_end = b,
                                            .pool = c->index_pool,
                                            .n_select = n_select,
                                            .sel = m->sel,
                                            .n_sel = m->n_sel,
                                            .dev = m->dev});
    }
}

/* One product per head, all heads in one call. */
static void per_head(gm_model *m, const gm_matrix *w, const float *x, int64_t x_head, float *y, int64_t y_head)
{
    int64_t h = m->c->n_heads;
    gm_linear(&(gm_linear_args){.x = x,
                                .y = y,
                                .w = w,
                                .n = m->rows.n_rows,
                                .n_groups = m->c->n_heads,
                                .ldx = h * x_head,
                                .ldy = h * y_head,
                                .x_group = x_head,
                                .y_group = y_head,
                                .act = m->act,
                                .dev = m->dev,
                                .workspace = m->linear_ws});
}

void gm_layer_mla(gm_model *m, int32_t layer)
{
    const gm_model_config *c = m->c;
    const gm_mla_weights *w = &m->w->layers[layer].mla;
    const gm_scratch_mla *s = &m->mla;
    const int64_t d = c->d_model, qk = c->d_nope + c->d_rope, ldkv = c->d_latent + c->d_rope, H = c->n_heads;

    gm_model_linear(m, &w->q_a, m->x, d, s->ql, c->q_lora_rank, m->act);
    norm_rows(m, s->ql, c->q_lora_rank, w->q_a_norm, c->q_lora_rank);
    gm_model_linear(m, &w->kv_a, m->x, d, s->kv, ldkv, m->act);
    norm_rows(m, s->kv, ldkv, w->kv_a_norm, c->d_latent);
    rotate(m, s->kv + c->d_latent, ldkv, c->d_rope, 1); /* the rotary key is not normalised */
    gm_kv_append(&(gm_kv_append_args){.c = s->kv,
                                      .kr = c->d_rope ? s->kv + c->d_latent : NULL,
                                      .ldc = ldkv,
                                      .ldr = ldkv,
                                      .rows = &m->rows,
                                      .cache = latent_cache(m, layer),
                                      .dev = m->dev});
    if (c->layers[layer].index == GM_INDEX_OWN) {
        append_index_keys(m, layer, &w->index);
        select_tokens(m, layer, &w->index);
    }

    gm_model_linear(m, &w->q_b, s->ql, c->q_lora_rank, s->q, H * qk, m->act);
    rotate(m, s->q + c->d_nope, H * qk, qk, c->n_heads); /* the last d_rope of a head's values */
    per_head(m, w->uk, s->q, qk, s->q_lat, c->d_latent);
    gm_mla_attn(&(gm_mla_attn_args){.q_lat = s->q_lat,
                                    .q_rope = c->d_rope ? s->q + c->d_nope : NULL,
                                    .ldr = H * qk,
                                    .rope_stride = qk,
                                    .o = s->o_lat,
                                    .rows = &m->rows,
                                    .cache = latent_cache(m, layer),
                                    .n_heads = c->n_heads,
                                    .pool = c->index_pool,
                                    .n_select = c->index_topk / c->index_pool,
                                    .tail = c->index_tail,
                                    .sel = m->sel,
                                    .n_sel = m->n_sel,
                                    .scale = 1.0f / sqrtf((float)qk),
                                    .dev = m->dev,
                                    .workspace = m->attn_ws});
    per_head(m, w->uv, s->o_lat, c->d_latent, s->ov, c->d_v);
    gm_model_linear(m, &w->o, s->ov, H * c->d_v, m->y, d, m->act);
}
