/* The golden checkpoints (logits of the published model code) through every variant this machine can run, whole and
 * in chunks, alone and in mixed batches, with each precision of activations and cache. golden_shapes/ holds checkpoints
 * of unusual shapes (tools/make_golden.py): odd head counts, widths that are no multiple of a vector, pools of 1, 2, 4
 * and 8 tokens, no tail selection, router groups, unnormalised weights, three streams. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/model_internal.h"

enum { VOCAB = 320, SEQS = 8, POSITIONS = 512, BATCH = 2048 };
#ifdef GM_SHORT_TESTS /* one of each family: plain and FP8 weights, own and shared selection, router groups */
static const char *const goldens[] = {"golden/glm52-shared-index", "golden/glm53-fp8", "golden/glm53-groups"};
#else
static const char *const goldens[] = {"golden/glm52-a",   "golden/glm52-fp8",    "golden/glm52-shared-index", "golden/glm53-a",
                                      "golden/glm53-fp8", "golden/glm53-groups", "golden/glm53-shared-index"};
#endif
static const char *const shapes[] = {"golden_shapes/glm52-groups", "golden_shapes/glm53-pool1",
                                     "golden_shapes/glm53-pool2",  "golden_shapes/glm53-pool8",
                                     "golden_shapes/glm53-no-tail"};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
enum { N_GOLDENS = sizeof goldens / sizeof goldens[0] };
static const int lengths[] = {1, 3, 17, 64, 131, 300};
static const int shape_lengths[] = {1, 2, 5, 33, 150};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0], N_SHAPE_LENGTHS = sizeof shape_lengths / sizeof shape_lengths[0] };

typedef struct rig {
    gm_device *dev;
    gm_model_config config;
    gm_weights *w;
    gm_model *m;
    gm_checkpoint *golden;
    gm_page pages[SEQS][POSITIONS / 32];
    int n_pages_seq, page_tokens;
} rig;

static void must(gm_status st, const gm_error *err)
{
    if (st) fail_msg("%s: %s", gm_status_text(st), err->message);
}

static void rig_open(rig *r, const char *name, gm_isa isa, gm_act act, gm_kv_dtype kv)
{
    gm_error err = {0};
    char path[512];
    memset(r, 0, sizeof *r);
    must(gm_device_open_cpu(&r->dev, isa, 2, &err), &err);
    snprintf(path, sizeof path, "%s/%s", GM_FIXTURES, name);
    must(gm_model_config_load(&r->config, path, NULL, &err), &err);
    must(gm_weights_open(&r->w, path, &r->config, r->dev, NULL, &err), &err);
    gm_footprint_params fp = {kv, gm_kv_index_dtype(kv), act == GM_ACT_BF16};
    gm_footprint f = gm_footprint_compute(&r->config, &fp);
    r->page_tokens = f.page_tokens;
    r->n_pages_seq = gm_footprint_pages(&f, POSITIONS);
    gm_model_params p = {.act = act,
                         .kv_dtype = kv,
                         .index_dtype = gm_kv_index_dtype(kv),
                         .page_tokens = f.page_tokens,
                         .n_pages = SEQS * r->n_pages_seq,
                         .n_slots = SEQS,
                         .batch_tokens_max = BATCH,
                         .batch_slices_max = SEQS,
                         .positions_max = POSITIONS};
    must(gm_model_create(&r->m, r->w, &p, r->dev, &err), &err);
    /* pages dealt out in a scattered order: neighbours in a sequence are not neighbours in memory */
    int n = SEQS * r->n_pages_seq;
    for (int i = 0; i < n; i++) r->pages[i / r->n_pages_seq][i % r->n_pages_seq].id = i * 29 % n;
    snprintf(path, sizeof path, "%s/%s/golden.safetensors", GM_FIXTURES, name);
    must(gm_checkpoint_open_file(&r->golden, path, &err), &err);
}

static void rig_close(rig *r)
{
    gm_checkpoint_close(r->golden);
    gm_model_destroy(r->m);
    gm_weights_close(r->w);
    gm_device_close(r->dev);
}

static const gm_tensor_entry *golden_named(const rig *r, const char *name)
{
    const gm_tensor_entry *e = gm_checkpoint_find(r->golden, name);
    if (!e) fail_msg("golden %s is missing", name);
    return e;
}

static const gm_tensor_entry *golden_at(const rig *r, const char *what, int n)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", what, n);
    return golden_named(r, name);
}

/* Feed ids[0..n) of sequence `seq` in chunks; logits of every row go to out [n][VOCAB]. */
static void feed(rig *r, int seq, const int32_t *ids, int from, int n, int chunk, float *out)
{
    gm_error err = {0};
    static int32_t rows[BATCH];
    for (int i = 0; i < BATCH; i++) rows[i] = i;
    for (int at = from; at < n; at += chunk) {
        int k = n - at < chunk ? n - at : chunk;
        gm_slice s = {.token_begin = 0, .n = {k}, .begin = {at}, .pages = r->pages[seq], .n_pages = r->n_pages_seq, .slot = {seq}};
        gm_batch b = {.token_ids = ids + at, .n_tokens = k, .slices = &s, .n_slices = 1, .out_rows = rows, .n_out = k};
        must(gm_model_step(r->m, &b, &err), &err);
        must(gm_model_logits(r->m, 0, k, out + (size_t)at * VOCAB, &err), &err);
    }
}

static void log_softmax(const float *x, double *out)
{
    double m = -INFINITY, s = 0;
    for (int i = 0; i < VOCAB; i++) m = x[i] > m ? x[i] : m;
    for (int i = 0; i < VOCAB; i++) s += exp(x[i] - m);
    for (int i = 0; i < VOCAB; i++) out[i] = x[i] - m - log(s);
}

typedef struct tally {
    double worst, sum;
    long n, rows, top1;
} tally;

static int argmax(const float *x)
{
    int best = 0;
    for (int i = 1; i < VOCAB; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void compare(tally *t, const rig *r, int n, const float *got)
{
    const gm_tensor_entry *e = golden_at(r, "logits", n);
    int rows = (int)e->shape[0], first = n - rows;
    for (int i = 0; i < rows; i++) {
        double want[VOCAB], have[VOCAB];
        const float *w = (const float *)e->data + (size_t)i * VOCAB, *g = got + (size_t)(first + i) * VOCAB;
        log_softmax(w, want);
        log_softmax(g, have);
        for (int k = 0; k < VOCAB; k++) {
            double d = fabs(want[k] - have[k]);
            if (!(d <= t->worst)) t->worst = d;
            t->sum += d;
            t->n++;
        }
        t->top1 += argmax(w) == argmax(g);
        t->rows++;
    }
}

static void greedy(rig *r, int chunk, float *logits, int expected_equal)
{
    const gm_tensor_entry *p = golden_named(r, "greedy.prompt"), *t = golden_named(r, "greedy.tokens");
    const int32_t *prompt = p->data, *want = t->data;
    int n = (int)p->shape[0], m = (int)t->shape[0], equal = 0;
    int32_t ids[POSITIONS];
    memcpy(ids, prompt, (size_t)n * sizeof *ids);
    feed(r, 0, ids, 0, n, chunk, logits);
    for (int i = 0; i < m; i++) {
        int32_t next = argmax(logits + (size_t)(n + i - 1) * VOCAB);
        if (next != want[i]) break;
        equal++;
        ids[n + i] = next;
        feed(r, 0, ids, n + i, n + i + 1, 1, logits);
    }
    if (equal < expected_equal) fail_msg("greedy: %d of %d tokens equal", equal, m);
}

static tally run_lengths(const char *name, gm_isa isa, gm_act act, gm_kv_dtype kv, int chunk, const int *sizes, int n_sizes,
                         int n_greedy)
{
    static float logits[(size_t)POSITIONS * VOCAB];
    rig r;
    tally t = {0};
    rig_open(&r, name, isa, act, kv);
    for (int i = 0; i < n_sizes; i++) {
        memset(logits, 0xFF, sizeof logits);
        feed(&r, i % SEQS, golden_at(&r, "ids", sizes[i])->data, 0, sizes[i], chunk, logits);
        compare(&t, &r, sizes[i], logits);
    }
    if (n_greedy) greedy(&r, chunk, logits, n_greedy);
    rig_close(&r);
    return t;
}

static tally run(const char *name, gm_isa isa, gm_act act, gm_kv_dtype kv, int chunk, bool with_greedy)
{
    return run_lengths(name, isa, act, kv, chunk, lengths, N_LENGTHS, with_greedy ? 48 : 0);
}

static void test_unusual_shapes(void **state)
{
    static const int chunks[] = {2048, 7, 1};
    (void)state;
    for (int isa = GM_ISA_REF; isa <= (int)gm_isa_detect(); isa++) {
        for (int g = 0; g < N_SHAPES; g++) {
            for (int k = 0; k < (isa == GM_ISA_REF ? 1 : N_GOLDENS == 7 ? 3 : 2); k++) {
                tally t = run_lengths(shapes[g], (gm_isa)isa, GM_ACT_F32, GM_KV_F32, chunks[k], shape_lengths, N_SHAPE_LENGTHS, 16);
                print_message("%-9s %-28s chunk %4d: max |d logprob| %.2e, mean %.2e\n", gm_isa_name((gm_isa)isa), shapes[g],
                              chunks[k], t.worst, t.sum / (double)t.n);
                assert_true(t.worst <= 1e-3);
            }
        }
    }
}

static void test_float32(void **state)
{
    static const int chunks[] = {2048, 7, 64, 1};
    (void)state;
    for (int isa = GM_ISA_REF; isa <= (int)gm_isa_detect(); isa++) {
        for (int g = 0; g < N_GOLDENS; g++) {
            for (int k = 0; k < (isa == GM_ISA_REF || N_GOLDENS < 7 ? 2 : 4); k++) { /* where it is slow: whole and small chunks */
                tally t = run(goldens[g], (gm_isa)isa, GM_ACT_F32, GM_KV_F32, chunks[k], true);
                print_message("%-9s %-26s chunk %4d: max |d logprob| %.2e, mean %.2e\n", gm_isa_name((gm_isa)isa), goldens[g],
                              chunks[k], t.worst, t.sum / (double)t.n);
                assert_true(t.worst <= 1e-3);
            }
        }
    }
}

/* Mean error of each checkpoint, top-1 agreement over all seven. On one checkpoint alone top-1 says little: with random
 * weights a single early near-tie moves every later token of a prompt. */
static void check_rounded(gm_kv_dtype kv, double mean_max, double top1_min)
{
    for (int isa = GM_ISA_REF; isa <= (int)gm_isa_detect(); isa++) {
        tally all = {0};
        for (int g = 0; g < N_GOLDENS; g++) {
            tally t = run(goldens[g], (gm_isa)isa, GM_ACT_F32, kv, 2048, false);
            double mean = t.sum / (double)t.n;
            print_message("%-9s %-26s %s pages: mean %.4f, top-1 %.2f %%\n", gm_isa_name((gm_isa)isa), goldens[g],
                          gm_kv_dtype_name(kv), mean, 100.0 * (double)t.top1 / (double)t.rows);
            assert_true(mean <= mean_max);
            all.top1 += t.top1;
            all.rows += t.rows;
        }
        if (N_GOLDENS == 7) assert_true(100.0 * (double)all.top1 >= top1_min * (double)all.rows);
    }
}

/* transformers' own bfloat16 is at 0.07 to 0.08 and 89 to 90 % on these checkpoints */
static void test_bfloat16(void **state)
{
    (void)state;
    check_rounded(GM_KV_BF16, 0.06, 92);
}

static void test_fp8_pages(void **state)
{
    (void)state;
    check_rounded(GM_KV_FP8, 0.15, 84);
}

/* Sequences of all lengths advance together in random shares; every row must have the bits that it has alone. */
static void test_mixed_batches(void **state)
{
    static float alone[N_LENGTHS][(size_t)300 * VOCAB], logits[(size_t)BATCH * VOCAB];
    (void)state;
    for (int g = 0; g < N_GOLDENS; g++) {
        for (int act = GM_ACT_F32; act <= GM_ACT_BF16; act++) {
            rig r;
            gm_error err = {0};
            gm_rng rng;
            gm_rng_init(&rng, 7);
            rig_open(&r, goldens[g], gm_isa_detect(), (gm_act)act, act == GM_ACT_BF16 ? GM_KV_BF16 : GM_KV_F32);
            const int32_t *ids[N_LENGTHS];
            for (int i = 0; i < N_LENGTHS; i++) {
                ids[i] = golden_at(&r, "ids", lengths[i])->data;
                feed(&r, i, ids[i], 0, lengths[i], BATCH, alone[i]);
            }
            int at[N_LENGTHS] = {0}, left = N_LENGTHS;
            while (left > 0) {
                gm_slice s[N_LENGTHS];
                static int32_t tokens[BATCH], rows[BATCH];
                int n = 0, k = 0, seq[N_LENGTHS];
                for (int i = N_LENGTHS - 1; i >= 0; i--) {
                    int rest = lengths[i] - at[i], take;
                    if (!rest || (left > 1 && gm_rng_below(&rng, 3) == 0)) continue;
                    take = (int)gm_rng_below(&rng, 70) + 1;
                    if (gm_rng_below(&rng, 2)) take = 1;
                    if (take > rest) take = rest;
                    s[k] = (gm_slice){n, {take}, {at[i]}, r.pages[i], r.n_pages_seq, {i}};
                    seq[k++] = i;
                    memcpy(tokens + n, ids[i] + at[i], (size_t)take * sizeof *tokens);
                    n += take;
                }
                if (!k) continue;
                for (int i = 0; i < n; i++) rows[i] = i;
                gm_batch b = {.token_ids = tokens, .n_tokens = n, .slices = s, .n_slices = k, .out_rows = rows, .n_out = n};
                must(gm_model_step(r.m, &b, &err), &err);
                must(gm_model_logits(r.m, 0, n, logits, &err), &err);
                for (int i = 0; i < k; i++) {
                    const float *want = alone[seq[i]] + (size_t)at[seq[i]] * VOCAB;
                    const float *have = logits + (size_t)s[i].token_begin * VOCAB;
                    if (memcmp(want, have, (size_t)s[i].n.tok * VOCAB * sizeof *want) != 0)
                        fail_msg("%s act %d: tokens %d..%d of the sequence of %d differ in a batch of %d", goldens[g], act,
                                 at[seq[i]], at[seq[i]] + s[i].n.tok - 1, lengths[seq[i]], n);
                    at[seq[i]] += s[i].n.tok;
                    if (at[seq[i]] == lengths[seq[i]]) left--;
                }
            }
            rig_close(&r);
        }
    }
}

/* The residual before each layer against the published code's, so that a fault is found where it is made. */
typedef struct tracer {
    const rig *r;
    double worst;
} tracer;

static void trace_layer(void *user, int32_t layer, const float *data, int64_t n)
{
    tracer *t = user;
    char name[64];
    snprintf(name, sizeof name, "hidden.17.%d", layer);
    const gm_tensor_entry *e = gm_checkpoint_find(t->r->golden, name);
    if (!e) fail_msg("golden %s is missing", name);
    assert_int_equal(e->bytes, n * 4);
    const float *want = e->data;
    double scale = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)want[i] - data[i]);
        if (fabs(want[i]) > scale) scale = fabs(want[i]);
        if (!(d <= worst)) worst = d;
    }
    if (!(worst <= 2e-5 * scale)) fail_msg("%s: max error %.3e at magnitude %.3g", name, worst, scale);
}

static void test_layers(void **state)
{
    static float logits[(size_t)POSITIONS * VOCAB];
    (void)state;
    for (int g = 0; g < N_GOLDENS; g++) {
        rig r;
        rig_open(&r, goldens[g], GM_ISA_REF, GM_ACT_F32, GM_KV_F32);
        tracer t = {&r, 0};
        r.m->trace = trace_layer;
        r.m->trace_user = &t;
        feed(&r, 0, golden_at(&r, "ids", 17)->data, 0, 17, BATCH, logits);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),    cmocka_unit_test(test_unusual_shapes), cmocka_unit_test(test_float32), cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_fp8_pages), cmocka_unit_test(test_mixed_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
