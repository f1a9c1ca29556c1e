#include "plan/layout.h"

#include <math.h>
#include <stdio.h>

void gm_layout_name(const gm_layout *l, char *buf, size_t len)
{
    char head[48], ep[24] = "";
    if (l->dp == 1) snprintf(head, sizeof head, "TP%d", (int)l->tp);
    else if (l->tp == 1) snprintf(head, sizeof head, "DP%d", (int)l->dp);
    else snprintf(head, sizeof head, "DP%dxTP%d", (int)l->dp, (int)l->tp);
    if (l->ep) snprintf(ep, sizeof ep, "+EP%d", (int)(l->dp * l->tp));
    snprintf(buf, len, "%s%s%s", head, ep, l->kv_shard ? "+kv-shard" : "");
}

int32_t gm_layout_list(gm_layout *out, int32_t cap, int32_t n_gpus)
{
    int32_t n = 0;
    for (int32_t dp = 1; dp <= n_gpus; dp *= 2) {
        if (n_gpus % dp) continue;
        int32_t tp = n_gpus / dp;
        if (n < cap) out[n++] = (gm_layout){.dp = dp, .tp = tp, .ep = dp > 1};
        if (dp == 1 && tp > 1 && n < cap) out[n++] = (gm_layout){.dp = 1, .tp = tp, .kv_shard = true};
    }
    return n;
}

/* The largest step's tensors: what a token of it needs beside the residual, times the tokens. The expert part
 * sees the tokens of all schedulers, because each rank gathers them before it picks those of its own experts.
 */
static double workspace_bytes(const gm_model_config *c, const gm_layout *l, const gm_server_limits *s)
{
    double d = c->d_model, own = s->batch_tokens, all = own * l->dp;
    double kda = 5.0 * c->kda_n_heads * c->kda_d_head,
           mla = c->n_heads * (double)(c->d_nope + c->d_rope + c->d_v);
    double mixer = (kda > mla ? kda : mla) / l->tp;
    double streams = 2.0 * c->n_streams * d;   /* before and after a residual mixer */
    double picked = c->n_active * d;           /* one row of output for each expert that a token chose */
    double gathered = l->dp > 1 ? 1.5 * d : 0; /* BF16 and its FP8 copy */
    double logits = 4.0 * s->seqs * c->vocab_size;
    return 2 * own * (streams + mixer) + 2 * all * (picked + gathered) + logits;
}

/* vLLM's FP8 rows: plain codes where nothing rotates; otherwise codes, an FP32 scale for each 128, BF16
 * rotary values. */
static int64_t vllm_fp8_row(const gm_model_config *c)
{
    return c->d_rope == 0 ? c->d_latent : c->d_latent + 4 * ((c->d_latent + 127) / 128) + 2 * c->d_rope;
}

gm_footprint gm_engine_footprint(const gm_model_config *c, gm_engine_kind engine, gm_kv_dtype kv_dtype)
{
    bool vllm = engine == GM_ENGINE_VLLM;
    gm_footprint f = gm_footprint_compute(
        c, &(gm_footprint_params){.latent_dtype = kv_dtype,
                                  .index_dtype =
                                      vllm && kv_dtype != GM_KV_F32 ? GM_KV_FP8 : gm_kv_index_dtype(kv_dtype),
                                  .bf16 = kv_dtype != GM_KV_F32});
    if (!vllm || kv_dtype != GM_KV_FP8) return f;
    f.page_bytes += f.n_mla * f.page_tokens * (vllm_fp8_row(c) - f.latent_row_bytes);
    f.latent_row_bytes = vllm_fp8_row(c);
    f.token_bytes = (double)f.page_bytes / f.page_tokens;
    return f;
}

static double round_up(double v, double to)
{
    return ceil(v / to) * to;
}

/* vLLM: layers are put into groups of equal count, all of which draw blocks from one pool; a block is as many
 * tokens as make a latent page at least as large as one layer's recurrent state. A sequence takes one block
 * for each group of recurrent layers, and one for the tails of unfinished index pools. */
static void vllm_pages(gm_memory_map *map, const gm_model_config *c, const gm_layout *l,
                       const gm_footprint *f)
{
    enum { ALIGN = 128, PLAIN_BLOCK = 64 };
    map->token_bytes = f->token_bytes;
    map->page_tokens = PLAIN_BLOCK;
    if (f->n_kda > 0) {
        double state = (double)(f->state_bytes + f->conv_bytes) / l->tp;
        map->page_tokens = (int32_t)round_up(state / (double)f->latent_row_bytes, ALIGN);
        map->seq_pages = (f->n_kda + f->n_mla - 1) / f->n_mla + (c->index_pool > 1);
    }
    map->page_bytes = map->page_tokens * map->token_bytes;
    map->n_pages = (int32_t)fmin(floor(map->cache / map->page_bytes), 1 << 30);
}

static double slots_wanted(const gm_memory_map *map, const gm_server_limits *s)
{
    return map->slot_bytes > 0 ? s->seqs : 0;
}

/* glimmer: slots for as many sequences as may run, but at most half of the cache; the rest is pages. */
static void glimmer_pages(gm_memory_map *map, const gm_model_config *c, const gm_layout *l,
                          const gm_server_limits *s, const gm_footprint *f)
{
    (void)c;
    int32_t stores = l->kv_shard ? l->tp : 1; /* ranks over which the tokens of one scheduler are dealt out */
    double heads = (double)(f->n_kda * (f->state_bytes + f->conv_bytes)) / l->tp;
    map->token_bytes = f->token_bytes;
    map->page_tokens = f->page_tokens;
    map->page_bytes = (double)f->page_bytes;
    map->slot_bytes = f->slot_bytes ? heads + (double)(f->n_index * f->tail_bytes) : 0;
    if (map->slot_bytes > 0)
        map->n_slots = (int32_t)fmin(slots_wanted(map, s), floor(map->cache / 2 / map->slot_bytes));
    double left = map->cache - map->n_slots * map->slot_bytes;
    map->n_pages = (int32_t)fmin(floor(left / map->page_bytes) * stores, 1 << 30);
}

gm_memory_map gm_memory_map_compute(const gm_model_config *c, const gm_machine *m, const gm_layout *l,
                                    const gm_server_limits *s)
{
    gm_weight_parts parts = gm_weight_parts_count(c);
    bool vllm = s->engine == GM_ENGINE_VLLM;
    gm_footprint f = gm_engine_footprint(c, s->engine, s->kv_dtype);
    gm_memory_map map = {.device = m->mem_bytes, .budget = ceil(m->mem_bytes * s->memory_share)};
    map.weights = gm_rank_weights_compute(
        c, &parts,
        &(gm_rank_split){.tp = l->tp, .n_ranks = l->dp * l->tp, .mla_as_bf16 = vllm && f.n_kda > 0});
    map.workspace = workspace_bytes(c, l, s);
    map.reserve = l->dp > 1 ? m->reserve_dp_bytes : m->reserve_tp_bytes;
    map.cache = map.budget - map.weights.total - map.workspace - map.reserve;
    if (map.cache <= 0) return map;
    if (vllm) vllm_pages(&map, c, l, &f);
    else glimmer_pages(&map, c, l, s, &f);
    double one = map.seq_pages + ceil((double)s->model_len / map.page_tokens);
    map.concurrency = map.n_pages / one;
    map.pool_tokens =
        vllm ? (int64_t)floor(map.concurrency * s->model_len) : (int64_t)map.n_pages * map.page_tokens;
    return map;
}

gm_ceiling gm_ceiling_compute(const gm_memory_map *map, const gm_layout *l, const gm_server_limits *s,
                              int64_t seq_tokens)
{
    gm_ceiling out = {0};
    if (map->n_pages == 0) return out;
    /* The last token of a sequence is never put into the cache. */
    int64_t rows = seq_tokens > 1 ? seq_tokens - 1 : 1;
    out.pages = (int32_t)(map->seq_pages + (rows + map->page_tokens - 1) / map->page_tokens);
    out.per_rank = map->n_pages / out.pages;
    out.bound = GM_BOUND_PAGES;
    if (map->n_slots && map->n_slots < out.per_rank) {
        out.per_rank = map->n_slots;
        out.bound = GM_BOUND_SLOTS;
    }
    if (s->seqs < out.per_rank || (out.bound == GM_BOUND_SLOTS && s->seqs == out.per_rank)) {
        out.per_rank = s->seqs;
        out.bound = GM_BOUND_SEQS;
    }
    out.node = out.per_rank * l->dp;
    return out;
}

int32_t gm_ceiling_naive(const gm_memory_map *map, const gm_layout *l, int64_t seq_tokens)
{
    return (int32_t)(map->pool_tokens / seq_tokens) * l->dp;
}

const char *gm_bound_name(gm_bound b)
{
    return b == GM_BOUND_PAGES ? "pages" : b == GM_BOUND_SLOTS ? "state slots" : "max-num-seqs";
}
