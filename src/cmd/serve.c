#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "server/server.h"

typedef struct serving {
    gm_settings s;
    gm_loaded l;
    gm_server *server;
    int listen_fd, port;
    char *tls_key, *tls_cert;
    const char **names;
    char fingerprint[64];
    json_t *env_keys;
} serving;

static void set_log_level(const char *name)
{
    static const struct {
        const char *name;
        gm_log_level level;
    } levels[] = {{"trace", GM_LOG_DEBUG}, {"debug", GM_LOG_DEBUG},  {"info", GM_LOG_INFO},
                  {"warning", GM_LOG_WARNING}, {"error", GM_LOG_ERROR}, {"critical", GM_LOG_ERROR}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(levels[i].name, name)) gm_log_set_level(levels[i].level);
}

static void log_settings(const serving *v)
{
    gm_str text = {0};
    gm_info("vLLM API server version glimmer-" GM_VERSION);
    gm_settings_put_changed(&v->s, &text);
    gm_info("non-default args: %s", gm_str_c(&text));
    gm_str_clear(&text);
    size_t i;
    json_t *f;
    json_array_foreach(v->s.ignored, i, f) gm_str_printf(&text, "%s%s", i ? " " : "", json_string_value(f));
    if (text.len) gm_info("accepted without effect (they choose a GPU library or a process layout): %s", gm_str_c(&text));
    if (gm_settings_given(&v->s, gpu_memory_utilization))
        gm_info("--gpu-memory-utilization has no effect on the CPU; --kv-cache-memory-bytes sets the cache");
    gm_str_fini(&text);
}

static bool parser_known(const char *name)
{
    return !strcmp(name, "glm45") || !strcmp(name, "glm47") || !strcmp(name, "none");
}

static gm_status check_parsers(const gm_settings *s, gm_error *err)
{
    if (!parser_known(s->tool_call_parser))
        return gm_fail(err, GM_EARG, "invalid tool call parser: %.64s (chose from { glm45,glm47,none })", s->tool_call_parser);
    if (!parser_known(s->reasoning_parser))
        return gm_fail(err, GM_EARG, "invalid reasoning parser: %.64s (chose from { glm45,glm47,none })", s->reasoning_parser);
    if (gm_settings_given(s, enable_auto_tool_choice) && s->enable_auto_tool_choice && !strcmp(s->tool_call_parser, "none"))
        return gm_fail(err, GM_EARG, "Error: --enable-auto-tool-choice requires --tool-call-parser");
    if (!s->ssl_keyfile != !s->ssl_certfile)
        return gm_fail(err, GM_EARG, "--ssl-keyfile and --ssl-certfile go together");
    return GM_OK;
}

static gm_status read_text(char **out, const char *path, gm_error *err)
{
    gm_str s = {0};
    char buf[4096];
    FILE *f = fopen(path, "rb");
    if (!f) return gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0 && s.len < 1u << 20;) gm_str_append(&s, buf, n);
    fclose(f);
    *out = gm_str_take(&s);
    return GM_OK;
}

static gm_status open_socket(serving *v, gm_error *err)
{
    const gm_settings *s = &v->s;
    v->port = (int)s->port;
    gm_status st = s->uds ? gm_listen_unix(&v->listen_fd, s->uds, err)
                          : gm_listen_tcp(&v->listen_fd, s->host, (int)s->port, &v->port, err);
    if (!st && s->ssl_keyfile) st = read_text(&v->tls_key, s->ssl_keyfile, err);
    if (!st && s->ssl_certfile) st = read_text(&v->tls_cert, s->ssl_certfile, err);
    return st;
}

static void take_names(serving *v, gm_server_params *p)
{
    size_t n = json_array_size(v->s.served_model_name);
    v->names = gm_new_array(const char *, n + 1);
    for (size_t i = 0; i < n; i++) v->names[i] = json_string_value(json_array_get(v->s.served_model_name, i));
    if (!n) v->names[n++] = v->s.model;
    p->names = v->names;
    p->n_names = (int)n;
}

static const json_t *api_keys(serving *v)
{
    const char *key = getenv("VLLM_API_KEY");
    if (json_array_size(v->s.api_key)) return v->s.api_key;
    if (!key || !*key) return NULL;
    v->env_keys = json_array();
    json_array_append_new(v->env_keys, json_string(key));
    return v->env_keys;
}

static gm_status start_server(serving *v, gm_error *err)
{
    const gm_settings *s = &v->s;
    const gm_loaded *l = &v->l;
    bool text = l->tokenizer != NULL;
    bool tools = text && s->enable_auto_tool_choice && strcmp(s->tool_call_parser, "none");
    snprintf(v->fingerprint, sizeof v->fingerprint, "glimmer-" GM_VERSION "-%08llx",
             (unsigned long long)(XXH3_64bits(&l->config, sizeof l->config) & 0xffffffffu));
    int64_t tokens = (int64_t)l->n_pages * l->foot.page_tokens;
    gm_server_params p = {
        .listen_fd = v->listen_fd,
        .tls_key = v->tls_key,
        .tls_cert = v->tls_cert,
        .engine = l->engine,
        .tokenizer = l->tokenizer,
        .chat = l->chat,
        .root = s->model,
        .fingerprint = v->fingerprint,
        .root_path = s->root_path,
        .response_role = s->response_role,
        .rules = {.vocab_size = l->config.vocab_size,
                  .model_len = l->model_len,
                  .max_logprobs = s->max_logprobs,
                  .has_tokenizer = text,
                  .auto_tools = tools,
                  .clamp_max_tokens = s->clamp_max_tokens,
                  .force_usage = s->enable_force_include_usage,
                  .stream_interval = s->stream_interval,
                  .defaults = l->defaults},
        .eos = l->config.eos,
        .n_eos = l->config.n_eos,
        .default_kwargs = s->default_chat_template_kwargs,
        .api_keys = api_keys(v),
        .cors_origins = s->allowed_origins,
        .cors_methods = s->allowed_methods,
        .cors_headers = s->allowed_headers,
        .cors_credentials = s->allow_credentials,
        .reasoning_parser = text && strcmp(s->reasoning_parser, "none"),
        .tool_parser = tools,
        .special_in_text = s->special_tokens_in_text,
        .reasoning_content = !strcmp(s->reasoning_field, "both"),
        .exclude_tools_when_none = s->exclude_tools_when_tool_choice_none,
        .tokens_as_ids = s->return_tokens_as_token_ids,
        .request_id_headers = s->enable_request_id_headers,
        .prompt_tokens_details = s->enable_prompt_tokens_details,
        .track_load = s->enable_server_load_tracking,
        .log_requests = s->enable_log_requests,
        .access_log = !s->disable_uvicorn_access_log,
        .sse_keep_alive_s = s->sse_keep_alive,
        .health_step_s = s->health_step_timeout,
        .body_max = (size_t)s->max_request_bytes,
        .connections_max = (int)s->max_connections,
        .page_tokens = l->foot.page_tokens,
        .n_pages = l->n_pages,
        .cache_tokens = tokens,
        .cache_concurrency = (double)tokens / l->model_len,
        .cache_dtype = gm_kv_dtype_name(l->kv_dtype),
        .prefix_caching = s->enable_prefix_caching};
    take_names(v, &p);
    v->listen_fd = -1; /* the server's from here on */
    return gm_server_create(&v->server, &p, err);
}

static void log_started(const serving *v)
{
    const gm_settings *s = &v->s;
    gm_info("Supported tasks: ['generate']");
    if (s->uds) gm_info("Starting vLLM server on unix:%s", s->uds);
    else
        gm_info("Starting vLLM server on %s://%s:%d", s->ssl_keyfile ? "https" : "http", s->host ? s->host : "0.0.0.0", v->port);
    gm_server_log_routes();
    gm_info("Started server process [%d]", (int)getpid());
    gm_info("Waiting for application startup.");
    gm_info("Application startup complete.");
}

/* ---- running ---- */

typedef struct rates {
    int64_t at_us, prompt, generated, steps, preemptions;
} rates;

static void log_rates(gm_engine *e, rates *last)
{
    gm_engine_stats *st = gm_new(gm_engine_stats);
    gm_str line = {0};
    gm_engine_stats_get(e, st);
    int64_t now = gm_now_us();
    double dt = 1e-6 * (double)(now - last->at_us);
    bool idle = st->steps == last->steps && !st->waiting && !st->running;
    gm_str_printf(&line,
                  "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d "
                  "reqs, Waiting: %d reqs, ",
                  (double)(st->computed_prompt_tokens - last->prompt) / dt,
                  (double)(st->generation_tokens - last->generated) / dt, (int)st->running, (int)st->waiting);
    if (st->preemptions != last->preemptions)
        gm_str_printf(&line, "Preemptions: %lld, ", (long long)(st->preemptions - last->preemptions));
    gm_str_printf(&line, "GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
                  st->pages_total ? 100.0 * st->pages_used / st->pages_total : 0.0,
                  st->prefix.recent_queries ? 100.0 * (double)st->prefix.recent_hits / (double)st->prefix.recent_queries : 0.0);
    if (idle) gm_debug("%s", gm_str_c(&line));
    else gm_info("%s", gm_str_c(&line));
    *last = (rates){now, st->computed_prompt_tokens, st->generation_tokens, st->steps, st->preemptions};
    gm_str_fini(&line);
    gm_free(st);
}

static bool engine_dead(gm_engine *e)
{
    gm_engine_stats *st = gm_new(gm_engine_stats);
    gm_engine_stats_get(e, st);
    bool dead = st->dead;
    if (dead) gm_err("the engine is dead: %s", st->dead_reason);
    gm_free(st);
    return dead;
}

/* Signals: before the server is up one ends the program; then the first starts the shutdown, the second ends at once. */
static volatile sig_atomic_t serving_now, signals_seen;
static int signal_fds[2] = {-1, -1};

static void on_signal(int sig)
{
    int saved = errno;
    if (!serving_now || signals_seen) _exit(serving_now ? 0 : 128 + sig);
    signals_seen = sig;
    if (write(signal_fds[1], "", 1) < 0) { /* the main thread looks twice a second anyway */
    }
    errno = saved;
}

static gm_status catch_signals(gm_error *err)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (pipe2(signal_fds, O_CLOEXEC | O_NONBLOCK)) return gm_fail(err, GM_EIO, "pipe: %s", strerror(errno));
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    return GM_OK;
}

/* Until a signal; false: the engine died. */
static bool run(serving *v)
{
    const char *env = getenv("VLLM_LOG_STATS_INTERVAL");
    double every = env && atof(env) > 0 && !gm_settings_given(&v->s, log_stats_interval) ? atof(env) : v->s.log_stats_interval;
    rates last = {.at_us = gm_now_us()};
    int64_t next = last.at_us + (int64_t)(every * 1e6);
    for (;;) {
        struct pollfd p = {.fd = signal_fds[0], .events = POLLIN};
        poll(&p, 1, every < 0.5 ? 100 : 500);
        if (signals_seen) {
            gm_info("received %s, shutting down", signals_seen == SIGINT ? "SIGINT" : "SIGTERM");
            return true;
        }
        if (engine_dead(v->l.engine)) return false;
        if (gm_now_us() < next) continue;
        next = gm_now_us() + (int64_t)(every * 1e6);
        if (!v->s.disable_log_stats) log_rates(v->l.engine, &last);
    }
}

static void stop(serving *v)
{
    gm_server_set_draining(v->server);
    gm_engine_drain(v->l.engine, v->s.shutdown_timeout);
    gm_server_wait_idle(v->server, 1.0); /* answers that are written but not sent yet */
    gm_server_destroy(v->server);
    v->server = NULL;
    gm_info("Application shutdown complete.");
}

static gm_status start(serving *v, gm_error *err)
{
    gm_status st = check_parsers(&v->s, err);
    if (!st) st = catch_signals(err);
    if (!st) st = open_socket(v, err);
    if (!st) st = gm_load_front(&v->l, &v->s, err);
    if (!st) st = gm_load_engine(&v->l, &v->s, err);
    if (!st) st = start_server(v, err);
    return st;
}

int gm_cmd_serve(int argc, char **argv)
{
    serving v = {.listen_fd = -1};
    gm_error err = {0};
    int status;
    if (!gm_cmd_settings(&v.s, GM_OPT_SERVE, argc, argv, &status)) return status;
    set_log_level(v.s.uvicorn_log_level);
    log_settings(&v);
    gm_status st = start(&v, &err);
    if (!st) {
        serving_now = 1;
        log_started(&v);
        status = run(&v) ? 0 : 1;
        stop(&v);
    } else {
        gm_err("%s", err.message);
        status = st == GM_EARG ? 2 : 1;
    }
    gm_server_destroy(v.server);
    if (v.listen_fd >= 0) close(v.listen_fd);
    if (v.s.uds && !st) unlink(v.s.uds);
    gm_loaded_fini(&v.l);
    gm_free(v.tls_key);
    gm_free(v.tls_cert);
    gm_free(v.names);
    json_decref(v.env_keys);
    gm_settings_fini(&v.s);
    return status;
}
