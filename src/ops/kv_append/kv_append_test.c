#include "ops/cache_load.h"
#include "ops/cache_row.h"
#include "ops/kv_append/kv_append.h"
#include "ops/test_util.h"

#include <float.h>

static void run(gm_isa isa, const gm_latent_cache *cache, const tu_batch *b, const float *c, int64_t ldc, const float *kr,
                int64_t ldr)
{
    int64_t before = gm_variant_count(GM_OP_kv_append, isa);
    gm_kv_append(&(gm_kv_append_args){.c = c, .kr = kr, .ldc = ldc, .ldr = ldr, .rows = &b->rows, .cache = *cache,
                                      .dev = tu_device(isa, 3)});
    tu_ran(GM_OP_kv_append, isa, before);
}

/* What comes back: exact, rounded to BF16, or within half a step of E4M3 of the group's scale. */
static void check_row(const gm_latent_cache *cache, const uint8_t *row, const float *c, const float *kr)
{
    float got[1024];
    gm_latent_load(cache, row, got);
    int32_t d = cache->d_latent;
    for (int32_t i = 0; i < d; i++) {
        double want = (double)c[i], off = 0;
        if (cache->dtype == GM_KV_BF16) want = (double)gm_round_bf16(c[i]);
        if (cache->dtype == GM_KV_FP8) {
            double amax = 0;
            int32_t first = i / GM_LATENT_GROUP * GM_LATENT_GROUP;
            for (int32_t k = first; k < d && k < first + GM_LATENT_GROUP; k++) amax = fmax(amax, fabs((double)c[k]));
            off = fmax(fabs(want) / 16, 2 * amax / 448 / 1024) * 1.0001 + 1e-32; /* a scale may be up to twice amax / 448 */
        }
        if (!(fabs((double)got[i] - want) <= off)) fail_msg("[%d]: got %g, want %g", i, (double)got[i], want);
    }
    for (int32_t i = 0; i < cache->d_rope; i++)
        assert_true(got[d + i] == (cache->dtype == GM_KV_F32 ? kr[i] : gm_round_bf16(kr[i])));
}

static void one(gm_kv_dtype type, int32_t d, int32_t d_rope)
{
    int32_t begin[] = {0, 7, 19}, n[] = {5, 1, 30};
    tu_batch b;
    tu_batch_init(&b, 3, begin, n, 4);
    int64_t ldc = d + 3, ldr = d_rope + 1;
    float *c = tu_normal((size_t)(36 * ldc), 0.02f, 1), *kr = tu_normal((size_t)(36 * ldr), 1, 2);
    memset(c + 2 * ldc, 0, (size_t)d * 4); /* a row of zeros */
    c[4 * ldc] = 300.0f;                   /* and one value that dwarfs its block */
    gm_latent_cache cache = {.n_pages = b.n_pages, .page_tokens = 4, .dtype = type, .d_latent = d, .d_rope = d_rope,
                             .row_bytes = gm_latent_row_bytes(type, d, d_rope)};
    int64_t size = (int64_t)b.n_pages * 4 * cache.row_bytes;
    uint8_t *first = NULL;
    TU_EACH_ISA(isa) {
        tu_region g = tu_region_new(size);
        uint8_t *written = calloc((size_t)size, 1);
        cache.base = g.base;
        run(isa, &cache, &b, c, ldc, d_rope ? kr : NULL, ldr);
        for (int32_t r = 0; r < 36; r++) {
            uint8_t *row = gm_latent_row(&cache, &b.slices[b.slice_of[r]], b.pos[r]);
            check_row(&cache, row, c + r * ldc, kr + r * ldr);
            memset(written + (row - g.base), 1, (size_t)cache.row_bytes);
        }
        for (int64_t i = 0; i < size; i++) /* every other byte of the pool is as it was */
            if (!written[i]) assert_int_equal(g.base[i], 0xC5);
        tu_region_check(&g);
        if (!first) {
            first = tu_bytes((size_t)size);
            memcpy(first, g.base, (size_t)size);
        } else {
            tu_same("the variants write the same bytes", g.base, first, (size_t)size);
        }
        free(g.all), free(written);
    }
    free(first), free(c), free(kr);
    tu_batch_fini(&b);
}

static void test_variants(void **state)
{
    (void)state;
    for (gm_kv_dtype t = GM_KV_F32; t <= GM_KV_FP8; t++) {
        one(t, 512, 64);
        one(t, 512, 0);
        one(t, 5, 2);
        one(t, 130, 6); /* scales and rotary part at odd addresses */
        one(t, 129, 0);
        one(t, 131, 4);
    }
}

static void test_nan_and_infinity(void **state)
{
    (void)state;
    int32_t begin[] = {0}, n[] = {1};
    tu_batch b;
    tu_batch_init(&b, 1, begin, n, 4);
    TU_EACH_ISA(isa)
        for (gm_kv_dtype t = GM_KV_F32; t <= GM_KV_FP8; t++) {
            float c[256], got[256];
            for (int i = 0; i < 256; i++) c[i] = 0.5f;
            c[3] = NAN;
            gm_latent_cache cache = {.n_pages = b.n_pages, .page_tokens = 4, .dtype = t, .d_latent = 256,
                                     .row_bytes = gm_latent_row_bytes(t, 256, 0)};
            tu_region g = tu_region_new(b.n_pages * 4 * cache.row_bytes);
            cache.base = g.base;
            run(isa, &cache, &b, c, 256, NULL, 0);
            gm_latent_load(&cache, gm_latent_row(&cache, &b.slices[0], (gm_pos){0}), got);
            for (int i = 0; i < 256; i++) assert_true(i == 3 ? isnan(got[i]) : got[i] == 0.5f);
            free(g.all);
        }
    tu_batch_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_nan_and_infinity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
