/* A load through the real scheduler and cache on a virtual clock, reported as a benchmark run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "cmd/foresee.h"
#include "plan/models.h"

typedef struct options {
    char *machine, *engine, *trace, *in, *out, *random_in, *random_out, *range, *prefix, *n, *concurrency,
        *rate, *burstiness, *seed;
    char *goodput, *metrics, *percentiles, *dir, *file, *label, *metadata, *dataset, *price, *warmups;
    bool json, save, detailed, explain, kv_shard, step_by_step;
} options;

#define T(name, field, unit, help)                                                                           \
    {                                                                                                        \
        name, GM_FLAG_TEXT, unit, help, &o->field, NULL                                                      \
    }
#define L(name, field, unit, help)                                                                           \
    {                                                                                                        \
        name, GM_FLAG_LIST, unit, help, &o->field, NULL                                                      \
    }
#define B(name, field, help)                                                                                 \
    {                                                                                                        \
        name, GM_FLAG_BOOL, NULL, help, NULL, &o->field                                                      \
    }
#define I(name)                                                                                              \
    {                                                                                                        \
        name, GM_FLAG_IGNORED, NULL, NULL, NULL, NULL                                                        \
    }
#define IB(name)                                                                                             \
    {                                                                                                        \
        name, GM_FLAG_IGNORED_BOOL, NULL, NULL, NULL, NULL                                                   \
    }

enum { N_FLAGS = 64 };

static void list_flags(gm_flag *flags, options *o)
{
    const gm_flag all[] = {
        T("machine", machine, "NAME|FILE", "the machine (default: 8xMI300X)"),
        T("engine", engine, "vllm|glimmer",
          "whose rules for cache and front end [vllm: its runs fitted the machine constants]"),
        B("kv-shard", kv_shard, "glimmer: pages dealt out over the ranks of tensor parallelism"),
        T("trace", trace, "FILE",
          "replay: JSON lines of arrival_s, input, output; or a saved detailed benchmark result"),
        T("dataset-name", dataset, "random", "the load, if no trace is given"),
        T("random-input-len", random_in, "tokens", "prompt length [1024]"),
        T("random-output-len", random_out, "tokens", "answer length [128]"),
        T("input-len", in, "tokens", "the same, for any data set"),
        T("output-len", out, "tokens", "the same, for any data set"),
        T("random-range-ratio", range, "R|JSON",
          "lengths vary by this share; {\"input\":R,\"output\":R} for each [0]"),
        T("random-prefix-len", prefix, "tokens", "in front of each prompt [0]"),
        T("num-prompts", n, "requests", "[1000]"),
        T("max-concurrency", concurrency, "requests", "most in flight; the client holds back the others"),
        T("request-rate", rate, "1/s", "requests a second [inf: all at once]"),
        T("burstiness", burstiness, "B", "shape of the gaps; 1: Poisson [1]"),
        T("seed", seed, "N", "[0]"),
        L("goodput", goodput, "K:MS ...", "limits that a good request keeps; K is ttft, tpot or e2el"),
        T("percentile-metrics", metrics, "K,K", "of ttft, tpot, itl, e2el [ttft,tpot,itl]"),
        T("metric-percentiles", percentiles, "Q,Q", "[99]"),
        B("json", json, "print the JSON result instead of the table"),
        B("save-result", save, "write the JSON result to a file"),
        B("save-detailed", detailed, "with lengths, start and first-token times of each request"),
        T("result-dir", dir, "folder", "where to"),
        T("result-filename", file, "name", "under which name"),
        T("label", label, "text", "put into the result"),
        L("metadata", metadata, "K=V ...", "put into the result"),
        T("price-per-hour", price, "money", "of the machine: adds the cost of a million output tokens"),
        B("explain", explain, "where the time of the steps goes, and the memory of a rank"),
        B("step-by-step", step_by_step, "never take equal steps at once; the result is the same"),
        T("num-warmups", warmups, NULL, NULL),
        I("backend"),
        I("base-url"),
        I("endpoint"),
        I("endpoint-type"),
        I("tokenizer"),
        I("tokenizer-mode"),
        I("temperature"),
        I("top-p"),
        I("top-k"),
        I("ready-check-timeout-sec"),
        I("dataset-path"),
        I("extra-body"),
        I("header"),
        I("request-id-prefix"),
        I("num-workers"),
        IB("ignore-eos"),
        IB("disable-tqdm"),
        IB("insecure"),
        IB("profile"),
        IB("plot-timeline"),
        {NULL, GM_FLAG_BOOL, NULL, NULL, NULL, NULL}};
    _Static_assert(sizeof all / sizeof *all <= N_FLAGS, "room for the flags");
    memcpy(flags, all, sizeof all);
}

static gm_status parse_range(gm_load_random *r, const char *text, gm_error *err)
{
    if (!text) return GM_OK;
    if (*text != '{') {
        gm_status st = gm_flag_number(&r->range_in, "random-range-ratio", text, 0, err);
        r->range_out = r->range_in;
        return st;
    }
    json_t *v = NULL;
    gm_status st = gm_json_parse(&v, text, strlen(text), "argument --random-range-ratio", NULL, err);
    r->range_in = json_number_value(json_object_get(v, "input"));
    r->range_out = json_number_value(json_object_get(v, "output"));
    json_decref(v);
    return st;
}

static gm_status read_load(gm_load *load, gm_load_random *r, const options *o, gm_error *err)
{
    int32_t prefix = 0, seed = 0;
    *r = (gm_load_random){.n = 1000, .n_in = 1024, .n_out = 128, .burstiness = 1};
    gm_status st = gm_flag_int(&r->n, "num-prompts", o->n, 1, err);
    if (!st) st = gm_flag_int(&r->n_in, "random-input-len", o->random_in, 0, err);
    if (!st) st = gm_flag_int(&r->n_out, "random-output-len", o->random_out, 1, err);
    if (!st) st = gm_flag_int(&r->n_in, "input-len", o->in, 0, err);
    if (!st) st = gm_flag_int(&r->n_out, "output-len", o->out, 1, err);
    if (!st) st = gm_flag_int(&prefix, "random-prefix-len", o->prefix, 0, err);
    if (!st) st = gm_flag_int(&r->concurrency_max, "max-concurrency", o->concurrency, 1, err);
    if (!st && o->rate && strcmp(o->rate, "inf"))
        st = gm_flag_number(&r->rate, "request-rate", o->rate, 1e-9, err);
    if (!st) st = gm_flag_number(&r->burstiness, "burstiness", o->burstiness, 1e-9, err);
    if (!st) st = gm_flag_int(&seed, "seed", o->seed, 0, err);
    if (!st) st = parse_range(r, o->range, err);
    r->seed = (uint64_t)seed;
    if (st) return st;
    if (o->trace) {
        st = gm_load_read(load, o->trace, err);
        load->concurrency_max = r->concurrency_max;
        return st;
    }
    if (o->dataset && strcmp(o->dataset, "random"))
        return gm_fail(
            err, GM_ENOTSUP,
            "dataset '%.32s': draw it with bench serve and replay its detailed result with --trace",
            o->dataset);
    st = gm_load_draw(load, r, err);
    for (int32_t i = 0; !st && i < load->n; i++) load->items[i].n_in += prefix;
    return st;
}

static gm_status parse_goodput(gm_limits_ms *l, const char *text, gm_error *err)
{
    char word[64];
    int used;
    for (const char *p = text; p && sscanf(p, " %63s%n", word, &used) == 1; p += used) {
        char *colon = strchr(word, ':');
        double ms = 0;
        if (!colon) return gm_fail(err, GM_EARG, "argument --goodput: '%s' is not K:MS", word);
        *colon = 0;
        gm_status st = gm_flag_number(&ms, "goodput", colon + 1, 0, err);
        if (st) return st;
        if (!strcmp(word, "ttft")) l->ttft = ms;
        else if (!strcmp(word, "tpot")) l->tpot = ms;
        else if (!strcmp(word, "e2el")) l->e2el = ms;
        else return gm_fail(err, GM_EARG, "argument --goodput: '%s' is not ttft, tpot or e2el", word);
    }
    return GM_OK;
}

static gm_status parse_metrics(gm_report_info *i, const options *o, gm_error *err)
{
    i->metrics = 1u << GM_METRIC_TTFT | 1u << GM_METRIC_TPOT | 1u << GM_METRIC_ITL;
    if (o->metrics) {
        i->metrics = 0;
        for (const char *p = o->metrics; *p;) {
            size_t n = strcspn(p, ",");
            bool known = false;
            for (int m = 0; m < GM_METRIC_COUNT; m++)
                if (strlen(gm_metric_name((gm_metric)m)) == n && !strncmp(p, gm_metric_name((gm_metric)m), n))
                    i->metrics |= 1u << m, known = true;
            if (!known)
                return gm_fail(err, GM_EARG,
                               "argument --percentile-metrics: '%.*s' is not ttft, tpot, itl or e2el", (int)n,
                               p);
            p += n + (p[n] == ',');
        }
    }
    for (const char *p = o->percentiles ? o->percentiles : "99"; *p && i->n_percentiles < 16;) {
        char *end;
        double q = strtod(p, &end);
        if (end == p || !(q >= 0 && q <= 100) || (*end && *end != ','))
            return gm_fail(err, GM_EARG, "argument --metric-percentiles: invalid value: '%.32s'", p);
        i->percentiles[i->n_percentiles++] = q;
        p = end + (*end == ',');
    }
    return GM_OK;
}

static void add_metadata(json_t *v, const char *text)
{
    char word[256];
    int used;
    for (const char *p = text; p && sscanf(p, " %255s%n", word, &used) == 1; p += used) {
        char *eq = strchr(word, '=');
        if (!eq) continue;
        *eq = 0;
        json_object_set_new(v, word, json_string(eq + 1));
    }
}

static gm_status save(const json_t *v, const options *o, const char *model, const gm_report_info *i,
                      gm_error *err)
{
    gm_str path = {0}, text = {0};
    const char *base = strrchr(model, '/');
    if (o->dir) gm_str_printf(&path, "%s/", o->dir);
    if (o->file) gm_str_puts(&path, o->file);
    else {
        gm_str_printf(&path, "%s-", o->label ? o->label : "simulated");
        if (i->request_rate > 0) gm_str_printf(&path, "%gqps", i->request_rate);
        else gm_str_puts(&path, "infqps");
        if (i->concurrency_max) gm_str_printf(&path, "-concurrency%d", (int)i->concurrency_max);
        gm_str_printf(&path, "-%s-%s.json", base ? base + 1 : model, i->date);
    }
    gm_json_put(&text, v);
    FILE *f = fopen(gm_str_c(&path), "wb");
    bool ok = f && fwrite(gm_str_c(&text), 1, text.len, f) == text.len;
    if (f && fclose(f)) ok = false;
    gm_status st = ok ? GM_OK : gm_fail(err, GM_EIO, "%s: cannot be written", gm_str_c(&path));
    gm_str_fini(&path);
    gm_str_fini(&text);
    return st;
}

static void add_own_keys(json_t *v, const gm_summary *s, const gm_layout *l, const options *o,
                         const gm_machine *m)
{
    const gm_sim_result *r = s->result;
    char name[64];
    double price = 0;
    gm_layout_name(l, name, sizeof name);
    json_object_set_new(v, "machine", json_string(m->name));
    json_object_set_new(v, "layout", json_string(name));
    json_object_set_new(v, "preemptions", json_integer(r->preemptions));
    json_object_set_new(v, "recomputed_tokens", json_integer(r->recomputed));
    json_object_set_new(v, "kv_cache_peak", json_real(r->pages_peak));
    json_object_set_new(v, "running_peak", json_integer(r->running_max));
    json_object_set_new(v, "waiting_peak", json_integer(r->waiting_max));
    json_object_set_new(v, "waiting_mean", json_real(r->waiting_mean));
    if (!gm_flag_number(&price, "price-per-hour", o->price, 0, NULL) && price > 0 && s->output_rate > 0)
        json_object_set_new(v, "cost_per_million_output_tokens",
                            json_real(price / 3600 / s->output_rate * 1e6));
    if (!o->explain) return;
    json_object_set_new(v, "memory", gm_report_memory_json(&r->map, l));
    json_object_set_new(v, "cost", gm_report_explain_json(r));
}

static void print_text(const gm_summary *s, const gm_report_info *i, const gm_layout *l, const options *o,
                       const gm_machine *m)
{
    gm_str out = {0};
    const gm_sim_result *r = s->result;
    char name[64];
    double price = 0;
    gm_layout_name(l, name, sizeof name);
    gm_str_printf(&out, "simulated: %s, %s on %s\n", i->model, name, m->name);
    gm_report_text(&out, s, i);
    gm_str_printf(&out,
                  "preemptions %lld (%lld tokens computed again), cache at most %.1f%% full, at most %d "
                  "running and %d waiting\n",
                  (long long)r->preemptions, (long long)r->recomputed, 100 * r->pages_peak,
                  (int)r->running_max, (int)r->waiting_max);
    if (!gm_flag_number(&price, "price-per-hour", o->price, 0, NULL) && price > 0 && s->output_rate > 0)
        gm_str_printf(&out, "a million output tokens cost %.3f\n", price / 3600 / s->output_rate * 1e6);
    if (o->explain) {
        gm_report_memory(&out, &r->map, l);
        gm_report_explain(&out, r);
    }
    fputs(gm_str_c(&out), stdout);
    gm_str_fini(&out);
}

static gm_status simulate(const gm_settings *s, const options *o, gm_error *err)
{
    gm_model_config *c = gm_new(gm_model_config);
    gm_machine m;
    gm_layout l;
    gm_sim_params p;
    gm_load load = {0};
    gm_load_random r = {0};
    gm_limits_ms limits = {0};
    gm_sim_result result = {0};
    gm_summary sum = {0};
    char date[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    double price = 0;
    gm_report_info i = {.model = s->model,
                        .label = o->label,
                        .date = date,
                        .goodput = o->goodput != NULL,
                        .detailed = o->detailed};
    gm_status st = gm_model_open(c, s->model, s->hf_overrides, err);
    if (!st) st = gm_machine_open(&m, o->machine ? o->machine : "8xMI300X", err);
    if (!st) st = gm_foresee_server(&l, &p, s, c, &m, o->engine, o->kv_shard, err);
    if (!st) st = read_load(&load, &r, o, err);
    if (!st) st = parse_goodput(&limits, o->goodput, err);
    if (!st) st = parse_metrics(&i, o, err);
    if (!st) st = gm_flag_number(&price, "price-per-hour", o->price, 0, err);
    p.step_by_step = o->step_by_step;
    if (!st) st = gm_sim_run(&result, c, &m, &l, &p, &load, err);
    if (!st) {
        i.request_rate = r.rate;
        i.burstiness = r.burstiness;
        i.concurrency_max = r.concurrency_max;
        gm_summary_init(&sum, &result, &limits);
        json_t *v = gm_report_json(&sum, &i);
        add_metadata(v, o->metadata);
        add_own_keys(v, &sum, &l, o, &m);
        if (o->json) {
            gm_str text = {0};
            gm_json_put(&text, v);
            puts(gm_str_c(&text));
            gm_str_fini(&text);
        } else {
            print_text(&sum, &i, &l, o, &m);
        }
        if (o->save || o->detailed) st = save(v, o, s->model, &i, err);
        json_decref(v);
        gm_summary_fini(&sum);
    }
    gm_sim_result_fini(&result);
    gm_load_fini(&load);
    gm_free(c);
    return st;
}

int gm_cmd_simulate(int argc, char **argv)
{
    options o = {0};
    gm_flag flags[N_FLAGS];
    gm_settings s;
    gm_error err = {0};
    int status;
    list_flags(flags, &o);
    if (gm_foresee_parse(&s, "simulate", flags, argc, argv, &status)) {
        status = 0;
        if (!s.model) gm_fail(&err, GM_EARG, "the following arguments are required: MODEL");
        else simulate(&s, &o, &err);
        if (err.status) {
            fprintf(stderr, "glimmer simulate: error: %s\n", err.message);
            status = err.status == GM_EARG || err.status == GM_ENOTFOUND ? 2 : 1;
        }
        gm_settings_fini(&s);
    }
    gm_flags_free(flags);
    return status;
}
