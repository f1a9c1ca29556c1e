/* HTTP/1.1 without TLS over non-blocking sockets: what the streams of a benchmark need and no more. libcurl does
 * the same with half as much processor time again for each chunk, and its search for a connection to reuse makes
 * thousands of starts to one host quadratic (docs/measuring.md has the measurement). TLS and proxies stay with
 * libcurl.
 *
 * Lives inside gm_client: the epoll instance is the client's, whose events carry a pointer to the connection.
 */
#ifndef GM_BENCH_PLAIN_HTTP_H
#define GM_BENCH_PLAIN_HTTP_H

#include "bench/client.h"

typedef struct gm_plain gm_plain;
struct addrinfo;

/* headers: complete lines with CR LF that every request carries. */
gm_plain *gm_plain_open(int epoll, const char *headers, double timeout_s);
void gm_plain_close(gm_plain *p);
/* True where this can fetch the address: http://, resolved here. err says why not. */
gm_status gm_plain_can(gm_plain *p, const char *url, gm_error *err);
/* url has been through gm_plain_can(). on_end never comes from inside this call. */
void gm_plain_start(gm_plain *p, const gm_stream_request *r);
/* An event of the epoll instance whose data.ptr is not NULL. */
void gm_plain_event(gm_plain *p, void *connection, uint32_t events);
/* Failures that wait to be told, time limits. True: something was told. */
bool gm_plain_tick(gm_plain *p, int64_t now_ns);
int64_t gm_plain_due_ns(const gm_plain *p); /* when tick() has something to do */
int gm_plain_n_open(const gm_plain *p);
void gm_plain_abort(gm_plain *p);

#endif
