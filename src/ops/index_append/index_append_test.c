#include "ops/cache_load.h"
#include "ops/cache_row.h"
#include "ops/index_append/index_append.h"
#include "ops/test_util.h"

typedef struct data {
    int32_t d, pool, page_tokens, n_slots;
    int64_t ldk, stride;
    bool bf16, compress;
    float *k, *e, *ape;
} data;

static void run(gm_isa isa, const data *x, const tu_batch *b, int64_t first, gm_index_cache *cache, uint8_t *tail)
{
    int64_t before = gm_variant_count(GM_OP_index_append, isa);
    gm_index_append(&(gm_index_append_args){.k = x->k + first * x->ldk, .e = x->compress ? x->e + first * x->ldk : NULL,
                                            .ape = x->compress ? x->ape : NULL, .ldk = x->ldk, .lde = x->ldk,
                                            .tail = x->compress ? tail : NULL, .slot_stride = x->stride,
                                            .rows = &b->rows, .cache = *cache, .bf16 = x->bf16,
                                            .dev = tu_device(isa, 3)});
    tu_ran(GM_OP_index_append, isa, before);
}

static double in(const data *x, const float *p)
{
    return (double)(x->bf16 ? gm_round_bf16(*p) : *p);
}

static void check_keys(const data *x, const tu_batch *b, const gm_index_cache *cache)
{
    for (int32_t i = 0; i < b->rows.n_slices; i++) {
        const gm_slice *s = &b->slices[i];
        for (int32_t q = 0; q < s->n.tok / x->pool; q++) {
            float got[512];
            double want[512], amax = 1e-4;
            gm_index_load(cache, gm_index_key(cache, s, (gm_pool_pos){q}), got);
            for (int32_t c = 0; c < x->d; c++) {
                double sum = 0, out = 0;
                for (int32_t j = 0; j < x->pool; j++) {
                    int64_t at = (s->token_begin + q * x->pool + j) * x->ldk + c;
                    double a = x->compress ? exp(in(x, &x->e[at]) + (double)x->ape[j * x->d + c]) : 1;
                    sum += a;
                    out += a * in(x, &x->k[at]);
                }
                want[c] = out / sum;
                amax = fmax(amax, fabs(want[c]));
            }
            double step = exp2(ceil(log2(amax / 448)));
            for (int32_t c = 0; c < x->d; c++) {
                double tol = cache->dtype == GM_KV_F32    ? 3e-6
                             : cache->dtype == GM_KV_BF16 ? fabs(want[c]) / 256 + 1e-6
                             : cache->dtype == GM_KV_F16  ? fabs(want[c]) / 2047 + 3e-6
                                                          : fmax(fabs(want[c]) / 15.9, step / 1000) + 1e-6;
                if (!(fabs((double)got[c] - want[c]) <= tol))
                    fail_msg("pool %d, channel %d: got %g, want %g", q, c, (double)got[c], want[c]);
            }
        }
    }
}

static void one(gm_kv_dtype type, int32_t d, int32_t pool, bool bf16)
{
    int32_t begin[] = {0, 0, 0, 0}, n[] = {1, 67, 2 * pool, 2 * pool + pool / 2 + 1};
    int32_t total = n[0] + n[1] + n[2] + n[3];
    tu_batch b;
    data x = {.d = d, .pool = pool, .page_tokens = 2 * pool, .ldk = d + 3, .bf16 = bf16, .compress = pool > 1};
    tu_batch_init(&b, 4, begin, n, x.page_tokens);
    int64_t used = (int64_t)pool * 2 * d * (bf16 ? 2 : 4);
    x.stride = used + 32;
    x.k = tu_normal((size_t)(total * x.ldk), 1, 1);
    x.e = tu_normal((size_t)(total * x.ldk), 2, 2);
    x.ape = tu_normal((size_t)(pool * d), 1, 3);
    gm_index_cache cache = {.n_pages = b.n_pages, .page_tokens = x.page_tokens, .pool = pool, .dtype = type, .d = d,
                            .key_bytes = gm_index_key_bytes(type, d)};
    int64_t size = (int64_t)b.n_pages * 2 * cache.key_bytes;
    TU_EACH_ISA(isa) {
        tu_region g = tu_region_new(size), tail = tu_region_new(4 * x.stride);
        uint8_t *written = calloc((size_t)size, 1);
        cache.base = g.base;
        run(isa, &x, &b, 0, &cache, tail.base);
        check_keys(&x, &b, &cache);
        for (int32_t i = 0; i < 4; i++)
            for (int32_t q = 0; q < n[i] / pool; q++)
                memset(written + gm_index_offset(&cache, &b.slices[i], (gm_pool_pos){q}), 1, (size_t)cache.key_bytes);
        for (int64_t i = 0; i < size; i++)
            if (!written[i]) assert_int_equal(g.base[i], 0xC5);
        tu_region_check(&g);
        tu_region_check(&tail);
        for (int32_t s = 0; s < 4; s++)
            for (int64_t k = used; k < x.stride; k++) assert_int_equal(tail.base[s * x.stride + k], 0xC5);

        /* The 67 tokens cut at every place, and one by one: the same bytes of keys and of the tail. */
        for (int32_t cut = 0; cut < 67; cut += pool > 8 ? 5 : 1) {
            tu_region h = tu_region_new(size), t2 = tu_region_new(4 * x.stride);
            gm_index_cache c2 = cache;
            c2.base = h.base;
            for (int32_t done = 0; done < 67;) {
                int32_t m = cut == 0 ? 1 : done == 0 ? cut : 67 - cut;
                tu_batch part;
                tu_batch_cut(&part, &b, 1, done, m);
                run(isa, &x, &part, 1 + done, &c2, t2.base);
                tu_batch_fini(&part);
                done += m;
            }
            for (int32_t q = 0; q < 67 / pool; q++) {
                int64_t at = gm_index_offset(&cache, &b.slices[1], (gm_pool_pos){q});
                tu_same("cut: key", h.base + at, g.base + at, (size_t)cache.key_bytes);
            }
            int64_t slot = b.slices[1].slot.id * x.stride;
            tu_same("cut: tail", t2.base + slot, tail.base + slot, (size_t)x.stride);
            tu_region_check(&h);
            tu_region_check(&t2);
            free(h.all), free(t2.all);
        }
        free(g.all), free(tail.all), free(written);
    }
    free(x.k), free(x.e), free(x.ape);
    tu_batch_fini(&b);
}

static void test_variants_and_cuts(void **state)
{
    (void)state;
    static const int32_t pools[] = {1, 2, 4, 8, 64};
    for (size_t p = 0; p < TU_LEN(pools); p++)
        for (gm_kv_dtype t = GM_KV_F32; t <= GM_KV_F16; t++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                one(t, 128, pools[p], bf16);
                one(t, 13, pools[p], bf16);
                one(t, 33, pools[p], bf16);
            }
}

/* Prompts of every remainder, then 3,000 tokens one at a time, next to a neighbour: nothing outside is touched. */
static void test_long_decode(void **state)
{
    (void)state;
    enum { D = 8, POOL = 4, PAGE = 16, MORE = 3000 };
    for (int32_t prompt = 8; prompt < 12; prompt++)
        TU_EACH_ISA(isa) {
            int32_t begin[] = {0}, n[] = {prompt + MORE};
            tu_batch b;
            tu_batch_init(&b, 1, begin, n, PAGE);
            data x = {.d = D, .pool = POOL, .page_tokens = PAGE, .ldk = D, .bf16 = true, .compress = true,
                      .stride = POOL * 2 * D * 2};
            x.k = tu_normal((size_t)(n[0] * D), 1, 1);
            x.e = tu_normal((size_t)(n[0] * D), 1, 2);
            x.ape = tu_normal(POOL * D, 1, 3);
            gm_index_cache cache = {.n_pages = b.n_pages, .page_tokens = PAGE, .pool = POOL, .dtype = GM_KV_BF16,
                                    .d = D, .key_bytes = 2 * D};
            tu_region g = tu_region_new((int64_t)b.n_pages * 4 * 2 * D), tail = tu_region_new(3 * x.stride);
            cache.base = g.base;
            b.slices[0].slot.id = 1; /* slots 0 and 2 belong to others */
            for (int32_t done = 0; done < n[0];) {
                tu_batch part;
                tu_batch_cut(&part, &b, 0, done, done ? 1 : prompt);
                run(isa, &x, &part, done, &cache, tail.base);
                done += part.rows.n_rows;
                tu_batch_fini(&part);
            }
            check_keys(&x, &b, &cache);
            tu_region_check(&g);
            tu_region_check(&tail);
            for (int64_t k = 0; k < x.stride; k++)
                assert_true(tail.base[k] == 0xC5 && tail.base[2 * x.stride + k] == 0xC5);
            free(g.all), free(tail.all), free(x.k), free(x.e), free(x.ape);
            tu_batch_fini(&b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants_and_cuts), cmocka_unit_test(test_long_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
