#include "plan/sim_report.h"

#include <stdio.h>
#include <string.h>

static const char *const metric_titles[][3] = {
    {"TTFT", "Time to First Token", "TTFT"},
    {"TPOT", "Time per Output Token (excl. 1st token)", "TPOT"},
    {"ITL", "Inter-token Latency", "ITL"},
    {"E2EL", "End-to-end Latency", "E2EL"},
};

static void put_percentile_name(char *buf, size_t len, double q)
{
    snprintf(buf, len, q == (int)q ? "%.0f" : "%g", q);
}

static void put_metric_json(json_t *o, const gm_summary *s, const gm_report_info *i, gm_metric m)
{
    char key[64], q[16];
    gm_stats v = gm_summary_stats(s, m);
    const char *n = gm_metric_name(m);
    const struct {
        const char *what;
        double v;
    } figures[] = {{"mean", v.mean}, {"median", v.median}, {"std", v.std}};
    for (int k = 0; k < 3; k++) {
        snprintf(key, sizeof key, "%s_%s_ms", figures[k].what, n);
        json_object_set_new(o, key, json_real(figures[k].v));
    }
    for (int32_t k = 0; k < i->n_percentiles; k++) {
        put_percentile_name(q, sizeof q, i->percentiles[k]);
        snprintf(key, sizeof key, "p%s_%s_ms", q, n);
        json_object_set_new(o, key, json_real(gm_summary_percentile(s, m, i->percentiles[k])));
    }
}

static void put_detailed(json_t *o, const gm_sim_result *r)
{
    json_t *in = json_array(), *n_out = json_array(), *ttft = json_array(), *start = json_array(),
           *errors = json_array();
    for (int32_t k = 0; k < r->n; k++) {
        const gm_sim_request *q = &r->requests[k];
        json_array_append_new(in, json_integer(q->n_in));
        json_array_append_new(n_out, json_integer(q->failed ? 0 : q->n_out));
        json_array_append_new(ttft, json_real((double)(q->first_ns - q->sent_ns) / 1e9));
        json_array_append_new(start, json_real((double)q->sent_ns / 1e9));
        json_array_append_new(errors,
                              json_string(q->failed ? "does not fit the cache or the model length" : ""));
    }
    json_object_set_new(o, "input_lens", in);
    json_object_set_new(o, "output_lens", n_out);
    json_object_set_new(o, "ttfts", ttft);
    json_object_set_new(o, "start_times", start);
    json_object_set_new(o, "errors", errors);
}

json_t *gm_report_json(const gm_summary *s, const gm_report_info *i)
{
    const gm_sim_result *r = s->result;
    json_t *o = json_object();
    json_object_set_new(o, "date", json_string(i->date));
    json_object_set_new(o, "endpoint_type", json_string("simulated"));
    json_object_set_new(o, "backend", json_string("simulated"));
    json_object_set_new(o, "label", i->label ? json_string(i->label) : json_null());
    json_object_set_new(o, "model_id", json_string(i->model));
    json_object_set_new(o, "tokenizer_id", json_string(i->model));
    json_object_set_new(o, "num_prompts", json_integer(r->n));
    json_object_set_new(o, "request_rate",
                        i->request_rate > 0 ? json_real(i->request_rate) : json_string("inf"));
    json_object_set_new(o, "burstiness", json_real(i->burstiness));
    json_object_set_new(o, "max_concurrency",
                        i->concurrency_max ? json_integer(i->concurrency_max) : json_null());
    json_object_set_new(o, "duration", json_real(s->duration_s));
    json_object_set_new(o, "completed", json_integer(s->completed));
    json_object_set_new(o, "failed", json_integer(s->failed));
    json_object_set_new(o, "total_input_tokens", json_integer(s->tokens_in));
    json_object_set_new(o, "total_output_tokens", json_integer(s->tokens_out));
    json_object_set_new(o, "request_throughput", json_real(s->request_rate));
    json_object_set_new(o, "request_goodput", i->goodput ? json_real(s->goodput) : json_null());
    json_object_set_new(o, "output_throughput", json_real(s->output_rate));
    json_object_set_new(o, "total_token_throughput", json_real(s->total_rate));
    if (i->detailed) put_detailed(o, r);
    json_object_set_new(o, "max_output_tokens_per_s", json_real((double)s->tokens_peak));
    json_object_set_new(o, "max_concurrent_requests", json_integer(s->concurrent_peak));
    json_object_set_new(o, "rtfx", json_real(0));
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (i->metrics & 1u << m) put_metric_json(o, s, i, (gm_metric)m);
    return o;
}

static void count(gm_str *out, const char *label, long long v)
{
    gm_str_printf(out, "%-40s %-10lld\n", label, v);
}

static void value(gm_str *out, const char *label, double v)
{
    gm_str_printf(out, "%-40s %-10.2f\n", label, v);
}

static void header(gm_str *out, const char *title, char fill)
{
    int len = (int)strlen(title), left = (50 - len) / 2;
    for (int k = 0; k < 50; k++) {
        if (k == left) gm_str_puts(out, title);
        if (k < left || k >= left + len) gm_str_putc(out, fill);
    }
    gm_str_putc(out, '\n');
}

static void put_metric_text(gm_str *out, const gm_summary *s, const gm_report_info *i, gm_metric m)
{
    char label[64], q[16];
    gm_stats v = gm_summary_stats(s, m);
    const char *n = metric_titles[m][0];
    header(out, metric_titles[m][1], '-');
    snprintf(label, sizeof label, "Mean %s (ms):", n);
    value(out, label, v.mean);
    snprintf(label, sizeof label, "Median %s (ms):", n);
    value(out, label, v.median);
    for (int32_t k = 0; k < i->n_percentiles; k++) {
        put_percentile_name(q, sizeof q, i->percentiles[k]);
        snprintf(label, sizeof label, "P%s %s (ms):", q, n);
        value(out, label, gm_summary_percentile(s, m, i->percentiles[k]));
    }
}

void gm_report_text(gm_str *out, const gm_summary *s, const gm_report_info *i)
{
    header(out, " Serving Benchmark Result ", '=');
    count(out, "Successful requests:", s->completed);
    count(out, "Failed requests:", s->failed);
    if (i->concurrency_max) count(out, "Maximum request concurrency:", i->concurrency_max);
    if (i->request_rate > 0) value(out, "Request rate configured (RPS):", i->request_rate);
    value(out, "Benchmark duration (s):", s->duration_s);
    count(out, "Total input tokens:", s->tokens_in);
    count(out, "Total generated tokens:", s->tokens_out);
    value(out, "Request throughput (req/s):", s->request_rate);
    if (i->goodput) value(out, "Request goodput (req/s):", s->goodput);
    value(out, "Output token throughput (tok/s):", s->output_rate);
    value(out, "Peak output token throughput (tok/s):", (double)s->tokens_peak);
    value(out, "Peak concurrent requests:", s->concurrent_peak);
    value(out, "Total token throughput (tok/s):", s->total_rate);
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (i->metrics & 1u << m) put_metric_text(out, s, i, (gm_metric)m);
    header(out, "", '=');
}

void gm_report_explain(gm_str *out, const gm_sim_result *r)
{
    double all = gm_step_cost_total(&r->cost), dec = gm_step_cost_total(&r->cost_decode);
    gm_str_printf(out, "where the time goes: %lld steps, of which %lld without prompt tokens\n",
                  (long long)r->steps, (long long)r->decode_steps);
    gm_str_printf(out, "  %-52s %10s %8s %12s %8s\n", "part", "all, s", "share", "decode, ms", "share");
    double steps = r->decode_steps > 0 ? (double)r->decode_steps : 1;
#define X(part, what)                                                                                        \
    gm_str_printf(out, "  %-52s %10.2f %7.1f%% %12.3f %7.1f%%\n", what, r->cost.part,                        \
                  all > 0 ? 100 * r->cost.part / all : 0, 1e3 * r->cost_decode.part / steps,                 \
                  dec > 0 ? 100 * r->cost_decode.part / dec : 0);
    GM_COST_PARTS(X)
#undef X
    gm_str_printf(out, "  %-52s %10.2f %8s %12.3f\n", "sum (a decode step, on the right)", all, "",
                  1e3 * dec / steps);
}

json_t *gm_report_explain_json(const gm_sim_result *r)
{
    json_t *o = json_object(), *all = json_object(), *dec = json_object();
#define X(part, what)                                                                                        \
    json_object_set_new(all, #part, json_real(r->cost.part));                                                \
    json_object_set_new(dec, #part, json_real(r->cost_decode.part));
    GM_COST_PARTS(X)
#undef X
    json_object_set_new(o, "steps", json_integer(r->steps));
    json_object_set_new(o, "decode_steps", json_integer(r->decode_steps));
    json_object_set_new(o, "all_s", all);
    json_object_set_new(o, "decode_s", dec);
    return o;
}

void gm_report_memory(gm_str *out, const gm_memory_map *m, const gm_layout *l)
{
    const gm_rank_weights *w = &m->weights;
    const struct {
        const char *what;
        double v;
    } parts[] = {{"embedding", w->embed},
                 {"head", w->head},
                 {"KDA mixers", w->kda},
                 {"MLA mixers", w->mla},
                 {"indexers", w->index},
                 {"dense MLP", w->dense},
                 {"shared experts", w->shared},
                 {"routed experts", w->experts},
                 {"norms, routers, residual mixers", w->rest},
                 {"vision tower", w->vision}};
    gm_str_printf(out, "  memory of one rank, GB\n");
    gm_str_printf(out, "    %-34s %9.3f = %.3f x %.3f\n", "budget", m->budget / 1e9, m->device / 1e9,
                  m->budget / m->device);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].v > 0) gm_str_printf(out, "    - %-32s %9.3f\n", parts[i].what, parts[i].v / 1e9);
    gm_str_printf(out, "    - %-32s %9.3f   (weights together: %.3f)\n", "workspace of the largest step",
                  m->workspace / 1e9, w->total / 1e9);
    gm_str_printf(out, "    - %-32s %9.3f\n", "reserve of the engine (stated)", m->reserve / 1e9);
    gm_str_printf(out, "    = %-32s %9.3f\n", "cache", m->cache / 1e9);
    if (m->n_pages < 1) {
        gm_str_puts(out, "    it does not fit\n");
        return;
    }
    if (m->slot_bytes > 0)
        gm_str_printf(out, "    state: %d slots of %.3f MB = %.3f GB\n", (int)m->n_slots, m->slot_bytes / 1e6,
                      m->n_slots * m->slot_bytes / 1e9);
    gm_str_printf(out, "    pages: %d of %d tokens x %.1f B = %.3f GB%s\n", (int)m->n_pages,
                  (int)m->page_tokens, m->token_bytes, m->n_pages * m->page_bytes / 1e9,
                  l->kv_shard ? " over the ranks" : "");
    if (m->seq_pages)
        gm_str_printf(out, "    each sequence takes %d pages more for its recurrent state\n",
                      (int)m->seq_pages);
    gm_str_printf(out, "    pool: %lld tokens a scheduler, %lld on the node\n", (long long)m->pool_tokens,
                  (long long)m->pool_tokens * l->dp);
}

json_t *gm_report_memory_json(const gm_memory_map *m, const gm_layout *l)
{
    const gm_rank_weights *w = &m->weights;
    json_t *o = json_object(), *p = json_object();
    const struct {
        const char *key;
        double v;
    } weights[] = {{"embed", w->embed}, {"head", w->head},     {"kda", w->kda},       {"mla", w->mla},
                   {"index", w->index}, {"dense", w->dense},   {"shared", w->shared}, {"experts", w->experts},
                   {"rest", w->rest},   {"vision", w->vision}, {"total", w->total}},
      map[] = {{"device_bytes", m->device},
               {"budget_bytes", m->budget},
               {"workspace_bytes", m->workspace},
               {"reserve_bytes", m->reserve},
               {"cache_bytes", m->cache},
               {"bytes_per_token", m->token_bytes},
               {"page_bytes", m->page_bytes},
               {"slot_bytes", m->slot_bytes},
               {"max_model_len_concurrency", m->concurrency}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        json_object_set_new(p, weights[i].key, json_real(weights[i].v));
    json_object_set_new(o, "weights_bytes", p);
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        json_object_set_new(o, map[i].key, json_real(map[i].v));
    json_object_set_new(o, "page_tokens", json_integer(m->page_tokens));
    json_object_set_new(o, "pages", json_integer(m->n_pages));
    json_object_set_new(o, "slots", json_integer(m->n_slots));
    json_object_set_new(o, "pages_per_sequence_for_state", json_integer(m->seq_pages));
    json_object_set_new(o, "pool_tokens_per_scheduler", json_integer(m->pool_tokens));
    json_object_set_new(o, "pool_tokens_node", json_integer(m->pool_tokens * l->dp));
    return o;
}
