/* The figures of a benchmark run from a simulated one, by the definitions of `vllm bench serve`: linear
 * percentiles, population deviation, nothing trimmed. */
#ifndef GM_PLAN_STATS_H
#define GM_PLAN_STATS_H

#include "plan/sim.h"

typedef struct gm_stats {
    double mean, median, std;
    int64_t n;
} gm_stats;

/* The q-th percentile, 0..100, of v[0..n) sorted ascending; 0 where n is 0. */
double gm_percentile(const double *v, int64_t n, double q);

typedef enum gm_metric {
    GM_METRIC_TTFT,
    GM_METRIC_TPOT,
    GM_METRIC_ITL,
    GM_METRIC_E2EL,
    GM_METRIC_COUNT
} gm_metric;
const char *gm_metric_name(gm_metric m); /* "ttft", ... */

typedef struct gm_limits_ms {
    double ttft, tpot, e2el; /* 0: none */
} gm_limits_ms;

/* What a run amounts to. Values are in milliseconds, sorted. */
typedef struct gm_summary {
    double duration_s, request_rate, output_rate, total_rate, goodput; /* a second */
    int64_t completed, failed, tokens_in, tokens_out, tokens_peak;     /* tokens_peak: in one whole second */
    int32_t concurrent_peak;
    double *values[GM_METRIC_COUNT]; /* ITL: see gaps of the result; NULL here */
    int64_t n_values[GM_METRIC_COUNT];
    const gm_sim_result *result;
} gm_summary;

/* result is borrowed for as long as the summary lives; its gaps are sorted. */
void gm_summary_init(gm_summary *s, gm_sim_result *result, const gm_limits_ms *limits);
void gm_summary_fini(gm_summary *s);

gm_stats gm_summary_stats(const gm_summary *s, gm_metric m);
double gm_summary_percentile(const gm_summary *s, gm_metric m, double q);

#endif
