#include "bench/bench_serve.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bench/align.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "config/model_config.h"

typedef struct bench {
    const gm_settings *s;
    const gm_bench_env *env;
    gm_arrivals arrivals;
    gm_figures_params fp;
    bool chat, ignore_eos;
    char *base, *url, *id_prefix;
    char *model_id, *model_name; /* the id, and what requests carry */
    char *root;                  /* /v1/models' root of the model; NULL: unknown */
    char *tokenizer_dir;         /* NULL: no tokenizer */
    json_t *headers;
    gm_client *client;
    gm_tokenizer *tokenizer;
    gm_dataset data, warmups;
    gm_body_maker body;
    bool ids_only;
} bench;

static char *printed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *printed(const char *fmt, ...)
{
    gm_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gm_str_vprintf(&s, fmt, ap);
    va_end(ap);
    return gm_str_take(&s);
}

/* ---- settings ---- */

static gm_status check_pairs(const json_t *list, const char *flag, gm_error *err)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) if (!strchr(json_string_value(item), '=')) return gm_fail(
        err, GM_EARG, "argument --%s: '%.64s' is not KEY=VALUE", flag, json_string_value(item));
    return GM_OK;
}

static void make_urls(bench *b)
{
    const gm_settings *s = b->s;
    const char *endpoint = s->endpoint ? s->endpoint : b->chat ? "/v1/chat/completions" : "/v1/completions";
    if (s->base_url) {
        size_t n = strlen(s->base_url);
        while (n && s->base_url[n - 1] == '/') n--;
        b->base = gm_strndup(s->base_url, n);
    } else {
        const char *host = s->host ? s->host : "127.0.0.1";
        b->base =
            printed(strchr(host, ':') ? "http://[%s]:%lld" : "http://%s:%lld", host, (long long)s->port);
    }
    b->url = printed("%s%s", b->base, endpoint);
}

static void make_headers(bench *b)
{
    const char *api_key = b->env->api_key;
    size_t i;
    json_t *item;
    b->headers = json_array();
    if (api_key && *api_key)
        json_array_append_new(b->headers, json_sprintf("Authorization: Bearer %s", api_key));
    json_array_foreach(b->s->header, i, item)
    {
        const char *text = json_string_value(item), *eq = strchr(text, '=');
        json_array_append_new(b->headers, json_sprintf("%.*s: %s", (int)(eq - text), text, eq + 1));
    }
}

static gm_status check_endpoint(const bench *b, gm_error *err)
{
    const char *want = b->chat ? "chat/completions" : "completions";
    size_t n = strlen(b->url), k = strlen(want);
    bool ends = n >= k && !strcmp(b->url + n - k, want);
    if (ends && (b->chat || !strstr(b->url, "chat/completions"))) return GM_OK;
    return gm_fail(err, GM_EARG, "--backend %s talks to an --endpoint that ends in %s, not to %s",
                   b->s->backend, b->chat ? "chat/completions" : "/completions", b->url);
}

static gm_status read_settings(bench *b, gm_error *err)
{
    const gm_settings *s = b->s;
    bool shown[GM_METRIC_COUNT];
    b->chat = !strcmp(s->backend, "openai-chat");
    b->ignore_eos = s->ignore_eos || !strcmp(s->dataset_name, "random");
    gm_status st = gm_arrivals_read(&b->arrivals, s, err);
    if (!st) st = gm_run_report_params_read(&b->fp, shown, s, err);
    if (!st) st = check_pairs(s->header, "header", err);
    if (!st) st = check_pairs(s->metadata, "metadata", err);
    if (!st && s->seed < 0) st = gm_fail(err, GM_EARG, "argument --seed: must not be negative");
    if (st) return st;
    make_urls(b);
    make_headers(b);
    b->id_prefix =
        s->request_id_prefix
            ? gm_strdup(s->request_id_prefix)
            : printed("bench-%08x-", (unsigned)gm_mix64((uint64_t)gm_client_now_ns(), (uint64_t)getpid()));
    return check_endpoint(b, err);
}

/* ---- model and tokenizer ---- */

static bool is_folder_with(const char *dir, const char *file)
{
    if (!dir || !*dir) return false;
    char *path = printed("%s/%s", dir, file);
    bool there = !access(path, R_OK);
    gm_free(path);
    return there;
}

/* The first model of the server, or the one asked for: where its files lie may be said there. */
static gm_status ask_models(bench *b, gm_error *err)
{
    gm_str answer = {0};
    char *url = printed("%s/v1/models", b->base);
    long status = 0;
    json_t *root = NULL;
    gm_status st = gm_client_fetch(b->client, "GET", url, NULL, 20, &status, &answer, err);
    if (!st && status != 200) st = gm_fail(err, GM_EIO, "%s: HTTP %ld", url, status);
    if (!st) st = gm_json_parse(&root, gm_str_c(&answer), answer.len, url, NULL, err);
    const json_t *list = json_object_get(root, "data"), *pick = json_array_get(list, 0);
    size_t i;
    json_t *m;
    json_array_foreach(list, i, m)
    {
        const char *id = json_string_value(json_object_get(m, "id"));
        if (b->model_name && id && !strcmp(id, b->model_name)) pick = m;
    }
    const char *id = json_string_value(json_object_get(pick, "id")),
               *where = json_string_value(json_object_get(pick, "root"));
    if (!st && !id) st = gm_fail(err, GM_EFORMAT, "%s: no models", url);
    if (!st) {
        b->root = where ? gm_strdup(where) : NULL;
        if (!b->model_name) b->model_name = gm_strdup(id);
        if (!b->model_id) b->model_id = gm_strdup(where ? where : id);
    }
    json_decref(root);
    gm_str_fini(&answer);
    gm_free(url);
    return st;
}

/* With a ready check: until the server answers anything at all, so that its model and its tokenizer can be
 * asked for. Whether it can do its work is tried later. */
static void wait_for_any_answer(const bench *b)
{
    gm_str answer = {0};
    char *url = printed("%s/v1/models", b->base);
    int64_t end = gm_client_now_ns() + b->s->ready_check_timeout_sec * 1000000000;
    long status = 0;
    while (gm_client_fetch(b->client, "GET", url, NULL, 20, &status, &answer, NULL) &&
           gm_client_now_ns() + 1000000000 < end && !(b->env->stop && *b->env->stop))
        usleep(1000000);
    gm_free(url);
    gm_str_fini(&answer);
}

static gm_status find_model(bench *b, gm_error *err)
{
    const gm_settings *s = b->s;
    const char *served = json_string_value(json_array_get(s->served_model_name, 0));
    gm_error quiet;
    if (s->model) {
        b->model_id = gm_strdup(s->model);
        b->model_name = gm_strdup(served ? served : s->model);
        ask_models(
            b, &quiet); /* only to learn of the root: a server that is not up yet may be waited for later */
        return GM_OK;
    }
    printf("Model not specified, fetching first model from server...\n");
    gm_status st = ask_models(b, err);
    if (!st) printf("First model name: %s, first model id: %s\n", b->model_name, b->model_id);
    return st;
}

static gm_status open_tokenizer(bench *b, gm_error *err)
{
    const gm_settings *s = b->s;
    if (s->skip_tokenizer_init) return GM_OK;
    const char *places[] = {s->tokenizer, b->model_id, b->root};
    for (int i = 0; i < 3 && !b->tokenizer_dir; i++) {
        if (is_folder_with(places[i], "tokenizer.json")) b->tokenizer_dir = gm_strdup(places[i]);
        if (s->tokenizer) break;
    }
    if (b->tokenizer_dir) return gm_tokenizer_open(&b->tokenizer, b->tokenizer_dir, err);
    if (s->tokenizer)
        return gm_fail(err, GM_ENOTFOUND, "--tokenizer %s: no tokenizer.json there", s->tokenizer);
    return gm_fail(
        err, GM_ENOTFOUND,
        "no tokenizer.json in '%s'%s%s: give --tokenizer FOLDER, or --skip-tokenizer-init to send token ids",
        b->model_id, b->root ? " nor in " : "", b->root ? b->root : "");
}

static const char *config_folder(const bench *b)
{
    const char *places[] = {b->tokenizer_dir, b->model_id, b->root};
    for (int i = 0; i < 3; i++)
        if (is_folder_with(places[i], "config.json")) return places[i];
    return NULL;
}

/* ---- prompts ---- */

static gm_status draw_prompts(bench *b, gm_error *err)
{
    gm_dataset_params p = {.tokenizer = b->tokenizer, .model_dir = config_folder(b), .chat = b->chat};
    gm_model_config config;
    gm_status st = GM_OK;
    p.keep_ids = !b->chat && !strcmp(b->s->dataset_name, "random");
    if (!b->tokenizer && !strcmp(b->s->dataset_name, "random")) {
        if (b->chat)
            return gm_fail(err, GM_EARG,
                           "--skip-tokenizer-init sends token ids, which chat completions do not take");
        if (!p.model_dir)
            return gm_fail(err, GM_EARG,
                           "--skip-tokenizer-init: the vocabulary's size is not known; give --model a folder "
                           "with a config.json");
        if ((st = gm_model_config_load(&config, p.model_dir, NULL, err))) return st;
        p.vocab_size = config.vocab_size;
    }
    st = gm_dataset_draw(&b->data, b->s, &p, err);
    if (st) return st;
    if (b->data.n_repaired)
        printf("%zu of %zu prompts did not survive decoding and encoding at their length (%+lld tokens in "
               "all): their last "
               "words were replaced.\n",
               b->data.n_repaired, b->data.n, (long long)b->data.token_mismatch);
    if (b->data.n_oversampled) printf("Oversampled requests to reach %zu total samples.\n", b->data.n);
    size_t extra = (size_t)b->s->num_warmups + (b->s->ready_check_timeout_sec > 0);
    if (!b->tokenizer && strcmp(b->s->dataset_name, "random") && extra)
        return gm_fail(err, GM_EARG,
                       "warm-ups and the ready check make prompts of their own: they need --tokenizer");
    if ((st = gm_dataset_draw_warmups(&b->warmups, &b->data, extra, (uint64_t)b->s->seed, &p, err)))
        return st;
    bool random = !strcmp(b->s->dataset_name, "random");
    if (!random || b->chat || !b->tokenizer) return GM_OK;
    st = gm_align_to_server(&b->data, b->client, b->base, b->model_name, &b->ids_only, err);
    for (size_t i = 0; i < b->data.n; i++) {
        gm_sample *s = &b->data.samples[i];
        if (b->ids_only) gm_free(s->text), s->text = NULL, s->text_len = 0;
        else gm_free(s->ids), s->ids = NULL;
    }
    for (size_t i = 0; i < b->warmups.n && b->ids_only; i++) {
        gm_sample *s = &b->warmups.samples[i];
        gm_free(s->text), s->text = NULL, s->text_len = 0;
    }
    return st;
}

/* ---- runs ---- */

static gm_status drive(bench *b, gm_drive_result *r, const gm_sample *samples, size_t n, const double *at,
                       const char *tag, gm_progress *bar, gm_error *err)
{
    char *prefix = printed("%s%s", b->id_prefix, tag);
    gm_drive_params p = {.client = b->client,
                         .url = b->url,
                         .id_prefix = prefix,
                         .body = &b->body,
                         .tokenizer = b->tokenizer,
                         .samples = samples,
                         .n = n,
                         .arrive_s = at,
                         .max_concurrency = b->s->max_concurrency,
                         .keep_text = at && b->s->save_detailed,
                         .on_progress = bar ? gm_progress_show : NULL,
                         .user = bar,
                         .stop = b->env->stop};
    gm_status st = gm_drive(r, &p, err);
    gm_free(prefix);
    return st;
}

static gm_status wait_ready(bench *b, gm_error *err)
{
    int64_t end = gm_client_now_ns() + b->s->ready_check_timeout_sec * 1000000000;
    for (;;) {
        gm_drive_result r = {0};
        gm_status st = drive(b, &r, &b->warmups.samples[b->s->num_warmups], 1, NULL, "ready-", NULL, err);
        bool ok = !st && r.outcomes[0].ok;
        if (!st && !ok)
            gm_fail(err, GM_EIO,
                    "Initial test run failed - Please make sure benchmark arguments are correctly specified. "
                    "Error: %s",
                    r.outcomes[0].error);
        gm_drive_result_fini(&r);
        if (st || ok) {
            if (ok) printf("Initial test run completed.\n");
            return st;
        }
        if (gm_client_now_ns() + 5000000000 > end) return GM_EIO;
        for (int i = 0; i < 50 && !(b->env->stop && *b->env->stop); i++) usleep(100000);
    }
}

static gm_status warm_up(bench *b, gm_error *err)
{
    gm_drive_result r = {0};
    size_t n = (size_t)b->s->num_warmups, failed = 0;
    if (!n) return GM_OK;
    printf("Warming up with %zu requests...\n", n);
    gm_status st = drive(b, &r, b->warmups.samples, n, NULL, "warmup-", NULL, err);
    if (st) return st;
    for (size_t i = 0; i < n; i++) failed += !r.outcomes[i].ok;
    if (failed) {
        for (size_t i = 0; i < n; i++)
            if (!r.outcomes[i].ok) {
                printf("WARNING: %zu of %zu warm-ups failed, the first with: %s\n", failed, n,
                       r.outcomes[i].error);
                break;
            }
    }
    gm_drive_result_fini(&r);
    printf("Warmup run completed.\n");
    return GM_OK;
}

static void scrape(bench *b, gm_counters *out)
{
    gm_str text = {0};
    char *url = printed("%s/metrics", b->base);
    long status = 0;
    *out = (gm_counters){0};
    if (!gm_client_fetch(b->client, "GET", url, NULL, 30, &status, &text, NULL) && status == 200)
        gm_counters_read(out, gm_str_c(&text), text.len);
    gm_free(url);
    gm_str_fini(&text);
}

/* After the run. Servers count in steps of their own: a few looks until the counters have caught up. */
static void scrape_after(bench *b, const gm_counters *before, const gm_figures *f, gm_counters *out)
{
    for (int i = 0; i < 5; i++) {
        scrape(b, out);
        bool caught_up = out->generation_tokens - before->generation_tokens >= (double)f->output_tokens &&
                         out->prompt_tokens - before->prompt_tokens >= (double)f->input_tokens;
        if (!out->tokens || !before->tokens || caught_up) return;
        usleep(200000);
    }
}

static void profile(bench *b, bool start)
{
    gm_str text = {0};
    long status = 0;
    char *url = printed("%s/%s_profile", b->base, start ? "start" : "stop");
    printf("%s profiler...\n", start ? "Starting" : "Stopping");
    if (!gm_client_fetch(b->client, "POST", url, NULL, 600, &status, &text, NULL) && status == 200)
        printf("Profiler %s\n", start ? "started" : "stopped");
    else printf("WARNING: %s: HTTP %ld\n", url, status);
    gm_free(url);
    gm_str_fini(&text);
}

static void announce(const bench *b)
{
    gm_str t = {0};
    const gm_arrivals *a = &b->arrivals;
    printf("Starting main benchmark run...\n");
    if (a->ramp) {
        printf("Traffic ramp-up strategy: %s.\n", a->ramp);
        printf("Will increase RPS from %lld to %lld RPS over the duration of the benchmark.\n",
               (long long)a->ramp_start, (long long)a->ramp_end);
    } else {
        if (isfinite(a->rate)) gm_put_repr(&t, a->rate);
        else gm_str_puts(&t, "inf");
        printf("Traffic request rate: %s\n", gm_str_c(&t));
    }
    gm_str_clear(&t);
    if (isfinite(a->burstiness)) gm_put_repr(&t, a->burstiness);
    else gm_str_puts(&t, "inf");
    printf("Burstiness factor: %s (%s)\n", gm_str_c(&t),
           a->burstiness == 1.0 ? "Poisson process" : "Gamma distribution");
    if (gm_settings_given(b->s, max_concurrency))
        printf("Maximum request concurrency: %lld\n", (long long)b->s->max_concurrency);
    else printf("Maximum request concurrency: None\n");
    gm_str_fini(&t);
}

/* Each whole number of requests/s that a ramp passes, with the wall time at which it did. */
static json_t *rps_changes(const bench *b, const double *at, const double *rates, size_t n, double begun_wall)
{
    if (!b->arrivals.ramp) return NULL;
    json_t *list = json_array();
    int64_t last = b->arrivals.ramp_start - 1;
    for (size_t i = 0; i < n; i++)
        for (; last < (int64_t)rates[i]; last++) {
            double t = begun_wall + (i ? at[i] : 0);
            time_t whole = (time_t)t;
            struct tm tm;
            char text[64];
            localtime_r(&whole, &tm);
            size_t k = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
            snprintf(text + k, sizeof text - k, ".%06d", (int)((t - (double)whole) * 1e6));
            json_array_append_new(list,
                                  json_pack("{s:I, s:s}", "rps", (json_int_t)(last + 1), "timestamp", text));
        }
    return list;
}

/* ---- the file ---- */

static gm_status make_folders(const char *dir, gm_error *err)
{
    char *path = gm_strdup(dir);
    gm_status st = GM_OK;
    for (char *p = path + 1; !st; p++) {
        if (*p && *p != '/') continue;
        char keep = *p;
        *p = 0;
        if (mkdir(path, 0777) && errno != EEXIST) st = gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
        *p = keep;
        if (!keep) break;
    }
    gm_free(path);
    return st;
}

/* Whole or not at all: written beside the place and moved there. */
static gm_status write_file(const char *path, const gm_str *text, gm_error *err)
{
    char *tmp = printed("%s.part", path);
    FILE *f = fopen(tmp, "wb");
    bool ok = f && fwrite(gm_str_c(text), 1, text->len, f) == text->len;
    ok = f && !fclose(f) && ok;
    ok = ok && !rename(tmp, path);
    gm_status st = ok ? GM_OK : gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    gm_free(tmp);
    return st;
}

static gm_status append_file(const char *path, const gm_str *text, gm_error *err)
{
    FILE *f = fopen(path, "ab");
    bool ok = f && (fseek(f, 0, SEEK_END) || ftell(f) == 0 || fputc('\n', f) != EOF) &&
              fwrite(gm_str_c(text), 1, text->len, f) == text->len;
    ok = f && !fclose(f) && ok;
    return ok ? GM_OK : gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
}

static gm_status save(const gm_run_report *r, gm_error *err)
{
    const gm_settings *s = r->s;
    gm_str text = {0}, name = {0};
    gm_status st = GM_OK;
    if (!s->save_result && !s->append_result) return GM_OK;
    if (s->result_dir) {
        st = make_folders(s->result_dir, err);
        gm_str_printf(&name, "%s/", s->result_dir);
    }
    gm_run_report_file_name(r, &name);
    gm_run_report_json(r, &text);
    if (!st)
        st = s->append_result ? append_file(gm_str_c(&name), &text, err)
                              : write_file(gm_str_c(&name), &text, err);
    gm_str_fini(&text);
    gm_str_fini(&name);
    return st;
}

/* ---- all together ---- */

static gm_status measure(bench *b, int64_t *completed, gm_error *err)
{
    size_t n = b->data.n;
    double *at = gm_new_array(double, 2 * n), *rates = at + n;
    gm_drive_result run = {0};
    gm_counters before, after;
    gm_figures f;
    json_t *changes = NULL;
    char date[32];
    gm_progress bar = {.on = !b->s->disable_tqdm && isatty(STDERR_FILENO)};
    gm_status st = gm_arrivals_fill(&b->arrivals, at, rates, n, err);
    if (st) {
        gm_free(at);
        return st;
    }
    announce(b);
    if (b->s->profile) profile(b, true);
    scrape(b, &before);
    fflush(stdout);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    st = drive(b, &run, b->data.samples, n, at, "", bar.on ? &bar : NULL, err);
    gm_progress_end(&bar);
    if (!st) {
        gm_figures_compute(&f, &run, &b->fp);
        scrape_after(b, &before, &f, &after);
        changes = rps_changes(b, at, rates, n, (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec);
        time_t now = time(NULL);
        struct tm tm;
        localtime_r(&now, &tm);
        strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm);
        gm_run_report r = {.s = b->s,
                           .arrivals = &b->arrivals,
                           .fp = &b->fp,
                           .f = &f,
                           .run = &run,
                           .samples = b->data.samples,
                           .before = &before,
                           .after = &after,
                           .model_id = b->model_id,
                           .tokenizer_id = b->s->tokenizer    ? b->s->tokenizer
                                           : b->tokenizer_dir ? b->model_id
                                                              : NULL,
                           .date = date,
                           .rps_changes = changes,
                           .counted_prompts = !b->chat};
        gm_str text = {0};
        gm_run_report_text(&r, &text);
        fputs(gm_str_c(&text), stdout);
        gm_str_fini(&text);
        if (b->s->profile) profile(b, false);
        *completed = f.completed;
        st = save(&r, err);
    }
    json_decref(changes);
    gm_drive_result_fini(&run);
    gm_free(at);
    return st;
}

static gm_status prepare(bench *b, gm_error *err)
{
    gm_status st = read_settings(b, err);
    if (st) return st;
    int64_t most = b->s->max_concurrency > 0 && b->s->max_concurrency < b->s->num_prompts
                       ? b->s->max_concurrency
                       : b->s->num_prompts;
    gm_error few;
    if (!gm_client_allow_sockets(most + 64, &few)) printf("WARNING: %s\n", few.message);
    gm_client_params cp = {.streams_max = (int)most,
                           .insecure = b->s->insecure,
                           .curl_only = b->env->proxy,
                           .headers = b->headers};
    st = gm_client_open(&b->client, &cp, err);
    if (!st) gm_client_look_up(b->client, b->url);
    if (!st && b->s->ready_check_timeout_sec > 0) wait_for_any_answer(b);
    if (!st) st = find_model(b, err);
    if (!st) st = open_tokenizer(b, err);
    if (!st) st = draw_prompts(b, err);
    if (!st) gm_body_maker_init(&b->body, b->s, b->chat, b->model_name, b->ignore_eos);
    return st;
}

static void bench_fini(bench *b)
{
    gm_client_close(b->client);
    gm_body_maker_fini(&b->body);
    gm_dataset_fini(&b->data);
    gm_dataset_fini(&b->warmups);
    gm_tokenizer_close(b->tokenizer);
    json_decref(b->headers);
    gm_free(b->base);
    gm_free(b->url);
    gm_free(b->id_prefix);
    gm_free(b->model_id);
    gm_free(b->model_name);
    gm_free(b->root);
    gm_free(b->tokenizer_dir);
}

gm_status gm_bench_serve(const gm_settings *s, const gm_bench_env *env, int64_t *completed, gm_error *err)
{
    bench b = {.s = s, .env = env};
    *completed = 0;
    gm_status st = prepare(&b, err);
    if (!st) {
        if (!gm_settings_given(s, temperature) &&
            !(s->extra_body && json_object_get(s->extra_body, "temperature")))
            printf("WARNING: temperature is not set: the server's default applies. --temperature 0 is "
                   "greedy.\n");
        printf("Starting initial single prompt test run...\n");
        if (s->ready_check_timeout_sec > 0) st = wait_ready(&b, err);
        else printf("Skipping endpoint ready check.\n");
    }
    if (!st) st = warm_up(&b, err);
    if (!st) st = measure(&b, completed, err);
    bench_fini(&b);
    return st;
}
