#include "plan/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { N = GM_MACHINE_N_FITTED };

/* "tp8_bf16", "dp8ep8_bf16", "dp8ep8_fp8" */
static bool parse_series(gm_fit_point *p, const char *key)
{
    int dp = 1, tp = 1, ep = 0, used = 0;
    if (sscanf(key, "tp%d%n", &tp, &used) != 1) {
        used = 0;
        if (sscanf(key, "dp%dep%d%n", &dp, &ep, &used) != 2 || used == 0) return false;
    }
    if (dp < 1 || dp > 1024 || tp < 1 || tp > 1024) return false;
    p->layout = (gm_layout){.dp = dp, .tp = tp, .ep = ep > 0};
    if (!strcmp(key + used, "_bf16")) p->kv_dtype = GM_KV_BF16;
    else if (!strcmp(key + used, "_fp8")) p->kv_dtype = GM_KV_FP8;
    else return false;
    return true;
}

static gm_status parse_shape(gm_fit_set *s, const char *name, json_t *shape, const char *what, gm_error *err)
{
    const char *series, *conc;
    json_t *points, *value;
    const json_t *isl = json_object_get(shape, "isl"), *osl = json_object_get(shape, "osl");
    if (!json_is_integer(isl) || !json_is_integer(osl))
        return gm_fail(err, GM_EFORMAT, "%s: shape %s needs isl and osl", what, name);
    json_object_foreach(shape, series, points)
    {
        gm_fit_point p = {.n_in = (int32_t)json_integer_value(isl),
                          .n_out = (int32_t)json_integer_value(osl)};
        if (!strcmp(series, "isl") || !strcmp(series, "osl")) continue;
        if (!parse_series(&p, series))
            return gm_fail(err, GM_EFORMAT, "%s: shape %s: '%.64s' is not a layout", what, name, series);
        snprintf(p.shape, sizeof p.shape, "%s", name);
        json_object_foreach(points, conc, value)
        {
            p.concurrency = (int32_t)strtol(conc, NULL, 10);
            p.output_tok_s = json_number_value(value);
            if (p.concurrency < 1 || !(p.output_tok_s > 0))
                return gm_fail(err, GM_EFORMAT, "%s: shape %s, %s: point '%.32s' is not a positive number",
                               what, name, series, conc);
            s->points = gm_realloc_array(s->points, (size_t)s->n + 1, sizeof *s->points);
            s->points[s->n++] = p;
        }
    }
    return GM_OK;
}

static double number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

gm_status gm_fit_set_parse(gm_fit_set *out, const json_t *v, const char *what, gm_error *err)
{
    gm_fit_set s = {0};
    gm_status st = GM_OK;
    const json_t *server = json_object_get(v, "server");
    const char *name;
    json_t *shape;
    s.limits = (gm_server_limits){.memory_share = number(server, "gpu_memory_utilization", 0.92),
                                  .batch_tokens = (int32_t)number(server, "max_num_batched_tokens", 8192),
                                  .seqs = (int32_t)number(server, "max_num_seqs", 1024),
                                  .model_len = (int32_t)number(server, "max_model_len", 131072),
                                  .kv_dtype = GM_KV_BF16,
                                  .engine = GM_ENGINE_VLLM};
    json_object_foreach(json_object_get(v, "output_tok_s"), name, shape) if (!st) st =
        parse_shape(&s, name, shape, what, err);
    if (!st && s.n == 0) st = gm_fail(err, GM_EFORMAT, "%s: no points under 'output_tok_s'", what);
    if (st) gm_fit_set_fini(&s);
    else *out = s;
    return st;
}

void gm_fit_set_fini(gm_fit_set *s)
{
    gm_free(s->points);
    *s = (gm_fit_set){0};
}

static gm_status predict(gm_fit_point *p, const gm_server_limits *limits, const gm_model_config *c,
                         const gm_machine *m, gm_error *err)
{
    gm_load load;
    gm_sim_result r;
    bool vllm = limits->engine == GM_ENGINE_VLLM;
    gm_sim_params sp = {.limits = *limits,
                        .chunked_prefill = true,
                        .reserve_full_prompt = true,
                        .price_every = 64,
                        .front_request_ns = vllm ? GM_SIM_FRONT_REQUEST_NS : 0,
                        .front_token_ns = vllm ? GM_SIM_FRONT_TOKEN_NS : 0};
    sp.limits.kv_dtype = p->kv_dtype;
    gm_status st =
        gm_load_draw(&load, &(gm_load_random){.n = p->concurrency, .n_in = p->n_in, .n_out = p->n_out}, err);
    if (!st) st = gm_sim_run(&r, c, m, &p->layout, &sp, &load, err);
    if (st) return gm_context(err, st, "%s, concurrency %d", p->shape, (int)p->concurrency);
    p->predicted = (double)p->concurrency * p->n_out / ((double)r.duration_ns * 1e-9);
    gm_sim_result_fini(&r);
    gm_load_fini(&load);
    return GM_OK;
}

gm_status gm_fit_predict(gm_fit_set *s, const gm_model_config *c, const gm_machine *m, const char *skip,
                         gm_error *err)
{
    gm_status st = GM_OK;
    for (int32_t i = 0; i < s->n && !st; i++)
        if (!skip || strcmp(s->points[i].shape, skip)) st = predict(&s->points[i], &s->limits, c, m, err);
    return st;
}

gm_fit_error gm_fit_error_of(const gm_fit_set *s, const char *shape)
{
    gm_fit_error e = {.worst_idx = -1};
    for (int32_t i = 0; i < s->n; i++) {
        const gm_fit_point *p = &s->points[i];
        if (shape && strcmp(p->shape, shape)) continue;
        double d = fabs(p->predicted / p->output_tok_s - 1);
        e.mean += d;
        e.n++;
        if (e.worst_idx >= 0 && d <= e.worst) continue;
        e.worst = d;
        e.worst_idx = i;
    }
    if (e.n) e.mean /= e.n;
    return e;
}

/* ---- the search ---- */

typedef struct search {
    gm_machine machine;
    gm_fit_set *set;
    const gm_model_config *config;
    const char *skip;
} search;

/* Two layouts at the same load: a plan chooses between them, so the error of their ratio counts as much as
 * each point's own. */
static double pair_badness(const gm_fit_set *s, int32_t i, double d)
{
    double sum = 0;
    for (int32_t k = 0; k < i; k++) {
        const gm_fit_point *a = &s->points[k], *b = &s->points[i];
        if (a->n_in != b->n_in || a->n_out != b->n_out || a->concurrency != b->concurrency ||
            a->kv_dtype != b->kv_dtype)
            continue;
        double other = log(a->predicted / a->output_tok_s);
        sum += (d - other) * (d - other);
    }
    return sum;
}

/* An efficiency above 1 would be nonsense, and so is a point that cannot run. */
static double badness(search *q, const double *x)
{
    double v[N], sum = 0;
    for (int i = 0; i < N; i++) v[i] = exp(x[i]);
    gm_machine_set_fitted(&q->machine, v);
    if (q->machine.flop_eff > 1 || q->machine.matmul_eff > 1) return 1e9;
    if (gm_fit_predict(q->set, q->config, &q->machine, q->skip, NULL)) return 1e9;
    for (int32_t i = 0; i < q->set->n; i++) {
        const gm_fit_point *p = &q->set->points[i];
        if (q->skip && !strcmp(p->shape, q->skip)) continue;
        double d = log(p->predicted / p->output_tok_s);
        sum += d * d + pair_badness(q->set, i, d);
    }
    return sum;
}

typedef struct vertex {
    double x[N], f;
} vertex;

static int by_badness(const void *a, const void *b)
{
    double x = ((const vertex *)a)->f, y = ((const vertex *)b)->f;
    return (x > y) - (x < y);
}

/* The point at `t` on the line from the worst vertex through the centre of the others. */
static vertex along(search *q, const double *centre, const vertex *worst, double t)
{
    vertex v;
    for (int i = 0; i < N; i++) v.x[i] = worst->x[i] + t * (centre[i] - worst->x[i]);
    v.f = badness(q, v.x);
    return v;
}

static void shrink(search *q, vertex *s)
{
    for (int k = 1; k <= N; k++) {
        for (int i = 0; i < N; i++) s[k].x[i] = s[0].x[i] + 0.5 * (s[k].x[i] - s[0].x[i]);
        s[k].f = badness(q, s[k].x);
    }
}

static void improve(search *q, vertex *s)
{
    double centre[N] = {0};
    qsort(s, N + 1, sizeof *s, by_badness);
    for (int k = 0; k < N; k++)
        for (int i = 0; i < N; i++) centre[i] += s[k].x[i] / N;
    vertex mirrored = along(q, centre, &s[N], 2);
    if (mirrored.f < s[0].f) {
        vertex further = along(q, centre, &s[N], 3);
        s[N] = further.f < mirrored.f ? further : mirrored;
    } else if (mirrored.f < s[N - 1].f) {
        s[N] = mirrored;
    } else {
        vertex nearer = along(q, centre, &s[N], mirrored.f < s[N].f ? 1.5 : 0.5);
        if (nearer.f < fmin(mirrored.f, s[N].f)) s[N] = nearer;
        else shrink(q, s);
    }
}

gm_status gm_fit_run(gm_machine *m, gm_fit_set *set, const gm_model_config *c, const char *skip,
                     int32_t rounds, gm_error *err)
{
    search q = {.machine = *m, .set = set, .config = c, .skip = skip};
    vertex s[N + 1];
    double v[N];
    gm_status st = gm_fit_predict(set, c, m, skip, err); /* a set that cannot run says why */
    if (st) return st;
    for (int restart = 0; restart < 2; restart++) {
        gm_machine_get_fitted(restart ? &q.machine : m, v);
        for (int k = 0; k <= N; k++) {
            for (int i = 0; i < N; i++) s[k].x[i] = log(fmax(v[i], 1e-6)) + (k == i + 1 ? 0.2 : 0);
            s[k].f = badness(&q, s[k].x);
        }
        for (int32_t r = 0; r < rounds; r++) improve(&q, s);
        qsort(s, N + 1, sizeof *s, by_badness);
        for (int i = 0; i < N; i++) v[i] = exp(s[0].x[i]);
        gm_machine_set_fitted(&q.machine, v);
    }
    gm_machine_set_fitted(m, v);
    return gm_fit_predict(set, c, m, NULL, err);
}
