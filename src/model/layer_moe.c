/* Mixture of experts: router in FP32, the shared expert, then the chosen experts on top. */
#include <string.h>

#include "model/model_internal.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_route/moe_route.h"
#include "ops/swiglu/swiglu.h"

static void shared_expert(gm_model *m, const gm_mlp_weights *w)
{
    const gm_model_config *c = m->c;
    const gm_scratch_ffn *s = &m->ffn;
    const int64_t d = c->d_model, f = (int64_t)c->d_expert * c->n_shared;
    gm_model_linear(m, &w->gate, m->x, d, s->gate, f, m->act);
    gm_model_linear(m, &w->up, m->x, d, s->up, f, m->act);
    gm_swiglu(&(gm_swiglu_args){.g = s->gate,
                                .u = s->up,
                                .y = s->gate,
                                .n = m->rows.n_rows,
                                .d = (int32_t)f,
                                .ldg = f,
                                .ldu = f,
                                .ldy = f,
                                .limit = c->swiglu_limit,
                                .dev = m->dev});
    gm_model_linear(m, &w->down, s->gate, f, m->y, d, m->act);
}

void gm_layer_moe(gm_model *m, int32_t layer)
{
    const gm_model_config *c = m->c;
    const gm_moe_weights *w = &m->w->layers[layer].moe;
    const gm_scratch_ffn *s = &m->ffn;
    const int32_t n = m->rows.n_rows;

    if (c->n_shared) shared_expert(m, &w->shared);
    else memset(m->y, 0, (size_t)n * (size_t)c->d_model * sizeof *m->y);

    /* Rounding the router's input or logits changes which experts win: FP32 always. */
    gm_model_linear(m, &w->router, m->x, c->d_model, s->logits, c->n_experts, GM_ACT_F32);
    gm_moe_route(&(gm_moe_route_args){.logits = s->logits,
                                      .bias = w->bias,
                                      .ids = s->ids,
                                      .weights = s->weights,
                                      .n = n,
                                      .n_experts = c->n_experts,
                                      .n_active = c->n_active,
                                      .n_groups = c->n_groups,
                                      .topk_groups = c->topk_groups,
                                      .scale = c->routed_scale,
                                      .norm_topk = c->norm_topk,
                                      .dev = m->dev});
    gm_moe_experts(&(gm_moe_experts_args){.x = m->x,
                                          .y = m->y,
                                          .ids = s->ids,
                                          .weights = s->weights,
                                          .gate = w->gate,
                                          .up = w->up,
                                          .down = w->down,
                                          .n = n,
                                          .d = c->d_model,
                                          .f = c->d_expert,
                                          .n_experts = c->n_experts,
                                          .n_active = c->n_active,
                                          .limit = c->swiglu_limit,
                                          .act = m->act,
                                          .dev = m->dev,
                                          .workspace = m->moe_ws});
}
