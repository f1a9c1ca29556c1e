#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static gm_device *open_device(int threads)
{
    gm_device *d = NULL;
    assert_int_equal(gm_device_open_cpu(&d, GM_ISA_REF, threads, NULL), GM_OK);
    assert_int_equal(gm_device_threads(d), threads);
    return d;
}

typedef struct cover {
    gm_device *d;
    int32_t *hits; /* plain: each item is touched by one thread */
    int64_t n, grain;
    atomic_int busy[64], bad;
} cover;

static void touch(void *ctx, int64_t begin, int64_t end, int worker)
{
    cover *c = ctx;
    if (atomic_exchange(&c->busy[worker], 1)) atomic_fetch_add(&c->bad, 1);
    if (begin >= end || (end - begin < c->grain && end - begin < c->n)) atomic_fetch_add(&c->bad, 1);
    if (begin % c->grain != 0) atomic_fetch_add(&c->bad, 1);
    for (int64_t i = begin; i < end; i++) c->hits[i]++;
    atomic_store(&c->busy[worker], 0);
}

static void test_each_item_once(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    static const int64_t sizes[] = {1, 2, 5, 64, 1000, 4097};
    static const int64_t grains[] = {1, 3, 64, 5000};
    for (size_t t = 0; t < 4; t++) {
        gm_device *d = open_device(threads[t]);
        for (size_t s = 0; s < 6; s++)
            for (size_t g = 0; g < 4; g++)
                for (int rep = 0; rep < 50; rep++) {
                    cover c = {.d = d, .n = sizes[s], .grain = grains[g]};
                    c.hits = calloc((size_t)c.n, sizeof *c.hits);
                    gm_device_parallel(d, c.n, c.grain, touch, &c);
                    for (int64_t i = 0; i < c.n; i++) assert_int_equal(c.hits[i], 1);
                    assert_int_equal(atomic_load(&c.bad), 0);
                    free(c.hits);
                }
        gm_device_close(d);
    }
}

static void sum_nested(void *ctx, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    atomic_fetch_add((atomic_long *)ctx, (long)(end - begin));
}

typedef struct nest {
    gm_device *d;
    atomic_long sum;
    atomic_int bad;
} nest;

static void check_worker(void *ctx, int64_t begin, int64_t end, int worker)
{
    (void)begin, (void)end;
    int *seen = ctx;
    *seen = worker;
}

static void outer(void *ctx, int64_t begin, int64_t end, int worker)
{
    nest *n = ctx;
    for (int64_t i = begin; i < end; i++) {
        int seen = -1;
        gm_device_parallel(n->d, 100, 1, sum_nested, &n->sum);
        gm_device_parallel(n->d, 100, 1, check_worker, &seen);
        if (seen != worker) atomic_fetch_add(&n->bad, 1);
    }
}

static void test_nested_runs_inline(void **state)
{
    (void)state;
    gm_device *d = open_device(4);
    nest n = {.d = d};
    for (int i = 0; i < 100; i++) gm_device_parallel(d, 16, 1, outer, &n);
    assert_int_equal(atomic_load(&n.sum), 100 * 16 * 100);
    assert_int_equal(atomic_load(&n.bad), 0);
    gm_device_close(d);
}

static void set_worker(void *ctx, int64_t begin, int64_t end, int worker)
{
    int *w = ctx;
    for (int64_t i = begin; i < end; i++) w[i] = worker;
}

static void test_one_thread_is_the_caller(void **state)
{
    (void)state;
    gm_device *d = open_device(1);
    int w[64];
    memset(w, 0xFF, sizeof w);
    gm_device_parallel(d, 64, 1, set_worker, w);
    for (int i = 0; i < 64; i++) assert_int_equal(w[i], 0);
    gm_device_parallel(d, 0, 1, set_worker, NULL); /* nothing to do: not called */
    gm_device_close(d);
}

/* Workers fall asleep between jobs; none may be lost, and closing wakes them. */
static void test_wakes_after_sleep(void **state)
{
    (void)state;
    gm_device *d = open_device(3);
    for (int i = 0; i < 20; i++) {
        atomic_long sum = 0;
        gm_device_parallel(d, 1000, 1, sum_nested, &sum);
        assert_int_equal(atomic_load(&sum), 1000);
        usleep(i % 2 ? 3000 : 100);
    }
    usleep(20000);
    gm_device_close(d);
}

static void *call_many(void *arg)
{
    for (int i = 0; i < 300; i++) {
        atomic_long sum = 0;
        gm_device_parallel(arg, 500, 1, sum_nested, &sum);
        if (atomic_load(&sum) != 500) return arg;
    }
    return NULL;
}

static void test_callers_take_turns(void **state)
{
    (void)state;
    gm_device *d = open_device(3);
    pthread_t t[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, call_many, d), 0);
    for (int i = 0; i < 3; i++) {
        void *r = d;
        pthread_join(t[i], &r);
        assert_null(r);
    }
    gm_device_close(d);
}

static void test_memory(void **state)
{
    (void)state;
    gm_device *d = open_device(2);
    uint8_t *p = gm_device_alloc(d, 100001);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 100001; i++) assert_int_equal(p[i], 0);
    gm_device_free(d, p, 100001);
    assert_int_equal(gm_device_get_kind(d), GM_DEVICE_CPU);
    gm_device_close(d);
    gm_device_close(NULL);
}

static void test_isa_names(void **state)
{
    (void)state;
    gm_error err;
    gm_isa isa = GM_ISA_AVX512;
    assert_int_equal(gm_isa_parse(&isa, "reference", &err), GM_OK);
    assert_int_equal(isa, GM_ISA_REF);
    assert_int_equal(gm_isa_parse(&isa, "auto", &err), GM_OK);
    assert_int_equal(isa, gm_isa_detect());
    assert_int_equal(gm_isa_parse(&isa, "avx", &err), GM_EARG);
    assert_non_null(strstr(err.message, "\"avx\""));
    assert_int_equal(gm_isa_parse(&isa, gm_isa_name(gm_isa_detect()), &err), GM_OK);
    if (gm_isa_detect() < GM_ISA_AVX512) {
        assert_int_equal(gm_isa_parse(&isa, "avx512", &err), GM_ENOTSUP);
        gm_device *d = NULL;
        assert_int_equal(gm_device_open_cpu(&d, GM_ISA_AVX512, 1, &err), GM_ENOTSUP);
        assert_null(d);
    }
    gm_device *d = NULL;
    assert_int_equal(gm_device_open_cpu(&d, GM_ISA_REF, -1, &err), GM_EARG);
    assert_int_equal(gm_device_open_cpu(&d, GM_ISA_REF, 0, &err), GM_OK);
    assert_true(gm_device_threads(d) >= 1);
    gm_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_item_once),    cmocka_unit_test(test_nested_runs_inline),
        cmocka_unit_test(test_one_thread_is_the_caller), cmocka_unit_test(test_wakes_after_sleep),
        cmocka_unit_test(test_callers_take_turns), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_isa_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
