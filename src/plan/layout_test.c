#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/layout.h"
#include "plan/models.h"

static gm_model_config flash, big;
static gm_machine mi300x;
static const gm_layout tp8 = {.dp = 1, .tp = 8}, dp8 = {.dp = 8, .tp = 1, .ep = true};

/* As the published runs of GLM-5.3-Flash had it. */
static const gm_server_limits published = {.memory_share = 0.8,
                                           .batch_tokens = 8192,
                                           .seqs = 1024,
                                           .model_len = 131072,
                                           .kv_dtype = GM_KV_BF16,
                                           .engine = GM_ENGINE_VLLM};

static int setup(void **state)
{
    gm_error err = {0};
    (void)state;
    if (gm_model_open(&flash, "glm-5.3-flash", NULL, &err) || gm_model_open(&big, "glm-5.2", NULL, &err) ||
        gm_machine_builtin(&mi300x, "8xMI300X", &err)) {
        puts(err.message);
        return -1;
    }
    return 0;
}

static void assert_within(double got, double want, double share)
{
    if (got < want * (1 - share) || got > want * (1 + share))
        fail_msg("%.3f is not within %g of %.3f", got, share, want);
}

/* By hand: latent rows of the MLA layers, index keys of the layers that own an indexer, and of no other. */
static void test_bytes_per_token(void **state)
{
    gm_footprint f = gm_engine_footprint(&flash, GM_ENGINE_VLLM, GM_KV_BF16);
    (void)state;
    assert_int_equal(f.page_bytes, 64 * (11 * 512 * 2) + 11 * (64 / 4) * (128 + 4));
    assert_true(f.token_bytes == 11627);
    f = gm_engine_footprint(&flash, GM_ENGINE_VLLM, GM_KV_FP8);
    assert_true(f.token_bytes == 5995);
    f = gm_engine_footprint(&big, GM_ENGINE_VLLM, GM_KV_BF16);
    assert_true(f.token_bytes == 78 * 1152 + 21 * 132);
    f = gm_engine_footprint(&big, GM_ENGINE_VLLM, GM_KV_FP8);
    assert_true(f.token_bytes == 53940);
    f = gm_engine_footprint(&flash, GM_ENGINE_GLIMMER, GM_KV_BF16);
    assert_true(f.token_bytes == 11264 + 11 * 256 / 4.0);
}

/* The parts add up to the published checkpoint: FP8 with one rank, without the block of multi-token
 * prediction. */
static void test_weights(void **state)
{
    gm_weight_parts p = gm_weight_parts_count(&flash);
    gm_rank_weights w = gm_rank_weights_compute(&flash, &p, &(gm_rank_split){.tp = 1, .n_ranks = 1});
    int64_t params = p.embed + p.head + p.kda_split + p.kda_whole + p.mla_split + p.mla_whole + p.index +
                     p.dense + p.shared + p.expert * p.n_experts * p.n_expert_layers + p.rest + p.vision;
    (void)state;
    assert_int_equal(params, 321323031390 - 7432592416);
    assert_within(w.total, 328326771576.0 - 7432592416.0, 0.005);
    p = gm_weight_parts_count(&big);
    params = p.embed + p.head + p.mla_split + p.mla_whole + p.index + p.dense + p.shared +
             p.expert * p.n_experts * p.n_expert_layers + p.rest;
    assert_int_equal(params, 753329921024 + 19456 - 9952920320 - 256);
    /* FP8 holds one layer's 256 experts in 9,666,035,712 bytes */
    gm_model_config fp8;
    assert_int_equal(gm_model_open(&fp8, "glm-5.2-fp8", NULL, NULL), GM_OK);
    w = gm_rank_weights_compute(&fp8, &p, &(gm_rank_split){.tp = 1, .n_ranks = 1});
    assert_true(w.experts == 75 * 9666035712.0);
}

static void test_published_pools(void **state)
{
    gm_memory_map a = gm_memory_map_compute(&flash, &mi300x, &tp8, &published);
    gm_memory_map b = gm_memory_map_compute(&flash, &mi300x, &dp8, &published);
    (void)state;
    assert_within((double)a.pool_tokens, 9841634, 0.001);
    assert_within((double)b.pool_tokens, 7070606, 0.001);
    assert_int_equal(a.page_tokens, 640);
    assert_int_equal(b.page_tokens, 4352);
    assert_int_equal(a.seq_pages, 5);
    assert_int_equal(b.seq_pages, 5);
    /* One figure for each kind of layout is stated; the two hardly differ, so the arithmetic carries the
     * difference. */
    assert_within(mi300x.reserve_dp_bytes, mi300x.reserve_tp_bytes, 0.05);
}

/* A sequence lives on one scheduler: the floor is taken there, and then times the schedulers. */
static void test_ceilings(void **state)
{
    gm_memory_map a = gm_memory_map_compute(&flash, &mi300x, &tp8, &published);
    gm_memory_map b = gm_memory_map_compute(&flash, &mi300x, &dp8, &published);
    gm_ceiling x = gm_ceiling_compute(&a, &tp8, &published, 128000),
               y = gm_ceiling_compute(&b, &dp8, &published, 128000);
    (void)state;
    assert_int_equal(x.node, 76);
    assert_int_equal(x.bound, GM_BOUND_PAGES);
    assert_int_equal(y.per_rank, 55);
    assert_int_equal(y.node, 440);
    assert_int_equal(gm_ceiling_naive(&b, &dp8, 128000), 440);
    assert_int_equal(8 * (int64_t)7070606 / 128000, 441); /* what a division of the sum would say */
    assert_int_equal(gm_ceiling_naive(&a, &tp8, 2048), 4805);
    assert_int_equal(gm_ceiling_naive(&a, &tp8, 9216), 1067);
    /* whole blocks, and five of them for the state: fewer than the pool divided by the length */
    assert_int_equal(gm_ceiling_compute(&a, &tp8, &published, 9216).per_rank, 15768 / (15 + 5));
    assert_int_equal(gm_ceiling_compute(&b, &dp8, &published, 9216).per_rank, b.n_pages / (3 + 5));
}

/* 161 slots and 256 sequences: the slots end first, and the plan says so. */
static void test_slots_bind(void **state)
{
    gm_server_limits k = published;
    gm_memory_map m = {.page_tokens = 64, .n_pages = 100000, .n_slots = 161, .slot_bytes = 1e6, .cache = 1e9};
    (void)state;
    k.engine = GM_ENGINE_GLIMMER;
    k.seqs = 256;
    gm_ceiling c = gm_ceiling_compute(&m, &tp8, &k, 2048);
    assert_int_equal(c.per_rank, 161);
    assert_int_equal(c.bound, GM_BOUND_SLOTS);
    c = gm_ceiling_compute(&m, &tp8, &k, 6400001);
    assert_int_equal(c.per_rank, 1);
    assert_int_equal(c.bound, GM_BOUND_PAGES);
}

/* The latent cache is copied by tensor parallelism: a token costs a rank the same, only weights and state
 * shrink. */
static void test_tensor_parallel_copies_rows(void **state)
{
    gm_server_limits k = published;
    gm_layout one = {.dp = 1, .tp = 1}, shard = {.dp = 1, .tp = 8, .kv_shard = true};
    gm_machine wide = mi300x;
    (void)state;
    wide.mem_bytes = 4e12;
    k.engine = GM_ENGINE_GLIMMER;
    gm_memory_map a = gm_memory_map_compute(&flash, &wide, &one, &k),
                  b = gm_memory_map_compute(&flash, &wide, &tp8, &k);
    gm_memory_map c = gm_memory_map_compute(&flash, &wide, &shard, &k);
    assert_true(a.token_bytes == b.token_bytes);
    assert_within((double)(b.n_pages - a.n_pages) * a.page_bytes,
                  a.weights.total - b.weights.total + a.workspace - b.workspace + a.n_slots * a.slot_bytes -
                      b.n_slots * b.slot_bytes,
                  1e-4);
    assert_int_equal(c.n_pages, b.n_pages * 8);
}

static void test_does_not_fit(void **state)
{
    gm_machine small;
    gm_memory_map m;
    gm_ceiling c;
    (void)state;
    assert_int_equal(gm_machine_builtin(&small, "8xH100", NULL), GM_OK);
    m = gm_memory_map_compute(&big, &small, &tp8, &published);
    assert_true(m.cache < 0);
    assert_int_equal(m.n_pages, 0);
    c = gm_ceiling_compute(&m, &tp8, &published, 2048);
    assert_int_equal(c.node, 0);
}

static void test_machine_files(void **state)
{
    (void)state;
    for (int32_t i = 0; gm_machine_name(i); i++) {
        char path[512];
        gm_machine a, b;
        gm_error err = {0};
        snprintf(path, sizeof path, "%s/../../machines/%s.json", GM_FIXTURES, gm_machine_name(i));
        assert_int_equal(gm_machine_builtin(&a, gm_machine_name(i), &err), GM_OK);
        if (gm_machine_open(&b, path, &err)) fail_msg("%s", err.message);
        json_t *x = gm_machine_json(&a), *y = gm_machine_json(&b);
        assert_true(json_equal(x, y));
        json_decref(x);
        json_decref(y);
    }
}

/* Each number of a file needs a value and a source; what is missing or unknown is named. */
static void test_machine_refused(void **state)
{
    gm_machine m;
    (void)state;
    for (int k = 0; k < 5; k++) {
        gm_error err = {0};
        json_t *v = gm_machine_json(&mi300x);
        if (k == 0) json_object_del(v, "mem_bw");
        if (k == 1) json_object_del(json_object_get(v, "mem_bw"), "source");
        if (k == 2) json_object_set_new(json_object_get(v, "mem_bw"), "value", json_string("fast"));
        if (k == 3) json_object_set_new(v, "mem_bwx", json_integer(1));
        if (k == 4) json_object_set_new(json_object_get(v, "mem_bw"), "value", json_integer(0));
        assert_int_equal(gm_machine_parse(&m, v, "m", &err), GM_EFORMAT);
        assert_non_null(strstr(err.message, "mem_bw"));
        json_decref(v);
    }
    assert_int_equal(gm_machine_builtin(&m, "8xMI999", NULL), GM_ENOTFOUND);
    assert_int_equal(gm_machine_builtin(&m, "0xH200", NULL), GM_ENOTFOUND);
    assert_int_equal(gm_machine_builtin(&m, "4xH200", NULL), GM_OK);
    assert_int_equal(m.n_gpus, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_per_token), cmocka_unit_test(test_weights),
        cmocka_unit_test(test_published_pools), cmocka_unit_test(test_ceilings),
        cmocka_unit_test(test_slots_bind),      cmocka_unit_test(test_tensor_parallel_copies_rows),
        cmocka_unit_test(test_does_not_fit),    cmocka_unit_test(test_machine_files),
        cmocka_unit_test(test_machine_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
