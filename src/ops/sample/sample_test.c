#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "ops/sample/sample.h"
#include "ops/sample/sample_internal.h"

static gm_isa isa_under_test;

static gm_sampler *make(int32_t size, int32_t used)
{
    gm_sampler *s = NULL;
    assert_int_equal(gm_sampler_create(&s, size, used, isa_under_test, NULL), GM_OK);
    return s;
}

static gm_sample_args plain(float *x)
{
    return (gm_sample_args){.logits = x, .temperature = 1, .top_p = 1, .repetition = 1};
}

/* One call on a copy of the row. */
static int32_t once(gm_sampler *s, const float *row, int32_t n, gm_sample_args a)
{
    float *x = gm_new_array(float, n);
    memcpy(x, row, (size_t)n * sizeof *x);
    a.logits = x;
    int32_t id = gm_sample(s, &a);
    gm_free(x);
    return id;
}

static void greedy(void **state)
{
    (void)state;
    float x[19];
    gm_sampler *s = make(19, 17);
    gm_sample_args a = plain(NULL);
    a.temperature = 0;
    for (int i = 0; i < 19; i++) x[i] = NAN;
    assert_int_equal(once(s, x, 19, a), -1);
    x[16] = -1e30f;
    assert_int_equal(once(s, x, 19, a), 16);
    x[4] = 3;
    x[9] = 3; /* equal: the lower id */
    x[17] = 9;
    x[18] = INFINITY; /* no text: never the result */
    assert_int_equal(once(s, x, 19, a), 4);
    x[12] = INFINITY;
    assert_int_equal(once(s, x, 19, a), 12);
    a.temperature = 1;
    assert_int_equal(once(s, x, 19, a), 12);
    for (int i = 0; i < 19; i++) x[i] = -INFINITY;
    assert_int_equal(once(s, x, 19, a), -1);
    gm_sampler_destroy(s);
}

static void edits(void **state)
{
    (void)state;
    enum { V = 8 };
    const float x[V] = {0, 1, 2, 3, 4, 5, 6, 7};
    gm_sampler *s = make(V, V);
    gm_sample_args a = plain(NULL);
    a.temperature = 0;
    const int32_t allowed[] = {1, 3, 3, 99};
    a.allowed_ids = allowed;
    a.n_allowed = 4;
    assert_int_equal(once(s, x, V, a), 3);
    const int32_t banned[] = {3};
    a.banned_ids = banned;
    a.n_banned = 1;
    assert_int_equal(once(s, x, V, a), 1);
    const int32_t bias_ids[] = {3, 0};
    const float bias[] = {100, 100};
    a.bias_ids = bias_ids;
    a.bias_values = bias;
    a.n_bias = 2;
    assert_int_equal(once(s, x, V, a), 1); /* a mask is not undone by a bias */
    a.n_allowed = 0;
    assert_int_equal(once(s, x, V, a), 0);
    gm_sampler_destroy(s);
}

static void bad_words(void **state)
{
    (void)state;
    enum { V = 8 };
    const float x[V] = {0, 1, 2, 3, 4, 5, 6, 7};
    gm_sampler *s = make(V, V);
    gm_sample_args a = plain(NULL);
    a.temperature = 0;
    const int32_t ids[] = {2, 3, 7, 6}, lens[] = {3, 1}, output[] = {5, 2, 3};
    a.bad_ids = ids;
    a.bad_lens = lens;
    a.n_bad = 2;
    a.output = output;
    a.n_output = 1;
    assert_int_equal(once(s, x, V, a), 7);
    a.n_output = 3;
    assert_int_equal(once(s, x, V, a), 5); /* 7 ends the sequence, 6 is always bad */
    gm_sampler_destroy(s);
}

static void penalties(void **state)
{
    (void)state;
    enum { V = 5 };
    float x[V] = {4, -2, 3, 1, 0};
    gm_sampler *s = make(V, V);
    gm_token_counts c;
    void *memory = gm_alloc(gm_token_counts_size(V));
    gm_token_counts_init(&c, memory, V);
    gm_token_counts_add(&c, 0, false);
    gm_token_counts_add(&c, 1, false);
    gm_token_counts_add(&c, 2, false);
    gm_token_counts_add(&c, 2, true);
    gm_token_counts_add(&c, 2, true);
    gm_token_counts_add(&c, 3, true);
    assert_int_equal(c.n, 4);
    gm_sample_args a = plain(x);
    a.temperature = 0;
    a.counts = &c;
    a.repetition = 2;
    a.frequency = 0.25f;
    a.presence = 0.125f;
    assert_int_equal(gm_sample(s, &a), 0);
    const float want[V] = {2, -4, 1.5f - 0.5f - 0.125f, 0.5f - 0.25f - 0.125f, 0};
    for (int i = 0; i < V; i++) assert_true(x[i] == want[i]);
    gm_free(memory);
    gm_sampler_destroy(s);
}

/* The share of draws equals the probabilities of a plain computation with sorting. */
static void expect_shares(const float *x, int32_t n, int32_t used, gm_sample_args a, uint64_t stream,
                          const double *p)
{
    enum { DRAWS = 20000 };
    gm_sampler *s = make(n, used);
    int64_t count[32] = {0};
    for (int64_t i = 0; i < DRAWS; i++) {
        a.u = gm_sample_uniform(stream, i);
        int32_t id = once(s, x, n, a);
        assert_true(id >= 0 && id < used);
        count[id]++;
    }
    double chi2 = 0;
    int degrees = -1;
    for (int32_t i = 0; i < n; i++) {
        double want = p[i] * DRAWS;
        if (p[i] == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        chi2 += ((double)count[i] - want) * ((double)count[i] - want) / want;
        degrees++;
    }
    /* Mean `degrees`, variance twice that: five deviations. */
    double bound = degrees + 5 * sqrt(2.0 * (degrees > 0 ? degrees : 0));
    if (chi2 > bound + 1e-9) fail_msg("chi-square %g with %d degrees of freedom", chi2, degrees);
    gm_sampler_destroy(s);
}

static void softmax(const double *x, int32_t n, double t, double *p)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++) sum += p[i] = exp((x[i] - max) / t);
    for (int32_t i = 0; i < n; i++) p[i] /= sum;
}

static void distribution(void **state)
{
    (void)state;
    enum { V = 21, USED = 20 };
    float x[V];
    double xd[V], p[V];
    for (int i = 0; i < V; i++) {
        x[i] = (float)((i * 7) % V) * 0.15f;
        xd[i] = i < USED ? (double)x[i] : -INFINITY;
    }
    gm_sample_args a = plain(NULL);
    softmax(xd, V, 1, p);
    expect_shares(x, V, USED, a, 1, p);
    a.temperature = 2.5f;
    softmax(xd, V, 2.5, p);
    expect_shares(x, V, USED, a, 2, p);

    a = plain(NULL);
    float y[8] = {1, 4, 3, 2, 0, 3, -1, NAN};
    double yd[8] = {-INFINITY, 4, 3, -INFINITY, -INFINITY, 3, -INFINITY, -INFINITY};
    a.top_k = 3;
    softmax(yd, 8, 1, p);
    expect_shares(y, 8, 8, a, 3, p);
    a.top_k = 2; /* of the equals the lower id */
    yd[5] = -INFINITY;
    softmax(yd, 8, 1, p);
    expect_shares(y, 8, 8, a, 4, p);

    /* weights 1, .37, .37, .14, .05, .02, .007: min_p 0.1 leaves four, then top_p 0.9 drops the .14 */
    a = plain(NULL);
    a.min_p = 0.1f;
    double zd[8] = {-INFINITY, 4, 3, 2, -INFINITY, 3, -INFINITY, -INFINITY};
    softmax(zd, 8, 1, p);
    expect_shares(y, 8, 8, a, 5, p);
    a.top_p = 0.9f;
    zd[3] = -INFINITY;
    softmax(zd, 8, 1, p);
    expect_shares(y, 8, 8, a, 6, p);
    a.top_p = 0.6f; /* 1 + .37 of 1.87 is 0.73, 1 alone is 0.53: of the equals the lower id */
    zd[5] = -INFINITY;
    softmax(zd, 8, 1, p);
    expect_shares(y, 8, 8, a, 7, p);
    a.top_p = 1e-6f;
    zd[2] = -INFINITY;
    softmax(zd, 8, 1, p);
    expect_shares(y, 8, 8, a, 8, p);
}

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return x[0] != y[0] ? (x[0] < y[0] ? 1 : -1) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* Large rows: what top_p leaves is what sorting would leave, for every u the token is among it. */
static void nucleus_equals_sorting(void **state)
{
    (void)state;
    enum { V = 5003 };
    static float x[V], order[V][2];
    gm_rng rng;
    gm_rng_init(&rng, 3);
    gm_sampler *s = make(V, V);
    for (int round = 0; round < 12; round++) {
        double sum = 0, head = 0, top_p = 0.05 + 0.08 * round;
        for (int i = 0; i < V; i++) {
            x[i] = (float)gm_rng_normal(&rng) * (float)(1 + round % 4);
            if (i % 3 == 0) x[i] = roundf(x[i]); /* many equals */
            order[i][0] = x[i];
            order[i][1] = (float)i;
            sum += exp((double)x[i]);
        }
        qsort(order, V, sizeof order[0], by_value);
        int32_t kept = 0;
        while (head < top_p * sum * (1 - 1e-6)) head += exp((double)order[kept++][0]);
        gm_sample_args a = plain(NULL);
        a.top_p = (float)top_p;
        float lowest = INFINITY;
        for (int k = 0; k < 400; k++) {
            a.u = k == 399 ? 1 - 0x1.0p-53 : k / 399.0;
            float v = x[once(s, x, V, a)];
            if (v < lowest) lowest = v;
        }
        assert_true(lowest >= order[kept < V ? kept : V - 1][0] - 1e-5f);
    }
    gm_sampler_destroy(s);
}

static void top_n_and_rank(void **state)
{
    (void)state;
    enum { V = 2051 };
    static float x[V], lp[V], values[V];
    static int32_t ids[V];
    gm_rng rng;
    gm_rng_init(&rng, 11);
    for (int i = 0; i < V; i++) x[i] = roundf((float)gm_rng_normal(&rng) * 20) / 4;
    gm_sampler *s = make(V, V);
    gm_log_softmax(s, x, lp);
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)lp[i]);
    assert_true(fabs(sum - 1) < 1e-4);
    for (int32_t n = 0; n <= V; n = n < 8 ? n + 1 : n * 3 + 1) {
        assert_int_equal(gm_top_n(s, lp, n, ids, values), n);
        for (int32_t i = 0; i < n; i++) {
            assert_true(values[i] == lp[ids[i]]);
            if (i > 0)
                assert_true(values[i] < values[i - 1] || (values[i] == values[i - 1] && ids[i] > ids[i - 1]));
            int32_t above = 0;
            for (int k = 0; k < V; k++) above += lp[k] > lp[ids[i]];
            assert_int_equal(gm_rank(s, lp, ids[i]), above + 1);
        }
    }
    x[7] = NAN;
    x[8] = -INFINITY;
    gm_log_softmax(s, x, x); /* in place */
    assert_true(x[7] == -INFINITY && x[8] == -INFINITY && x[9] < 0);
    assert_int_equal(gm_top_n(s, x, V, ids, values), V - 2);
    gm_sampler_destroy(s);
}

/* Every variant against the reference, on lengths about the vector width and the block. */
static void scans_agree(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (isa_under_test < GM_ISA_AVX2) return;
    static const int32_t lens[] = {1, 7, 8, 9, 1023, 1024, 1025, 1031, 4099};
    static float x[4099], w[2][4099];
    const gm_scans *v[] = {&gm_scans_ref, &gm_scans_avx2};
    gm_rng rng;
    gm_rng_init(&rng, 2);
    for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++) {
        int32_t n = lens[l];
        for (int32_t i = 0; i < n; i++) x[i] = (float)gm_rng_uniform(&rng) * -95.0f;
        x[n / 2] = NAN;
        x[n / 3] = 0;
        if (n > 3) x[1] = -INFINITY;
        for (float t = 1; t > -100; t -= 9) {
            assert_int_equal(v[0]->count_above(x, n, t), v[1]->count_above(x, n, t));
            for (int32_t b = 0; b < n; b += 1 + b / 2)
                assert_int_equal(v[0]->next_above(x, b, n, t), v[1]->next_above(x, b, n, t));
        }
        for (int k = 0; k < 2; k++) memset(w[k], 0xff, sizeof w[k]);
        double s0 = v[0]->exp_row(x, n, 0, 0.5f, w[0]), s1 = v[1]->exp_row(x, n, 0, 0.5f, w[1]);
        assert_true(fabs(s0 - s1) <= 1e-5 * s0);
        for (int32_t i = 0; i < n; i++)
            if (!(fabsf(w[0][i] - w[1][i]) <= 1e-5f * w[0][i]))
                fail_msg("%d: %g and %g", i, w[0][i], w[1][i]);
        assert_true(fabs(v[0]->sum_from(w[0], n, 0.01f) - v[1]->sum_from(w[0], n, 0.01f)) <= 1e-5 * s0);
        assert_true(v[1]->exp_row(x, n, 0, 0.5f, NULL) == s1);
    }
#endif
}

static void uniforms_are_fixed_and_spread(void **state)
{
    (void)state;
    double sum = 0;
    for (int64_t i = 0; i < 10000; i++) sum += gm_sample_uniform(42, i);
    assert_true(fabs(sum / 10000 - 0.5) < 0.02);
    assert_true(gm_sample_uniform(42, 7) == gm_sample_uniform(42, 7));
    assert_true(gm_sample_uniform(42, 7) != gm_sample_uniform(43, 7));
    assert_true(gm_sample_uniform(42, 7) != gm_sample_uniform(42, 8));
}

static void counts_hold_their_maximum(void **state)
{
    (void)state;
    enum { N = 1000 };
    gm_token_counts c;
    void *memory = gm_alloc(gm_token_counts_size(N));
    gm_token_counts_init(&c, memory, N);
    for (int32_t round = 0; round < 3; round++)
        for (int32_t i = 0; i < N; i++) gm_token_counts_add(&c, i * 4096, round > 0);
    assert_int_equal(c.n, N);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(c.entries[i].id, i * 4096);
        assert_int_equal(c.entries[i].n_output, 2);
    }
    gm_free(memory);
}

static void creation_reports(void **state)
{
    (void)state;
    gm_sampler *s = NULL;
    for (long n = 1; n <= 4; n++) {
        gm_alloc_fail_at(n);
        assert_int_equal(gm_sampler_create(&s, 8, 8, GM_ISA_REF, NULL), GM_ENOMEM);
    }
    gm_alloc_fail_at(0);
    assert_int_equal(gm_sampler_create(&s, 8, 9, GM_ISA_REF, NULL), GM_EARG);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy),
        cmocka_unit_test(edits),
        cmocka_unit_test(bad_words),
        cmocka_unit_test(penalties),
        cmocka_unit_test(distribution),
        cmocka_unit_test(nucleus_equals_sorting),
        cmocka_unit_test(top_n_and_rank),
        cmocka_unit_test(scans_agree),
        cmocka_unit_test(uniforms_are_fixed_and_spread),
        cmocka_unit_test(counts_hold_their_maximum),
        cmocka_unit_test(creation_reports),
    };
    int failed = cmocka_run_group_tests_name("reference", tests, NULL, NULL);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        isa_under_test = GM_ISA_AVX2;
        failed += cmocka_run_group_tests_name("avx2", tests, NULL, NULL);
    }
#endif
    return failed;
}
