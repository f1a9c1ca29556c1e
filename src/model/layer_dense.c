/* Dense feed-forward: D (silu(clamp(G x)) * clamp(U x)). */
#include "model/model_internal.h"
#include "ops/swiglu/swiglu.h"

void gm_layer_dense(gm_model *m, int32_t layer)
{
    const gm_model_config *c = m->c;
    const gm_mlp_weights *w = &m->w->layers[layer].mlp;
    const gm_scratch_ffn *s = &m->ffn;
    const int64_t d = c->d_model, f = c->d_ffn;
    gm_model_linear(m, &w->gate, m->x, d, s->gate, f, m->act);
    gm_model_linear(m, &w->up, m->x, d, s->up, f, m->act);
    gm_swiglu(&(gm_swiglu_args){.g = s->gate,
                                .u = s->up,
                                .y = s->gate,
                                .n = m->rows.n_rows,
                                .d = c->d_ffn,
                                .ldg = f,
                                .ldu = f,
                                .ldy = f,
                                .limit = c->swiglu_limit,
                                .dev = m->dev});
    gm_model_linear(m, &w->down, s->gate, f, m->y, d, m->act);
}
