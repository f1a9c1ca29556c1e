#include "bench/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/plain_http.h"

/* EVENTS: a turn takes all that is ready, so that its length bounds how late any of it is noticed. */
enum { EVENTS = 8192, BUCKETS = 8 * 40, STATUS_UNKNOWN = 0 };

typedef struct stream {
    struct stream *next_free, *next_open, **at_open;
    CURL *easy;
    struct curl_slist *headers;
    char *body;
    long status;
    gm_stream_request r;
    char error[CURL_ERROR_SIZE];
} stream;

struct gm_client {
    gm_plain *plain; /* NULL: libcurl only */
    CURLM *multi;
    int epoll;
    int64_t timer_ns; /* when libcurl wants to be called; -1: never */
    stream *free, *open;
    int n_open;
    struct curl_slist *common;
    gm_client_params p;
    int64_t turns, total_ns, max_ns, buckets[BUCKETS];
    struct epoll_event ready[EVENTS];
};

int64_t gm_client_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- the loop's own delay: eight buckets for each doubling ---- */

static int bucket_of(int64_t ns)
{
    uint64_t v = ns < 8 ? 8 : (uint64_t)ns;
    int top = 63 - __builtin_clzll(v);
    int b = (top - 3) * 8 + (int)(v >> (top - 3) & 7);
    return b < BUCKETS ? b : BUCKETS - 1;
}

static int64_t bucket_end(int b)
{
    return (int64_t)(9 + b % 8) << (b / 8);
}

static void note_turn(gm_client *c, int64_t ns)
{
    c->turns++;
    c->total_ns += ns;
    if (ns > c->max_ns) c->max_ns = ns;
    c->buckets[bucket_of(ns)]++;
}

static int64_t quantile(const gm_client *c, double q)
{
    int64_t want = (int64_t)(q * (double)c->turns), seen = 0;
    for (int b = 0; b < BUCKETS; b++) {
        seen += c->buckets[b];
        if (seen > want) return bucket_end(b) < c->max_ns ? bucket_end(b) : c->max_ns;
    }
    return c->max_ns;
}

void gm_client_delay_reset(gm_client *c)
{
    c->turns = c->total_ns = c->max_ns = 0;
    memset(c->buckets, 0, sizeof c->buckets);
}

gm_client_delay gm_client_delay_get(const gm_client *c)
{
    return (gm_client_delay){c->turns, c->total_ns, c->max_ns, quantile(c, 0.5), quantile(c, 0.99)};
}

/* ---- what libcurl asks of us ---- */

static int on_timer(CURLM *m, long ms, void *user)
{
    gm_client *c = user;
    (void)m;
    c->timer_ns = ms < 0 ? -1 : gm_client_now_ns() + ms * 1000000;
    return 0;
}

/* An event's data is a plain connection's address, or this: an odd number. */
static uint64_t curl_tag(curl_socket_t fd)
{
    return (uint64_t)fd << 1 | 1;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *known)
{
    gm_client *c = user;
    static char seen;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    struct epoll_event ev = {.data.u64 = curl_tag(fd)};
    if (what & CURL_POLL_IN) ev.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) ev.events |= EPOLLOUT;
    if (epoll_ctl(c->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev) && errno == EEXIST)
        epoll_ctl(c->epoll, EPOLL_CTL_MOD, fd, &ev);
    curl_multi_assign(c->multi, fd, &seen);
    return 0;
}

static size_t on_write(char *p, size_t size, size_t n, void *user)
{
    stream *s = user;
    if (s->status == STATUS_UNKNOWN) curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
    s->r.on_bytes(s->r.user, s->status, p, size * n);
    return size * n;
}

gm_status gm_client_open(gm_client **out, const gm_client_params *p, gm_error *err)
{
    gm_client *c = gm_new(gm_client);
    c->p = *p;
    c->p.headers = NULL;
    c->timer_ns = -1;
    if (c->p.timeout_s <= 0) c->p.timeout_s = 6 * 3600;
    size_t i;
    json_t *h;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->multi = curl_multi_init();
    if (c->epoll < 0 || !c->multi) {
        gm_status st = gm_fail(err, GM_EIO, "cannot start the HTTP client: %s",
                               c->multi ? strerror(errno) : "libcurl failed");
        gm_client_close(c);
        return st;
    }
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS,
                      (long)(p->streams_max > 0 ? p->streams_max + 4 : 65536));
    gm_str lines = {0};
    json_array_foreach(p->headers, i, h)
    {
        c->common = curl_slist_append(c->common, json_string_value(h));
        gm_str_printf(&lines, "%s\r\n", json_string_value(h));
    }
    if (!p->curl_only) c->plain = gm_plain_open(c->epoll, gm_str_c(&lines), c->p.timeout_s);
    gm_str_fini(&lines);
    *out = c;
    return GM_OK;
}

static void stream_free(gm_client *c, stream *s)
{
    curl_slist_free_all(s->headers);
    gm_free(s->body);
    s->headers = NULL;
    s->body = NULL;
    s->next_free = c->free;
    c->free = s;
}

static void stream_unlink(gm_client *c, stream *s)
{
    *s->at_open = s->next_open;
    if (s->next_open) s->next_open->at_open = s->at_open;
    c->n_open--;
    curl_multi_remove_handle(c->multi, s->easy);
}

void gm_client_abort(gm_client *c)
{
    if (c->plain) gm_plain_abort(c->plain);
    while (c->open) {
        stream *s = c->open;
        stream_unlink(c, s);
        stream_free(c, s);
    }
}

void gm_client_close(gm_client *c)
{
    if (!c) return;
    gm_client_abort(c);
    while (c->free) {
        stream *s = c->free;
        c->free = s->next_free;
        curl_easy_cleanup(s->easy);
        gm_free(s);
    }
    gm_plain_close(c->plain);
    if (c->multi) curl_multi_cleanup(c->multi);
    if (c->epoll >= 0) close(c->epoll);
    curl_slist_free_all(c->common);
    gm_free(c);
}

static stream *stream_take(gm_client *c)
{
    stream *s = c->free;
    if (s) {
        c->free = s->next_free;
        curl_easy_reset(s->easy);
    } else {
        s = gm_new(stream);
        s->easy = curl_easy_init();
        GM_ASSERT(s->easy);
    }
    s->status = STATUS_UNKNOWN;
    s->error[0] = 0;
    return s;
}

static void set_common(const gm_client *c, stream *s, const char *url, double timeout_s)
{
    curl_easy_setopt(s->easy, CURLOPT_URL, url);
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(s->easy, CURLOPT_ERRORBUFFER, s->error);
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(s->easy, CURLOPT_TIMEOUT_MS, (long)(timeout_s * 1000));
    curl_easy_setopt(s->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(timeout_s * 1000));
    curl_easy_setopt(s->easy, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    curl_easy_setopt(s->easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(s->easy, CURLOPT_USERAGENT, "glimmer/" GM_VERSION);
    if (c->p.insecure) {
        curl_easy_setopt(s->easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(s->easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    for (const struct curl_slist *h = c->common; h; h = h->next)
        s->headers = curl_slist_append(s->headers, h->data);
}

static void set_body(stream *s, const char *body, size_t len)
{
    s->headers = curl_slist_append(s->headers, "Content-Type: application/json");
    s->headers =
        curl_slist_append(s->headers, "Expect:"); /* a large body would first wait for "100 Continue" */
    curl_easy_setopt(s->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, body);
}

void gm_client_look_up(gm_client *c, const char *url)
{
    if (c->plain) gm_plain_can(c->plain, url, NULL);
}

void gm_client_start(gm_client *c, const gm_stream_request *r)
{
    if (c->plain && !gm_plain_can(c->plain, r->url, NULL)) {
        gm_plain_start(c->plain, r);
        return;
    }
    stream *s = stream_take(c);
    char id[160];
    int running;
    s->r = *r;
    s->body = r->body;
    set_common(c, s, r->url, c->p.timeout_s);
    set_body(s, s->body, r->body_len);
    if (r->request_id) {
        snprintf(id, sizeof id, "x-request-id: %s", r->request_id);
        s->headers = curl_slist_append(s->headers, id);
    }
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers);
    s->next_open = c->open;
    s->at_open = &c->open;
    if (c->open) c->open->at_open = &s->next_open;
    c->open = s;
    c->n_open++;
    curl_multi_add_handle(c->multi, s->easy);
    /* Now, not at the next turn: with a burst of thousands the first request would wait for the last one's
     * body. */
    c->timer_ns = -1;
    curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

int gm_client_open_streams(const gm_client *c)
{
    return c->n_open + (c->plain ? gm_plain_n_open(c->plain) : 0);
}

static void reap(gm_client *c)
{
    int left;
    CURLMsg *m;
    while ((m = curl_multi_info_read(c->multi, &left))) {
        if (m->msg != CURLMSG_DONE) continue;
        char *priv = NULL;
        CURLcode rc = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &priv);
        stream *s = (stream *)(void *)priv;
        if (!s) continue;
        long status = 0;
        curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
        const char *error = rc == CURLE_OK ? NULL : s->error[0] ? s->error : curl_easy_strerror(rc);
        stream_unlink(c, s);
        s->r.on_end(s->r.user, status, error);
        stream_free(c, s);
    }
}

static int wait_ms(const gm_client *c, int64_t until_ns, int64_t now)
{
    int64_t t = c->timer_ns >= 0 && c->timer_ns < until_ns ? c->timer_ns : until_ns;
    int64_t due = c->plain ? gm_plain_due_ns(c->plain) : INT64_MAX;
    if (due < t) t = due;
    if (t <= now) return 0;
    int64_t ms = (t - now + 999999) / 1000000;
    return ms > 1000 ? 1000 : (int)ms;
}

void gm_client_turn(gm_client *c, int64_t until_ns)
{
    struct epoll_event *ev = c->ready;
    int running, n = 0;
    int64_t now = gm_client_now_ns();
    if (until_ns - now > 0 && until_ns - now < 1000000) {
        /* less than epoll's millisecond: look, then sleep the rest, so that a request is not sent late */
        n = epoll_wait(c->epoll, ev, EVENTS, 0);
        if (n == 0) {
            struct timespec ts = {.tv_nsec = until_ns - now < 100000 ? until_ns - now : 100000};
            nanosleep(&ts, NULL);
            n = epoll_wait(c->epoll, ev, EVENTS, 0);
        }
    } else {
        int ms = wait_ms(c, until_ns - 900000, now);
        n = epoll_wait(c->epoll, ev, EVENTS, ms);
    }
    int64_t begun = gm_client_now_ns();
    for (int i = 0; i < n; i++) {
        int bits = 0;
        if (!(ev[i].data.u64 & 1)) {
            gm_plain_event(c->plain, ev[i].data.ptr, ev[i].events);
            continue;
        }
        if (ev[i].events & (EPOLLIN | EPOLLHUP)) bits |= CURL_CSELECT_IN;
        if (ev[i].events & EPOLLOUT) bits |= CURL_CSELECT_OUT;
        if (ev[i].events & EPOLLERR) bits |= CURL_CSELECT_ERR;
        curl_multi_socket_action(c->multi, (curl_socket_t)(ev[i].data.u64 >> 1), bits, &running);
    }
    if (c->timer_ns >= 0 && c->timer_ns <= begun) {
        c->timer_ns = -1;
        curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    reap(c);
    if (c->plain) gm_plain_tick(c->plain, begun);
    if (n > 0) note_turn(c, gm_client_now_ns() - begun);
}

/* ---- whole requests ---- */

static void fetch_bytes(void *user, long status, const char *bytes, size_t len)
{
    (void)status;
    gm_str *answer = user;
    if (answer->len + len <= (size_t)1 << 30) gm_str_append(answer, bytes, len);
}

gm_status gm_client_fetch(gm_client *c, const char *method, const char *url, const char *body,
                          double timeout_s, long *status, gm_str *answer, gm_error *err)
{
    GM_ASSERT(gm_client_open_streams(c) == 0);
    stream *s = stream_take(c);
    gm_status st = GM_OK;
    s->r = (gm_stream_request){.on_bytes = fetch_bytes, .user = answer};
    gm_str_clear(answer);
    set_common(c, s, url, timeout_s);
    if (body) set_body(s, body, strlen(body));
    else if (!strcmp(method, "POST")) set_body(s, "", 0);
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers);
    CURLcode rc = curl_easy_perform(s->easy);
    *status = 0;
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, status);
    if (rc != CURLE_OK) {
        *status = 0;
        st = gm_fail(err, GM_EIO, "%s: %s", url, s->error[0] ? s->error : curl_easy_strerror(rc));
    }
    stream_free(c, s);
    return st;
}

bool gm_client_allow_sockets(int64_t n, gm_error *err)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || (int64_t)r.rlim_cur >= n) return true;
    struct rlimit more = r;
    more.rlim_cur = (rlim_t)n > r.rlim_max ? r.rlim_max : (rlim_t)n;
    if (!setrlimit(RLIMIT_NOFILE, &more) && (int64_t)more.rlim_cur >= n) return true;
    gm_fail(err, GM_ECAPACITY, "this process may open %lld files, and %lld are needed (ulimit -n)",
            (long long)more.rlim_cur, (long long)n);
    return false;
}
