#include "plan/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* FP8 rows cost accuracy, so they are only recommended where they bring more than this. */
static const double fp8_gain = 1.03;
/* And no published point tells of mixed layouts or of dealt-out pages. */
static const double unmeasured_gain = 1.03;

static bool unmeasured(const gm_plan_candidate *d)
{
    return d->layout.kv_shard || (d->layout.dp > 1 && d->layout.tp > 1);
}

static double worth(const gm_plan_candidate *d)
{
    return d->output_rate / (d->kv_dtype == GM_KV_FP8 ? fp8_gain : 1) / (unmeasured(d) ? unmeasured_gain : 1);
}

static gm_sim_params params_of(const gm_plan_params *p, const gm_plan_candidate *d)
{
    gm_sim_params s = p->sim;
    s.limits.kv_dtype = d->kv_dtype;
    s.limits.engine = d->engine;
    return s;
}

static void take_figures(gm_plan_candidate *d, const gm_sim_result *r, const gm_plan_params *p)
{
    gm_summary s;
    gm_sim_result copy = *r; /* the summary sorts the gaps in place, which the caller does not look at */
    gm_summary_init(&s, &copy, &p->targets);
    d->output_rate = s.output_rate;
    d->request_rate = s.request_rate;
    d->total_rate = s.total_rate;
    d->ttft_mean = gm_summary_stats(&s, GM_METRIC_TTFT).mean;
    d->ttft_p50 = gm_summary_percentile(&s, GM_METRIC_TTFT, 50);
    d->ttft_p99 = gm_summary_percentile(&s, GM_METRIC_TTFT, 99);
    d->tpot_mean = gm_summary_stats(&s, GM_METRIC_TPOT).mean;
    d->tpot_p50 = gm_summary_percentile(&s, GM_METRIC_TPOT, 50);
    d->tpot_p99 = gm_summary_percentile(&s, GM_METRIC_TPOT, 99);
    d->failed = s.failed;
    gm_summary_fini(&s);
    d->preemptions = r->preemptions;
    d->steps = r->steps;
    d->decode_steps = r->decode_steps;
    d->cost = r->cost;
    d->cost_decode = r->cost_decode;
    if (p->price_per_hour > 0 && d->output_rate > 0)
        d->cost_million = p->price_per_hour / 3600 / d->output_rate * 1e6;
    d->meets = d->failed == 0 && (p->targets.ttft == 0 || d->ttft_p99 <= p->targets.ttft) &&
               (p->targets.tpot == 0 || d->tpot_p99 <= p->targets.tpot);
}

static gm_status run_load(gm_plan_candidate *d, const gm_model_config *c, const gm_machine *m,
                          const gm_plan_params *p, gm_error *err)
{
    gm_load load;
    gm_sim_result r;
    gm_sim_params sp = params_of(p, d);
    gm_status st = gm_load_draw(&load, &p->load, err);
    if (st) return st;
    st = gm_sim_run(&r, c, m, &d->layout, &sp, &load, err);
    if (!st) take_figures(d, &r, p);
    if (!st) gm_sim_result_fini(&r);
    gm_load_fini(&load);
    return st;
}

/* One burst of as many requests as there may be in flight, as published grids have it. */
static gm_status run_curve(gm_plan *plan, gm_plan_candidate *d, const gm_model_config *c, const gm_machine *m,
                           const gm_plan_params *p, gm_error *err)
{
    gm_status st = GM_OK;
    for (int32_t i = 0; i < plan->n_curve && !st; i++) {
        gm_load load;
        gm_sim_result r;
        gm_sim_params sp = params_of(p, d);
        gm_load_random l = p->load;
        l.n = l.concurrency_max = plan->concurrency[i];
        l.rate = 0;
        sp.price_every = 16;
        st = gm_load_draw(&load, &l, err);
        if (st) break;
        st = gm_sim_run(&r, c, m, &d->layout, &sp, &load, err);
        if (!st) {
            double tokens = 0;
            for (int32_t k = 0; k < r.n; k++) tokens += r.requests[k].failed ? 0 : r.requests[k].n_out;
            d->curve[i] = r.duration_ns > 0 ? tokens / ((double)r.duration_ns / 1e9) : 0;
            gm_sim_result_fini(&r);
        }
        gm_load_fini(&load);
    }
    return st;
}

static void list_candidates(gm_plan *plan, const gm_machine *m, const gm_model_config *c,
                            const gm_plan_params *p)
{
    static const gm_kv_dtype dtypes[] = {GM_KV_BF16, GM_KV_FP8};
    gm_layout layouts[16];
    int32_t n = gm_layout_list(layouts, 16, m->n_gpus);
    for (int32_t i = 0; i < n; i++) {
        if (c->n_heads % layouts[i].tp) continue;
        for (int k = 0; k < 2 && plan->n < GM_PLAN_CANDIDATES_MAX; k++) {
            gm_plan_candidate *d = &plan->candidates[plan->n++];
            char name[48];
            *d = (gm_plan_candidate){.layout = layouts[i], .kv_dtype = dtypes[k]};
            d->engine = layouts[i].kv_shard ? GM_ENGINE_GLIMMER : p->sim.limits.engine;
            gm_layout_name(&layouts[i], name, sizeof name);
            snprintf(d->name, sizeof d->name, "%s %s", name, dtypes[k] == GM_KV_FP8 ? "fp8" : "bf16");
        }
    }
}

/* Powers of two up to four times the asked concurrency, at most 1024, or to it. */
static void choose_curve(gm_plan *plan, const gm_plan_params *p)
{
    int32_t most = p->load.concurrency_max > 0 ? 4 * p->load.concurrency_max : 512;
    if (most > 1024) most = p->load.concurrency_max > 1024 ? p->load.concurrency_max : 1024;
    if (most < 64) most = 64;
    for (int32_t c = 1; c <= most && plan->n_curve < GM_PLAN_CURVE_MAX; c *= 2)
        plan->concurrency[plan->n_curve++] = c;
}

/* With an FP8 cache the lines mostly lie where they lie with BF16: said once. */
static bool said_already(const gm_plan *plan, int32_t a, int32_t b, double at)
{
    const gm_plan_candidate *x = &plan->candidates[a], *y = &plan->candidates[b];
    for (int32_t i = 0; i < plan->n_crossings; i++) {
        const gm_plan_crossing *k = &plan->crossings[i];
        const gm_plan_candidate *u = &plan->candidates[k->a], *v = &plan->candidates[k->b];
        bool same = u->layout.dp == x->layout.dp && u->layout.kv_shard == x->layout.kv_shard &&
                    v->layout.dp == y->layout.dp && v->layout.kv_shard == y->layout.kv_shard;
        if (same && fabs(k->concurrency / at - 1) < 0.1) return true;
    }
    return false;
}

static void find_crossings(gm_plan *plan)
{
    for (int32_t a = 0; a < plan->n; a++)
        for (int32_t b = a + 1; b < plan->n; b++) {
            const gm_plan_candidate *x = &plan->candidates[a], *y = &plan->candidates[b];
            if (!x->fits || !y->fits || x->kv_dtype != y->kv_dtype) continue;
            for (int32_t i = 1; i < plan->n_curve && plan->n_crossings < GM_PLAN_CROSSINGS_MAX; i++) {
                double before = log(x->curve[i - 1] / y->curve[i - 1]),
                       after = log(x->curve[i] / y->curve[i]);
                if (!(before * after < 0) || fabs(after - before) < 0.02)
                    continue; /* lines on top of each other do not cross */
                double at =
                    log((double)plan->concurrency[i - 1]) +
                    before / (before - after) * log((double)plan->concurrency[i] / plan->concurrency[i - 1]);
                bool b_wins = after < 0;
                if (said_already(plan, b_wins ? a : b, b_wins ? b : a, exp(at))) continue;
                plan->crossings[plan->n_crossings++] =
                    (gm_plan_crossing){b_wins ? a : b, b_wins ? b : a, exp(at)};
            }
        }
}

static void choose_best(gm_plan *plan)
{
    plan->best = -1;
    for (int32_t i = 0; i < plan->n; i++) {
        const gm_plan_candidate *d = &plan->candidates[i],
                                *b = plan->best < 0 ? NULL : &plan->candidates[plan->best];
        if (!d->fits || !d->meets) continue;
        if (!b || worth(d) > worth(b)) plan->best = i;
    }
}

gm_status gm_plan_make(gm_plan *out, const gm_model_config *c, const gm_machine *m, const gm_plan_params *p,
                       gm_error *err)
{
    gm_status st = GM_OK;
    memset(out, 0, sizeof *out);
    list_candidates(out, m, c, p);
    if (p->curve) choose_curve(out, p);
    int64_t longest = (int64_t)ceil(p->load.n_in * (1 + p->load.range_in)) +
                      (int64_t)ceil(p->load.n_out * (1 + p->load.range_out));
    for (int32_t i = 0; i < out->n && !st; i++) {
        gm_plan_candidate *d = &out->candidates[i];
        gm_sim_params sp = params_of(p, d);
        d->map = gm_memory_map_compute(c, m, &d->layout, &sp.limits);
        d->fits = d->map.n_pages > 0;
        if (!d->fits) continue;
        d->ceiling = gm_ceiling_compute(&d->map, &d->layout, &sp.limits, longest);
        st = run_load(d, c, m, p, err);
        if (!st && p->curve) st = run_curve(out, d, c, m, p, err);
    }
    if (st) return st;
    find_crossings(out);
    choose_best(out);
    return GM_OK;
}

void gm_plan_leaders(gm_str *out, const gm_plan *plan)
{
    int32_t last = -1;
    for (int32_t i = 0; i < plan->n_curve; i++) {
        int32_t lead = -1;
        for (int32_t k = 0; k < plan->n; k++) {
            const gm_plan_candidate *d = &plan->candidates[k];
            if (d->fits && d->kv_dtype == GM_KV_BF16 &&
                (lead < 0 || d->curve[i] > plan->candidates[lead].curve[i]))
                lead = k;
        }
        if (lead < 0 || lead == last) continue;
        gm_str_printf(out, "%s%s from %d in flight", last < 0 ? "fastest with a BF16 cache: " : ", ",
                      plan->candidates[lead].name, (int)plan->concurrency[i]);
        last = lead;
    }
}

void gm_plan_sentence(gm_str *out, const gm_plan *plan, const gm_plan_params *p)
{
    if (plan->best < 0) {
        gm_str_puts(out, p->targets.ttft > 0 || p->targets.tpot > 0
                             ? "No layout keeps the latency targets at this load."
                             : "No layout can run this load on this machine.");
        return;
    }
    const gm_plan_candidate *b = &plan->candidates[plan->best], *second = NULL;
    for (int32_t i = 0; i < plan->n; i++) {
        const gm_plan_candidate *d = &plan->candidates[i];
        bool same = d->layout.dp == b->layout.dp && d->layout.kv_shard == b->layout.kv_shard;
        if (d->fits && d->meets && !same && d->kv_dtype == b->kv_dtype &&
            (!second || d->output_rate > second->output_rate))
            second = d;
    }
    gm_str_printf(out,
                  "Use %s: %.0f output tokens/s, mean time to first token %.2f s, %.1f ms per output token",
                  b->name, b->output_rate, b->ttft_mean / 1e3, b->tpot_mean);
    if (second)
        gm_str_printf(out, "; the next layout, %s, gives %.0f (%+.1f %%)", second->name, second->output_rate,
                      100 * (second->output_rate / b->output_rate - 1));
    if (b->cost_million > 0) gm_str_printf(out, "; a million output tokens cost %.2f", b->cost_million);
    gm_str_putc(out, '.');
}

void gm_plan_command(gm_str *out, const gm_plan *plan, const gm_plan_params *p, const char *model)
{
    if (plan->best < 0) return;
    const gm_plan_candidate *b = &plan->candidates[plan->best];
    const gm_server_limits *k = &p->sim.limits;
    gm_str_printf(out, "glimmer serve %s", model);
    if (b->layout.dp > 1) gm_str_printf(out, " --data-parallel-size %d", (int)b->layout.dp);
    if (b->layout.tp > 1) gm_str_printf(out, " --tensor-parallel-size %d", (int)b->layout.tp);
    if (b->layout.ep) gm_str_puts(out, " --enable-expert-parallel");
    if (b->layout.kv_shard) gm_str_puts(out, " --kv-shard");
    if (b->kv_dtype == GM_KV_FP8) gm_str_puts(out, " --kv-cache-dtype fp8");
    gm_str_printf(
        out, " --gpu-memory-utilization %g --max-model-len %d --max-num-batched-tokens %d --max-num-seqs %d",
        k->memory_share, (int)k->model_len, (int)k->batch_tokens, (int)k->seqs);
}
