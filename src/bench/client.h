/* An HTTP client for one thread and thousands of open streams, driven by epoll: plain_http for http://,
 * libcurl's multi interface for https:// and behind a proxy. Connections are kept and reused. The client
 * watches itself: how long one turn of its loop takes is how late it may have noticed a byte, and whoever
 * measures a server with it should know that. */
#ifndef GM_BENCH_CLIENT_H
#define GM_BENCH_CLIENT_H

#include "base/json.h"

typedef struct gm_client gm_client;

typedef struct gm_client_params {
    int streams_max;       /* most at once; 0: no limit known */
    bool insecure;         /* take any TLS certificate */
    bool curl_only;        /* streams go through libcurl even where it need not be: proxies, comparisons */
    double timeout_s;      /* of one stream, connecting included; 0: 6 hours */
    const json_t *headers; /* array of "Name: value", sent with every request; may be NULL */
} gm_client_params;

gm_status gm_client_open(gm_client **out, const gm_client_params *p, gm_error *err);
void gm_client_close(gm_client *c);

/* A whole request, waited for. method is GET or POST; body NULL: none. *status is 0 and GM_EIO comes back
 * where there was no answer at all. Not while streams are open. */
gm_status gm_client_fetch(gm_client *c, const char *method, const char *url, const char *body,
                          double timeout_s, long *status, gm_str *answer, gm_error *err);

typedef struct gm_stream_request {
    const char *url;
    const char *request_id; /* x-request-id; NULL: none */
    char *body;             /* the client takes it over (gm_free) */
    size_t body_len;
    /* Bytes of the answer's body as they come. status is the HTTP status. */
    void (*on_bytes)(void *user, long status, const char *bytes, size_t len);
    /* Exactly once; error is NULL where the transfer was complete, whatever the status. */
    void (*on_end)(void *user, long status, const char *error);
    void *user;
} gm_stream_request;

/* Look the host up now, so that the first request does not wait for it. A failure is left to the first
 * request. */
void gm_client_look_up(gm_client *c, const char *url);
/* POST body as application/json. Callbacks run inside gm_client_turn() only. */
void gm_client_start(gm_client *c, const gm_stream_request *r);
/* Wait until something happens or until_ns (of gm_client_now_ns()) has come; handle what there is. */
void gm_client_turn(gm_client *c, int64_t until_ns);
int gm_client_open_streams(const gm_client *c);
void gm_client_abort(gm_client *c); /* drop all streams; on_end is not called */

int64_t gm_client_now_ns(void); /* monotonic */

/* How long single turns of the loop took, waiting excluded, since the last call of reset. */
typedef struct gm_client_delay {
    int64_t turns, total_ns, max_ns;
    int64_t p50_ns, p99_ns; /* upper bounds of buckets 1/8 apart */
} gm_client_delay;
void gm_client_delay_reset(gm_client *c);
gm_client_delay gm_client_delay_get(const gm_client *c);

/* Let this process open n sockets, as far as it may. False: it may not; the message says how many. */
bool gm_client_allow_sockets(int64_t n, gm_error *err);

#endif
