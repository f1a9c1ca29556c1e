#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/server_internal.h"

#define CONNECTION_MEMORY (64 * 1024) /* head of a request and write buffer; a longer head is answered 431 */
#define IDLE_TIMEOUT_S 75
#define STREAM_BLOCK (16 * 1024)
#define BODIES_MAX (2ll << 30)   /* of all open requests together */
#define PREPARE_MAX 8192
#define DRAIN_FACTOR 4 /* so many times the limit of a refused body is read, so that its sender sees the answer */

enum { M_GET = 1, M_POST = 2 };

static const gm_route routes[] = {
    {"/health", M_GET, R_HEALTH, 0, true, true},
    {"/ping", M_GET | M_POST, R_HEALTH, 0, true, true},
    {"/version", M_GET, R_VERSION, 0, true, true},
    {"/load", M_GET, R_LOAD, 0, false, true},
    {"/metrics", M_GET, R_METRICS, 0, true, true},
    {"/v1/models", M_GET, R_MODELS, 0, false, false},
    {"/v1/chat/completions", M_POST, R_WORK, GM_API_CHAT, false, false},
    {"/v1/completions", M_POST, R_WORK, GM_API_COMPLETION, false, false},
    {"/tokenize", M_POST, R_WORK, GM_API_TOKENIZE, false, false},
    {"/detokenize", M_POST, R_WORK, GM_API_DETOKENIZE, false, false},
    {"/reset_prefix_cache", M_POST, R_RESET, 0, false, false},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };

static const char *methods_text(int methods)
{
    return methods == M_GET ? "GET, HEAD" : methods == M_POST ? "POST" : "GET, HEAD, POST";
}

void gm_server_log_routes(void)
{
    gm_info("Available routes are:");
    for (int i = 0; i < N_ROUTES; i++) gm_info("Route: %s, Methods: %s", routes[i].path, methods_text(routes[i].methods));
}

void gm_random_hex(char *out, int n)
{
    unsigned char raw[64];
    if (getrandom(raw, (size_t)n, 0) != n) memset(raw, 0, sizeof raw);
    for (int i = 0; i < n; i++) out[i] = "0123456789abcdef"[raw[i] & 15];
    out[n] = 0;
}

/* ---- jobs ---- */

static gm_job *job_create(gm_server *s)
{
    gm_job *j = gm_new(gm_job);
    j->srv = s;
    atomic_init(&j->refs, 1);
    pthread_mutex_init(&j->lock, NULL);
    j->events_tail = &j->events;
    j->fd = -1;
    j->begun_us = gm_now_us();
    pthread_mutex_lock(&s->jobs_lock);
    j->next = s->jobs;
    if (s->jobs) s->jobs->prev = j;
    s->jobs = j;
    s->n_jobs++;
    pthread_mutex_unlock(&s->jobs_lock);
    return j;
}

void gm_job_ref(gm_job *j)
{
    atomic_fetch_add(&j->refs, 1);
}

/* False: the last reference is gone already and the job is about to be freed. */
static bool job_try_ref(gm_job *j)
{
    int n = atomic_load(&j->refs);
    while (n > 0 && !atomic_compare_exchange_weak(&j->refs, &n, n + 1)) {
    }
    return n > 0;
}

void gm_job_unref(gm_job *j)
{
    if (atomic_fetch_sub(&j->refs, 1) != 1) return;
    gm_server *s = j->srv;
    pthread_mutex_lock(&s->jobs_lock);
    if (j->prev) j->prev->next = j->next;
    else s->jobs = j->next;
    if (j->next) j->next->prev = j->prev;
    s->n_jobs--;
    pthread_mutex_unlock(&s->jobs_lock);
    if (j->counted_load) atomic_fetch_sub(&s->load, 1);
    atomic_fetch_sub(&s->body_bytes, (long long)j->body.cap);
    gm_job_events_free(j->events);
    for (int32_t i = 0; i < j->n_choices; i++) gm_choice_fini(&j->choices[i]);
    gm_free(j->choices);
    for (int i = 0; i < j->n_prompts; i++) gm_ids_fini(&j->prompts[i]);
    gm_free(j->prompts);
    gm_api_request_fini(&j->req);
    gm_str_fini(&j->body);
    gm_str_fini(&j->out);
    gm_free(j->header_id);
    gm_free(j->origin);
    pthread_mutex_destroy(&j->lock);
    gm_free(j);
}

/* Under the job's lock. */
static void wake(gm_job *j)
{
    if (!j->suspended || !j->conn) return;
    j->suspended = false;
    MHD_resume_connection(j->conn);
}

bool gm_job_gone(gm_job *j)
{
    pthread_mutex_lock(&j->lock);
    bool gone = j->gone;
    pthread_mutex_unlock(&j->lock);
    return gone;
}

void gm_job_answer(gm_job *j, int status, gm_str *body)
{
    pthread_mutex_lock(&j->lock);
    j->status = status;
    gm_str_fini(&j->out);
    j->out = *body;
    *body = (gm_str){0};
    j->stage = GM_STAGE_READY;
    wake(j);
    pthread_mutex_unlock(&j->lock);
}

void gm_job_answer_error(gm_job *j, const gm_api_error *e)
{
    gm_str s = {0};
    gm_api_error_put(e, &s);
    j->retry_after = e->retry_after;
    gm_job_answer(j, e->status, &s);
}

void gm_job_start_stream(gm_job *j)
{
    pthread_mutex_lock(&j->lock);
    j->status = 200;
    j->streaming = true;
    j->stage = GM_STAGE_READY;
    j->last_out_us = gm_now_us();
    wake(j);
    pthread_mutex_unlock(&j->lock);
}

void gm_job_stream(gm_job *j, const gm_str *bytes, bool end)
{
    pthread_mutex_lock(&j->lock);
    gm_str_append(&j->out, gm_str_c(bytes), bytes->len);
    j->last_out_us = gm_now_us();
    if (end) j->out_done = true;
    wake(j);
    pthread_mutex_unlock(&j->lock);
}

/* The engine takes its sink's lock last, so its queue is never entered with ours held. */
void gm_job_cancel(gm_job *j)
{
    for (int32_t i = 0;; i++) {
        pthread_mutex_lock(&j->lock);
        gm_request_id id = 0;
        while (i < j->n_choices && (!j->choices[i].submitted || j->choices[i].engine_done)) i++;
        bool more = i < j->n_choices;
        if (more) id = j->choices[i].id;
        pthread_mutex_unlock(&j->lock);
        if (!more) return;
        if (id) gm_engine_cancel(j->srv->p.engine, id);
    }
}

static void job_lost(gm_job *j)
{
    pthread_mutex_lock(&j->lock);
    j->gone = true;
    wake(j);
    pthread_mutex_unlock(&j->lock);
    gm_job_cancel(j);
}

/* ---- queues ---- */

static void queue_init(gm_job_queue *q, int n_max)
{
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, NULL);
    q->n_max = n_max;
}

static void queue_close(gm_job_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

bool gm_job_queue_push(gm_job_queue *q, gm_job *j)
{
    pthread_mutex_lock(&q->lock);
    bool ok = !q->closed && q->n < q->n_max;
    if (ok) {
        gm_job_ref(j);
        j->queue_next = NULL;
        if (q->tail) q->tail->queue_next = j;
        else q->head = j;
        q->tail = j;
        q->n++;
        pthread_cond_signal(&q->more);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

/* NULL: closed and empty. */
static gm_job *queue_pop(gm_job_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (!q->head && !q->closed) pthread_cond_wait(&q->more, &q->lock);
    gm_job *j = q->head;
    if (j) {
        q->head = j->queue_next;
        if (!q->head) q->tail = NULL;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return j;
}

static void *prepare_main(void *arg)
{
    gm_server *s = arg;
    for (gm_job *j; (j = queue_pop(&s->prepare));) {
        if (!gm_job_gone(j)) gm_job_prepare(j);
        gm_job_unref(j);
    }
    return NULL;
}

static void *write_main(void *arg)
{
    gm_server *s = arg;
    for (gm_job *j; (j = queue_pop(&s->write));) {
        gm_job_write(j);
        gm_job_unref(j);
    }
    return NULL;
}

void gm_job_to_writer(gm_job *j)
{
    gm_job_queue_push(&j->srv->write, j);
}

/* ---- the watcher: sockets of suspended connections ---- */

/* libmicrohttpd does not look at a suspended connection's socket, so an epoll set of ours does. Entries are found by
 * descriptor and generation: an event that was fetched before its connection ended must not reach the next one. */
static void watch_add(gm_job *j)
{
    gm_server *s = j->srv;
    pthread_mutex_lock(&s->watch_lock);
    if (j->fd >= s->n_watch) {
        int n = j->fd + 256;
        s->watch = gm_realloc_array(s->watch, (size_t)n, sizeof *s->watch);
        memset(s->watch + s->n_watch, 0, (size_t)(n - s->n_watch) * sizeof *s->watch);
        s->n_watch = n;
    }
    s->watch[j->fd].job = j;
    j->watch = ++s->watch[j->fd].gen;
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = (uint64_t)j->watch << 32 | (uint32_t)j->fd};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, j->fd, &ev) && errno == EEXIST)
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, j->fd, &ev);
    pthread_mutex_unlock(&s->watch_lock);
}

static void watch_remove(gm_job *j)
{
    gm_server *s = j->srv;
    if (!j->watch) return;
    pthread_mutex_lock(&s->watch_lock);
    if (s->watch[j->fd].job == j) {
        s->watch[j->fd].job = NULL;
        epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, j->fd, NULL);
    }
    pthread_mutex_unlock(&s->watch_lock);
    j->watch = 0;
}

static void watch_event(gm_server *s, uint64_t data)
{
    int fd = (int)(uint32_t)data;
    gm_job *j = NULL;
    pthread_mutex_lock(&s->watch_lock);
    if (fd < s->n_watch && s->watch[fd].job && s->watch[fd].gen == data >> 32) {
        j = s->watch[fd].job;
        gm_job_ref(j);
    }
    pthread_mutex_unlock(&s->watch_lock);
    if (!j) return;
    job_lost(j);
    gm_job_unref(j);
}

static void keep_alive(gm_server *s, int64_t now)
{
    int64_t gap = (int64_t)(s->p.sse_keep_alive_s * 1e6);
    static const char comment[] = ": keep-alive\n\n";
    pthread_mutex_lock(&s->jobs_lock);
    for (gm_job *j = s->jobs; j; j = j->next) {
        pthread_mutex_lock(&j->lock);
        if (j->streaming && !j->out_done && !j->gone && now - j->last_out_us >= gap && j->out.len == j->out_pos) {
            gm_str_append(&j->out, comment, sizeof comment - 1);
            j->last_out_us = now;
            wake(j);
        }
        pthread_mutex_unlock(&j->lock);
    }
    pthread_mutex_unlock(&s->jobs_lock);
}

/* Work that waits while no step ends means that the engine hangs, whatever its thread says. */
static void look_at_engine(gm_server *s, int64_t now, int64_t *idle_us)
{
    gm_engine_stats *st = gm_new(gm_engine_stats);
    gm_engine_stats_get(s->p.engine, st);
    if (!st->running && !st->waiting) *idle_us = now;
    int64_t since = st->last_step_us > *idle_us ? st->last_step_us : *idle_us;
    atomic_store(&s->stuck, s->p.health_step_s > 0 && now - since > (int64_t)(s->p.health_step_s * 1e6));
    gm_free(st);
}

static void *watch_main(void *arg)
{
    gm_server *s = arg;
    struct epoll_event ev[64];
    int64_t idle_us = gm_now_us(), looked_us = 0;
    while (!atomic_load(&s->stopping)) {
        int n = epoll_wait(s->epoll_fd, ev, 64, 200);
        for (int i = 0; i < n; i++)
            if (ev[i].data.u64 != UINT64_MAX) watch_event(s, ev[i].data.u64);
        int64_t now = gm_now_us();
        if (now - looked_us < 200000) continue;
        looked_us = now;
        look_at_engine(s, now, &idle_us);
        if (s->p.sse_keep_alive_s > 0) keep_alive(s, now);
    }
    return NULL;
}

/* ---- answers ---- */

static bool array_has(const json_t *list, const char *word)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        const char *t = json_string_value(v);
        if (t && (!strcmp(t, "*") || !strcasecmp(t, word))) return true;
    }
    return false;
}

static void add_cors(gm_job *j, struct MHD_Response *r)
{
    const gm_server_params *p = &j->srv->p;
    if (!j->origin || !p->cors_origins || !array_has(p->cors_origins, j->origin)) return;
    bool any = array_has(p->cors_origins, "*") && !p->cors_credentials;
    MHD_add_response_header(r, "access-control-allow-origin", any ? "*" : j->origin);
    if (!any) MHD_add_response_header(r, "vary", "Origin");
    if (p->cors_credentials) MHD_add_response_header(r, "access-control-allow-credentials", "true");
}

static void log_access(gm_job *j, struct MHD_Connection *c, int status)
{
    if (!j->srv->p.access_log) return;
    char who[64] = "-";
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (i && i->client_addr && i->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)i->client_addr;
        char ip[48];
        snprintf(who, sizeof who, "%s:%d", inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip) ? ip : "-", ntohs(a->sin_port));
    } else if (i && i->client_addr && i->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)i->client_addr;
        char ip[48];
        snprintf(who, sizeof who, "%s:%d", inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip) ? ip : "-",
                 ntohs(a->sin6_port));
    }
    gm_info("%s - \"%s %s HTTP/1.1\" %d", who, j->method, j->path, status);
}

/* Content reader of a stream: hands out what is there, or suspends the connection until there is more. Both happen
 * under the job's lock, so that a wake-up cannot fall between them. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    gm_job *j = cls;
    (void)pos;
    pthread_mutex_lock(&j->lock);
    ssize_t got;
    size_t left = j->out.len - j->out_pos;
    bool refill = false;
    if (j->gone || j->out_failed) {
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left) {
        size_t n = left < max ? left : max;
        memcpy(buf, j->out.data + j->out_pos, n);
        j->out_pos += n;
        j->sent += n;
        if (j->out_pos == j->out.len) {
            gm_str_clear(&j->out);
            j->out_pos = 0;
            refill = j->writer_held && !j->writer_busy;
            if (refill) {
                j->writer_held = false;
                j->writer_busy = true;
            }
        }
        got = (ssize_t)n;
    } else if (j->out_done) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        j->suspended = true;
        MHD_suspend_connection(j->conn);
        got = 0;
    }
    pthread_mutex_unlock(&j->lock);
    if (refill) gm_job_to_writer(j);
    return got;
}

static void free_stream(void *cls)
{
    gm_job_unref(cls);
}

static enum MHD_Result send_answer(gm_job *j, struct MHD_Connection *c, struct MHD_Response *r, const char *type)
{
    if (!r) return MHD_NO;
    if (type) MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (j->allow[0]) MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, j->allow);
    if (j->retry_after) {
        char n[16];
        snprintf(n, sizeof n, "%d", j->retry_after);
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, n);
    }
    if (j->srv->p.request_id_headers) {
        char made[40];
        gm_random_hex(made, 32);
        MHD_add_response_header(r, "X-Request-Id", j->header_id ? j->header_id : made);
    }
    add_cors(j, r);
    log_access(j, c, j->status);
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)j->status, r);
    MHD_destroy_response(r);
    j->sent_status = true;
    return ok;
}

static enum MHD_Result send_body(gm_job *j, struct MHD_Connection *c, int status, gm_str *body, const char *type)
{
    j->status = status;
    size_t n = body->len;
    char *data = gm_str_take(body);
    struct MHD_Response *r = MHD_create_response_from_buffer(n, data, MHD_RESPMEM_MUST_FREE);
    if (!r) free(data);
    j->sent = n;
    return send_answer(j, c, r, n ? type : NULL);
}

static enum MHD_Result send_text(gm_job *j, struct MHD_Connection *c, int status, const char *text)
{
    gm_str s = {0};
    gm_str_puts(&s, text);
    return send_body(j, c, status, &s, "application/json");
}

static enum MHD_Result send_ready(gm_job *j, struct MHD_Connection *c)
{
    if (!j->streaming) {
        pthread_mutex_lock(&j->lock);
        gm_str body = j->out;
        j->out = (gm_str){0};
        pthread_mutex_unlock(&j->lock);
        return send_body(j, c, j->status, &body, "application/json");
    }
    gm_job_ref(j);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, j, free_stream);
    if (!r) gm_job_unref(j);
    return send_answer(j, c, r, "text/event-stream; charset=utf-8");
}

/* ---- what the network thread answers itself ---- */

const char *gm_server_unhealthy(gm_server *s)
{
    if (atomic_load(&s->draining)) return "the server is shutting down";
    if (atomic_load(&s->stuck)) return "no step of the engine has ended for too long";
    gm_engine_stats *st = gm_new(gm_engine_stats);
    gm_engine_stats_get(s->p.engine, st);
    bool dead = st->dead;
    gm_free(st);
    return dead ? "the engine is dead" : NULL;
}

static void put_models(gm_server *s, gm_str *out)
{
    long long now = (long long)gm_wall_s();
    char id[20];
    gm_str_puts(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < s->p.n_names; i++) {
        gm_random_hex(id, 16);
        gm_str_puts(out, i ? ",{\"id\":" : "{\"id\":");
        gm_json_put_string(out, s->names[i], strlen(s->names[i]));
        gm_str_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"vllm\",\"root\":", now);
        gm_json_put_string(out, s->root, strlen(s->root));
        gm_str_printf(out, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[{\"id\":\"modelperm-%s\",",
                      (int)s->p.rules.model_len, id);
        gm_str_printf(out, "\"object\":\"model_permission\",\"created\":%lld,\"allow_create_engine\":false,", now);
        gm_str_puts(out, "\"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
                         "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}");
    }
    gm_str_puts(out, "]}");
}

void gm_server_put_metrics(gm_server *s, gm_str *out)
{
    gm_engine_stats *st = gm_new(gm_engine_stats);
    gm_engine_stats_get(s->p.engine, st);
    gm_metrics_info info = {.model = s->names[0],
                            .page_tokens = s->p.page_tokens,
                            .n_pages = s->p.n_pages,
                            .cache_tokens = s->p.cache_tokens,
                            .cache_concurrency = s->p.cache_concurrency,
                            .cache_dtype = s->cache_dtype,
                            .prefix_caching = s->p.prefix_caching,
                            .started_s = (double)s->started_s};
    gm_metrics_put(&s->metrics, st, &info, out);
    gm_free(st);
}

static enum MHD_Result answer_now(gm_job *j, struct MHD_Connection *c)
{
    gm_server *s = j->srv;
    gm_str out = {0};
    switch (j->route->kind) {
    case R_HEALTH: {
        const char *why = gm_server_unhealthy(s);
        if (why) gm_str_puts(&out, why);
        return send_body(j, c, why ? 503 : 200, &out, "text/plain; charset=utf-8");
    }
    case R_VERSION: gm_str_puts(&out, "{\"version\":\"" GM_VERSION "\"}"); break;
    case R_MODELS: put_models(s, &out); break;
    case R_LOAD: gm_str_printf(&out, "{\"server_load\":%lld}", s->p.track_load ? (long long)atomic_load(&s->load) : 0ll); break;
    case R_METRICS:
        gm_server_put_metrics(s, &out);
        return send_body(j, c, 200, &out, "text/plain; version=1.0.0; charset=utf-8");
    case R_WORK:
    case R_RESET: break;
    }
    return send_body(j, c, 200, &out, "application/json");
}

/* ---- requests ---- */

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* No early exit on the first difference: how long it takes says nothing about the key. */
static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned diff = n != m;
    for (size_t i = 0; i < m; i++) diff |= (unsigned char)a[n ? i % n : 0] ^ (unsigned char)b[i];
    return !diff;
}

static bool authorized(gm_server *s, struct MHD_Connection *c)
{
    if (!json_array_size(s->p.api_keys)) return true;
    const char *h = header(c, MHD_HTTP_HEADER_AUTHORIZATION);
    if (!h || strncasecmp(h, "Bearer ", 7)) return false;
    h += 7 + strspn(h + 7, " ");
    size_t i;
    json_t *v;
    bool ok = false;
    json_array_foreach(s->p.api_keys, i, v) ok |= same_key(json_string_value(v), h);
    return ok;
}

static bool printable(const char *s)
{
    size_t n = 0;
    for (; *s; s++, n++)
        if (*s < 0x20 || *s > 0x7e || n > 255) return false;
    return n > 0;
}

static void find_route(gm_job *j, const char *url, bool preflight)
{
    gm_server *s = j->srv;
    size_t n = s->root_path ? strlen(s->root_path) : 0;
    if (n && !strncmp(url, s->root_path, n) && url[n] == '/') url += n;
    for (int i = 0; i < N_ROUTES; i++)
        if (!strcmp(routes[i].path, url)) j->route = &routes[i];
    if (preflight) return;
    if (!j->route) {
        j->deny = 404;
        return;
    }
    int m = !strcmp(j->method, "GET") || !strcmp(j->method, "HEAD") ? M_GET : !strcmp(j->method, "POST") ? M_POST : 0;
    if (j->route->methods & m) return;
    j->deny = 405;
    snprintf(j->allow, sizeof j->allow, "%s", methods_text(j->route->methods));
}

/* The head is in: decide what can be decided, before a byte of the body is read. */
static enum MHD_Result begin(gm_server *s, struct MHD_Connection *c, const char *url, const char *method, gm_job **out)
{
    gm_job *j = job_create(s);
    *out = j;
    j->conn = c;
    snprintf(j->method, sizeof j->method, "%s", method);
    snprintf(j->path, sizeof j->path, "%s", url);
    for (char *p = j->path; *p; p++)
        if (*p < 0x20 || *p > 0x7e) *p = '?';
    const char *h = header(c, MHD_HTTP_HEADER_ORIGIN);
    if (h && printable(h)) j->origin = gm_strdup(h);
    h = header(c, "X-Request-Id");
    if (h && printable(h)) j->header_id = gm_strdup(h);
    h = header(c, "X-Vllm-Priority");
    if (h) {
        char *end;
        j->header_priority = strtoll(h, &end, 10);
        j->has_header_priority = end != h && !*end;
    }
    h = header(c, "X-data-parallel-rank");
    if (h) {
        char *end;
        long long rank = strtoll(h, &end, 10);
        j->bad_rank = end != h && !*end && rank != 0;
    }
    h = header(c, MHD_HTTP_HEADER_CONTENT_TYPE);
    j->json_type = h && !strncasecmp(h, "application/json", 16) && (!h[16] || h[16] == ';' || h[16] == ' ');
    bool options = !strcmp(method, "OPTIONS");
    find_route(j, url, options && j->origin && header(c, "Access-Control-Request-Method"));
    if (options && !j->deny) j->deny = 200;
    if (!options && !(j->route && j->route->open) && !authorized(s, c)) j->deny = 401;
    h = header(c, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (h && strtoull(h, NULL, 10) > s->p.body_max) j->too_large = true;
    if (!j->deny && !j->too_large && atomic_load(&s->body_bytes) > BODIES_MAX) j->deny = 503;
    /* A client that asks first is told at once; others are already sending and would not see the answer. */
    if ((j->deny || j->too_large) && header(c, MHD_HTTP_HEADER_EXPECT)) j->drain_body = true;
    return MHD_YES;
}

static enum MHD_Result add_body(gm_job *j, const char *data, size_t n)
{
    gm_server *s = j->srv;
    j->seen += n;
    if (j->seen > s->p.body_max) {
        j->too_large = true;
        if (j->seen > s->p.body_max * DRAIN_FACTOR) return MHD_NO;
    }
    if (j->deny || j->too_large || !j->route || j->route->kind != R_WORK) return MHD_YES;
    size_t cap = j->body.cap;
    gm_str_append(&j->body, data, n);
    atomic_fetch_add(&s->body_bytes, (long long)(j->body.cap - cap));
    return MHD_YES;
}

static enum MHD_Result send_preflight(gm_job *j, struct MHD_Connection *c)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(2, (void *)(uintptr_t) "OK", MHD_RESPMEM_PERSISTENT);
    const gm_server_params *p = &j->srv->p;
    j->status = 200;
    if (r && p->cors_origins && j->origin) {
        const char *want = header(c, "Access-Control-Request-Headers");
        MHD_add_response_header(r, "access-control-allow-methods",
                                array_has(p->cors_methods, "*") ? "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT" : "GET, POST");
        MHD_add_response_header(r, "access-control-max-age", "600");
        if (want && printable(want)) MHD_add_response_header(r, "access-control-allow-headers", want);
    }
    return send_answer(j, c, r, "text/plain; charset=utf-8");
}

static enum MHD_Result send_denial(gm_job *j, struct MHD_Connection *c)
{
    gm_api_error e;
    gm_str s = {0};
    if (j->too_large) {
        gm_api_fail(&e, 413, NULL, "The request body is larger than %zu bytes.", j->srv->p.body_max);
        gm_api_error_put(&e, &s);
        return send_body(j, c, 413, &s, "application/json");
    }
    switch (j->deny) {
    case 200: return send_preflight(j, c);
    case 401: return send_text(j, c, 401, "{\"error\":\"Unauthorized\"}");
    case 404: return send_text(j, c, 404, "{\"detail\":\"Not Found\"}");
    case 405: return send_text(j, c, 405, "{\"detail\":\"Method Not Allowed\"}");
    default: break;
    }
    gm_api_fail(&e, 503, NULL, "The server is busy: too many request bodies are open. Try again later.");
    j->retry_after = 1;
    gm_api_error_put(&e, &s);
    return send_body(j, c, 503, &s, "application/json");
}

/* The whole request is in. */
static enum MHD_Result dispatch(gm_job *j, struct MHD_Connection *c)
{
    gm_server *s = j->srv;
    gm_api_error e;
    gm_str out = {0};
    if (j->deny || j->too_large) return send_denial(j, c);
    if (j->route->kind != R_WORK && j->route->kind != R_RESET) return answer_now(j, c);
    if (!j->json_type && j->route->kind == R_WORK) {
        gm_api_invalid(&e, "body", "value_error", "Unsupported Media Type: Only \\'application/json\\' is allowed");
        gm_api_error_put(&e, &out);
        return send_body(j, c, 400, &out, "application/json");
    }
    if (j->bad_rank) {
        gm_api_fail(&e, 400, NULL, "data_parallel_rank is out of range [0, 1).");
        gm_api_error_put(&e, &out);
        return send_body(j, c, 400, &out, "application/json");
    }
    j->arrived_us = gm_now_us();
    j->route_api = j->route->api;
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    j->fd = i ? i->connect_fd : -1;
    if (s->p.track_load) {
        j->counted_load = true;
        atomic_fetch_add(&s->load, 1);
    }
    pthread_mutex_lock(&j->lock);
    j->stage = GM_STAGE_WORK;
    j->suspended = true;
    MHD_suspend_connection(c);
    pthread_mutex_unlock(&j->lock);
    if (j->fd >= 0) watch_add(j);
    if (gm_job_queue_push(&s->prepare, j)) return MHD_YES;
    gm_api_fail(&e, 503, NULL, "The server is busy: too many requests wait to be read. Try again later.");
    e.retry_after = 1;
    gm_job_answer_error(j, &e);
    return MHD_YES;
}

/* Called after a resumption: an answer is there, or the client is not. */
static enum MHD_Result resumed(gm_job *j, struct MHD_Connection *c)
{
    pthread_mutex_lock(&j->lock);
    bool gone = j->gone, ready = j->stage == GM_STAGE_READY;
    if (!gone && !ready) {
        j->suspended = true;
        MHD_suspend_connection(c);
    }
    pthread_mutex_unlock(&j->lock);
    if (gone) return MHD_NO;
    return ready ? send_ready(j, c) : MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **con_cls)
{
    gm_server *s = cls;
    gm_job *j = *con_cls;
    (void)version;
    if (!j) {
        enum MHD_Result ok = begin(s, c, url, method, &j);
        *con_cls = j;
        if (j->drain_body) return send_denial(j, c);
        return ok;
    }
    if (*upload_size) {
        size_t n = *upload_size;
        *upload_size = 0;
        return add_body(j, upload, n);
    }
    if (j->stage == GM_STAGE_RECV) return dispatch(j, c);
    return resumed(j, c);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode why)
{
    gm_server *s = cls;
    gm_job *j = *con_cls;
    (void)c;
    if (!j) return;
    *con_cls = NULL;
    watch_remove(j);
    pthread_mutex_lock(&j->lock);
    j->conn = NULL;
    j->suspended = false;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK || !j->out_done) j->gone = true;
    bool drain = j->writer_held && !j->writer_busy; /* the events that waited for the client hold references */
    if (drain) {
        j->writer_held = false;
        j->writer_busy = true;
    }
    pthread_mutex_unlock(&j->lock);
    if (drain) gm_job_to_writer(j);
    gm_job_cancel(j);
    if (!(j->route && j->route->unmetered) && j->sent_status)
        gm_metrics_http(&s->metrics, j->route ? j->route->path : "none", j->method, j->status,
                        1e-6 * (double)(gm_now_us() - j->begun_us), j->seen, j->sent);
    gm_job_unref(j);
}

/* ---- life ---- */

static void raise_files(int connections)
{
    struct rlimit lim;
    rlim_t want = (rlim_t)connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur >= want) return;
    lim.rlim_cur = lim.rlim_max == RLIM_INFINITY || lim.rlim_max >= want ? want : lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
}

static void copy_params(gm_server *s, const gm_server_params *p)
{
    s->p = *p;
    s->names = gm_new_array(char *, p->n_names);
    for (int i = 0; i < p->n_names; i++) s->names[i] = gm_strdup(p->names[i]);
    s->root = gm_strdup(p->root ? p->root : s->names[0]);
    s->fingerprint = gm_strdup(p->fingerprint ? p->fingerprint : "glimmer-" GM_VERSION);
    s->root_path = p->root_path && *p->root_path ? gm_strdup(p->root_path) : NULL;
    s->role = gm_strdup(p->response_role ? p->response_role : "assistant");
    s->cache_dtype = gm_strdup(p->cache_dtype ? p->cache_dtype : "auto");
    s->p.names = NULL;
    int32_t *eos = gm_new_array(int32_t, p->n_eos + 1);
    if (p->n_eos) memcpy(eos, p->eos, (size_t)p->n_eos * sizeof *eos);
    s->p.eos = eos;
    if (!s->p.body_max) s->p.body_max = 32u << 20;
    if (!s->p.connections_max) s->p.connections_max = 8192;
}

static gm_status start_threads(gm_server *s, gm_error *err)
{
    int n = s->p.n_workers > 0 && s->p.n_workers <= 8 ? s->p.n_workers : 2;
    for (int i = 0; i < n + 2; i++) {
        if (pthread_create(&s->threads[i], NULL, i < n ? prepare_main : write_main, s))
            return gm_fail(err, GM_EIO, "cannot start a thread: %s", strerror(errno));
        s->n_threads++;
    }
    if (pthread_create(&s->watcher, NULL, watch_main, s)) return gm_fail(err, GM_EIO, "cannot start a thread");
    s->has_watcher = true;
    return GM_OK;
}

static gm_status start_daemon(gm_server *s, gm_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)s->p.tls_key},
                                   {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)s->p.tls_cert},
                                   {MHD_OPTION_END, 0, NULL}};
    bool secure = s->p.tls_key && s->p.tls_cert;
    if (secure) flags |= MHD_USE_TLS;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, s->p.listen_fd,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)s->p.connections_max, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
                                 MHD_OPTION_ARRAY, secure ? tls : tls + 2, MHD_OPTION_END);
    if (!s->daemon) return gm_fail(err, GM_EIO, "the HTTP server does not start%s", secure ? " (are key and certificate PEM?)" : "");
    return GM_OK;
}

gm_status gm_server_create(gm_server **out, const gm_server_params *p, gm_error *err)
{
    gm_server *s = gm_new(gm_server);
    copy_params(s, p);
    s->started_s = (int64_t)gm_wall_s();
    pthread_mutex_init(&s->jobs_lock, NULL);
    pthread_mutex_init(&s->watch_lock, NULL);
    queue_init(&s->prepare, PREPARE_MAX);
    queue_init(&s->write, INT32_MAX);
    gm_metrics_init(&s->metrics, p->rules.model_len);
    s->wake_fd = eventfd(0, EFD_CLOEXEC);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    gm_status st = s->epoll_fd < 0 || s->wake_fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &ev)
                       ? gm_fail(err, GM_EIO, "epoll: %s", strerror(errno))
                       : GM_OK;
    raise_files(s->p.connections_max);
    if (!st) st = start_threads(s, err);
    if (!st) st = start_daemon(s, err);
    if (st) {
        gm_server_destroy(s);
        return st;
    }
    *out = s;
    return GM_OK;
}

void gm_server_set_draining(gm_server *s)
{
    atomic_store(&s->draining, true);
}

bool gm_server_wait_idle(gm_server *s, double seconds)
{
    int64_t end = gm_now_us() + (int64_t)(seconds * 1e6);
    for (;;) {
        bool busy = false;
        pthread_mutex_lock(&s->jobs_lock);
        for (gm_job *j = s->jobs; j && !busy; j = j->next) {
            pthread_mutex_lock(&j->lock);
            busy = j->stage != GM_STAGE_RECV;
            pthread_mutex_unlock(&j->lock);
        }
        pthread_mutex_unlock(&s->jobs_lock);
        if (!busy || gm_now_us() >= end) return !busy;
        usleep(5000);
    }
}

/* Suspended connections must be resumed before the daemon may stop. */
static void release_all(gm_server *s)
{
    pthread_mutex_lock(&s->jobs_lock);
    int n = 0;
    gm_job **list = gm_new_array(gm_job *, s->n_jobs + 1);
    for (gm_job *j = s->jobs; j; j = j->next)
        if (job_try_ref(j)) list[n++] = j;
    pthread_mutex_unlock(&s->jobs_lock);
    for (int i = 0; i < n; i++) {
        job_lost(list[i]);
        gm_job_unref(list[i]);
    }
    gm_free(list);
}

static int open_jobs(gm_server *s)
{
    pthread_mutex_lock(&s->jobs_lock);
    int n = s->n_jobs;
    pthread_mutex_unlock(&s->jobs_lock);
    return n;
}

void gm_server_destroy(gm_server *s)
{
    if (!s) return;
    atomic_store(&s->draining, true);
    int fd = s->p.listen_fd;
    if (s->daemon) MHD_quiesce_daemon(s->daemon);
    queue_close(&s->prepare);
    int64_t end = gm_now_us() + 2000000;
    while (s->daemon && open_jobs(s) && gm_now_us() < end) { /* connections see that they are lost and end */
        release_all(s);
        usleep(2000);
    }
    atomic_store(&s->stopping, true);
    uint64_t one = 1;
    if (s->wake_fd >= 0 && write(s->wake_fd, &one, sizeof one) < 0) { /* the watcher looks every 200 ms anyway */
    }
    if (s->has_watcher) pthread_join(s->watcher, NULL);
    if (s->daemon) {
        release_all(s);
        MHD_stop_daemon(s->daemon);
    }
    if (fd >= 0) close(fd);
    end = gm_now_us() + 5000000;
    while (open_jobs(s) && gm_now_us() < end) usleep(1000); /* engine requests that still have to report their end */
    queue_close(&s->write);
    for (int i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    if (open_jobs(s)) {
        gm_warn("%d requests did not end; their memory is left alone", open_jobs(s));
        return;
    }
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    if (s->wake_fd >= 0) close(s->wake_fd);
    gm_free(s->watch);
    for (int i = 0; i < s->p.n_names; i++) gm_free(s->names[i]);
    gm_free(s->names);
    gm_free(s->root);
    gm_free(s->fingerprint);
    gm_free(s->root_path);
    gm_free(s->role);
    gm_free(s->cache_dtype);
    gm_free((void *)(uintptr_t)s->p.eos);
    gm_metrics_fini(&s->metrics);
    pthread_mutex_destroy(&s->jobs_lock);
    pthread_mutex_destroy(&s->watch_lock);
    gm_free(s);
}
