#include "config/weight_parts.h"

#include <string.h>

static void count_kda(gm_weight_parts *p, const gm_model_config *c)
{
    int64_t d = c->d_model, w = (int64_t)c->kda_n_heads * c->kda_d_head, h = c->kda_d_head;
    p->kda_split += 3 * w * d + 3 * w * c->kda_conv + 2 * w * h + c->kda_n_heads * (d + 1) + w + d * w;
    p->kda_whole += 2 * h * d + h;
}

static void count_mla(gm_weight_parts *p, const gm_model_config *c, gm_index_kind index)
{
    int64_t d = c->d_model, qk = c->d_nope + c->d_rope, heads = c->n_heads;
    p->mla_whole += c->q_lora_rank * d + c->q_lora_rank + (c->d_latent + c->d_rope) * d + c->d_latent;
    p->mla_split +=
        heads * qk * c->q_lora_rank + heads * (c->d_nope + c->d_v) * c->d_latent + heads * c->d_v * d;
    if (index != GM_INDEX_OWN) return;
    int64_t di = c->index_d_head;
    p->index += c->index_n_heads * di * c->q_lora_rank + di * d + 2 * di + c->index_n_heads * d;
    if (c->index_compress) p->index += di * d + c->index_pool * di;
}

gm_weight_parts gm_weight_parts_count(const gm_model_config *c)
{
    /* The released multimodal checkpoint: 347 tensors of the tower (safetensors headers). */
    enum { FLASH_TOWER = 563627008 };
    gm_weight_parts p = {0};
    int64_t d = c->d_model, s = c->n_streams;
    p.embed = c->tie_embeddings ? 0 : c->vocab_size * d;
    p.head = c->vocab_size * d;
    p.rest = d;
    p.expert = 3 * d * c->d_expert;
    p.n_experts = c->n_experts;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const gm_layer_kind *k = &c->layers[i];
        if (k->mixer == GM_MIXER_KDA) count_kda(&p, c);
        else count_mla(&p, c, k->index);
        p.rest += 2 * d;
        if (s > 1) p.rest += 2 * (s * (2 + s) * (s * d + 1) + 3);
        if (k->ffn == GM_FFN_DENSE) {
            p.dense += 3 * d * c->d_ffn;
        } else {
            p.rest += (d + 1) * c->n_experts;
            p.shared += 3 * d * c->d_expert * c->n_shared;
            p.n_expert_layers++;
        }
    }
    if (strstr(c->architecture, "Glm5NextForConditionalGeneration") && d == 4096) p.vision = FLASH_TOWER;
    return p;
}

double gm_fp8_param_bytes(const gm_model_config *c)
{
    return c->fp8 ? 1 + 4.0 / ((double)c->fp8_block[0] * c->fp8_block[1]) : 2;
}

gm_rank_weights gm_rank_weights_compute(const gm_model_config *c, const gm_weight_parts *p,
                                        const gm_rank_split *s)
{
    double q = gm_fp8_param_bytes(c), mla = s->mla_as_bf16 ? 2 : q, tp = s->tp;
    gm_rank_weights w = {
        .embed = 2 * (double)p->embed / tp,
        .head = 2 * (double)p->head / tp,
        .kda = 2 * ((double)p->kda_split / tp + (double)p->kda_whole),
        .mla = mla * ((double)p->mla_split / tp + (double)p->mla_whole),
        .index =
            (c->index_compress ? 2 : q) * (double)p->index, /* pooled indexers stay BF16 in FP8 checkpoints */
        .dense = q * (double)p->dense / tp,
        .shared = q * (double)p->shared / tp,
        .experts = q * (double)(p->expert * p->n_experts * p->n_expert_layers) / s->n_ranks,
        .rest = 2 * (double)p->rest,
        .vision = 2 * (double)p->vision,
    };
    w.total = w.embed + w.head + w.kda + w.mla + w.index + w.dense + w.shared + w.experts + w.rest + w.vision;
    return w;
}
