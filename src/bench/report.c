#include "bench/report.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *header;
} metric_words[GM_METRIC_COUNT] = {
    [GM_METRIC_TTFT] = {"TTFT", "Time to First Token"},
    [GM_METRIC_TPOT] = {"TPOT", "Time per Output Token (excl. 1st token)"},
    [GM_METRIC_ITL] = {"ITL", "Inter-token Latency"},
    [GM_METRIC_E2EL] = {"E2EL", "End-to-end Latency"},
    [GM_METRIC_QUEUE] = {"Client Queue Time", "Client-side Queueing"},
    [GM_METRIC_E2EL_QUEUE] = {"E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"},
};

/* ---- what to report ---- */

static int metric_of(const char *word, size_t n)
{
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (strlen(gm_metric_key[m]) == n && !memcmp(gm_metric_key[m], word, n)) return m;
    return -1;
}

static gm_status read_metrics(bool *shown, const char *list, gm_error *err)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        int m = metric_of(p, n);
        if (m < 0)
            return gm_fail(err, GM_EARG, "argument --percentile-metrics: '%.*s' is not a metric", (int)n, p);
        shown[m] = true;
        p += n + (p[n] == ',');
    }
    return GM_OK;
}

static gm_status read_percentiles(gm_figures_params *fp, const char *list, gm_error *err)
{
    for (const char *p = list; *p;) {
        char *end;
        double v = strtod(p, &end);
        if (end == p || (*end && *end != ',') || !(v >= 0 && v <= 100))
            return gm_fail(err, GM_EARG,
                           "argument --metric-percentiles: '%.64s' is not a list of numbers from 0 to 100",
                           list);
        if (fp->n_percentiles == GM_PERCENTILES_MAX)
            return gm_fail(err, GM_EARG, "argument --metric-percentiles: more than %d", GM_PERCENTILES_MAX);
        fp->percentiles[fp->n_percentiles++] = v;
        p = end + (*end == ',');
    }
    return GM_OK;
}

static gm_status read_goodput(gm_figures_params *fp, const json_t *list, gm_error *err)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        const char *text = json_string_value(item), *colon = strchr(text, ':');
        char *end = NULL;
        int m = colon ? metric_of(text, (size_t)(colon - text)) : -1;
        double v = colon ? strtod(colon + 1, &end) : 0;
        if (m != GM_METRIC_TTFT && m != GM_METRIC_TPOT && m != GM_METRIC_E2EL)
            return gm_fail(err, GM_EARG,
                           "argument --goodput: '%.64s' is not ttft, tpot or e2el, a colon and milliseconds",
                           text);
        if (end == colon + 1 || *end || !(v >= 0))
            return gm_fail(err, GM_EARG, "argument --goodput: '%.64s' has no number of milliseconds", text);
        fp->goodput_ms[m] = v;
        fp->has_goodput = true;
    }
    return GM_OK;
}

gm_status gm_run_report_params_read(gm_figures_params *out, bool shown[GM_METRIC_COUNT], const gm_settings *s,
                                    gm_error *err)
{
    *out = (gm_figures_params){0};
    for (int m = 0; m < GM_METRIC_COUNT; m++) {
        out->goodput_ms[m] = INFINITY;
        shown[m] = false;
    }
    gm_status st = read_metrics(shown, s->percentile_metrics, err);
    if (!st) st = read_percentiles(out, s->metric_percentiles, err);
    return st ? st : read_goodput(out, s->goodput, err);
}

static void shown_metrics(const gm_run_report *r, bool *shown)
{
    gm_figures_params fp;
    gm_run_report_params_read(&fp, shown, r->s, NULL);
    bool limited = gm_settings_given(r->s, max_concurrency),
         paced = isfinite(r->arrivals->rate) || r->arrivals->ramp;
    shown[GM_METRIC_QUEUE] &= limited;
    shown[GM_METRIC_E2EL_QUEUE] &= limited && paced;
}

/* ---- text ---- */

static void put_header(gm_str *out, const char *text, char fill)
{
    int n = (int)strlen(text), pad = n < 50 ? 50 - n : 0;
    for (int i = 0; i < pad / 2; i++) gm_str_putc(out, fill);
    gm_str_puts(out, text);
    for (int i = pad / 2; i < pad; i++) gm_str_putc(out, fill);
    gm_str_putc(out, '\n');
}

static void put_int(gm_str *out, const char *label, int64_t v)
{
    gm_str_printf(out, "%-40s %-10lld\n", label, (long long)v);
}

static void put_real(gm_str *out, const char *label, double v)
{
    gm_str_printf(out, "%-40s %-10.2f\n", label, v);
}

/* 99 or 99.9 */
static void percentile_word(char *word, size_t cap, double p)
{
    snprintf(word, cap, p == floor(p) ? "%.0f" : "%.6g", p);
}

static void put_spread(gm_str *out, const gm_run_report *r, int m)
{
    const gm_spread *v = &r->f->spread[m];
    char label[96], word[32];
    put_header(out, metric_words[m].header, '-');
    snprintf(label, sizeof label, "Mean %s (ms):", metric_words[m].name);
    put_real(out, label, v->mean);
    snprintf(label, sizeof label, "Median %s (ms):", metric_words[m].name);
    put_real(out, label, v->median);
    for (int i = 0; i < r->fp->n_percentiles; i++) {
        percentile_word(word, sizeof word, r->fp->percentiles[i]);
        snprintf(label, sizeof label, "P%s %s (ms):", word, metric_words[m].name);
        put_real(out, label, v->p[i]);
    }
}

typedef struct speculation {
    bool any;
    double rate, length, drafts, draft_tokens, accepted;
    double at[GM_SPEC_POSITIONS];
    int n;
} speculation;

static speculation speculation_of(const gm_run_report *r)
{
    const gm_counters *a = r->before, *b = r->after;
    speculation v = {.drafts = b->drafts - a->drafts,
                     .draft_tokens = b->draft_tokens - a->draft_tokens,
                     .accepted = b->accepted_tokens - a->accepted_tokens};
    v.any = a->spec && b->spec && v.draft_tokens > 0;
    if (!v.any) return v;
    v.rate = 100 * v.accepted / v.draft_tokens;
    v.length = v.drafts > 0 ? 1 + v.accepted / v.drafts : 0;
    v.n = v.drafts > 0 ? b->n_positions : 0;
    for (int i = 0; i < v.n; i++) v.at[i] = (b->accepted_at[i] - a->accepted_at[i]) / v.drafts;
    return v;
}

static void put_speculation(gm_str *out, const gm_run_report *r)
{
    speculation v = speculation_of(r);
    char label[32];
    if (!v.any) return;
    put_header(out, "Speculative Decoding", '-');
    put_real(out, "Acceptance rate (%):", v.rate);
    put_real(out, "Acceptance length:", v.length);
    put_int(out, "Drafts:", (int64_t)v.drafts);
    put_int(out, "Draft tokens:", (int64_t)v.draft_tokens);
    put_int(out, "Accepted tokens:", (int64_t)v.accepted);
    if (v.n) gm_str_puts(out, "Per-position acceptance (%):\n");
    for (int i = 0; i < v.n; i++) {
        snprintf(label, sizeof label, "  Position %d:", i);
        put_real(out, label, 100 * v.at[i]);
    }
}

static void put_failures(gm_str *out, const gm_drive_result *run)
{
    int shown = 0;
    for (size_t i = 0; i < run->n && shown < 10; i++) {
        if (run->outcomes[i].ok) continue;
        if (!shown) gm_str_puts(out, "Failed requests during benchmark run detected (capping to 10):\n");
        gm_str_printf(out, "Error %d: %s\n", shown++, run->outcomes[i].error);
    }
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

static double cpu_percent(const gm_run_report *r)
{
    return r->f->duration_s > 0 ? 100 * r->run->cpu_s / r->f->duration_s : 0;
}

/* How many prompts the server counted otherwise than asked, and the worst difference. */
static int64_t miscounted(const gm_run_report *r, int64_t *worst)
{
    int64_t n = 0;
    *worst = 0;
    for (size_t i = 0; i < r->run->n; i++) {
        const gm_outcome *o = &r->run->outcomes[i];
        int64_t d = o->prompt_tokens - r->samples[i].prompt_len;
        if (!o->ok || !o->usage || r->samples[i].prompt_len < 0 || !d) continue;
        n++;
        if (llabs(d) > llabs(*worst)) *worst = d;
    }
    return n;
}

static double prefix_share(const gm_run_report *r)
{
    double q = r->after->prefix_queries - r->before->prefix_queries;
    return q > 0 ? (r->after->prefix_hits - r->before->prefix_hits) / q : 0;
}

/* What the measuring itself was like; behind the report proper, so that programs that read that one see no
 * difference. */
static void put_client(gm_str *out, const gm_run_report *r)
{
    const gm_figures *f = r->f;
    int64_t worst;
    put_header(out, "Client", '-');
    put_real(out, "Mean send lateness (ms):", f->late_mean_ms);
    put_real(out, "P99 send lateness (ms):", f->late_p99_ms);
    put_real(out, "Max send lateness (ms):", f->late_max_ms);
    put_real(out, "P99 event loop delay (ms):", ms(r->run->loop.p99_ns));
    put_real(out, "Max event loop delay (ms):", ms(r->run->loop.max_ns));
    put_real(out, "Client CPU (% of one core):", cpu_percent(r));
    if (f->chunks) put_real(out, "Output tokens per chunk:", (double)f->output_tokens / (double)f->chunks);
    if (r->counted_prompts && f->completed > f->without_usage)
        put_int(out, "Prompts of another length than asked:", miscounted(r, &worst));
    if (r->before->prefix && r->after->prefix)
        put_real(out, "Prefix cache hits (% of prompt tokens):", 100 * prefix_share(r));
    else gm_str_printf(out, "%-40s %s\n", "Prefix cache hits (% of prompt tokens):", "unknown");
    if (f->cached_tokens >= 0) put_int(out, "Cached prompt tokens (usage):", f->cached_tokens);
}

static void put_warnings(gm_str *out, const gm_run_report *r)
{
    const gm_figures *f = r->f;
    int64_t worst, n = r->counted_prompts ? miscounted(r, &worst) : 0;
    if (!f->completed)
        gm_str_puts(out, "WARNING: All requests failed. This is likely due to a misconfiguration on the "
                         "benchmark arguments.\n");
    if (f->failed && f->completed)
        gm_str_printf(out,
                      "WARNING: %lld of %zu requests failed; they are in the duration and in nothing else.\n",
                      (long long)f->failed, r->run->n);
    if (n)
        gm_str_printf(
            out,
            "WARNING: the server counted %lld prompts otherwise than asked, the worst by %+lld tokens.\n",
            (long long)n, (long long)worst);
    if (f->without_usage)
        gm_str_printf(out, "WARNING: %lld answers came without usage; their tokens were counted here.\n",
                      (long long)f->without_usage);
    if (r->before->prefix && r->after->prefix && prefix_share(r) >= 0.01)
        gm_str_printf(out,
                      "WARNING: the server's prefix cache held %.1f%% of the prompt tokens: this run "
                      "measured a warm cache. Reset "
                      "it, or take another --seed.\n",
                      100 * prefix_share(r));
    double limit = 0.05 * f->spread[GM_METRIC_TTFT].mean;
    if (limit < 10) limit = 10;
    if (f->late_p99_ms > limit || ms(r->run->loop.p99_ns) > limit || cpu_percent(r) > 90)
        gm_str_puts(out,
                    "WARNING: the client itself was slow (see Client above): latencies may be its own.\n");
    double prompt = r->after->prompt_tokens - r->before->prompt_tokens,
           output = r->after->generation_tokens - r->before->generation_tokens;
    if (r->before->tokens && r->after->tokens && !f->failed && !f->without_usage &&
        (prompt != (double)f->input_tokens || output != (double)f->output_tokens))
        gm_str_printf(out,
                      "WARNING: the server's counters moved by %.0f prompt and %.0f output tokens, this "
                      "run's are %lld and "
                      "%lld: somebody else uses the server, or one of the two counts wrongly.\n",
                      prompt, output, (long long)f->input_tokens, (long long)f->output_tokens);
}

void gm_run_report_text(const gm_run_report *r, gm_str *out)
{
    const gm_figures *f = r->f;
    bool shown[GM_METRIC_COUNT];
    shown_metrics(r, shown);
    put_failures(out, r->run);
    gm_str_puts(out, "tip: install termplotlib and gnuplot to plot the metrics\n");
    put_header(out, " Serving Benchmark Result ", '=');
    put_int(out, "Successful requests:", f->completed);
    put_int(out, "Failed requests:", f->failed);
    if (gm_settings_given(r->s, max_concurrency))
        put_int(out, "Maximum request concurrency:", r->s->max_concurrency);
    if (isfinite(r->arrivals->rate)) put_real(out, "Request rate configured (RPS):", r->arrivals->rate);
    put_real(out, "Benchmark duration (s):", f->duration_s);
    put_int(out, "Total input tokens:", f->input_tokens);
    put_int(out, "Total generated tokens:", f->output_tokens);
    put_real(out, "Request throughput (req/s):", f->request_s);
    if (r->fp->has_goodput) put_real(out, "Request goodput (req/s):", f->good_s);
    put_real(out, "Output token throughput (tok/s):", f->output_s);
    put_real(out, "Peak output token throughput (tok/s):", f->peak_chunks_s);
    put_real(out, "Peak concurrent requests:", (double)f->peak_concurrent);
    put_real(out, "Total token throughput (tok/s):", f->total_s);
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (shown[m]) put_spread(out, r, m);
    put_speculation(out, r);
    put_header(out, "", '=');
    put_client(out, r);
    put_header(out, "", '=');
    put_warnings(out, r);
}

/* ---- JSON ---- */

void gm_put_repr(gm_str *out, double v)
{
    char text[40];
    if (!isfinite(v)) {
        gm_str_puts(out, isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    /* Python writes an exponent only from 1e16 on; %g from as many digits as it has */
    if (strchr(text, 'e') && fabs(v) >= 1 && fabs(v) < 1e16) snprintf(text, sizeof text, "%.0f", v);
    gm_str_puts(out, text);
    if (!strpbrk(text, ".e")) gm_str_puts(out, ".0");
}

static void key(gm_str *out, const char *name)
{
    if (out->len && gm_str_c(out)[out->len - 1] != '{') gm_str_puts(out, ", ");
    gm_json_put_string(out, name, strlen(name));
    gm_str_puts(out, ": ");
}

static void key_text(gm_str *out, const char *name, const char *value)
{
    key(out, name);
    if (value) gm_json_put_string(out, value, strlen(value));
    else gm_str_puts(out, "null");
}

static void key_int(gm_str *out, const char *name, int64_t v)
{
    key(out, name);
    gm_str_printf(out, "%lld", (long long)v);
}

static void key_real(gm_str *out, const char *name, double v)
{
    key(out, name);
    gm_put_repr(out, v);
}

static char *trimmed(const char *p, size_t n)
{
    static char buf[512];
    while (n && isspace((unsigned char)*p)) p++, n--;
    while (n && isspace((unsigned char)p[n - 1])) n--;
    snprintf(buf, sizeof buf, "%.*s", (int)(n < sizeof buf ? n : sizeof buf - 1), p);
    return buf;
}

static void put_setup(gm_str *out, const gm_run_report *r)
{
    const gm_settings *s = r->s;
    size_t i;
    json_t *item;
    key_text(out, "date", r->date);
    key_text(out, "endpoint_type", s->backend);
    key_text(out, "backend", s->backend);
    key_text(out, "label", s->label);
    key_text(out, "model_id", r->model_id);
    key_text(out, "tokenizer_id", r->tokenizer_id);
    key_int(out, "num_prompts", s->num_prompts);
    json_array_foreach(s->metadata, i, item)
    {
        const char *text = json_string_value(item), *eq = strchr(text, '=');
        if (!eq) continue;
        key(out, trimmed(text, (size_t)(eq - text)));
        const char *value = trimmed(eq + 1, strlen(eq + 1));
        gm_json_put_string(out, value, strlen(value));
    }
    if (isfinite(r->arrivals->rate)) key_real(out, "request_rate", r->arrivals->rate);
    else key_text(out, "request_rate", "inf");
    key_real(out, "burstiness", r->arrivals->burstiness);
    if (gm_settings_given(s, max_concurrency)) key_int(out, "max_concurrency", s->max_concurrency);
    else key_text(out, "max_concurrency", NULL);
    if (r->arrivals->ramp) {
        key_text(out, "ramp_up_strategy", r->arrivals->ramp);
        key_int(out, "ramp_up_start_rps", r->arrivals->ramp_start);
        key_int(out, "ramp_up_end_rps", r->arrivals->ramp_end);
    }
}

static void put_gaps(gm_str *out, const gm_outcome *o)
{
    gm_str_putc(out, '[');
    for (size_t k = 0; k < o->n_gaps; k++) gm_str_printf(out, "%s%.9g", k ? ", " : "", (double)o->gaps[k]);
    gm_str_putc(out, ']');
}

static void put_text(gm_str *out, const char *text)
{
    gm_json_put_string(out, text ? text : "", text ? strlen(text) : 0);
}

typedef enum column { C_INPUT, C_OUTPUT, C_TTFT, C_GAPS, C_START, C_TEXT, C_ERROR, C_COUNT } column;

/* One list with an entry a request, failed ones included: their figures are 0. */
static void put_column(gm_str *out, const gm_run_report *r, const char *name, column c)
{
    key(out, name);
    gm_str_putc(out, '[');
    for (size_t i = 0; i < r->run->n; i++) {
        const gm_outcome *o = &r->run->outcomes[i];
        if (i) gm_str_puts(out, ", ");
        switch (c) {
        case C_INPUT:
            gm_str_printf(out, "%lld", (long long)o->prompt_tokens);
            break;
        case C_OUTPUT:
            gm_str_printf(out, "%lld", o->ok ? (long long)o->output_tokens : 0LL);
            break;
        case C_TTFT:
            gm_put_repr(out, o->first_ns ? (double)(o->first_ns - o->start_ns) * 1e-9 : 0);
            break;
        case C_GAPS:
            put_gaps(out, o);
            break;
        case C_START:
            gm_put_repr(out, (double)o->start_ns * 1e-9);
            break;
        case C_TEXT:
            put_text(out, o->text);
            break;
        case C_ERROR:
            put_text(out, o->error);
            break;
        case C_COUNT:
            break;
        }
    }
    gm_str_putc(out, ']');
}

static void put_spread_keys(gm_str *out, const gm_run_report *r, int m)
{
    const gm_spread *v = &r->f->spread[m];
    char name[96], word[32];
    snprintf(name, sizeof name, "mean_%s_ms", gm_metric_key[m]);
    key_real(out, name, v->mean);
    snprintf(name, sizeof name, "median_%s_ms", gm_metric_key[m]);
    key_real(out, name, v->median);
    snprintf(name, sizeof name, "std_%s_ms", gm_metric_key[m]);
    key_real(out, name, v->std);
    for (int i = 0; i < r->fp->n_percentiles; i++) {
        percentile_word(word, sizeof word, r->fp->percentiles[i]);
        snprintf(name, sizeof name, "p%s_%s_ms", word, gm_metric_key[m]);
        key_real(out, name, v->p[i]);
    }
}

static void put_speculation_keys(gm_str *out, const gm_run_report *r)
{
    speculation v = speculation_of(r);
    if (!v.any) return;
    key_real(out, "spec_decode_acceptance_rate", v.rate);
    key_real(out, "spec_decode_acceptance_length", v.length);
    key_int(out, "spec_decode_num_drafts", (int64_t)v.drafts);
    key_int(out, "spec_decode_draft_tokens", (int64_t)v.draft_tokens);
    key_int(out, "spec_decode_accepted_tokens", (int64_t)v.accepted);
    key(out, "spec_decode_per_position_acceptance_rates");
    gm_str_putc(out, '[');
    for (int i = 0; i < v.n; i++) {
        if (i) gm_str_puts(out, ", ");
        gm_put_repr(out, v.at[i]);
    }
    gm_str_putc(out, ']');
}

static void put_client_keys(gm_str *out, const gm_run_report *r)
{
    int64_t worst;
    key_real(out, "client_mean_send_lateness_ms", r->f->late_mean_ms);
    key_real(out, "client_p99_send_lateness_ms", r->f->late_p99_ms);
    key_real(out, "client_max_send_lateness_ms", r->f->late_max_ms);
    key_real(out, "client_p99_loop_delay_ms", ms(r->run->loop.p99_ns));
    key_real(out, "client_max_loop_delay_ms", ms(r->run->loop.max_ns));
    key_real(out, "client_cpu_percent", cpu_percent(r));
    key_int(out, "output_chunks", r->f->chunks);
    if (r->counted_prompts) key_int(out, "prompts_of_other_length", miscounted(r, &worst));
    if (r->before->prefix && r->after->prefix) {
        key_int(out, "prefix_cache_queries", (int64_t)(r->after->prefix_queries - r->before->prefix_queries));
        key_int(out, "prefix_cache_hits", (int64_t)(r->after->prefix_hits - r->before->prefix_hits));
    }
}

void gm_run_report_json(const gm_run_report *r, gm_str *out)
{
    const gm_figures *f = r->f;
    bool shown[GM_METRIC_COUNT];
    shown_metrics(r, shown);
    gm_str_putc(out, '{');
    put_setup(out, r);
    key_real(out, "duration", f->duration_s);
    key_int(out, "completed", f->completed);
    key_int(out, "failed", f->failed);
    key_int(out, "total_input_tokens", f->input_tokens);
    key_int(out, "total_output_tokens", f->output_tokens);
    key_real(out, "request_throughput", f->request_s);
    if (r->fp->has_goodput) key_real(out, "request_goodput", f->good_s);
    else key_text(out, "request_goodput", NULL);
    key_real(out, "output_throughput", f->output_s);
    key_real(out, "total_token_throughput", f->total_s);
    if (r->s->save_detailed) {
        put_column(out, r, "input_lens", C_INPUT);
        put_column(out, r, "output_lens", C_OUTPUT);
        put_column(out, r, "ttfts", C_TTFT);
        put_column(out, r, "itls", C_GAPS);
        put_column(out, r, "start_times", C_START);
        put_column(out, r, "generated_texts", C_TEXT);
        put_column(out, r, "errors", C_ERROR);
    }
    key_real(out, "max_output_tokens_per_s", f->peak_chunks_s);
    key_int(out, "max_concurrent_requests", f->peak_concurrent);
    key_real(out, "rtfx", 0);
    if (r->rps_changes) {
        key(out, "rps_change_events");
        gm_json_put(out, r->rps_changes);
    }
    put_speculation_keys(out, r);
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (shown[m]) put_spread_keys(out, r, m);
    put_client_keys(out, r);
    gm_str_putc(out, '}');
}

void gm_run_report_file_name(const gm_run_report *r, gm_str *out)
{
    const gm_settings *s = r->s;
    const char *slash = strrchr(r->model_id, '/'), *model = slash ? slash + 1 : r->model_id;
    if (s->result_filename) {
        gm_str_puts(out, s->result_filename);
        return;
    }
    gm_str_printf(out, "%s-", s->label && *s->label ? s->label : s->backend);
    if (r->arrivals->ramp) {
        gm_str_printf(out, "ramp-up-%s-%lldqps-%lldqps", r->arrivals->ramp,
                      (long long)r->arrivals->ramp_start, (long long)r->arrivals->ramp_end);
    } else {
        if (isfinite(r->arrivals->rate)) gm_put_repr(out, r->arrivals->rate);
        else gm_str_puts(out, "inf");
        gm_str_puts(out, "qps");
    }
    if (gm_settings_given(s, max_concurrency))
        gm_str_printf(out, "-concurrency%lld", (long long)s->max_concurrency);
    gm_str_printf(out, "-%s-%s.json", model, r->date);
}
