/* Figures of a run, by vLLM's definitions: over the requests that succeeded; the duration runs from the first
 * submission to the last end, nothing trimmed; percentiles interpolate linearly; the standard deviation is
 * the population's. */
#ifndef GM_BENCH_FIGURES_H
#define GM_BENCH_FIGURES_H

#include "bench/drive.h"

enum { GM_PERCENTILES_MAX = 32 };

typedef enum gm_metric {
    GM_METRIC_TTFT,
    GM_METRIC_TPOT, /* requests with more than one output token */
    GM_METRIC_ITL,  /* one sample a chunk, all requests pooled */
    GM_METRIC_E2EL,
    GM_METRIC_QUEUE,      /* client_queue_time */
    GM_METRIC_E2EL_QUEUE, /* e2el_including_client_queue */
    GM_METRIC_COUNT
} gm_metric;
extern const char *const gm_metric_key[GM_METRIC_COUNT];

/* Milliseconds; all 0 without a sample. */
typedef struct gm_spread {
    double mean, median, std;
    double p[GM_PERCENTILES_MAX];
    size_t n;
} gm_spread;

typedef struct gm_figures_params {
    double percentiles[GM_PERCENTILES_MAX];
    int n_percentiles;
    bool has_goodput;
    double goodput_ms[GM_METRIC_COUNT]; /* INFINITY: no limit */
} gm_figures_params;

typedef struct gm_figures {
    double duration_s;
    int64_t completed, failed, good;
    int64_t input_tokens, output_tokens, cached_tokens; /* cached: -1 unknown */
    int64_t chunks; /* of successful requests; output_tokens / chunks tokens came in each */
    int64_t without_usage;
    double peak_chunks_s;                        /* most chunks in one whole second */
    int64_t peak_concurrent;                     /* most requests that touched one whole second */
    double request_s, good_s, output_s, total_s; /* throughputs */
    gm_spread spread[GM_METRIC_COUNT];
    double late_mean_ms, late_p99_ms, late_max_ms; /* sent after it could have been */
} gm_figures;

void gm_figures_compute(gm_figures *out, const gm_drive_result *r, const gm_figures_params *p);

/* NumPy's percentile(): q in [0, 100], v sorted upwards. 0 without a sample. */
double gm_percentile_sorted(const double *v, size_t n, double q);

#endif
