/* KDA: projections, short convolution, gates, the delta-rule recurrence, gated norm, output projection. */
#include "model/model_internal.h"
#include "ops/gated_norm/gated_norm.h"
#include "ops/kda_conv/kda_conv.h"
#include "ops/kda_prep/kda_prep.h"
#include "ops/kda_scan/kda_scan.h"

void gm_layer_kda(gm_model *m, int32_t layer)
{
    const gm_model_config *c = m->c;
    const gm_kda_weights *w = &m->w->layers[layer].kda;
    const gm_scratch_kda *s = &m->kda;
    const int64_t d = c->d_model, D = c->kda_d_head, W = (int64_t)c->kda_n_heads * D;
    const bool bf16 = m->act == GM_ACT_BF16;

    gm_model_linear(m, &w->q, m->x, d, s->raw, 3 * W, m->act);
    gm_model_linear(m, &w->k, m->x, d, s->raw + W, 3 * W, m->act);
    gm_model_linear(m, &w->v, m->x, d, s->raw + 2 * W, 3 * W, m->act);
    gm_kda_conv(&(gm_kda_conv_args){.x = s->raw,
                                    .w = w->conv,
                                    .y = s->qkv,
                                    .state = m->slots + m->conv_at[layer],
                                    .slot_stride = m->foot.slot_bytes,
                                    .rows = &m->rows,
                                    .channels = (int32_t)(3 * W),
                                    .taps = c->kda_conv,
                                    .ldx = 3 * W,
                                    .ldy = 3 * W,
                                    .bf16 = bf16,
                                    .dev = m->dev});

    gm_model_linear(m, &w->f_a, m->x, d, s->low, D, m->act);
    gm_model_linear(m, &w->f_b, s->low, D, s->f, W, m->act);
    gm_model_linear(m, &w->b, m->x, d, s->b, c->kda_n_heads, m->act);
    gm_kda_prep(&(gm_kda_prep_args){.q = s->qkv,
                                    .k = s->qkv + W,
                                    .f = s->f,
                                    .b = s->b,
                                    .A_log = w->A_log,
                                    .dt_bias = w->dt_bias,
                                    .decay = s->f,
                                    .beta = s->b,
                                    .n = m->rows.n_rows,
                                    .n_heads = c->kda_n_heads,
                                    .d_head = c->kda_d_head,
                                    .ldq = 3 * W,
                                    .lower = c->kda_gate_lower,
                                    .dev = m->dev});
    gm_kda_scan(&(gm_kda_scan_args){.q = s->qkv,
                                    .k = s->qkv + W,
                                    .v = s->qkv + 2 * W,
                                    .decay = s->f,
                                    .beta = s->b,
                                    .o = s->o,
                                    .state = m->slots + m->state_at[layer],
                                    .slot_stride = m->foot.slot_bytes,
                                    .rows = &m->rows,
                                    .n_heads = c->kda_n_heads,
                                    .d_head = c->kda_d_head,
                                    .ldq = 3 * W,
                                    .dev = m->dev});

    gm_model_linear(m, &w->g_a, m->x, d, s->low, D, m->act);
    gm_model_linear(m, &w->g_b, s->low, D, s->g, W, m->act);
    gm_gated_norm(&(gm_gated_norm_args){.x = s->o,
                                        .g = s->g,
                                        .w = w->o_norm,
                                        .y = s->o,
                                        .n = m->rows.n_rows,
                                        .n_heads = c->kda_n_heads,
                                        .d_head = c->kda_d_head,
                                        .eps = c->rms_eps,
                                        .dev = m->dev});
    gm_model_linear(m, &w->o, s->o, W, m->y, d, m->act);
}
