#include "server/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"

static const double ttft_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                     1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double n_bounds[] = {1, 2, 5, 10, 20};
static const double http_bounds[] = {0.1, 0.5, 1};

/* 1-2-5 per decade up to the model length. */
static const double *bounds_125(int32_t most, int32_t *n)
{
    double *b = gm_new_array(double, GM_HIST_MAX);
    static const double steps[] = {1, 2, 5};
    double decade = 1;
    for (*n = 0; *n < GM_HIST_MAX;) {
        double v = steps[*n % 3] * decade;
        if (v > most) break;
        b[(*n)++] = v;
        if (*n % 3 == 0) decade *= 10;
    }
    return b;
}

void gm_metrics_init(gm_metrics *m, int32_t model_len)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    m->ttft = (gm_histogram){.bounds = ttft_bounds, .n_bounds = sizeof ttft_bounds / sizeof *ttft_bounds};
    m->params_n = (gm_histogram){.bounds = n_bounds, .n_bounds = sizeof n_bounds / sizeof *n_bounds};
    m->max_generation.bounds = bounds_125(model_len, &m->max_generation.n_bounds);
}

void gm_metrics_fini(gm_metrics *m)
{
    union {
        const double *in;
        double *out;
    } u = {.in = m->max_generation.bounds};
    gm_free(u.out);
    pthread_mutex_destroy(&m->lock);
}

static void observe(gm_histogram *h, double v)
{
    int i = 0;
    while (i < h->n_bounds && v > h->bounds[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum += v;
}

void gm_metrics_observe(gm_metrics *m, gm_histogram *h, double v)
{
    pthread_mutex_lock(&m->lock);
    observe(h, v);
    pthread_mutex_unlock(&m->lock);
}

void gm_metrics_add(gm_metrics *m, int64_t *counter, int64_t n)
{
    pthread_mutex_lock(&m->lock);
    *counter += n;
    pthread_mutex_unlock(&m->lock);
}

void gm_metrics_http(gm_metrics *m, const char *handler, const char *method, int status, double seconds, size_t in,
                     size_t out)
{
    gm_http_series *s = NULL;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n_http && !s; i++)
        if (!strcmp(m->http[i].handler, handler) && !strcmp(m->http[i].method, method)) s = &m->http[i];
    if (!s && m->n_http < GM_HTTP_HANDLERS_MAX) {
        s = &m->http[m->n_http++];
        s->handler = handler;
        snprintf(s->method, sizeof s->method, "%s", method);
        s->seconds = (gm_histogram){.bounds = http_bounds, .n_bounds = sizeof http_bounds / sizeof *http_bounds};
    }
    if (s) {
        s->by_class[status / 100 % 6]++;
        observe(&s->seconds, seconds);
        s->n++;
        s->request_bytes += (double)in;
        s->response_bytes += (double)out;
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- text ---- */

typedef struct writer {
    gm_str *out;
    char labels[512]; /* model_name="...",engine="0" */
} writer;

static void put_number(gm_str *out, double v)
{
    char buf[40];
    snprintf(buf, sizeof buf, "%.17g", v);
    for (int p = 6; p < 17; p++) { /* the shortest form that reads back the same */
        char s[40];
        snprintf(s, sizeof s, "%.*g", p, v);
        if (strtod(s, NULL) == v) {
            memcpy(buf, s, sizeof s);
            break;
        }
    }
    gm_str_puts(out, buf);
    if (!strpbrk(buf, ".en")) gm_str_puts(out, ".0");
}

static void head(writer *w, const char *name, const char *type, const char *help)
{
    gm_str_printf(w->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void line(writer *w, const char *name, const char *extra, double v)
{
    gm_str_printf(w->out, "%s{%s%s%s} ", name, w->labels, *extra ? "," : "", extra);
    put_number(w->out, v);
    gm_str_putc(w->out, '\n');
}

static void gauge(writer *w, const char *name, const char *help, double v)
{
    head(w, name, "gauge", help);
    line(w, name, "", v);
}

static void counter(writer *w, const char *name, const char *help, double v)
{
    char total[96];
    snprintf(total, sizeof total, "%s_total", name);
    head(w, total, "counter", help);
    line(w, total, "", v);
}

static void buckets(gm_str *out, const char *name, const char *labels, const gm_histogram *h)
{
    int64_t below = 0;
    for (int i = 0; i < h->n_bounds; i++) {
        below += h->counts[i];
        gm_str_printf(out, "%s_bucket{%s%sle=\"", name, labels, *labels ? "," : "");
        put_number(out, h->bounds[i]);
        gm_str_printf(out, "\"} %lld.0\n", (long long)below);
    }
    gm_str_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %lld.0\n", name, labels, *labels ? "," : "", (long long)h->n);
    gm_str_printf(out, "%s_count{%s} %lld.0\n%s_sum{%s} ", name, labels, (long long)h->n, name, labels);
    put_number(out, h->sum);
    gm_str_putc(out, '\n');
}

static void histogram(writer *w, const char *name, const char *help, const gm_histogram *h)
{
    if (!h->bounds) return;
    head(w, name, "histogram", help);
    buckets(w->out, name, w->labels, h);
}

static void put_label_value(char *to, size_t cap, const char *s)
{
    size_t n = 0;
    for (; *s && n + 3 < cap; s++) {
        if (*s == '"' || *s == '\\') to[n++] = '\\';
        if (*s == '\n') continue;
        to[n++] = *s;
    }
    to[n] = 0;
}

static void put_engine(writer *w, const gm_metrics *m, const gm_engine_stats *s)
{
    gauge(w, "vllm:num_requests_running", "Number of requests in model execution batches.", s->running);
    gauge(w, "vllm:num_requests_waiting", "Number of requests waiting to be processed.", s->waiting);
    head(w, "vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
    line(w, "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", s->waiting);
    line(w, "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", 0);
    gauge(w, "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
          s->pages_total ? (double)s->pages_used / s->pages_total : 0);
    gauge(w, "glimmer:state_slots_usage_perc", "State slots in use. 1 means 100 percent usage.",
          s->slots_total ? (double)s->slots_used / s->slots_total : 0);
    gauge(w, "glimmer:prefix_cache_pages", "Pages that are cached and held by no request.", s->pages_cached);
    gauge(w, "glimmer:state_snapshots", "Recurrent states kept for resumption.", s->snapshots);
    head(w, "vllm:engine_sleep_state", "gauge", "Engine sleep state.");
    line(w, "vllm:engine_sleep_state", "sleep_state=\"awake\"", 1);
    line(w, "vllm:engine_sleep_state", "sleep_state=\"weights_offloaded\"", 0);
    line(w, "vllm:engine_sleep_state", "sleep_state=\"discard_all\"", 0);

    counter(w, "vllm:num_preemptions", "Cumulative number of preemptions.", (double)s->preemptions);
    counter(w, "vllm:prompt_tokens", "Number of prefill tokens processed.", (double)s->prompt_tokens);
    head(w, "vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.");
    line(w, "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"", (double)(s->prompt_tokens - s->cached_prompt_tokens));
    line(w, "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", (double)s->cached_prompt_tokens);
    line(w, "vllm:prompt_tokens_by_source_total", "source=\"external_kv_transfer\"", 0);
    counter(w, "vllm:prompt_tokens_cached", "Number of cached prompt tokens.", (double)s->cached_prompt_tokens);
    counter(w, "vllm:generation_tokens", "Number of generation tokens processed.", (double)s->generation_tokens);
    counter(w, "vllm:prefix_cache_queries", "Prefix cache queries, in tokens.", (double)s->prefix.queries);
    counter(w, "vllm:prefix_cache_hits", "Prefix cache hits, in tokens.", (double)s->prefix.hits);
    counter(w, "glimmer:prefix_cache_evicted_pages", "Cached pages whose space was taken.", (double)s->pages_evicted);
    counter(w, "glimmer:state_snapshots_taken", "Recurrent states kept.", (double)s->snapshots_taken);
    counter(w, "glimmer:state_snapshots_evicted", "Recurrent states given up for others.", (double)s->snapshots_evicted);

    head(w, "vllm:request_success_total", "counter", "Count of finished requests.");
    static const char *const names[] = {[GM_FINISH_STOP] = "stop",
                                        [GM_FINISH_LENGTH] = "length",
                                        [GM_FINISH_ABORT] = "abort",
                                        [GM_FINISH_ERROR] = "error"};
    for (int i = GM_FINISH_STOP; i <= GM_FINISH_ERROR; i++) {
        char label[48];
        int64_t n = s->finished[i] + (i == GM_FINISH_STOP ? m->stop_strings : 0) - (i == GM_FINISH_ABORT ? m->stop_strings : 0);
        snprintf(label, sizeof label, "finished_reason=\"%s\"", names[i]);
        line(w, "vllm:request_success_total", label, n < 0 ? 0 : (double)n);
    }
    line(w, "vllm:request_success_total", "finished_reason=\"repetition\"", 0);
}

static void put_histograms(writer *w, const gm_metrics *m, const gm_engine_stats *s)
{
    histogram(w, "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m->ttft);
    histogram(w, "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &s->itl_s);
    histogram(w, "vllm:request_time_per_output_token_seconds",
              "Histogram of time_per_output_token_seconds per request.", &s->tpot_s);
    histogram(w, "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &s->e2e_s);
    histogram(w, "vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &s->queue_s);
    histogram(w, "vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
              &s->prefill_s);
    histogram(w, "vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", &s->decode_s);
    histogram(w, "vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
              &s->inference_s);
    histogram(w, "vllm:request_prompt_tokens", "Number of prefill tokens processed.", &s->prompt_len);
    histogram(w, "vllm:request_generation_tokens", "Number of generation tokens processed.", &s->generation_len);
    histogram(w, "vllm:request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
              &m->max_generation);
    histogram(w, "vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", &s->max_tokens_param);
    histogram(w, "vllm:request_params_n", "Histogram of the n request parameter.", &m->params_n);
    histogram(w, "vllm:request_prefill_kv_computed_tokens",
              "Histogram of new KV tokens computed during prefill (excluding cached tokens).", &s->prefill_computed);
    histogram(w, "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", &s->iteration_tokens);
    histogram(w, "vllm:request_num_preemptions", "Histogram of preemptions per request.", &s->preemptions_per_req);
}

static void put_http(writer *w, const gm_metrics *m)
{
    char labels[256];
    head(w, "http_requests_total", "counter", "Total number of requests by method, status and handler.");
    for (int i = 0; i < m->n_http; i++)
        for (int c = 1; c < 6; c++)
            if (m->http[i].by_class[c])
                gm_str_printf(w->out, "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %lld.0\n",
                              m->http[i].handler, m->http[i].method, c, (long long)m->http[i].by_class[c]);
    head(w, "http_request_size_bytes", "summary", "Content length of incoming requests by handler.");
    for (int i = 0; i < m->n_http; i++) {
        gm_str_printf(w->out, "http_request_size_bytes_count{handler=\"%s\"} %lld.0\nhttp_request_size_bytes_sum{handler=\"%s\"} ",
                      m->http[i].handler, (long long)m->http[i].n, m->http[i].handler);
        put_number(w->out, m->http[i].request_bytes);
        gm_str_putc(w->out, '\n');
    }
    head(w, "http_response_size_bytes", "summary", "Content length of outgoing responses by handler.");
    for (int i = 0; i < m->n_http; i++) {
        gm_str_printf(w->out,
                      "http_response_size_bytes_count{handler=\"%s\"} %lld.0\nhttp_response_size_bytes_sum{handler=\"%s\"} ",
                      m->http[i].handler, (long long)m->http[i].n, m->http[i].handler);
        put_number(w->out, m->http[i].response_bytes);
        gm_str_putc(w->out, '\n');
    }
    head(w, "http_request_duration_seconds", "histogram", "Latency by handler and method.");
    for (int i = 0; i < m->n_http; i++) {
        snprintf(labels, sizeof labels, "handler=\"%s\",method=\"%s\"", m->http[i].handler, m->http[i].method);
        buckets(w->out, "http_request_duration_seconds", labels, &m->http[i].seconds);
    }
}

static void plain(writer *w, const char *name, const char *type, const char *help, double v)
{
    head(w, name, type, help);
    gm_str_printf(w->out, "%s ", name);
    put_number(w->out, v);
    gm_str_putc(w->out, '\n');
}

static void put_process(writer *w, double started_s)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &pages, &resident) != 2) pages = resident = 0;
        fclose(f);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    struct rlimit lim = {0};
    getrlimit(RLIMIT_NOFILE, &lim);
    int fds = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d) {
        while (readdir(d)) fds++;
        closedir(d);
        fds -= 3;
    }
    double page = (double)sysconf(_SC_PAGESIZE);
    plain(w, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", (double)pages * page);
    plain(w, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", (double)resident * page);
    plain(w, "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started_s);
    plain(w, "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.",
          (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec));
    plain(w, "process_open_fds", "gauge", "Number of open file descriptors.", fds);
    plain(w, "process_max_fds", "gauge", "Maximum number of open file descriptors.", (double)lim.rlim_cur);
}

void gm_metrics_put(gm_metrics *m, const gm_engine_stats *s, const gm_metrics_info *info, gm_str *out)
{
    writer w = {.out = out};
    char name[400];
    put_label_value(name, sizeof name, info->model);
    snprintf(w.labels, sizeof w.labels, "engine=\"0\",model_name=\"%s\"", name);
    pthread_mutex_lock(&m->lock);
    put_engine(&w, m, s);
    head(&w, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    gm_str_printf(out,
                  "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\",engine=\"0\","
                  "gpu_memory_utilization=\"0.92\",kv_cache_max_concurrency=\"%.2f\",kv_cache_size_tokens=\"%lld\","
                  "num_gpu_blocks=\"%d\"} 1.0\n",
                  (int)info->page_tokens, info->cache_dtype ? info->cache_dtype : "auto", info->prefix_caching ? "True" : "False", info->cache_concurrency,
                  (long long)info->cache_tokens, (int)info->n_pages);
    put_histograms(&w, m, s);
    put_http(&w, m);
    pthread_mutex_unlock(&m->lock);
    put_process(&w, info->started_s);
}
