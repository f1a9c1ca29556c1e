#include "ops/cache_load.h"
#include "ops/cache_row.h"
#include "ops/index_score/index_score.h"
#include "ops/test_util.h"

typedef struct data {
    tu_batch b;
    int32_t H, d;
    int64_t ldq, ldw;
    float *q, *w;
    uint8_t *keys;
    gm_index_cache cache;
} data;

static data make(gm_kv_dtype type, int32_t H, int32_t d, int32_t pool, const int32_t *begin, const int32_t *n,
                 int32_t n_slices)
{
    data x = {.H = H, .d = d, .ldq = H * d + 3, .ldw = H + 1};
    int32_t page_tokens = 4 * pool;
    tu_batch_init(&x.b, n_slices, begin, n, page_tokens);
    x.cache = (gm_index_cache){.n_pages = x.b.n_pages, .page_tokens = page_tokens, .pool = pool, .dtype = type, .d = d,
                               .key_bytes = gm_index_key_bytes(type, d)};
    int64_t n_keys = (int64_t)x.b.n_pages * 4;
    x.q = tu_normal((size_t)(x.b.rows.n_rows * x.ldq), 1, 1);
    x.w = tu_normal((size_t)(x.b.rows.n_rows * x.ldw), 1, 2);
    x.keys = tu_bytes((size_t)(n_keys * x.cache.key_bytes));
    float *v = tu_normal((size_t)(n_keys * d), 1, 3);
    for (int64_t k = 0; k < n_keys; k++) {
        uint8_t *at = x.keys + k * x.cache.key_bytes;
        for (int32_t c = 0; c < d; c++) {
            uint16_t h = gm_f32_to_bf16(v[k * d + c]);
            if (type == GM_KV_F32) memcpy(at + 4 * c, &v[k * d + c], 4);
            else if (type == GM_KV_BF16) memcpy(at + 2 * c, &h, 2);
            else if (type == GM_KV_F16) memcpy(at + 2 * c, &(uint16_t){gm_f32_to_f16(v[k * d + c])}, 2);
            else at[c] = gm_f32_to_e4m3(v[k * d + c] * 64);
        }
        float scale = 1.0f / 64;
        if (type == GM_KV_FP8) memcpy(at + d, &scale, 4);
    }
    x.cache.base = x.keys;
    free(v);
    return x;
}

static void drop(data *x)
{
    tu_batch_fini(&x->b);
    free(x->q), free(x->w), free(x->keys);
}

static void run(gm_isa isa, const data *x, int32_t row_begin, int32_t row_end, int32_t skip, gm_act act, float *scores,
                int64_t lds)
{
    int64_t before = gm_variant_count(GM_OP_index_score, isa);
    gm_index_score(&(gm_index_score_args){.q = x->q, .w = x->w, .ldq = x->ldq, .ldw = x->ldw, .rows = &x->b.rows,
                                          .row_begin = row_begin, .row_end = row_end, .n_heads = x->H,
                                          .cache = x->cache, .pools_skip = skip, .scores = scores, .lds = lds,
                                          .act = act, .dev = tu_device(isa, 3)});
    int32_t most = (x->b.pos[row_end - 1].tok + 1) / x->cache.pool;
    if (most > skip) tu_ran(GM_OP_index_score, isa, before);
}

static void check(const data *x, int32_t row_begin, int32_t row_end, int32_t skip, gm_act act, const float *scores,
                  int64_t lds)
{
    for (int32_t r = row_begin; r < row_end; r++) {
        const gm_slice *s = &x->b.slices[x->b.slice_of[r]];
        int32_t visible = (x->b.pos[r].tok + 1) / x->cache.pool;
        const float *row = scores + (r - row_begin) * lds;
        for (int32_t p = 0; p < lds; p++) {
            if (p >= visible || visible <= skip) {
                assert_true(isnan(row[p])); /* not written */
                continue;
            }
            float key[512];
            gm_index_load(&x->cache, gm_index_key(&x->cache, s, (gm_pool_pos){p}), key);
            double sum = 0, size = 0;
            for (int32_t h = 0; h < x->H; h++) {
                double dot = 0, terms = 0;
                for (int32_t c = 0; c < x->d; c++) {
                    float q = x->q[r * x->ldq + h * x->d + c];
                    double term = (double)(act == GM_ACT_BF16 ? gm_round_bf16(q) : q) * (double)key[c];
                    dot += term;
                    terms += fabs(term);
                }
                dot /= sqrt(x->d);
                double part = (double)x->w[r * x->ldw + h] / sqrt(x->H) * (dot > 0 ? dot : 0);
                sum += part;
                size += fabs((double)x->w[r * x->ldw + h]) / sqrt(x->H) * terms / sqrt(x->d);
            }
            if (!(fabs((double)row[p] - sum) <= 1e-5 * size))
                fail_msg("row %d, pool %d: got %g, want %g", r, p, (double)row[p], sum);
        }
    }
}

static void test_variants(void **state)
{
    (void)state;
    static const int32_t shapes[][3] = {{32, 128, 4}, {1, 8, 1}, {3, 5, 2}, {5, 33, 8}, {7, 130, 4}, {64, 16, 1}};
    int32_t begin[] = {0, 700, 3}, n[] = {40, 9, 1};
    for (size_t i = 0; i < TU_LEN(shapes); i++)
        for (gm_kv_dtype t = GM_KV_F32; t <= GM_KV_F16; t++) {
            data x = make(t, shapes[i][0], shapes[i][1], shapes[i][2], begin, n, 3);
            int64_t lds = 709 / shapes[i][2] + 3;
            TU_EACH_ISA(isa)
                for (int act = 0; act < 2; act++) {
                    float *s = tu_nan((size_t)(50 * lds));
                    run(isa, &x, 0, 49, 0, (gm_act)act, s, lds);
                    check(&x, 0, 49, 0, (gm_act)act, s, lds);
                    /* a piece of the rows, alone: the same bits */
                    float *one = tu_nan((size_t)lds);
                    run(isa, &x, 44, 45, 0, (gm_act)act, one, lds);
                    tu_same("row alone", one, s + 44 * lds, (size_t)(709 / shapes[i][2] - 2) * 4);
                    tu_fill_nan(s, (size_t)(50 * lds));
                    run(isa, &x, 10, 49, 7, (gm_act)act, s, lds);
                    check(&x, 10, 49, 7, (gm_act)act, s, lds);
                    free(s), free(one);
                }
            drop(&x);
        }
}

/* A NaN in one key reaches the scores of that pool only. */
static void test_nan(void **state)
{
    (void)state;
    int32_t begin[] = {99}, n[] = {1};
    TU_EACH_ISA(isa) {
        data x = make(GM_KV_BF16, 6, 24, 1, begin, n, 1);
        uint16_t bad = 0x7FC0;
        memcpy(x.keys + gm_index_offset(&x.cache, &x.b.slices[0], (gm_pool_pos){41}) + 6, &bad, 2);
        float s[100];
        tu_fill_nan(s, 100);
        run(isa, &x, 0, 1, 0, GM_ACT_F32, s, 100);
        for (int p = 0; p < 100; p++) assert_true(p == 41 ? isnan(s[p]) : isfinite(s[p]));
        drop(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
