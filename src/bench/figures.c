#include "bench/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *const gm_metric_key[GM_METRIC_COUNT] = {
    "ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gm_percentile_sorted(const double *v, size_t n, double q)
{
    if (!n) return 0;
    double at = q / 100 * (double)(n - 1);
    size_t i = (size_t)at;
    if (i >= n - 1) return v[n - 1];
    double t = at - (double)i, step = v[i + 1] - v[i];
    return t >= 0.5 ? v[i + 1] - step * (1 - t) : v[i] + step * t;
}

/* v in seconds; is sorted. */
static void spread_of(gm_spread *out, double *v, size_t n, const gm_figures_params *p)
{
    double sum = 0, squares = 0;
    *out = (gm_spread){.n = n};
    if (!n) return;
    for (size_t i = 0; i < n; i++) sum += v[i];
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
    qsort(v, n, sizeof *v, by_value);
    out->mean = 1e3 * mean;
    out->std = 1e3 * sqrt(squares / (double)n);
    out->median = 1e3 * gm_percentile_sorted(v, n, 50);
    for (int i = 0; i < p->n_percentiles; i++)
        out->p[i] = 1e3 * gm_percentile_sorted(v, n, p->percentiles[i]);
}

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

static double tpot_of(const gm_outcome *o)
{
    return o->output_tokens > 1 ? seconds(o->last_ns - o->first_ns) / (double)(o->output_tokens - 1) : 0;
}

static bool is_good(const gm_outcome *o, const gm_figures_params *p)
{
    return 1e3 * seconds(o->first_ns - o->start_ns) <= p->goodput_ms[GM_METRIC_TTFT] &&
           1e3 * tpot_of(o) <= p->goodput_ms[GM_METRIC_TPOT] &&
           1e3 * seconds(o->last_ns - o->start_ns) <= p->goodput_ms[GM_METRIC_E2EL];
}

static void sum_up(gm_figures *f, const gm_drive_result *r, const gm_figures_params *p)
{
    f->cached_tokens = -1;
    for (size_t i = 0; i < r->n; i++) {
        const gm_outcome *o = &r->outcomes[i];
        if (!o->ok) {
            f->failed++;
            continue;
        }
        f->completed++;
        f->input_tokens += o->prompt_tokens;
        f->output_tokens += o->output_tokens;
        f->without_usage += !o->usage;
        if (o->cached_tokens >= 0)
            f->cached_tokens = (f->cached_tokens < 0 ? 0 : f->cached_tokens) + o->cached_tokens;
        f->chunks += (int64_t)o->n_gaps + 1;
        if (p->has_goodput && is_good(o, p)) f->good++;
    }
}

static void spread_requests(gm_figures *f, const gm_drive_result *r, const gm_figures_params *p)
{
    double *v = gm_new_array(double, r->n + 1);
    for (int m = 0; m < GM_METRIC_COUNT; m++) {
        size_t n = 0;
        if (m == GM_METRIC_ITL) continue;
        for (size_t i = 0; i < r->n; i++) {
            const gm_outcome *o = &r->outcomes[i];
            if (!o->ok || (m == GM_METRIC_TPOT && o->output_tokens < 2)) continue;
            double e2el = seconds(o->last_ns - o->start_ns), queued = seconds(o->queued_ns);
            v[n++] = m == GM_METRIC_TTFT    ? seconds(o->first_ns - o->start_ns)
                     : m == GM_METRIC_TPOT  ? tpot_of(o)
                     : m == GM_METRIC_E2EL  ? e2el
                     : m == GM_METRIC_QUEUE ? queued
                                            : e2el + queued;
        }
        spread_of(&f->spread[m], v, n, p);
    }
    gm_free(v);
}

static void spread_gaps(gm_figures *f, const gm_drive_result *r, const gm_figures_params *p)
{
    size_t n = 0;
    double *v = gm_new_array(double, f->chunks + 1);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; r->outcomes[i].ok && k < r->outcomes[i].n_gaps; k++)
            v[n++] = (double)r->outcomes[i].gaps[k];
    spread_of(&f->spread[GM_METRIC_ITL], v, n, p);
    gm_free(v);
}

static void find_peaks(gm_figures *f, const gm_drive_result *r)
{
    int64_t first = INT64_MAX, last = 0;
    for (size_t i = 0; i < r->n; i++) {
        const gm_outcome *o = &r->outcomes[i];
        if (!o->ok) continue;
        if (o->start_ns < first) first = o->start_ns;
        if (o->last_ns > last) last = o->last_ns;
    }
    if (!f->completed) return;
    size_t n = (size_t)((last - first) / 1000000000) + 2;
    int64_t *chunks = gm_new_array(int64_t, n), *steps = gm_new_array(int64_t, n + 1), now = 0;
    for (size_t i = 0; i < r->n; i++) {
        const gm_outcome *o = &r->outcomes[i];
        if (!o->ok) continue;
        double at = seconds(o->first_ns - first);
        chunks[(size_t)at]++;
        for (size_t k = 0; k < o->n_gaps; k++) {
            at += (double)o->gaps[k];
            chunks[(size_t)at < n ? (size_t)at : n - 1]++;
        }
        steps[(o->start_ns - first) / 1000000000]++;
        steps[(o->last_ns - first) / 1000000000 + 1]--;
    }
    for (size_t i = 0; i < n; i++) {
        now += steps[i];
        if ((double)chunks[i] > f->peak_chunks_s) f->peak_chunks_s = (double)chunks[i];
        if (now > f->peak_concurrent) f->peak_concurrent = now;
    }
    gm_free(chunks);
    gm_free(steps);
}

static void find_lateness(gm_figures *f, const gm_drive_result *r)
{
    double *v = gm_new_array(double, r->n + 1), sum = 0;
    for (size_t i = 0; i < r->n; i++) sum += v[i] = seconds(r->outcomes[i].late_ns);
    qsort(v, r->n, sizeof *v, by_value);
    f->late_mean_ms = r->n ? 1e3 * sum / (double)r->n : 0;
    f->late_p99_ms = 1e3 * gm_percentile_sorted(v, r->n, 99);
    f->late_max_ms = 1e3 * gm_percentile_sorted(v, r->n, 100);
    gm_free(v);
}

void gm_figures_compute(gm_figures *out, const gm_drive_result *r, const gm_figures_params *p)
{
    memset(out, 0, sizeof *out);
    out->duration_s = seconds(r->ended_ns - r->begun_ns);
    double d = out->duration_s > 0 ? out->duration_s : 1e-9;
    sum_up(out, r, p);
    out->request_s = (double)out->completed / d;
    out->good_s = (double)out->good / d;
    out->output_s = (double)out->output_tokens / d;
    out->total_s = (double)(out->input_tokens + out->output_tokens) / d;
    spread_requests(out, r, p);
    spread_gaps(out, r, p);
    find_peaks(out, r);
    find_lateness(out, r);
}
