/* Counters that the server keeps beside the engine's, and the text form of both. */
#ifndef GM_SERVER_METRICS_H
#define GM_SERVER_METRICS_H

#include <pthread.h>

#include "base/str.h"
#include "engine/engine.h"

#define GM_HTTP_HANDLERS_MAX 24

typedef struct gm_http_series {
    const char *handler;
    char method[8];
    int64_t by_class[6]; /* 1xx .. 5xx at 1..5 */
    gm_histogram seconds;
    int64_t n;
    double request_bytes, response_bytes;
} gm_http_series;

typedef struct gm_metrics {
    pthread_mutex_t lock;
    gm_histogram ttft, params_n, max_generation;
    int64_t stop_strings; /* engine requests that a stop string ended; the engine counts them as aborted */
    gm_http_series http[GM_HTTP_HANDLERS_MAX];
    int n_http;
} gm_metrics;

void gm_metrics_init(gm_metrics *m, int32_t model_len);
void gm_metrics_fini(gm_metrics *m);
void gm_metrics_observe(gm_metrics *m, gm_histogram *h, double v);
void gm_metrics_add(gm_metrics *m, int64_t *counter, int64_t n);
/* handler must be a string that stays. */
void gm_metrics_http(gm_metrics *m, const char *handler, const char *method, int status, double seconds, size_t in,
                     size_t out);

typedef struct gm_metrics_info {
    const char *model;
    int32_t page_tokens, n_pages;
    int64_t cache_tokens;
    double cache_concurrency;
    const char *cache_dtype;
    bool prefix_caching;
    double started_s;
} gm_metrics_info;
void gm_metrics_put(gm_metrics *m, const gm_engine_stats *s, const gm_metrics_info *info, gm_str *out);

#endif
