/* Percentiles, spreads and peaks against arithmetic done by hand; arrivals against their distribution. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/arrivals.h"
#include "bench/bench_test_util.h"
#include "bench/figures.h"

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-9 * (1 + fabs(want))) fail_msg("got %.12g, want %.12g", got, want);
}

static void test_percentiles(void **state)
{
    (void)state;
    const double v[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    near(gm_percentile_sorted(v, 10, 50), 5.5);
    near(gm_percentile_sorted(v, 10, 99), 9.91);
    near(gm_percentile_sorted(v, 10, 90), 9.1);
    near(gm_percentile_sorted(v, 10, 0), 1);
    near(gm_percentile_sorted(v, 10, 100), 10);
    near(gm_percentile_sorted(v, 10, 99.9), 9.991);
    near(gm_percentile_sorted(v, 1, 73), 1);
    near(gm_percentile_sorted(v, 0, 50), 0);
}

enum { S = 1000000000 };

static gm_outcome outcome(double start, double first, double last, int64_t tokens, size_t n_gaps,
                          const float *gaps)
{
    gm_outcome o = {
        .ok = true, .usage = true, .prompt_tokens = 10, .output_tokens = tokens, .cached_tokens = -1};
    o.start_ns = 5 * (int64_t)S + (int64_t)llround(start * S);
    o.first_ns = 5 * (int64_t)S + (int64_t)llround(first * S);
    o.last_ns = 5 * (int64_t)S + (int64_t)llround(last * S);
    o.queued_ns = S / 2;
    o.gaps = gm_new_array(float, n_gaps);
    memcpy(o.gaps, gaps, n_gaps * sizeof *gaps);
    o.n_gaps = n_gaps;
    return o;
}

static void test_by_hand(void **state)
{
    (void)state;
    const float half[] = {0.5f, 0.5f, 0.5f, 0.5f}, one[] = {1.0f};
    gm_outcome o[4] = {outcome(0.0, 0.25, 2.25, 5, 4, half),
                       outcome(0.0, 0.75, 1.75, 3, 1, one),
                       outcome(1.5, 2.0, 2.0, 1, 0, half),
                       {.error = gm_strdup("x"), .start_ns = 5 * (int64_t)S}};
    gm_drive_result r = {.outcomes = o, .n = 4, .begun_ns = 5 * (int64_t)S, .ended_ns = 9 * (int64_t)S};
    gm_figures_params p = {.percentiles = {50, 99}, .n_percentiles = 2, .has_goodput = true};
    for (int m = 0; m < GM_METRIC_COUNT; m++) p.goodput_ms[m] = INFINITY;
    p.goodput_ms[GM_METRIC_TTFT] = 500;
    p.goodput_ms[GM_METRIC_TPOT] = 500;
    gm_figures f;
    gm_figures_compute(&f, &r, &p);
    near(f.duration_s, 4);
    assert_int_equal(f.completed, 3);
    assert_int_equal(f.failed, 1);
    assert_int_equal(f.input_tokens, 30);
    assert_int_equal(f.output_tokens, 9);
    assert_int_equal(f.chunks, 8);
    assert_int_equal(f.good, 2); /* the second's first token took 750 ms */
    near(f.good_s, 0.5);
    near(f.request_s, 0.75);
    near(f.output_s, 2.25);
    near(f.total_s, 9.75);
    /* TTFT 250, 750, 500 ms */
    near(f.spread[GM_METRIC_TTFT].mean, 500);
    near(f.spread[GM_METRIC_TTFT].median, 500);
    near(f.spread[GM_METRIC_TTFT].std, sqrt(125000.0 / 3));
    near(f.spread[GM_METRIC_TTFT].p[1], 745);
    /* TPOT 2 s / 4 and 1 s / 2; the third has one token only */
    assert_int_equal(f.spread[GM_METRIC_TPOT].n, 2);
    near(f.spread[GM_METRIC_TPOT].mean, 500);
    /* gaps 0.5 x 4 and 1.0 */
    assert_int_equal(f.spread[GM_METRIC_ITL].n, 5);
    near(f.spread[GM_METRIC_ITL].mean, 600);
    near(f.spread[GM_METRIC_ITL].median, 500);
    near(f.spread[GM_METRIC_ITL].p[1], 980);
    /* E2EL 2250, 1750, 500 */
    near(f.spread[GM_METRIC_E2EL].mean, 1500);
    near(f.spread[GM_METRIC_E2EL_QUEUE].mean, 2000);
    /* second 0: 0.25 0.75 0.75; second 1: 1.25 1.75 1.75; second 2: 2.25, 2.0 */
    near(f.peak_chunks_s, 3);
    assert_int_equal(f.peak_concurrent, 3); /* second 1 is touched by all three */
    for (int i = 0; i < 4; i++) gm_free(o[i].gaps);
    gm_free(o[3].error);
}

static void test_nothing_completed(void **state)
{
    (void)state;
    gm_outcome o[1] = {{.ok = false}};
    gm_drive_result r = {.outcomes = o, .n = 1, .ended_ns = S};
    gm_figures_params p = {.percentiles = {99}, .n_percentiles = 1};
    gm_figures f;
    gm_figures_compute(&f, &r, &p);
    assert_int_equal(f.failed, 1);
    near(f.output_s, 0);
    near(f.spread[GM_METRIC_TTFT].mean, 0);
    near(f.peak_chunks_s, 0);
}

static gm_arrivals read_arrivals(gm_status want, int n, const char *const *words)
{
    gm_settings s;
    gm_arrivals a = {0};
    gm_error err = {0};
    assert_int_equal(settings_of(&s, n, words, &err), GM_OK);
    gm_status st = gm_arrivals_read(&a, &s, &err);
    if (st != want) fail_msg("%s: %s", words[1], err.message);
    a.ramp = !a.ramp ? NULL : !strcmp(a.ramp, "linear") ? "linear" : "exponential";
    gm_settings_fini(&s);
    return a;
}
#define READ(want, ...) read_arrivals(want, WORDS(__VA_ARGS__))

static void mean_and_cv(const double *at, size_t n, double *mean, double *cv)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += at[i] - (i ? at[i - 1] : 0);
    *mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = at[i] - (i ? at[i - 1] : 0) - *mean;
        squares += d * d;
    }
    *cv = sqrt(squares / (double)n) / *mean;
}

/* Gaps of a gamma distribution of shape b have mean 1 / rate and a coefficient of variation of 1 / sqrt(b).
 */
static void test_arrivals(void **state)
{
    (void)state;
    enum { N = 20000 };
    static double at[N];
    const char *shapes[] = {"0.25", "1.0", "4"};
    double want_cv[] = {2, 1, 0.5}, mean, cv;
    for (int i = 0; i < 3; i++) {
        gm_arrivals a = READ(GM_OK, "--request-rate", "50", "--burstiness", shapes[i], "--seed", "3");
        assert_int_equal(gm_arrivals_fill(&a, at, NULL, N, NULL), GM_OK);
        mean_and_cv(at, N, &mean, &cv);
        near(at[N - 1], N / 50.0);
        near(mean, 0.02);
        if (fabs(cv - want_cv[i]) > 0.05 * want_cv[i])
            fail_msg("shape %s: variation %g, want %g", shapes[i], cv, want_cv[i]);
    }
    gm_arrivals a = READ(GM_OK, "--request-rate", "inf");
    assert_int_equal(gm_arrivals_fill(&a, at, NULL, 100, NULL), GM_OK);
    near(at[99], 0);
    a = READ(GM_OK, "--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "1", "--ramp-up-end-rps",
             "16", "--burstiness", "inf");
    double rates[5];
    assert_int_equal(gm_arrivals_fill(&a, at, rates, 5, NULL), GM_OK);
    for (int i = 0; i < 5; i++) near(rates[i], pow(2, i));
    near(at[4], 1 + 0.5 + 0.25 + 0.125 + 0.0625);
    READ(GM_EARG, "--request-rate", "0");
    READ(GM_EARG, "--request-rate", "-3");
    READ(GM_EARG, "--request-rate", "ten");
    READ(GM_EARG, "--burstiness", "0");
    READ(GM_EARG, "--ramp-up-strategy", "linear", "--request-rate", "5");
    READ(GM_EARG, "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "2");
    READ(GM_EARG, "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "3", "--ramp-up-end-rps", "2");
    READ(GM_EARG, "--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "0", "--ramp-up-end-rps", "2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_percentiles), cmocka_unit_test(test_by_hand),
                                       cmocka_unit_test(test_nothing_completed),
                                       cmocka_unit_test(test_arrivals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
