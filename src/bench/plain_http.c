#include "bench/plain_http.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"

enum { READ_BYTES = 1 << 17, LINE_MAX_BYTES = 1 << 16 };

typedef enum phase {
    P_IDLE,
    P_CONNECT,
    P_SEND,
    P_HEAD,       /* status line and headers */
    P_LENGTH,     /* a body of `left` bytes */
    P_TO_END,     /* a body until the other side closes */
    P_CHUNK_SIZE, /* chunked: the line with the size */
    P_CHUNK,      /* `left` bytes of a chunk */
    P_CHUNK_END,  /* the line end behind it */
    P_TRAILER,
} phase;

typedef struct conn conn;
typedef struct conn_list {
    conn *first, *last;
} conn_list;

struct conn {
    conn *prev, *next;
    int fd;
    phase phase;
    bool in_open, reused, got_bytes, close_after, writing;
    const struct addrinfo *address;
    gm_stream_request r;
    gm_str head; /* of the request */
    size_t sent; /* of head and body together */
    gm_str line; /* an unfinished line of the answer */
    long status;
    bool chunked;
    int64_t left, started_ns;
    const char *failed; /* told at the next tick */
    char why[160];
};

struct gm_plain {
    int epoll;
    char *headers;
    int64_t timeout_ns;
    char *host, *origin; /* of the only server: "http://host:port" */
    struct addrinfo *addresses;
    conn_list open, idle,
        dead; /* open by start: the first has the earliest limit. dead: freed at the next tick */
    int n_open, n_failed;
    char *buf;
};

/* ---- lists ---- */

static void list_add(conn_list *l, conn *c)
{
    c->next = NULL;
    c->prev = l->last;
    if (l->last) l->last->next = c;
    else l->first = c;
    l->last = c;
}

static void list_remove(conn_list *l, conn *c)
{
    if (c->prev) c->prev->next = c->next;
    else l->first = c->next;
    if (c->next) c->next->prev = c->prev;
    else l->last = c->prev;
}

/* ---- open, close ---- */

gm_plain *gm_plain_open(int epoll, const char *headers, double timeout_s)
{
    gm_plain *p = gm_new(gm_plain);
    p->epoll = epoll;
    p->headers = gm_strdup(headers);
    p->timeout_ns = (int64_t)(timeout_s * 1e9);
    p->buf = gm_alloc(READ_BYTES);
    return p;
}

static void conn_free(conn *c)
{
    if (c->fd >= 0) close(c->fd);
    gm_str_fini(&c->head);
    gm_str_fini(&c->line);
    gm_free(c->r.body);
    gm_free(c);
}

static void free_list(conn_list *l)
{
    while (l->first) {
        conn *c = l->first;
        list_remove(l, c);
        conn_free(c);
    }
}

void gm_plain_abort(gm_plain *p)
{
    free_list(&p->open);
    p->n_open = p->n_failed = 0;
}

void gm_plain_close(gm_plain *p)
{
    if (!p) return;
    free_list(&p->open);
    free_list(&p->idle);
    free_list(&p->dead);
    if (p->addresses) freeaddrinfo(p->addresses);
    gm_free(p->headers);
    gm_free(p->host);
    gm_free(p->origin);
    gm_free(p->buf);
    gm_free(p);
}

int gm_plain_n_open(const gm_plain *p)
{
    return p->n_open;
}

/* http://host[:port], IPv6 in brackets; no user, no password. */
gm_status gm_plain_can(gm_plain *p, const char *url, gm_error *err)
{
    char host[256], port[8] = "80";
    if (strncasecmp(url, "http://", 7)) return gm_fail(err, GM_ENOTSUP, "%s: not http", url);
    const char *a = url + 7;
    size_t n = strcspn(a, "/?#");
    if (p->origin && strlen(p->origin) == n + 7 && !strncmp(p->origin, url, n + 7)) return GM_OK;
    if (p->origin || memchr(a, '@', n) || n >= sizeof host)
        return gm_fail(err, GM_ENOTSUP, "%s: not a plain address", url);
    memcpy(host, a, n);
    host[n] = 0;
    char *colon = strrchr(host, ':'), *name = host;
    if (colon && !strchr(colon, ']')) {
        snprintf(port, sizeof port, "%.7s", colon + 1);
        *colon = 0;
    }
    if (host[0] == '[') {
        name = host + 1;
        name[strcspn(name, "]")] = 0;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV};
    int rc = getaddrinfo(name, port, &hints, &p->addresses);
    if (rc) return gm_fail(err, GM_EIO, "%s: %s", url, gai_strerror(rc));
    p->host = gm_strndup(a, n);
    p->origin = gm_strndup(url, n + 7);
    return GM_OK;
}

/* ---- starting ---- */

static void watch(gm_plain *p, conn *c, bool writing, bool fresh)
{
    struct epoll_event ev = {.events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    if (!fresh && c->writing == writing) return;
    c->writing = writing;
    epoll_ctl(p->epoll, fresh ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, c->fd, &ev);
}

static void set_failed(gm_plain *p, conn *c, const char *what, int error)
{
    if (c->failed) return;
    snprintf(c->why, sizeof c->why, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
    c->failed = c->why;
    p->n_failed++;
}

static void connect_next(gm_plain *p, conn *c)
{
    int one = 1, error = 0;
    for (; c->address; c->address = c->address->ai_next) {
        if (c->fd >= 0) close(c->fd);
        c->fd = socket(c->address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (c->fd < 0) {
            error = errno;
            continue;
        }
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!connect(c->fd, c->address->ai_addr, c->address->ai_addrlen) || errno == EINPROGRESS) {
            c->phase = P_CONNECT;
            watch(p, c, true, true);
            return;
        }
        error = errno;
    }
    set_failed(p, c, "cannot connect", error);
}

static void write_more(gm_plain *p, conn *c)
{
    while (c->sent < c->head.len + c->r.body_len) {
        size_t in_body = c->sent > c->head.len ? c->sent - c->head.len : 0, in_head = c->sent - in_body;
        struct iovec v[2] = {{c->head.data + in_head, c->head.len - in_head},
                             {c->r.body + in_body, c->r.body_len - in_body}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            watch(p, c, true, false);
            return;
        }
        if (n < 0) {
            /* An answer may be there all the same, a refusal for instance: reading finds it, or the end. */
            c->close_after = true;
            break;
        }
        c->sent += (size_t)n;
    }
    c->phase = P_HEAD;
    watch(p, c, false, false);
}

static void begin(gm_plain *p, conn *c)
{
    c->sent = 0;
    c->phase = P_SEND;
    write_more(p, c);
}

void gm_plain_start(gm_plain *p, const gm_stream_request *r)
{
    conn *c = p->idle.last; /* the one used last is the least likely to have been closed */
    if (c) {
        list_remove(&p->idle, c);
        c->reused = true;
    } else {
        c = gm_new(conn);
        c->fd = -1;
        c->address = p->addresses;
    }
    c->r = *r;
    c->started_ns = gm_client_now_ns();
    const char *path = r->url + strlen(p->origin);
    gm_str_clear(&c->head);
    gm_str_printf(&c->head,
                  "POST %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: glimmer/" GM_VERSION "\r\nAccept: */*\r\n",
                  *path == '/' ? "" : "/", path, p->host);
    gm_str_printf(&c->head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", r->body_len);
    if (r->request_id) gm_str_printf(&c->head, "x-request-id: %s\r\n", r->request_id);
    gm_str_printf(&c->head, "%s\r\n", p->headers);
    list_add(&p->open, c);
    p->n_open++;
    if (c->fd >= 0) begin(p, c);
    else connect_next(p, c);
}

/* ---- ending ---- */

/* error NULL: the answer is complete. */
static void finish(gm_plain *p, conn *c, const char *error)
{
    gm_stream_request r = c->r;
    long status = c->status;
    bool keep = !error && !c->close_after && c->fd >= 0;
    list_remove(&p->open, c);
    p->n_open--;
    gm_free(c->r.body);
    c->r.body = NULL;
    if (c->failed) p->n_failed--;
    if (keep) {
        c->phase = P_IDLE;
        c->status = 0;
        c->left = 0;
        c->chunked = c->got_bytes = c->close_after = c->reused = false;
        gm_str_clear(&c->line);
        list_add(&p->idle, c);
    } else {
        if (c->fd >= 0) close(c->fd);
        c->fd = -1;
        list_add(&p->dead, c); /* events of this turn may still name it */
    }
    r.on_end(r.user, status, error ? c->why : NULL);
}

/* The other side closed, or the socket failed. */
static void lost(gm_plain *p, conn *c, int error)
{
    if (c->phase == P_IDLE) {
        list_remove(&p->idle, c);
        close(c->fd);
        c->fd = -1;
        list_add(&p->dead, c);
        return;
    }
    if (c->phase == P_TO_END && !error) {
        c->close_after = true;
        finish(p, c, NULL);
        return;
    }
    if (c->reused && !c->got_bytes) {
        /* A kept connection that the server closed meanwhile: not the request's fault, once more on a new
         * one. */
        c->reused = c->close_after = false;
        c->address = p->addresses;
        close(c->fd);
        c->fd = -1;
        connect_next(p, c);
        return;
    }
    set_failed(p, c,
               c->got_bytes ? "the connection was closed before the answer was complete"
                            : "the connection was closed without an answer",
               error);
    finish(p, c, c->failed);
}

/* ---- reading ---- */

static bool has_word(const char *value, const char *word)
{
    return strcasestr(value, word) != NULL;
}

/* After the blank line that ends the headers. False: the answer is over. */
static bool body_begins(conn *c)
{
    if (c->status >= 100 && c->status < 200) {
        c->phase = P_HEAD;
        c->status = 0;
        return true;
    }
    if (c->chunked) c->phase = P_CHUNK_SIZE;
    else if (c->left >= 0) c->phase = P_LENGTH;
    else c->phase = P_TO_END;
    return !(c->phase == P_LENGTH && c->left == 0) && c->status != 204;
}

typedef enum line_result { L_MORE, L_OVER, L_BAD } line_result;

static line_result head_line(conn *c, char *line)
{
    if (!c->status) {
        if (strncmp(line, "HTTP/1.", 7) || !line[7]) return L_BAD;
        c->status = strtol(line + 8, NULL, 10);
        c->close_after |= line[7] == '0';
        c->left = -1;
        c->chunked = false;
        return c->status >= 100 && c->status < 1000 ? L_MORE : L_BAD;
    }
    if (!*line) return body_begins(c) ? L_MORE : L_OVER;
    char *colon = strchr(line, ':');
    if (!colon) return L_BAD;
    *colon = 0;
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (!strcasecmp(line, "content-length")) {
        char *end;
        c->left = strtoll(value, &end, 10);
        if (end == value || c->left < 0) return L_BAD;
    } else if (!strcasecmp(line, "transfer-encoding")) {
        c->chunked = has_word(value, "chunked");
    } else if (!strcasecmp(line, "connection")) {
        c->close_after |= has_word(value, "close");
    }
    return L_MORE;
}

static line_result any_line(conn *c, char *line)
{
    char *end;
    switch (c->phase) {
    case P_HEAD:
        return head_line(c, line);
    case P_CHUNK_SIZE:
        if (!isxdigit((unsigned char)line[0])) return L_BAD;
        c->left = strtoll(line, &end, 16);
        if (c->left < 0) return L_BAD;
        c->phase = c->left ? P_CHUNK : P_TRAILER;
        return L_MORE;
    case P_CHUNK_END:
        c->phase = P_CHUNK_SIZE;
        return *line ? L_BAD : L_MORE;
    case P_TRAILER:
        return *line ? L_MORE : L_OVER;
    default:
        return L_BAD;
    }
}

/* One line out of p[0..n); *used bytes are gone. */
static line_result take_line(conn *c, char *p, size_t n, size_t *used)
{
    char *nl = memchr(p, '\n', n);
    *used = nl ? (size_t)(nl - p) + 1 : n;
    if (!nl || c->line.len) {
        gm_str_append(&c->line, p, *used);
        if (c->line.len > LINE_MAX_BYTES) return L_BAD;
        if (!nl) return L_MORE;
        p = c->line.data;
        nl = p + c->line.len - 1;
    }
    if (nl > p && nl[-1] == '\r') nl--;
    *nl = 0;
    line_result r = any_line(c, p);
    gm_str_clear(&c->line);
    return r;
}

static void take_bytes(gm_plain *p, conn *c, char *b, size_t n)
{
    while (n) {
        if (c->phase == P_LENGTH || c->phase == P_CHUNK || c->phase == P_TO_END) {
            size_t k = c->phase == P_TO_END || (int64_t)n < c->left ? n : (size_t)c->left;
            c->r.on_bytes(c->r.user, c->status, b, k);
            b += k;
            n -= k;
            if (c->phase == P_TO_END) continue;
            c->left -= (int64_t)k;
            if (c->left) continue;
            if (c->phase == P_CHUNK) {
                c->phase = P_CHUNK_END;
                continue;
            }
            c->close_after |= n > 0; /* more than was announced */
            finish(p, c, NULL);
            return;
        }
        size_t used;
        line_result r = take_line(c, b, n, &used);
        b += used;
        n -= used;
        if (r == L_BAD) {
            set_failed(p, c, "the answer is not HTTP/1.1", 0);
            finish(p, c, c->failed);
            return;
        }
        if (r == L_OVER) {
            c->close_after |= n > 0;
            finish(p, c, NULL);
            return;
        }
    }
}

static void read_some(gm_plain *p, conn *c)
{
    ssize_t n = recv(c->fd, p->buf, READ_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || c->phase == P_IDLE) {
        lost(p, c, n < 0 ? errno : 0);
        return;
    }
    c->got_bytes = true;
    if (c->phase == P_SEND) { /* an answer before the request is out: a refusal; what is left is not sent */
        c->phase = P_HEAD;
        c->close_after = true;
        watch(p, c, false, false);
    }
    take_bytes(p, c, p->buf, (size_t)n);
}

static void connected(gm_plain *p, conn *c)
{
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (!error) {
        begin(p, c);
        return;
    }
    c->address = c->address->ai_next;
    if (c->address) connect_next(p, c);
    else set_failed(p, c, "cannot connect", error);
}

void gm_plain_event(gm_plain *p, void *connection, uint32_t events)
{
    conn *c = connection;
    if (c->fd < 0 || c->failed) return;
    if (c->phase == P_CONNECT) {
        connected(p, c);
        return;
    }
    if (events & EPOLLOUT && c->phase == P_SEND) write_more(p, c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_some(p, c);
}

int64_t gm_plain_due_ns(const gm_plain *p)
{
    if (p->n_failed) return 0;
    return p->open.first ? p->open.first->started_ns + p->timeout_ns : INT64_MAX;
}

bool gm_plain_tick(gm_plain *p, int64_t now_ns)
{
    bool told = false;
    free_list(&p->dead);
    while (p->open.first && now_ns >= p->open.first->started_ns + p->timeout_ns) {
        conn *c = p->open.first;
        set_failed(p, c, "timed out", 0);
        finish(p, c, c->failed);
        told = true;
    }
    for (conn *c = p->open.first; c && p->n_failed;) {
        conn *next = c->next;
        if (c->failed) {
            finish(p, c, c->failed);
            told = true;
        }
        c = next;
    }
    return told;
}
