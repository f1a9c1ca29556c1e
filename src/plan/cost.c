#include "plan/cost.h"

#include <math.h>
#include <string.h>

double gm_step_cost_total(const gm_step_cost *c)
{
    double t = 0;
#define X(part, what) t += c->part;
    GM_COST_PARTS(X)
#undef X
    return t;
}

void gm_cost_init(gm_cost *c, const gm_model_config *config, const gm_machine *m, const gm_layout *l,
                  const gm_server_limits *s)
{
    memset(c, 0, sizeof *c);
    c->config = *config;
    c->machine = *m;
    c->layout = *l;
    c->parts = gm_weight_parts_count(config);
    gm_memory_map map = gm_memory_map_compute(config, m, l, s);
    c->weights = map.weights;
    gm_footprint f = gm_engine_footprint(config, s->engine, s->kv_dtype);
    c->n_mla = f.n_mla;
    c->n_index = f.n_index;
    c->n_kda = f.n_kda;
    c->n_moe = (int32_t)c->parts.n_expert_layers;
    c->latent_row = (double)f.latent_row_bytes;
    c->index_key = (double)f.index_key_bytes;
    c->state_bytes = (double)(f.n_kda * (f.state_bytes + f.conv_bytes)) / l->tp;
    c->select = config->index_topk;
    c->s_per_byte = 1 / (m->mem_bw * m->mem_eff);
    c->s_per_flop_bf16 = 1 / (m->flops_bf16 * m->flop_eff);
    c->s_per_flop_fp8 = config->fp8 ? 1 / (m->flops_fp8 * m->flop_eff) : c->s_per_flop_bf16;
}

/* Sum over the queries at positions begin .. begin + n - 1 (each sees itself) of min(position + 1, cap). */
static int64_t sum_capped(int64_t begin, int64_t n, int64_t cap)
{
    int64_t lo = begin + 1, hi = begin + n; /* visible tokens of the first and the last */
    if (lo >= cap) return n * cap;
    int64_t mid = hi < cap ? hi : cap; /* the last one below the cap */
    return (lo + mid) * (mid - lo + 1) / 2 + (hi - mid) * cap;
}

/* Index keys scored: none while everything visible is attended to anyway. */
static int64_t sum_scored(int64_t begin, int64_t n, int64_t select, int64_t pool)
{
    int64_t lo = begin + 1, hi = begin + n;
    if (hi <= select) return 0;
    if (lo <= select) lo = select + 1;
    return (lo + hi) * (hi - lo + 1) / 2 / pool;
}

void gm_rank_load_add(gm_rank_load *load, const gm_cost *c, int64_t begin, int64_t n, bool samples)
{
    int64_t attended = sum_capped(begin, n, c->select), scored = 0;
    if (c->n_index)
        scored = sum_scored(begin, n, c->select, c->config.index_pool > 0 ? c->config.index_pool : 1);
    load->tokens += n;
    load->seqs++;
    load->rows += samples;
    load->attended += attended;
    load->scored += scored;
    if (n > 1) return;
    load->decodes++;
    load->decode_attended += attended;
    load->decode_scored += scored;
}

/* Expected largest of n independent standard normal values. */
static double largest_of(int32_t n)
{
    static const double known[] = {0, 0, 0.5642, 0.8463, 1.0294, 1.1630, 1.2672, 1.3522, 1.4236};
    return n < (int32_t)(sizeof known / sizeof *known) ? known[n] : sqrt(2 * log(n)) - 0.35;
}

/* Share of a layer's experts that `tokens` tokens choose at least once. How popular an expert is varies as a
 * gamma distribution of mean 1, so the chance to be left out is that of a gamma-mixed Poisson count. */
static double chosen_share(const gm_cost *c, double tokens)
{
    double mean = tokens * c->config.n_active / (double)c->parts.n_experts, a = c->machine.expert_spread;
    return 1 - pow(1 + mean / a, -a);
}

/* Experts of one layer that one rank must read when `tokens` tokens choose n_active each: cut by width, every
 * rank reads its slice of all chosen ones; spread whole, the rank with the most chosen ones is waited for. In
 * whole experts. */
static double experts_read(const gm_cost *c, double tokens)
{
    int32_t ranks = c->layout.dp * c->layout.tp;
    double e = (double)c->parts.n_experts, p = chosen_share(c, tokens), mean = e / ranks * p;
    if (!c->layout.ep || ranks == 1) return mean;
    double worst = mean + largest_of(ranks) * sqrt(mean * (1 - p));
    return fmin(worst, e / ranks);
}

static double expert_tokens(const gm_cost *c, double tokens)
{
    int32_t ranks = c->layout.dp * c->layout.tp;
    double mean = tokens * c->config.n_active / ranks, held = (double)c->parts.n_experts / ranks;
    if (!c->layout.ep || ranks == 1) return mean;
    /* chance of the draw, and popular experts that share a rank */
    double spread = sqrt(mean + mean * mean / (held * c->machine.expert_spread));
    return fmin(mean + largest_of(ranks) * spread, tokens * c->config.n_active);
}

/* Counted, not fitted. layer_us is the time of LAYER_LAUNCHES launches; index scores and selection are so
 * many beside them (projections of query, key and gate, pooling, scores, top-k), and so is an expert exchange
 * (two gathers, a scatter, the agreement on sizes, permuting there and back, a copy). */
enum { LAYER_LAUNCHES = 20, INDEX_LAUNCHES = 6, EXCHANGE_LAUNCHES = 7 };
enum { SKINNY = 4 }; /* most rows for which servers have matrix-vector kernels */

static double launch_s(const gm_cost *c)
{
    return c->machine.layer_us * 1e-6 / LAYER_LAUNCHES;
}

static double matrix_s_per_byte(const gm_cost *c, double rows)
{
    return rows > SKINNY ? c->s_per_byte / c->machine.matmul_eff : c->s_per_byte;
}

/* Pages dealt out: a rank reads and scores its own part of the rows, for all heads; the selections and the
 * partial results (one latent vector and two scalars a head) go around. */
static void shard_pages(const gm_cost *c, gm_step_cost *t, double tokens)
{
    enum { SHARD_LAUNCHES = 4 };
    t->latent /= c->layout.tp;
    t->index /= c->layout.tp;
    double bytes =
        (double)c->config.n_heads * (2.0 * c->config.d_latent + 8) + 8.0 * c->select / c->config.index_pool;
    t->reduce += c->n_mla * (tokens * bytes / c->machine.link_bw + SHARD_LAUNCHES * launch_s(c));
}

/* What a rank does for its own tokens. */
static gm_step_cost own_cost(const gm_cost *c, const gm_rank_load *r)
{
    const gm_model_config *m = &c->config;
    const gm_rank_weights *w = &c->weights;
    double tp = c->layout.tp, tokens = (double)r->tokens, layers = m->n_layers;
    gm_step_cost t = {0};
    t.fixed = layers * c->machine.layer_us * 1e-6;
    /* Scores and selection run only when something lies beyond what is attended to anyway. */
    if (r->scored > 0) t.fixed += INDEX_LAUNCHES * launch_s(c) * c->n_index;
    t.weights = (w->head + w->kda + w->mla + w->index + w->dense + w->shared + w->rest) *
                matrix_s_per_byte(c, tokens);
    t.state = 2 * c->state_bytes * (double)r->seqs * c->s_per_byte;
    t.latent = (double)r->decode_attended * c->n_mla * c->latent_row * c->s_per_byte;
    t.index = (double)r->decode_scored * c->n_index * c->index_key * c->s_per_byte;

    double bf16 = (double)c->parts.kda_split / tp + (double)(c->parts.kda_whole + c->parts.index);
    double mla = (double)c->parts.mla_split / tp + (double)c->parts.mla_whole;
    double fp8 = (double)(c->parts.dense + c->parts.shared) / tp;
    if (c->n_kda > 0) bf16 += mla;
    else fp8 += mla;
    t.dense_math = 2 * tokens * (bf16 * c->s_per_flop_bf16 + fp8 * c->s_per_flop_fp8) +
                   2 * (double)r->rows * (double)c->parts.head / tp * c->s_per_flop_bf16;

    double per_row = 2 * (double)m->n_heads / tp * (2.0 * m->d_latent + m->d_rope) * c->n_mla;
    double per_key = 2.0 * m->index_n_heads * m->index_d_head * c->n_index;
    double kda = 6 * (double)m->kda_n_heads / tp * m->kda_d_head * m->kda_d_head * c->n_kda;
    t.attn_math = ((double)r->attended * per_row + tokens * kda) * c->s_per_flop_bf16 +
                  (double)r->scored * per_key / (c->machine.flops_fp8 * c->machine.flop_eff);

    /* A pass: the residual streams of a token, read and written around each half of a layer. */
    double pass = 2.0 * 2 * m->n_streams * m->d_model * 2;
    t.token = tokens * layers * pass * c->machine.token_work / c->machine.mem_bw;
    if (c->layout.kv_shard) shard_pages(c, &t, tokens);
    if (c->layout.tp > 1) {
        double share = 2 * (tp - 1) / tp * c->machine.reduce_value_bytes * m->d_model / c->machine.link_bw;
        t.reduce += tokens * layers * 2 * share;
    }
    return t;
}

double gm_cost_step(const gm_cost *c, const gm_rank_load *loads, int32_t n, gm_step_cost *parts)
{
    gm_step_cost worst = {0};
    double most = -1, tokens = 0;
    bool idle = false;
    for (int32_t i = 0; i < n; i++) {
        gm_step_cost t = own_cost(c, &loads[i]);
        double sum = gm_step_cost_total(&t);
        tokens += (double)loads[i].tokens;
        idle |= loads[i].tokens == 0;
        if (sum <= most) continue;
        most = sum;
        worst = t;
    }
    tokens +=
        idle; /* idle ranks run a made-up token along, all the same one, which chooses the same experts */
    double expert_bytes = (double)c->parts.expert * gm_fp8_param_bytes(&c->config);
    worst.experts = c->n_moe * experts_read(c, tokens) * expert_bytes * matrix_s_per_byte(c, tokens);
    worst.expert_math = c->n_moe * expert_tokens(c, tokens) * 2 * (double)c->parts.expert * c->s_per_flop_fp8;
    if (c->layout.dp > 1) {
        /* Each rank receives the hidden rows of the others, and sends back and receives partial results. */
        double others = (double)(c->layout.dp - 1) / c->layout.dp;
        double bytes = 2 * tokens * others * 2.0 * c->config.d_model / c->layout.tp;
        worst.exchange = c->n_moe * (EXCHANGE_LAUNCHES * launch_s(c) + bytes / c->machine.link_bw);
    }
    if (parts) *parts = worst;
    return gm_step_cost_total(&worst);
}
