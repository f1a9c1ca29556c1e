#include "config/footprint.h"

#include <string.h>

gm_status gm_kv_dtype_parse(gm_kv_dtype *out, const char *text, gm_error *err)
{
    static const struct {
        const char *name;
        gm_kv_dtype t;
    } names[] = {{"auto", GM_KV_BF16},    {"bfloat16", GM_KV_BF16}, {"fp8", GM_KV_FP8},
                 {"fp8_e4m3", GM_KV_FP8}, {"float32", GM_KV_F32}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i].name) == 0) {
            *out = names[i].t;
            return GM_OK;
        }
    }
    return gm_fail(err, GM_EARG, "invalid choice: '%s' (choose from auto, bfloat16, fp8, fp8_e4m3, float32)", text);
}

const char *gm_kv_dtype_name(gm_kv_dtype t)
{
    switch (t) {
    case GM_KV_F32: return "float32";
    case GM_KV_BF16: return "bfloat16";
    case GM_KV_FP8: return "fp8_e4m3";
    case GM_KV_F16: return "float16";
    }
    return "unknown";
}

static int64_t mixer_params(const gm_model_config *c, const gm_layer_kind *k)
{
    int64_t d = c->d_model;
    if (k->mixer == GM_MIXER_KDA) {
        int64_t w = (int64_t)c->kda_n_heads * c->kda_d_head, h = c->kda_d_head;
        return 3 * w * d + 3 * w * c->kda_conv + 2 * (h * d + w * h) + c->kda_n_heads * (d + 1) + w + h + d * w;
    }
    int64_t qk = c->d_nope + c->d_rope, n = c->q_lora_rank * d + c->q_lora_rank +
                                            c->n_heads * qk * c->q_lora_rank + (c->d_latent + c->d_rope) * d +
                                            c->d_latent + (int64_t)c->n_heads * (c->d_nope + c->d_v) * c->d_latent +
                                            (int64_t)c->n_heads * c->d_v * d;
    if (k->index == GM_INDEX_OWN) {
        int64_t di = c->index_d_head;
        n += c->index_n_heads * di * c->q_lora_rank + di * d + 2 * di + c->index_n_heads * d;
        if (c->index_compress) n += di * d + c->index_pool * di;
    }
    return n;
}

/* experts: how many routed experts count, all of them or those one token uses */
static int64_t ffn_params(const gm_model_config *c, const gm_layer_kind *k, int64_t experts)
{
    int64_t d = c->d_model;
    if (k->ffn == GM_FFN_DENSE) return 3 * d * c->d_ffn;
    return (d + 1) * c->n_experts + 3 * d * c->d_expert * (experts + c->n_shared);
}

static void count_params(gm_footprint *f, const gm_model_config *c)
{
    int64_t d = c->d_model, s = c->n_streams;
    int64_t head = (int64_t)c->vocab_size * d, common = head + d;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const gm_layer_kind *k = &c->layers[i];
        common += mixer_params(c, k) + 2 * d;
        if (s > 1) common += 2 * (s * (2 + s) * (s * d + 1) + 3);
        f->params_total += ffn_params(c, k, c->n_experts);
        f->params_active += ffn_params(c, k, c->n_active);
    }
    f->params_active += common;
    f->params_total += common + (c->tie_embeddings ? 0 : head);
}

gm_footprint gm_footprint_compute(const gm_model_config *c, const gm_footprint_params *p)
{
    enum { PAGE_TOKENS = 64 };
    gm_footprint f = {0};
    f.page_tokens = (PAGE_TOKENS + c->index_pool - 1) / c->index_pool * c->index_pool;
    f.n_mla = gm_model_config_count(c, GM_MIXER_MLA);
    f.n_kda = gm_model_config_count(c, GM_MIXER_KDA);
    f.n_index = gm_model_config_index_owners(c);
    f.latent_row_bytes = gm_latent_row_bytes(p->latent_dtype, c->d_latent, c->d_rope);
    f.index_key_bytes = gm_index_key_bytes(p->index_dtype, c->index_d_head);
    f.page_bytes = f.n_mla * f.page_tokens * f.latent_row_bytes +
                   f.n_index * (f.page_tokens / c->index_pool) * f.index_key_bytes;
    f.token_bytes = (double)f.page_bytes / f.page_tokens;

    int64_t width = (int64_t)c->kda_n_heads * c->kda_d_head, elem = p->bf16 ? 2 : 4;
    if (f.n_kda) {
        f.state_bytes = width * c->kda_d_head * 4;
        f.conv_bytes = (c->kda_conv - 1) * 3 * width * elem;
    }
    if (c->index_pool > 1) f.tail_bytes = (int64_t)c->index_pool * 2 * c->index_d_head * elem;
    f.slot_bytes = f.n_kda * (f.state_bytes + f.conv_bytes) + f.n_index * f.tail_bytes;
    f.slot_bytes = (f.slot_bytes + 63) / 64 * 64; /* slots start on cache lines */
    count_params(&f, c);
    return f;
}

int32_t gm_footprint_pages(const gm_footprint *f, int64_t n_tokens)
{
    return (int32_t)((n_tokens + f->page_tokens - 1) / f->page_tokens);
}
