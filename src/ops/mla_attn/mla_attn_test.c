#include "ops/cache_load.h"
#include "ops/cache_row.h"
#include "ops/mla_attn/mla_attn.h"
#include "ops/test_util.h"

typedef struct data {
    tu_batch b;
    int32_t H, d, d_rope, pool, n_select;
    bool tail;
    int64_t ldr, rope_stride;
    float *q, *qr;
    gm_latent_cache cache;
    gm_pool_pos *sel;
    int32_t *n_sel;
} data;

enum { PAGE_POOLS = 3 };

/* Row r selects every pool it sees where they fit, else a sparse rising set; row 1 selects none. The cache is exactly
 * as long as its pages, so that a read behind the last row is seen. */
static data make(gm_kv_dtype type, int32_t H, int32_t d, int32_t d_rope, int32_t pool, int32_t n_select, bool tail,
                 const int32_t *begin, const int32_t *n, int32_t n_slices)
{
    data x = {.H = H, .d = d, .d_rope = d_rope, .pool = pool, .n_select = n_select, .tail = tail};
    int32_t page_tokens = PAGE_POOLS * pool;
    tu_batch_init(&x.b, n_slices, begin, n, page_tokens);
    int32_t rows = x.b.rows.n_rows;
    x.rope_stride = d_rope + 1;
    x.ldr = H * x.rope_stride + 2;
    x.q = tu_normal((size_t)(rows * H * d), 1, 1);
    x.qr = tu_normal((size_t)(rows * x.ldr), 1, 2);
    x.cache = (gm_latent_cache){.n_pages = x.b.n_pages, .page_tokens = page_tokens, .dtype = type, .d_latent = d,
                                .d_rope = d_rope, .row_bytes = gm_latent_row_bytes(type, d, d_rope)};
    int64_t cache_rows = (int64_t)x.b.n_pages * page_tokens;
    x.cache.base = tu_bytes((size_t)(cache_rows * x.cache.row_bytes));
    float *v = tu_normal((size_t)(cache_rows * (d + d_rope)), 1, 3);
    for (int64_t i = 0; i < cache_rows; i++) {
        uint8_t *at = x.cache.base + i * x.cache.row_bytes;
        for (int32_t c = 0; c < d + d_rope; c++) {
            float f = v[i * (d + d_rope) + c];
            uint16_t h = gm_f32_to_bf16(f);
            if (type == GM_KV_F32) memcpy(at + 4 * c, &f, 4);
            else if (type == GM_KV_BF16) memcpy(at + 2 * c, &h, 2);
            else if (c < d) at[c] = gm_f32_to_e4m3(f * 100);
            else memcpy(at + d + 2 * gm_latent_groups(d) + 2 * (c - d), &h, 2);
        }
        for (int32_t s = 0; type == GM_KV_FP8 && s < gm_latent_groups(d); s++) {
            uint16_t scale = gm_f32_to_bf16(0.01f * (float)(s % 4 + 1));
            memcpy(at + d + 2 * s, &scale, 2);
        }
    }
    free(v);
    x.sel = tu_bytes((size_t)(rows * n_select) * sizeof *x.sel);
    x.n_sel = tu_bytes((size_t)rows * sizeof *x.n_sel);
    for (int32_t r = 0; r < rows; r++) {
        int32_t visible = (x.b.pos[r].tok + 1) / pool, k = 0;
        for (int32_t p = 0; p < visible && k < n_select && r != 1; p++)
            if (visible <= n_select || (p * 7 + r) % 5 < 2 || visible - p <= n_select - k)
                x.sel[r * n_select + k++].pool = p;
        x.n_sel[r] = k;
        for (; k < n_select; k++) x.sel[r * n_select + k].pool = -1;
    }
    return x;
}

static void drop(data *x)
{
    tu_batch_fini(&x->b);
    free(x->q), free(x->qr), free(x->cache.base), free(x->sel), free(x->n_sel);
}

static void run(gm_isa isa, int threads, const data *x, const gm_rows *rows, int64_t first, float *o)
{
    int64_t before = gm_variant_count(GM_OP_mla_attn, isa);
    gm_device *dev = tu_device(isa, threads);
    void *room = tu_workspace(gm_mla_attn_workspace(dev, x->H, x->n_select, x->pool, x->d, x->d_rope));
    gm_mla_attn(&(gm_mla_attn_args){.q_lat = x->q + first * x->H * x->d,
                                    .q_rope = x->d_rope ? x->qr + first * x->ldr : NULL, .ldr = x->ldr,
                                    .rope_stride = x->rope_stride, .o = o + first * x->H * x->d, .rows = rows,
                                    .cache = x->cache, .n_heads = x->H, .pool = x->pool, .n_select = x->n_select,
                                    .tail = x->tail, .sel = x->sel + first * x->n_select, .n_sel = x->n_sel + first,
                                    .scale = 1 / sqrtf((float)(x->d + x->d_rope)), .dev = dev, .workspace = room});
    tu_ran(GM_OP_mla_attn, isa, before);
    free(room);
}

static int32_t keys_of(const data *x, int32_t r, int32_t *pos)
{
    int32_t n = 0, visible = (x->b.pos[r].tok + 1) / x->pool;
    for (int32_t i = 0; i < x->n_sel[r]; i++)
        for (int32_t j = 0; j < x->pool; j++) pos[n++] = x->sel[r * x->n_select + i].pool * x->pool + j;
    for (int32_t p = visible * x->pool; x->tail && p <= x->b.pos[r].tok; p++) pos[n++] = p;
    return n;
}

static void check(const data *x, const float *o)
{
    int32_t w = x->d + x->d_rope;
    int32_t *pos = tu_bytes((size_t)((x->n_select + 1) * x->pool) * 4);
    for (int32_t r = 0; r < x->b.rows.n_rows; r++) {
        int32_t n = keys_of(x, r, pos);
        float *key = tu_bytes((size_t)(n * w + 1) * 4);
        double *p = tu_bytes((size_t)(n + 1) * sizeof *p), most = 0;
        for (int32_t i = 0; i < n; i++) {
            gm_latent_load(&x->cache, gm_latent_row(&x->cache, &x->b.slices[x->b.slice_of[r]], (gm_pos){pos[i]}), key + i * w);
            for (int32_t c = 0; c < x->d; c++) most = fmax(most, fabs((double)key[i * w + c]));
        }
        for (int32_t h = 0; h < x->H; h++) {
            double max = -INFINITY, sum = 0;
            for (int32_t i = 0; i < n; i++) {
                p[i] = 0;
                for (int32_t c = 0; c < x->d; c++) p[i] += (double)x->q[(r * x->H + h) * x->d + c] * (double)key[i * w + c];
                for (int32_t c = 0; c < x->d_rope; c++)
                    p[i] += (double)x->qr[r * x->ldr + h * x->rope_stride + c] * (double)key[i * w + x->d + c];
                p[i] /= sqrt(x->d + x->d_rope);
                max = fmax(max, p[i]);
            }
            for (int32_t i = 0; i < n; i++) sum += p[i] = exp(p[i] - max);
            for (int32_t c = 0; c < x->d; c++) {
                double want = 0, got = (double)o[(r * x->H + h) * x->d + c];
                for (int32_t i = 0; i < n; i++) want += p[i] / sum * (double)key[i * w + c];
                if (!(fabs(got - want) <= 2e-5 * most)) fail_msg("row %d, head %d, %d: got %g, want %g", r, h, c, got, want);
            }
        }
        free(key), free(p);
    }
    free(pos);
}

static void one(gm_kv_dtype type, int32_t H, int32_t d, int32_t d_rope, int32_t pool, int32_t n_select, bool tail,
                const int32_t *begin, const int32_t *n, int32_t n_slices)
{
    data x = make(type, H, d, d_rope, pool, n_select, tail, begin, n, n_slices);
    int32_t rows = x.b.rows.n_rows;
    size_t all = (size_t)(rows * H * d);
    TU_EACH_ISA(isa) {
        float *o = tu_nan(all + 1), *alone = tu_nan(all);
        run(isa, 2, &x, &x.b.rows, 0, o);
        assert_true(isnan(o[all]));
        check(&x, o);
        /* Each row alone, units dealt out to three threads, and the batch on one: the same bits. */
        for (int32_t r = 0; r < rows; r++) {
            tu_batch part;
            tu_batch_cut(&part, &x.b, x.b.slice_of[r], x.b.pos[r].tok - x.b.slices[x.b.slice_of[r]].begin.tok, 1);
            run(isa, 3, &x, &part.rows, r, alone);
            tu_batch_fini(&part);
        }
        tu_same("row alone", alone, o, all * 4);
        tu_fill_nan(alone, all);
        run(isa, 1, &x, &x.b.rows, 0, alone);
        tu_same("one thread", alone, o, all * 4);
        free(o), free(alone);
    }
    drop(&x);
}

static void test_small(void **state)
{
    (void)state;
    static const int32_t pools[] = {1, 2, 4, 8};
    int32_t begin[] = {0, 57, 0, 3}, n[] = {9, 2, 1, 7};
    for (size_t p = 0; p < TU_LEN(pools); p++)
        for (gm_kv_dtype t = GM_KV_F32; t <= GM_KV_FP8; t++)
            for (int tail = 0; tail < 2; tail++) {
                one(t, 3, 16, 0, pools[p], 5, tail, begin, n, 4);
                one(t, 5, 33, 6, pools[p], 40, tail, begin, n, 4);
                one(t, 33, 130, 2, pools[p], 2, tail, begin, n, 4);
            }
}

/* Around the edges of blocks (32) and splits (256), and the largest selection of GLM-5.3-Flash. */
static void test_edges(void **state)
{
    (void)state;
    static const int32_t lengths[] = {31, 32, 33, 255, 256, 257, 511, 513};
    for (size_t i = 0; i < TU_LEN(lengths); i++) {
        int32_t begin[] = {lengths[i] - 1}, n[] = {1};
        one(GM_KV_BF16, 4, 32, 0, 4, 512, true, begin, n, 1);
        one(GM_KV_FP8, 2, 32, 4, 1, 600, false, begin, n, 1);
    }
    int32_t begin[] = {2049}, n[] = {4}; /* 2,050 to 2,053 tokens: dense, then sparse */
    one(GM_KV_BF16, 2, 16, 0, 4, 512, true, begin, n, 1);
}

static void test_production_shape(void **state)
{
    (void)state;
    int32_t begin[] = {299, 0}, n[] = {2, 3};
    one(GM_KV_BF16, 64, 512, 0, 4, 512, true, begin, n, 2);
    one(GM_KV_FP8, 64, 512, 64, 1, 256, false, begin, n, 2);
}

/* Scores far apart: weights under- and the running maximum overflows nothing. */
static void test_extreme_scores(void **state)
{
    (void)state;
    int32_t begin[] = {399}, n[] = {1};
    TU_EACH_ISA(isa) {
        data x = make(GM_KV_F32, 2, 8, 0, 1, 400, false, begin, n, 1);
        for (int i = 0; i < 2 * 8; i++) x.q[i] *= 1000;
        float *o = tu_nan(2 * 8);
        run(isa, 2, &x, &x.b.rows, 0, o);
        check(&x, o);
        free(o);
        drop(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small), cmocka_unit_test(test_edges),
                                       cmocka_unit_test(test_production_shape), cmocka_unit_test(test_extreme_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
