#include "plan/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *gm_metric_name(gm_metric m)
{
    static const char *const names[] = {"ttft", "tpot", "itl", "e2el"};
    return names[m];
}

static double between(double a, double b, double t)
{
    return a + (b - a) * t;
}

double gm_percentile(const double *v, int64_t n, double q)
{
    if (n == 0) return 0;
    double at = q / 100 * (double)(n - 1);
    int64_t lo = (int64_t)floor(at), hi = lo + 1 < n ? lo + 1 : lo;
    return between(v[lo], v[hi], at - (double)lo);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_gap(const void *a, const void *b)
{
    int64_t x = ((const gm_sim_gap *)a)->ns, y = ((const gm_sim_gap *)b)->ns;
    return (x > y) - (x < y);
}

/* Most requests that touched one whole second of the run. */
static int32_t concurrent_peak(const gm_sim_result *r)
{
    int64_t seconds = r->duration_ns / 1000000000 + 2, most = 0, now = 0;
    int32_t *change = gm_new_array(int32_t, seconds + 1);
    for (int32_t i = 0; i < r->n; i++) {
        if (r->requests[i].failed) continue;
        change[r->requests[i].sent_ns / 1000000000]++;
        change[r->requests[i].end_ns / 1000000000 + 1]--;
    }
    for (int64_t s = 0; s < seconds; s++) {
        now += change[s];
        if (now > most) most = now;
    }
    gm_free(change);
    return (int32_t)most;
}

static void put(gm_summary *s, gm_metric m, double v)
{
    s->values[m][s->n_values[m]++] = v;
}

void gm_summary_init(gm_summary *s, gm_sim_result *r, const gm_limits_ms *limits)
{
    *s = (gm_summary){.result = r};
    int64_t good = 0;
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (m != GM_METRIC_ITL) s->values[m] = gm_new_array(double, r->n + 1);
    for (int32_t i = 0; i < r->n; i++) {
        const gm_sim_request *q = &r->requests[i];
        if (q->failed) {
            s->failed++;
            continue;
        }
        double ttft = (double)(q->first_ns - q->sent_ns) / 1e6, e2el = (double)(q->end_ns - q->sent_ns) / 1e6;
        double tpot = q->n_out > 1 ? (e2el - ttft) / (q->n_out - 1) : 0;
        put(s, GM_METRIC_TTFT, ttft);
        put(s, GM_METRIC_E2EL, e2el);
        if (q->n_out > 1) put(s, GM_METRIC_TPOT, tpot);
        s->completed++;
        s->tokens_in += q->n_in;
        s->tokens_out += q->n_out;
        good += (limits->ttft == 0 || ttft <= limits->ttft) && (limits->tpot == 0 || tpot <= limits->tpot) &&
                (limits->e2el == 0 || e2el <= limits->e2el);
    }
    for (int m = 0; m < GM_METRIC_COUNT; m++)
        if (s->values[m]) qsort(s->values[m], (size_t)s->n_values[m], sizeof(double), by_value);
    if (r->n_gaps) qsort(r->gaps, (size_t)r->n_gaps, sizeof *r->gaps, by_gap);
    for (int64_t i = 0; i < r->n_gaps; i++) s->n_values[GM_METRIC_ITL] += r->gaps[i].n;
    for (int64_t i = 0; i < r->n_seconds; i++)
        if (r->second_tokens[i] > s->tokens_peak) s->tokens_peak = r->second_tokens[i];
    s->concurrent_peak = concurrent_peak(r);
    s->duration_s = (double)r->duration_ns / 1e9;
    double d = s->duration_s > 0 ? s->duration_s : 1;
    s->request_rate = (double)s->completed / d;
    s->output_rate = (double)s->tokens_out / d;
    s->total_rate = (double)(s->tokens_in + s->tokens_out) / d;
    s->goodput = (double)good / d;
}

void gm_summary_fini(gm_summary *s)
{
    for (int m = 0; m < GM_METRIC_COUNT; m++) gm_free(s->values[m]);
    memset(s, 0, sizeof *s);
}

/* Value at place `at` of all gaps in order. */
static double gap_at(const gm_sim_result *r, int64_t at)
{
    int64_t i = 0;
    for (int64_t seen = 0; i < r->n_gaps - 1 && (seen += r->gaps[i].n) <= at; i++) {
    }
    return (double)r->gaps[i].ns / 1e6;
}

double gm_summary_percentile(const gm_summary *s, gm_metric m, double q)
{
    int64_t n = s->n_values[m];
    if (m != GM_METRIC_ITL) return gm_percentile(s->values[m], n, q);
    if (n == 0) return 0;
    double at = q / 100 * (double)(n - 1);
    int64_t lo = (int64_t)floor(at);
    return between(gap_at(s->result, lo), gap_at(s->result, lo + 1 < n ? lo + 1 : lo), at - (double)lo);
}

gm_stats gm_summary_stats(const gm_summary *s, gm_metric m)
{
    gm_stats o = {.n = s->n_values[m], .median = gm_summary_percentile(s, m, 50)};
    double sum = 0, square = 0, n = (double)o.n;
    if (o.n == 0) return o;
    int64_t entries = m == GM_METRIC_ITL ? s->result->n_gaps : o.n;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < entries; i++) {
            double v = m == GM_METRIC_ITL ? (double)s->result->gaps[i].ns / 1e6 : s->values[m][i];
            double w = m == GM_METRIC_ITL ? (double)s->result->gaps[i].n : 1;
            if (pass == 0) sum += w * v;
            else square += w * (v - o.mean) * (v - o.mean);
        }
        o.mean = sum / n;
    }
    o.std = sqrt(square / n);
    return o;
}
