/* Ops that walk over rows: norms, mHC, activations, cache writes. */
#include "ops/bench_util.h"
#include "ops/embed/embed.h"
#include "ops/index_append/index_append.h"
#include "ops/kv_append/kv_append.h"
#include "ops/layernorm/layernorm.h"
#include "ops/mhc_mix/mhc_mix.h"
#include "ops/residual_add/residual_add.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

enum { D = 4096, S = 4, VALUES = S * (2 + S), COPIES = 90 };

#define RUN(op)                                                                                              \
    static void run_##op(void *p, int i)                                                                     \
    {                                                                                                        \
        (void)i;                                                                                             \
        gm_##op(p);                                                                                          \
    }
RUN(rmsnorm)
RUN(layernorm)
RUN(swiglu)
RUN(residual_add)
RUN(mhc_post)
RUN(mhc_mean)
RUN(rope)
RUN(embed)
RUN(kv_append)
RUN(index_append)

/* The mixers of all sites of the model in turn. */
typedef struct pre_ctx {
    gm_mhc_pre_args a;
    gm_matrix m[COPIES];
} pre_ctx;

static void run_mhc_pre(void *p, int i)
{
    pre_ctx *c = p;
    c->a.fn = &c->m[i % COPIES];
    gm_mhc_pre(&c->a);
}

/* Activations of a few rows lie in a cache; those of many rows come from memory. */
static void report(const char *op, int32_t n, double bytes, double more_mem, double fma, void (*run)(void *, int), void *args)
{
    char shape[64];
    snprintf(shape, sizeof shape, "n=%d", n);
    bool big = bytes > 4e6;
    bu_run(&(bu_work){.op = op, .shape = shape, .mem = (big ? bytes : 0) + more_mem, .l2 = big ? 0 : bytes, .fma = fma}, run,
           args);
}

static void bench(int32_t n)
{
    double r = n;
    float *x = bu_floats((int64_t)n * 12288 * 2), *y = bu_floats((int64_t)n * 12288), *w = bu_floats(16384);
    float *h = bu_floats((int64_t)n * S * D), *post = bu_floats((int64_t)n * S), *comb = bu_floats((int64_t)n * S * S);
    gm_rmsnorm_args rms = {.x = x, .y = y, .w = w, .n = n, .d = D, .ldx = D, .ldy = D, .eps = 1e-5f, .dev = bu_dev};
    report("rmsnorm", n, r * D * 8, 0, 0, run_rmsnorm, &rms);
    gm_layernorm_args ln = {.x = x, .y = y, .w = w, .b = w, .n = n, .d = 128, .ldx = 128, .ldy = 128, .eps = 1e-6f,
                            .round_bf16 = true, .dev = bu_dev};
    report("layernorm", n, r * 128 * 8, 0, 0, run_layernorm, &ln);
    gm_swiglu_args sw = {.g = x, .u = x + (int64_t)n * 12288, .y = y, .n = n, .d = 12288, .ldg = 12288, .ldu = 12288,
                         .ldy = 12288, .limit = 10, .dev = bu_dev};
    report("swiglu", n, r * 12288 * 12, 0, 0, run_swiglu, &sw);
    gm_residual_add_args add = {.h = x, .y = y, .n = (int64_t)n * D, .dev = bu_dev};
    report("residual_add", n, r * D * 12, 0, 0, run_residual_add, &add);

    pre_ctx pre = {.a = {.h = h, .base = w, .scale = w, .norm_w = w, .y = y, .post = post, .comb = comb, .n = n,
                         .n_streams = S, .d = D, .iters = 20, .rms_eps = 1e-5f, .hc_eps = 1e-6f, .dev = bu_dev}};
    float *fn = bu_floats((int64_t)COPIES * VALUES * S * D);
    for (int i = 0; i < COPIES; i++)
        pre.m[i] = (gm_matrix){.data = fn + (int64_t)i * VALUES * S * D, .dtype = GM_F32, .rows = VALUES, .cols = S * D};
    report("mhc_pre", n, r * S * D * 4 * 3, (double)VALUES * S * D * 4, r * VALUES * S * D, run_mhc_pre, &pre);
    gm_pages_free(fn, (size_t)COPIES * VALUES * S * D * 4 + 64);
    gm_mhc_post_args pa = {.h = h, .y = y, .post = post, .comb = comb, .n = n, .n_streams = S, .d = D, .dev = bu_dev};
    for (int64_t i = 0; i < (int64_t)n * S * S; i++) comb[i] = 0.25f;
    report("mhc_post", n, r * D * 4 * (2 * S + 1), 0, 0, run_mhc_post, &pa);
    gm_mhc_mean_args ma = {.h = h, .y = y, .n_out = n, .n_streams = S, .d = D, .dev = bu_dev};
    report("mhc_mean", n, r * D * 4 * (S + 1), 0, 0, run_mhc_mean, &ma);

    int32_t n_pages = n / 64 + 2, *slice_of = gm_new_array(int32_t, n), *ids = gm_new_array(int32_t, n);
    gm_page *pages = gm_new_array(gm_page, n_pages);
    gm_pos *pos = gm_new_array(gm_pos, n);
    for (int32_t i = 0; i < n_pages; i++) pages[i].id = n_pages - 1 - i;
    for (int32_t i = 0; i < n; i++) pos[i].tok = i + 3, ids[i] = i * 37 % 1000;
    gm_slice s = {.n = {n}, .begin = {3}, .pages = pages, .n_pages = n_pages};
    gm_rows rows = {n, pos, slice_of, &s, 1};
    gm_rope_args ro = {.x = x, .ld = 64 * 64, .head_stride = 64, .pos = pos, .n = n, .n_heads = 64, .d_rope = 64,
                       .theta = 8e6f, .dev = bu_dev};
    report("rope", n, r * 64 * 64 * 8, 0, 0, run_rope, &ro);
    gm_matrix table = {.data = bu_noise((int64_t)1000 * D * 2), .dtype = GM_BF16, .rows = 1000, .cols = D};
    gm_embed_args em = {.table = &table, .ids = ids, .y = h, .n = n, .n_copies = S, .dev = bu_dev};
    report("embed", n, r * D * (2 + 4 * S), 0, 0, run_embed, &em);
    for (gm_kv_dtype t = GM_KV_BF16; t <= GM_KV_FP8; t++) {
        gm_kv_append_args kv = {.c = y, .ldc = 512, .rows = &rows, .dev = bu_dev,
                                .cache = {.n_pages = n_pages, .page_tokens = 64, .dtype = t, .d_latent = 512,
                                          .row_bytes = gm_latent_row_bytes(t, 512, 0)}};
        kv.cache.base = bu_noise((int64_t)n_pages * 64 * kv.cache.row_bytes);
        report(t == GM_KV_FP8 ? "kv_append FP8" : "kv_append", n, r * (2048 + (double)kv.cache.row_bytes), 0, 0, run_kv_append, &kv);
    }
    gm_index_append_args ia = {.k = y, .e = y, .ape = w, .ldk = 128, .lde = 128, .tail = bu_noise(4 * 2 * 128 * 4),
                               .slot_stride = 4 * 2 * 128 * 4, .rows = &rows, .bf16 = true, .dev = bu_dev,
                               .cache = {.n_pages = n_pages, .page_tokens = 64, .pool = 4, .dtype = GM_KV_BF16, .d = 128,
                                         .key_bytes = 256}};
    ia.cache.base = bu_noise((int64_t)n_pages * 16 * 256);
    report("index_append", n, r * 128 * 8, 0, 0, run_index_append, &ia);
}

int main(int argc, char **argv)
{
    bu_init(argc, argv);
    bench(1);
    bench(128);
    gm_device_close(bu_dev);
    return 0;
}
