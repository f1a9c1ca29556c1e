/* Which layout and cache precision a machine should use for a load; and the fit of a machine's constants. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/foresee.h"
#include "plan/fit.h"
#include "plan/models.h"
#include "plan/planner.h"

typedef struct options {
    char *machine, *engine, *in, *out, *concurrency, *rate, *n, *ttft, *tpot, *price, *html, *fit, *svg,
        *rounds, *measure;
    bool json, explain, machine_json, quick;
} options;

#define T(name, field, unit, help)                                                                           \
    {                                                                                                        \
        name, GM_FLAG_TEXT, unit, help, &o->field, NULL                                                      \
    }
#define B(name, field, help)                                                                                 \
    {                                                                                                        \
        name, GM_FLAG_BOOL, NULL, help, NULL, &o->field                                                      \
    }

enum { N_FLAGS = 24 };

static void list_flags(gm_flag *flags, options *o)
{
    const gm_flag all[] = {
        T("machine", machine, "NAME|FILE", "the machine (default: 8xMI300X)"),
        T("engine", engine, "vllm|glimmer",
          "whose cache rules [vllm: its runs fitted the machine constants]; kv-shard is always glimmer's"),
        T("input-len", in, "tokens", "prompt length of the load [8192]"),
        T("output-len", out, "tokens", "answer length of the load [1024]"),
        T("max-concurrency", concurrency, "requests", "in flight, as one burst [64]"),
        T("request-rate", rate, "1/s", "requests a second instead"),
        T("num-prompts", n, "requests", "how many are simulated [the concurrency; 300 with a rate]"),
        T("ttft-ms", ttft, "ms", "limit on the 99th percentile of the time to the first token"),
        T("tpot-ms", tpot, "ms", "limit on the 99th percentile of the time per output token"),
        T("price-per-hour", price, "money", "of the machine: adds the cost of a million output tokens"),
        B("explain", explain, "where a step's time goes, for each layout"),
        B("quick", quick, "this load only: no curve over concurrency, no crossing points"),
        B("json", json, "all of it as JSON"),
        T("html", html, "FILE", "also write one self-contained page with plots"),
        B("machine-json", machine_json, "print the machine as a machine file, sources included"),
        T("fit", fit, "FILE",
          "fit the machine's constants to published points, and say how well each shape is foreseen without "
          "it"),
        T("fit-rounds", rounds, "N",
          "steps of the search [120]; 0: only the errors of the constants as they are"),
        T("fit-svg", svg, "FILE", "write predicted against published as a plot"),
        T("measure", measure, "FILE",
          "run MODEL on this machine's CPU for a minute or two and write a machine file of it"),
        {NULL, GM_FLAG_BOOL, NULL, NULL, NULL, NULL}};
    _Static_assert(sizeof all / sizeof *all <= N_FLAGS, "room for the flags");
    memcpy(flags, all, sizeof all);
}

static gm_status write_file(const char *path, const gm_str *text, gm_error *err)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(gm_str_c(text), 1, text->len, f) == text->len;
    if (f && fclose(f)) ok = false;
    return ok ? GM_OK : gm_fail(err, GM_EIO, "%s: cannot be written", path);
}

/* ---- the fit ---- */

static void print_points(const gm_fit_set *s)
{
    printf("%-8s %-10s %5s %11s %11s %8s\n", "shape", "layout", "conc.", "published", "predicted", "error");
    for (int32_t i = 0; i < s->n; i++) {
        const gm_fit_point *p = &s->points[i];
        char name[64];
        gm_layout_name(&p->layout, name, sizeof name);
        printf("%-8s %-10s %5d %11.2f %11.2f %+7.2f%%\n", p->shape, name, (int)p->concurrency,
               p->output_tok_s, p->predicted, 100 * (p->predicted / p->output_tok_s - 1));
    }
}

static void points_svg(gm_str *out, const gm_fit_set *s)
{
    enum { SIDE = 480, EDGE = 56 };
    double lo = INFINITY, hi = 0;
    for (int32_t i = 0; i < s->n; i++) {
        lo = fmin(lo, s->points[i].output_tok_s);
        hi = fmax(hi, s->points[i].output_tok_s);
    }
    lo = log(lo / 1.3);
    hi = log(hi * 1.3);
    gm_str_printf(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' font-size='12'>"
        "<rect width='100%%' height='100%%' fill='#fff'/>",
        SIDE, SIDE);
    gm_str_printf(out, "<line x1='%d' y1='%d' x2='%d' y2='%d' stroke='#999'/>", EDGE, SIDE - EDGE, SIDE - 12,
                  12);
    for (double v = 50; v <= 10000; v *= v == 50 || v == 500 || v == 5000 ? 2 : 5) {
        double t = (log(v) - lo) / (hi - lo) * (SIDE - EDGE - 12);
        if (t < 0 || t > SIDE - EDGE - 12) continue;
        gm_str_printf(out,
                      "<text x='%.1f' y='%d' text-anchor='middle'>%.0f</text><text x='%d' y='%.1f' "
                      "text-anchor='end'>%.0f</text>",
                      EDGE + t, SIDE - EDGE + 16, v, EDGE - 6, SIDE - EDGE - t + 4, v);
    }
    for (int32_t i = 0; i < s->n; i++) {
        const gm_fit_point *p = &s->points[i];
        double x = EDGE + (log(p->output_tok_s) - lo) / (hi - lo) * (SIDE - EDGE - 12);
        double y = SIDE - EDGE - (log(p->predicted) - lo) / (hi - lo) * (SIDE - EDGE - 12);
        gm_str_printf(out,
                      "<circle cx='%.1f' cy='%.1f' r='4' fill='%s' fill-opacity='.8'><title>%s, %d in "
                      "flight</title></circle>",
                      x, y, p->layout.dp > 1 ? "#e69f00" : "#0072b2", p->shape, (int)p->concurrency);
    }
    gm_str_printf(out, "<text x='%d' y='%d' text-anchor='middle'>published output tokens/s</text>", SIDE / 2,
                  SIDE - 16);
    gm_str_printf(out,
                  "<text x='14' y='%d' text-anchor='middle' transform='rotate(-90 14 %d)'>predicted</text>",
                  SIDE / 2, SIDE / 2);
    gm_str_puts(out,
                "<circle cx='76' cy='24' r='4' fill='#0072b2'/><text x='86' y='28'>TP8</text>"
                "<circle cx='76' cy='42' r='4' fill='#e69f00'/><text x='86' y='46'>DP8+EP8</text></svg>\n");
}

static void print_constants(const gm_machine *m)
{
#define X(field, unit, what) printf("  %-14s %10.4g %-7s %s\n", #field, m->field, unit, what);
    GM_MACHINE_FITTED(X)
#undef X
}

static gm_status leave_out(const gm_machine *m, gm_fit_set *s, const gm_model_config *c, int32_t rounds,
                           gm_error *err)
{
    gm_status st = GM_OK;
    for (int32_t i = 0; i < s->n && !st; i++) {
        const char *shape = s->points[i].shape;
        gm_machine without = *m;
        if (i > 0 && !strcmp(shape, s->points[i - 1].shape)) continue;
        st = gm_fit_run(&without, s, c, shape, rounds, err);
        if (st) break;
        gm_fit_error e = gm_fit_error_of(s, shape);
        printf("fitted without %-8s and asked for it: mean %.2f %%, worst %.2f %% of %d points\n", shape,
               100 * e.mean, 100 * e.worst, (int)e.n);
    }
    return st;
}

static gm_status fit(const options *o, const gm_model_config *c, gm_machine *m, gm_error *err)
{
    gm_fit_set s = {0};
    json_t *v = NULL;
    int32_t rounds = 120;
    gm_status st = gm_flag_int(&rounds, "fit-rounds", o->rounds, 0, err);
    if (!st) st = gm_json_load(&v, o->fit, NULL, err);
    if (!st) st = gm_fit_set_parse(&s, v, o->fit, err);
    json_decref(v);
    if (!st) st = rounds ? gm_fit_run(m, &s, c, NULL, rounds, err) : gm_fit_predict(&s, c, m, NULL, err);
    if (st) return st;
    print_points(&s);
    gm_fit_error e = gm_fit_error_of(&s, NULL);
    printf("mean %.2f %%, worst %.2f %% of %d points, with these %d fitted constants:\n", 100 * e.mean,
           100 * e.worst, (int)e.n, GM_MACHINE_N_FITTED);
    print_constants(m);
    if (o->svg) {
        gm_str svg = {0};
        points_svg(&svg, &s);
        st = write_file(o->svg, &svg, err);
        gm_str_fini(&svg);
    }
    if (!st && rounds) st = leave_out(m, &s, c, rounds, err);
    gm_fit_set_fini(&s);
    return st;
}

/* ---- the plan ---- */

static const struct {
    const char *name;
    int32_t n_tokens;
} shapes[] = {{"1k1k", 2048}, {"8k1k", 9216}, {"96k32k", 128000}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static gm_server_limits limits_of(const gm_plan_params *p, const gm_plan_candidate *d)
{
    gm_server_limits k = p->sim.limits;
    k.kv_dtype = d->kv_dtype;
    k.engine = d->engine;
    return k;
}

static void put_ceiling(gm_str *out, const gm_plan_candidate *d, const gm_plan_params *p, const char *name,
                        int64_t n_tokens)
{
    gm_server_limits k = limits_of(p, d);
    gm_ceiling e = gm_ceiling_compute(&d->map, &d->layout, &k, n_tokens);
    gm_str_printf(out,
                  "    %-8s %7lld tokens: %d pages each; floor per scheduler %d x %d = %d sequences, bound "
                  "by %s (pool / length would say %d)\n",
                  name, (long long)n_tokens, (int)e.pages, (int)e.per_rank, (int)d->layout.dp, (int)e.node,
                  gm_bound_name(e.bound), (int)gm_ceiling_naive(&d->map, &d->layout, n_tokens));
}

static void put_candidate(gm_str *out, const gm_plan_candidate *d, const gm_plan_params *p)
{
    gm_str_printf(out, "\n%s (%s)\n", d->name,
                  d->engine == GM_ENGINE_VLLM ? "cache rules of vLLM" : "cache rules of glimmer");
    gm_report_memory(out, &d->map, &d->layout);
    if (!d->fits) return;
    gm_str_puts(out, "  sequences held to their end\n");
    for (int i = 0; i < N_SHAPES; i++) put_ceiling(out, d, p, shapes[i].name, shapes[i].n_tokens);
    put_ceiling(out, d, p, "load", (int64_t)p->load.n_in + p->load.n_out);
}

static void put_table(gm_str *out, const gm_plan *plan, const gm_plan_params *p)
{
    gm_str_printf(out, "%-20s %10s %9s %9s %9s %9s %9s %9s %9s%s\n", "layout, cache", "out tok/s",
                  "TTFT mean", "p50", "p99, s", "TPOT mean", "p50", "p99, ms", "sequences",
                  p->price_per_hour > 0 ? "  cost of 1M" : "");
    for (int32_t i = 0; i < plan->n; i++) {
        const gm_plan_candidate *d = &plan->candidates[i];
        if (!d->fits) {
            gm_str_printf(out, "%-20s does not fit: weights %.1f GB of %.1f GB a rank\n", d->name,
                          d->map.weights.total / 1e9, d->map.budget / 1e9);
            continue;
        }
        gm_str_printf(out, "%-20s %10.1f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9d", d->name, d->output_rate,
                      d->ttft_mean / 1e3, d->ttft_p50 / 1e3, d->ttft_p99 / 1e3, d->tpot_mean, d->tpot_p50,
                      d->tpot_p99, (int)d->ceiling.node);
        if (p->price_per_hour > 0) gm_str_printf(out, " %11.3f", d->cost_million);
        gm_str_printf(out, "%s%s%s\n",
                      d->failed  ? "  cannot run all of it"
                      : d->meets ? ""
                                 : "  misses the targets",
                      d->preemptions ? "  preempts" : "", i == plan->best ? "  <- best" : "");
    }
}

static void put_explain(gm_str *out, const gm_plan *plan)
{
    gm_str_printf(out, "\nwhere a decode step's time goes, ms\n%-52s", "");
    for (int32_t i = 0; i < plan->n; i += 2)
        if (plan->candidates[i].fits) gm_str_printf(out, " %14s", plan->candidates[i].name);
    gm_str_putc(out, '\n');
#define X(part, what)                                                                                        \
    gm_str_printf(out, "%-52s", what);                                                                       \
    for (int32_t i = 0; i < plan->n; i += 2)                                                                 \
        if (plan->candidates[i].fits)                                                                        \
            gm_str_printf(out, " %14.3f",                                                                    \
                          plan->candidates[i].decode_steps ? 1e3 * plan->candidates[i].cost_decode.part /    \
                                                                 (double)plan->candidates[i].decode_steps    \
                                                           : 0);                                             \
    gm_str_putc(out, '\n');
    GM_COST_PARTS(X)
#undef X
}

static void print_plan(const gm_plan *plan, const gm_plan_params *p, const options *o, const char *model,
                       const gm_machine *m)
{
    gm_str out = {0};
    gm_str_printf(&out, "%s on %s: %d input and %d output tokens, ", model, m->name, (int)p->load.n_in,
                  (int)p->load.n_out);
    if (p->load.rate > 0) gm_str_printf(&out, "%g requests a second\n\n", p->load.rate);
    else gm_str_printf(&out, "%d in flight\n\n", (int)p->load.concurrency_max);
    put_table(&out, plan, p);
    if (plan->n_curve) {
        gm_str_putc(&out, '\n');
        gm_plan_leaders(&out, plan);
        gm_str_putc(&out, '\n');
    }
    for (int32_t i = 0; i < plan->n_crossings; i++) {
        const gm_plan_crossing *x = &plan->crossings[i];
        gm_str_printf(&out, "  %s passes %s at about %.0f in flight\n", plan->candidates[x->b].name,
                      plan->candidates[x->a].name, x->concurrency);
    }
    for (int32_t i = 0; i < plan->n; i++) put_candidate(&out, &plan->candidates[i], p);
    if (o->explain) put_explain(&out, plan);
    gm_str_putc(&out, '\n');
    gm_plan_sentence(&out, plan, p);
    gm_str_puts(&out, "\n  ");
    gm_plan_command(&out, plan, p, model);
    gm_str_putc(&out, '\n');
    fputs(gm_str_c(&out), stdout);
    gm_str_fini(&out);
}

static json_t *candidate_json(const gm_plan *plan, int32_t at, const gm_plan_params *p)
{
    const gm_plan_candidate *d = &plan->candidates[at];
    json_t *o = json_object();
    gm_server_limits k = limits_of(p, d);
    json_object_set_new(o, "name", json_string(d->name));
    json_object_set_new(o, "data_parallel_size", json_integer(d->layout.dp));
    json_object_set_new(o, "tensor_parallel_size", json_integer(d->layout.tp));
    json_object_set_new(o, "expert_parallel", json_boolean(d->layout.ep));
    json_object_set_new(o, "kv_shard", json_boolean(d->layout.kv_shard));
    json_object_set_new(o, "kv_cache_dtype", json_string(gm_kv_dtype_name(d->kv_dtype)));
    json_object_set_new(o, "engine", json_string(d->engine == GM_ENGINE_VLLM ? "vllm" : "glimmer"));
    json_object_set_new(o, "fits", json_boolean(d->fits));
    json_object_set_new(o, "memory", gm_report_memory_json(&d->map, &d->layout));
    if (!d->fits) return o;
    json_t *ceilings = json_object();
    for (int i = 0; i <= N_SHAPES; i++) {
        int64_t n = i < N_SHAPES ? shapes[i].n_tokens : (int64_t)p->load.n_in + p->load.n_out;
        gm_ceiling e = gm_ceiling_compute(&d->map, &d->layout, &k, n);
        json_t *x = json_object();
        json_object_set_new(x, "tokens", json_integer(n));
        json_object_set_new(x, "pages", json_integer(e.pages));
        json_object_set_new(x, "per_scheduler", json_integer(e.per_rank));
        json_object_set_new(x, "node", json_integer(e.node));
        json_object_set_new(x, "bound_by", json_string(gm_bound_name(e.bound)));
        json_object_set_new(x, "pool_over_length", json_integer(gm_ceiling_naive(&d->map, &d->layout, n)));
        json_object_set_new(ceilings, i < N_SHAPES ? shapes[i].name : "load", x);
    }
    json_object_set_new(o, "ceilings", ceilings);
    const struct {
        const char *key;
        double v;
    } figures[] = {{"output_throughput", d->output_rate},
                   {"total_token_throughput", d->total_rate},
                   {"request_throughput", d->request_rate},
                   {"mean_ttft_ms", d->ttft_mean},
                   {"median_ttft_ms", d->ttft_p50},
                   {"p99_ttft_ms", d->ttft_p99},
                   {"mean_tpot_ms", d->tpot_mean},
                   {"median_tpot_ms", d->tpot_p50},
                   {"p99_tpot_ms", d->tpot_p99}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(o, figures[i].key, json_real(figures[i].v));
    json_object_set_new(o, "failed", json_integer(d->failed));
    json_object_set_new(o, "preemptions", json_integer(d->preemptions));
    json_object_set_new(o, "meets_targets", json_boolean(d->meets));
    json_object_set_new(o, "cost_per_million_output_tokens",
                        p->price_per_hour > 0 ? json_real(d->cost_million) : json_null());
    json_t *curve = json_object(), *parts = json_object();
    for (int32_t i = 0; i < plan->n_curve; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", (int)plan->concurrency[i]);
        json_object_set_new(curve, key, json_real(d->curve[i]));
    }
    json_object_set_new(o, "output_throughput_over_concurrency", curve);
#define X(part, what)                                                                                        \
    json_object_set_new(                                                                                     \
        parts, #part, json_real(d->decode_steps ? 1e3 * d->cost_decode.part / (double)d->decode_steps : 0));
    GM_COST_PARTS(X)
#undef X
    json_object_set_new(o, "decode_step_ms", parts);
    return o;
}

static void print_json(const gm_plan *plan, const gm_plan_params *p, const char *model, const gm_machine *m)
{
    json_t *o = json_object(), *list = json_array(), *cross = json_array();
    gm_str text = {0};
    json_object_set_new(o, "model", json_string(model));
    json_object_set_new(o, "machine", gm_machine_json(m));
    json_object_set_new(o, "input_len", json_integer(p->load.n_in));
    json_object_set_new(o, "output_len", json_integer(p->load.n_out));
    json_object_set_new(o, "max_concurrency",
                        p->load.concurrency_max ? json_integer(p->load.concurrency_max) : json_null());
    json_object_set_new(o, "request_rate", p->load.rate > 0 ? json_real(p->load.rate) : json_string("inf"));
    for (int32_t i = 0; i < plan->n; i++) json_array_append_new(list, candidate_json(plan, i, p));
    json_object_set_new(o, "layouts", list);
    for (int32_t i = 0; i < plan->n_crossings; i++) {
        json_t *x = json_object();
        json_object_set_new(x, "from", json_string(plan->candidates[plan->crossings[i].a].name));
        json_object_set_new(x, "to", json_string(plan->candidates[plan->crossings[i].b].name));
        json_object_set_new(x, "concurrency", json_real(plan->crossings[i].concurrency));
        json_array_append_new(cross, x);
    }
    json_object_set_new(o, "crossings", cross);
    json_object_set_new(o, "best",
                        plan->best < 0 ? json_null() : json_string(plan->candidates[plan->best].name));
    gm_plan_sentence(&text, plan, p);
    json_object_set_new(o, "recommendation", json_string(gm_str_c(&text)));
    gm_str_clear(&text);
    gm_plan_command(&text, plan, p, model);
    json_object_set_new(o, "command", json_string(gm_str_c(&text)));
    gm_str_clear(&text);
    gm_json_put(&text, o);
    puts(gm_str_c(&text));
    gm_str_fini(&text);
    json_decref(o);
}

static gm_status read_load(gm_plan_params *p, const options *o, gm_error *err)
{
    gm_load_random *l = &p->load;
    *l = (gm_load_random){.n_in = 8192, .n_out = 1024, .burstiness = 1};
    gm_status st = gm_flag_int(&l->n_in, "input-len", o->in, 1, err);
    if (!st) st = gm_flag_int(&l->n_out, "output-len", o->out, 1, err);
    if (!st && o->rate) st = gm_flag_number(&l->rate, "request-rate", o->rate, 1e-9, err);
    if (!st) st = gm_flag_int(&l->concurrency_max, "max-concurrency", o->concurrency, 1, err);
    if (!o->rate && !l->concurrency_max) l->concurrency_max = 64;
    l->n = l->rate > 0 ? 300 : l->concurrency_max;
    if (!st) st = gm_flag_int(&l->n, "num-prompts", o->n, 1, err);
    if (!st) st = gm_flag_number(&p->targets.ttft, "ttft-ms", o->ttft, 0, err);
    if (!st) st = gm_flag_number(&p->targets.tpot, "tpot-ms", o->tpot, 0, err);
    if (!st) st = gm_flag_number(&p->price_per_hour, "price-per-hour", o->price, 0, err);
    return st;
}

static gm_status make(const gm_settings *s, const options *o, const gm_model_config *c, const gm_machine *m,
                      gm_error *err)
{
    gm_plan_params p = {.curve = !o->quick};
    gm_layout unused;
    gm_plan *plan = gm_new(gm_plan);
    gm_status st = gm_foresee_server(&unused, &p.sim, s, c, m, o->engine, false, err);
    if (!st) st = read_load(&p, o, err);
    /* A length that was not asked for follows from the load; a plan for what does not fit helps nobody. */
    if (!st && !gm_settings_given(s, max_model_len)) {
        int64_t need = (int64_t)p.load.n_in + p.load.n_out;
        p.sim.limits.model_len =
            need > 131072 ? (int32_t)(need < c->max_positions ? need : c->max_positions) : 131072;
        if (p.sim.limits.model_len > c->max_positions) p.sim.limits.model_len = c->max_positions;
    }
    if (!st) st = gm_plan_make(plan, c, m, &p, err);
    if (!st && o->json) print_json(plan, &p, s->model, m);
    if (!st && !o->json) print_plan(plan, &p, o, s->model, m);
    if (!st && o->html) {
        gm_str page = {0};
        gm_plan_html(&page, plan, &p, s->model, m);
        st = write_file(o->html, &page, err);
        gm_str_fini(&page);
    }
    gm_free(plan);
    return st;
}

static gm_status run(const gm_settings *s, const options *o, gm_error *err)
{
    gm_machine m;
    if (o->measure)
        return s->model ? gm_measure_cpu(s, o->measure, err)
                        : gm_fail(err, GM_EARG, "the following arguments are required: MODEL");
    gm_status st = gm_machine_open(&m, o->machine ? o->machine : "8xMI300X", err);
    if (st) return st;
    if (o->machine_json) {
        json_t *v = gm_machine_json(&m);
        json_dumpf(v, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
        puts("");
        json_decref(v);
        return GM_OK;
    }
    gm_model_config *c = gm_new(gm_model_config);
    const char *model = s->model ? s->model : o->fit ? "glm-5.3-flash" : NULL;
    if (!model) st = gm_fail(err, GM_EARG, "the following arguments are required: MODEL");
    if (!st) st = gm_model_open(c, model, s->hf_overrides, err);
    if (!st) st = o->fit ? fit(o, c, &m, err) : make(s, o, c, &m, err);
    gm_free(c);
    return st;
}

int gm_cmd_plan(int argc, char **argv)
{
    options o = {0};
    gm_flag flags[N_FLAGS];
    gm_settings s;
    gm_error err = {0};
    int status;
    list_flags(flags, &o);
    if (gm_foresee_parse(&s, "plan", flags, argc, argv, &status)) {
        status = 0;
        if (run(&s, &o, &err)) {
            fprintf(stderr, "glimmer plan: error: %s\n", err.message);
            status = err.status == GM_EARG || err.status == GM_ENOTFOUND ? 2 : 1;
        }
        gm_settings_fini(&s);
    }
    gm_flags_free(flags);
    return status;
}
