#include "ops/moe_route/moe_route.h"
#include "ops/test_util.h"

static void run(gm_isa isa, const gm_moe_route_args *a)
{
    gm_moe_route_args b = *a;
    b.dev = tu_device(isa, 2);
    int64_t before = gm_variant_count(GM_OP_moe_route, isa);
    gm_moe_route(&b);
    tu_ran(GM_OP_moe_route, isa, before);
}

/* A literal reading of the rule in double. */
static void want_of(const gm_moe_route_args *a, int32_t r, bool *chosen, double *weight)
{
    int32_t E = a->n_experts;
    double s[GM_EXPERTS_MAX], c[GM_EXPERTS_MAX], sum = 0;
    bool open[GM_EXPERTS_MAX];
    for (int32_t e = 0; e < E; e++) {
        s[e] = 1 / (1 + exp(-(double)a->logits[r * E + e]));
        c[e] = s[e] + (double)a->bias[e];
        open[e] = a->n_groups <= 1;
        chosen[e] = false;
    }
    for (int32_t i = 0; a->n_groups > 1 && i < a->topk_groups; i++) {
        int32_t per = E / a->n_groups, best = -1;
        double most = 0;
        for (int32_t g = 0; g < a->n_groups; g++) {
            if (open[g * per]) continue;
            double one = -1e9, two = -1e9;
            for (int32_t e = g * per; e < (g + 1) * per; e++) {
                if (c[e] > one) two = one, one = c[e];
                else if (c[e] > two) two = c[e];
            }
            if (best < 0 || one + two > most) best = g, most = one + two;
        }
        for (int32_t e = best * per; e < (best + 1) * per; e++) open[e] = true;
    }
    for (int32_t e = 0; e < E; e++)
        if (!open[e]) c[e] = -1e9;
    for (int32_t i = 0; i < a->n_active; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < E; e++)
            if (!chosen[e] && (best < 0 || c[e] > c[best])) best = e;
        chosen[best] = true;
        sum += s[best];
    }
    for (int32_t e = 0; e < E; e++) weight[e] = s[e] / (a->norm_topk ? sum + 1e-20 : 1) * (double)a->scale;
}

static void check(const gm_moe_route_args *a)
{
    TU_EACH_ISA(isa) {
        run(isa, a);
        for (int32_t r = 0; r < a->n; r++) {
            bool chosen[GM_EXPERTS_MAX];
            double weight[GM_EXPERTS_MAX];
            want_of(a, r, chosen, weight);
            for (int32_t i = 0; i < a->n_active; i++) {
                int32_t e = a->ids[r * a->n_active + i];
                assert_true(e >= 0 && e < a->n_experts && (i == 0 || e > a->ids[r * a->n_active + i - 1]));
                if (!chosen[e]) fail_msg("row %d: expert %d is not among the best", r, e);
                double got = (double)a->weights[r * a->n_active + i];
                assert_true(fabs(got - weight[e]) <= 2e-6 * weight[e]);
            }
        }
    }
}

static void test_random(void **state)
{
    (void)state;
    static const int32_t shapes[][4] = {{1, 1, 1, 1}, {8, 2, 1, 1},  {16, 4, 4, 2}, {288, 8, 1, 1},
                                        {64, 6, 8, 3}, {30, 5, 5, 2}, {1024, 8, 1, 1}};
    for (size_t i = 0; i < TU_LEN(shapes); i++)
        for (int norm = 0; norm < 2; norm++) {
            int32_t E = shapes[i][0], k = shapes[i][1], n = 9;
            float *logits = tu_normal((size_t)(n * E), 2, i), *bias = tu_normal((size_t)E, 0.3f, i + 9);
            int32_t *ids = tu_bytes((size_t)(n * k) * sizeof *ids);
            float *weights = tu_nan((size_t)(n * k));
            check(&(gm_moe_route_args){.logits = logits, .bias = bias, .ids = ids, .weights = weights, .n = n,
                                       .n_experts = E, .n_active = k, .n_groups = shapes[i][2],
                                       .topk_groups = shapes[i][3], .scale = 2.5f, .norm_topk = norm});
            free(logits), free(bias), free(ids), free(weights);
        }
}

/* A bias near 7 that differs by 0.004 from expert to expert: BF16 would keep 8 of the 16 values. It reorders the
 * winners, and it must not show in the weights. */
static void test_fine_bias(void **state)
{
    (void)state;
    enum { E = 16, K = 8, N = 64 };
    float logits[N * E], bias[E], weights[N * K];
    int32_t ids[N * K];
    for (int e = 0; e < E; e++) bias[e] = 6.82f + 0.004f * (float)((e * 7) % E);
    float *noise = tu_normal(N * E, 0.02f, 3);
    memcpy(logits, noise, sizeof logits);
    check(&(gm_moe_route_args){.logits = logits, .bias = bias, .ids = ids, .weights = weights, .n = N, .n_experts = E,
                               .n_active = K, .n_groups = 1, .topk_groups = 1, .scale = 2.5f, .norm_topk = true});
    int differ = 0;
    for (int r = 0; r < N; r++)
        for (int i = 0; i < K; i++) {
            int rank = 0;
            for (int e = 0; e < E; e++) rank += logits[r * E + e] > logits[r * E + ids[r * K + i]];
            differ += rank >= K;
        }
    assert_true(differ > N); /* the bias did reorder them */
    free(noise);
}

static void test_ties(void **state)
{
    (void)state;
    enum { E = 12, K = 5 };
    float logits[E] = {0}, bias[E] = {0}, weights[K];
    int32_t ids[K];
    bias[9] = 1;
    TU_EACH_ISA(isa) {
        run(isa, &(gm_moe_route_args){.logits = logits, .bias = bias, .ids = ids, .weights = weights, .n = 1,
                                      .n_experts = E, .n_active = K, .n_groups = 1, .topk_groups = 1, .scale = 1,
                                      .norm_topk = true});
        static const int32_t want[K] = {0, 1, 2, 3, 9};
        for (int i = 0; i < K; i++) {
            assert_int_equal(ids[i], want[i]);
            assert_true(fabsf(weights[i] - 0.2f) < 1e-6f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_fine_bias),
                                       cmocka_unit_test(test_ties)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
