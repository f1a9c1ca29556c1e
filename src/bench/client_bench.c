/* Can the client keep up? A stub server in a child process streams to thousands of connections at a set pace;
 * the client reads, parses and measures them all on one thread. Printed: tokens/s received, processor time of
 * the client, how long the turns of its loop took. client_bench [streams 4096] [tokens/s in all 100000]
 * [tokens a stream 120] [curl: all through libcurl] */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/figures.h"

enum { TICK_NS = 500000, BATCH = 1024 };

typedef struct peer {
    int fd, left; /* chunks to send */
    bool asked;
} peer;

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EAGAIN && errno != EINTR) return;
        if (k > 0) p += k, n -= (size_t)k;
    }
}

static void send_chunk(peer *w, int n_tokens)
{
    static const char chunk[] =
        "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1764500000,"
        "\"model\":\"stub\",\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,"
        "\"finish_reason\":null,\"stop_reason\":null}]}";
    char out[512];
    int n = snprintf(out, sizeof out, "%zx\r\ndata: %s\n\n\r\n", sizeof chunk - 1 + 8, chunk);
    send_all(w->fd, out, (size_t)n);
    if (--w->left) return;
    char last[256];
    int k = snprintf(
        last, sizeof last,
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n",
        n_tokens);
    n = snprintf(out, sizeof out, "%x\r\n%s\r\n0\r\n\r\n", (unsigned)k, last);
    send_all(w->fd, out, (size_t)n);
}

static void on_ready(peer *w, int n_tokens)
{
    static const char head[] =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    char buf[16384];
    ssize_t k = read(w->fd, buf, sizeof buf - 1);
    if (k <= 0) return;
    buf[k] = 0;
    if (w->asked || !strstr(buf, "}")) return; /* one small body, at once or after its headers */
    w->asked = true;
    w->left = n_tokens;
    send_all(w->fd, head, sizeof head - 1);
}

static _Noreturn void serve(int listener, int n_streams, double rate, int n_tokens)
{
    peer *peers = gm_new_array(peer, n_streams);
    struct epoll_event ev[BATCH], me = {.events = EPOLLIN, .data.ptr = NULL};
    int ep = epoll_create1(0), n_peers = 0, n_asked = 0, next = 0;
    int64_t begun = 0, sent = 0;
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &me);
    for (;;) {
        int n = epoll_wait(ep, ev, BATCH, begun ? 0 : 10);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr) {
                peer *w = ev[i].data.ptr;
                bool before = w->asked;
                on_ready(w, n_tokens);
                n_asked += w->asked && !before;
                if (begun) epoll_ctl(ep, EPOLL_CTL_DEL, w->fd, NULL);
                continue;
            }
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), one = 1;
            if (fd < 0 || n_peers == n_streams) continue;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            peers[n_peers].fd = fd;
            struct epoll_event e = {.events = EPOLLIN, .data.ptr = &peers[n_peers++]};
            epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        }
        if (!begun && n_asked == n_streams) begun = gm_client_now_ns();
        if (!begun) continue;
        int64_t due = (int64_t)((double)(gm_client_now_ns() - begun) * 1e-9 * rate);
        for (; sent < due && sent < (int64_t)n_streams * n_tokens; sent++, next = (next + 1) % n_streams)
            if (peers[next].left) send_chunk(&peers[next], n_tokens);
        struct timespec ts = {.tv_nsec = TICK_NS};
        nanosleep(&ts, NULL);
    }
}

static int listen_any(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&a, &n)) {
        perror("listen");
        exit(1);
    }
    *port = ntohs(a.sin_port);
    return fd;
}

static void print_run(const gm_drive_result *r, double rate)
{
    gm_figures_params fp = {.percentiles = {99}, .n_percentiles = 1};
    gm_figures f;
    int64_t first = INT64_MAX, last = 0;
    gm_figures_compute(&f, r, &fp);
    for (size_t i = 0; i < r->n; i++) {
        if (!r->outcomes[i].ok) continue;
        if (r->outcomes[i].first_ns < first) first = r->outcomes[i].first_ns;
        if (r->outcomes[i].last_ns > last) last = r->outcomes[i].last_ns;
    }
    double streamed = (double)(last - first) * 1e-9;
    printf("streams %zu, completed %lld, tokens %lld\n", r->n, (long long)f.completed,
           (long long)f.output_tokens);
    printf("tokens/s while streaming    %10.0f  (asked for %.0f)\n", (double)f.output_tokens / streamed,
           rate);
    printf("client processor time       %10.2f s of %.2f s: %.1f %% of one core, %.2f us a token\n", r->cpu_s,
           f.duration_s, 100 * r->cpu_s / f.duration_s, 1e6 * r->cpu_s / (double)f.output_tokens);
    printf("loop turn p50 / p99 / max   %10.3f / %.3f / %.3f ms\n", 1e-6 * (double)r->loop.p50_ns,
           1e-6 * (double)r->loop.p99_ns, 1e-6 * (double)r->loop.max_ns);
    printf("gaps mean / p99             %10.2f / %.2f ms  (paced at %.2f)\n", f.spread[GM_METRIC_ITL].mean,
           f.spread[GM_METRIC_ITL].p[0], 1e3 * (double)r->n / rate);
    printf("sent late p99 / max         %10.2f / %.2f ms\n", f.late_p99_ms, f.late_max_ms);
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 4096, n_tokens = argc > 3 ? atoi(argv[3]) : 120, port;
    double rate = argc > 2 ? atof(argv[2]) : 100000;
    gm_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    if (!gm_client_allow_sockets(n + 64, &err)) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    int listener = listen_any(&port);
    pid_t child = fork();
    if (child == 0) serve(listener, n, rate, n_tokens);
    close(listener);
    gm_settings s = {0};
    gm_body_maker body;
    gm_client *client = NULL;
    gm_sample *samples = gm_new_array(gm_sample, n);
    for (int i = 0; i < n; i++)
        samples[i] =
            (gm_sample){.text = gm_strdup("x"), .text_len = 1, .prompt_len = 8, .output_len = n_tokens};
    gm_body_maker_init(&body, &s, false, "stub", true);
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/completions", port);
    gm_status st = gm_client_open(
        &client, &(gm_client_params){.streams_max = n, .timeout_s = 120, .curl_only = argc > 4}, &err);
    gm_drive_result r = {0};
    gm_drive_params p = {
        .client = client, .url = url, .id_prefix = "b-", .body = &body, .samples = samples, .n = (size_t)n};
    if (!st) st = gm_drive(&r, &p, &err);
    if (!st) print_run(&r, rate);
    else printf("%s\n", err.message);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    size_t completed = 0;
    for (size_t i = 0; i < r.n; i++) {
        completed += r.outcomes[i].ok;
        if (!r.outcomes[i].ok && completed + 3 > i) printf("stream %zu: %s\n", i, r.outcomes[i].error);
    }
    gm_drive_result_fini(&r);
    gm_client_close(client);
    gm_body_maker_fini(&body);
    for (int i = 0; i < n; i++) gm_free(samples[i].text);
    gm_free(samples);
    return completed == (size_t)n ? 0 : 1;
}
