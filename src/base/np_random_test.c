/* The numbers below were printed by NumPy 1.24.2 and Python 3.11. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/np_random.h"

static void same_double(double got, double want)
{
    if (fabs(got - want) > 4e-16 * fabs(want)) {
        print_error("got %a, want %a\n", got, want);
        fail();
    }
}

static void draws(gm_pcg64 *g, int64_t low, int64_t high, const int64_t *want, int n)
{
    for (int i = 0; i < n; i++) assert_int_equal(gm_pcg64_integer(g, low, high), want[i]);
}
#define DRAWS(g, low, high, ...)                                                                             \
    draws(g, low, high, (const int64_t[]){__VA_ARGS__},                                                      \
          (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)))

static void test_pcg64(void **state)
{
    (void)state;
    gm_pcg64 g;
    gm_pcg64_seed(&g, 0);
    same_double(gm_pcg64_uniform(&g), 0x1.461fd79fb3850p-1);
    same_double(gm_pcg64_uniform(&g), 0x1.1442f7e20b674p-2);
    same_double(gm_pcg64_uniform(&g), 0x1.4fa7b529d9bd0p-5);
    same_double(gm_pcg64_uniform(&g), 0x1.0ec9ed84d0bc0p-6);
    DRAWS(&g, 0, 10, 1, 8, 6, 9, 5, 6);
    DRAWS(&g, 409, 3688, 3592, 2801, 2482, 2191, 2244, 3475);
    same_double(gm_pcg64_uniform(&g), 0x1.a1b78e9a8e006p-1);
    DRAWS(&g, 0, 154820, 103865, 423, 61022, 132743, 85819);
    DRAWS(&g, -5, (int64_t)1 << 40, 802264647618, 193135397332, 949075261974);
    gm_pcg64_seed(&g, 42);
    DRAWS(&g, 0, 10, 0, 7, 6, 4, 4, 8, 0, 6, 2, 0);
    gm_pcg64_seed(&g, 12345678901234);
    DRAWS(&g, 0, INT64_MAX, 3748171518807217089, 241685214015976147, 5724105851130704744);
    DRAWS(&g, 5, 6, 5, 5);
    DRAWS(&g, 0, (int64_t)1 << 32, 1174134607, 139339530, 916715204);
    gm_pcg64_init(&g, (const uint32_t[]){7, 8, 9, 10, 11}, 5);
    DRAWS(&g, 0, 1000, 404, 158, 116, 729, 720);
}

/* The three vectors of the random data set for 2048/256, ratio 0.8, 1,000 requests, seed 0. */
static void test_published_shape(void **state)
{
    (void)state;
    static const struct {
        int64_t low, high, first[4], min, max, sum;
    } v[] = {{409, 3688, {3198, 2497, 2085, 1293}, 409, 3681, 2100323},
             {51, 462, {278, 84, 127, 410}, 51, 461, 259647}};
    gm_pcg64 g;
    gm_pcg64_seed(&g, 0);
    for (int i = 0; i < 2; i++) {
        int64_t min = INT64_MAX, max = 0, sum = 0;
        for (int k = 0; k < 1000; k++) {
            int64_t x = gm_pcg64_integer(&g, v[i].low, v[i].high);
            if (k < 4) assert_int_equal(x, v[i].first[k]);
            min = x < min ? x : min;
            max = x > max ? x : max;
            sum += x;
        }
        assert_int_equal(min, v[i].min);
        assert_int_equal(max, v[i].max);
        assert_int_equal(sum, v[i].sum);
    }
    DRAWS(&g, 0, 154820, 114904, 2013, 79924, 128154);
}

static void test_gamma(void **state)
{
    (void)state;
    static const struct {
        double shape, scale, want[3];
    } v[] = {{1.0, 0.5, {0x1.977cdd108fb06p-2, 0x1.4184adb0fa85ap-1, 0x1.d8b0b4444705bp-2}},
             {0.4, 2.0, {0x1.c0d638e6f8000p-2, 0x1.5b20a6ad043dcp-1, 0x1.560c25c0506f8p+1}},
             {3.5, 1 / 3.5, {0x1.b696d4a84904cp+0, 0x1.57a25bea3b8b2p-1, 0x1.2c8c544ffe305p+0}}};
    gm_mt19937 m;
    gm_mt19937_seed_numpy(&m, 0);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            double x = gm_mt19937_gamma(&m, v[i].shape, v[i].scale);
            assert_true(fabs(x - v[i].want[k]) <
                        1e-12 * v[i].want[k]); /* libm's pow and log may differ in the last bit */
        }
}

static void test_python(void **state)
{
    (void)state;
    static const size_t want[] = {10, 18, 16, 14, 0, 17, 11, 2, 3, 9, 5, 7, 4, 19, 6, 15, 8, 1, 13, 12};
    static const size_t chosen[] = {31, 72, 89, 68};
    size_t order[20];
    gm_mt19937 m;
    gm_mt19937_seed_python(&m, 0);
    for (size_t i = 0; i < 20; i++) order[i] = i;
    gm_mt19937_shuffle(&m, order, 20);
    for (size_t i = 0; i < 20; i++) assert_int_equal(order[i], want[i]);
    for (size_t i = 0; i < 4; i++) assert_int_equal(gm_mt19937_choice(&m, 100), chosen[i]);
    assert_int_equal(gm_mt19937_below(&m, 1000), 483);
    same_double(gm_mt19937_uniform(&m), 0x1.1e9fe60671e37p-1);
    gm_mt19937_seed_python(&m, ((uint64_t)1 << 40) + 3);
    same_double(gm_mt19937_uniform(&m), 0x1.c21fbe0f92b60p-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pcg64), cmocka_unit_test(test_published_shape),
                                       cmocka_unit_test(test_gamma), cmocka_unit_test(test_python)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
