#include "ops/test_util.h"

/* E4M3 written out: sign, exponent of bias 7, three bits of mantissa. */
static double e4m3_value(int code)
{
    int e = code >> 3 & 15, m = code & 7;
    if (e == 15 && m == 7) return NAN;
    double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return code & 0x80 ? -v : v;
}

static void test_e4m3_all_codes(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        float f = gm_e4m3_to_f32((uint8_t)code);
        double want = e4m3_value(code);
        if (isnan(want)) {
            assert_true(isnan(f));
            assert_int_equal(gm_f32_to_e4m3(f), 0x7F);
            continue;
        }
        assert_true((double)f == want && !signbit(f) == !signbit(want));
        assert_int_equal(gm_f32_to_e4m3(f), code);
    }
    assert_true((double)gm_e4m3_to_f32(0x7E) == 448.0);
    assert_true(signbit(gm_e4m3_to_f32(0x80)) && gm_e4m3_to_f32(0x80) == 0.0f); /* NaN in the FNUZ form */
}

/* Between neighbours: nearest, halfway to the even code, just off halfway to the nearer. */
static void test_e4m3_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7E; code++) {
        double lo = e4m3_value(code), hi = e4m3_value(code + 1);
        float mid = (float)((lo + hi) / 2);
        int even = code & 1 ? code + 1 : code;
        assert_int_equal(gm_f32_to_e4m3(mid), even);
        assert_int_equal(gm_f32_to_e4m3(-mid), even | 0x80);
        assert_int_equal(gm_f32_to_e4m3(nextafterf(mid, 0)), code);
        assert_int_equal(gm_f32_to_e4m3(nextafterf(mid, 1000)), code + 1);
    }
    static const float big[] = {448.1f, 464.0f, 1e30f, INFINITY};
    for (size_t i = 0; i < TU_LEN(big); i++) {
        assert_int_equal(gm_f32_to_e4m3(big[i]), 0x7E);
        assert_int_equal(gm_f32_to_e4m3(-big[i]), 0xFE);
    }
    assert_int_equal(gm_f32_to_e4m3(NAN), 0x7F);
    assert_int_equal(gm_f32_to_e4m3(1e-30f), 0);
    assert_int_equal(gm_f32_to_e4m3(-0.0f), 0x80);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = gm_bf16_to_f32((uint16_t)h);
        if (isnan(f)) assert_true(isnan(gm_round_bf16(f)));
        else assert_int_equal(gm_f32_to_bf16(f), h);
    }
    assert_true(gm_round_bf16(1.00390625f) == 1.0f);         /* halfway, to even */
    assert_true(gm_round_bf16(1.01171875f) == 1.015625f);    /* halfway, to even, upwards */
    assert_true(gm_round_bf16(3.4e38f) == INFINITY);
}

static void test_offsets_are_64_bit(void **state)
{
    (void)state;
    assert_true(gm_latent_row_bytes(GM_KV_FP8, 512, 64) == 512 + 32 + 128);
    assert_true(gm_latent_row_bytes(GM_KV_FP8, 130, 0) == 130 + 10);
    assert_true(gm_latent_row_bytes(GM_KV_BF16, 512, 0) == 1024);
    assert_true(gm_index_key_bytes(GM_KV_FP8, 128) == 132);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3_all_codes),
        cmocka_unit_test(test_e4m3_rounds_to_nearest_even),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_offsets_are_64_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
