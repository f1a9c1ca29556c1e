#include "ops/linear/linear.h"
#include "ops/test_util.h"

/* Weights of every type with their value in double, so that the check needs no second implementation. */
typedef struct weights {
    gm_matrix m[4];
    void *data;
    float *scale;
    double *value; /* [groups][rows][cols] */
} weights;

static weights make(gm_dtype type, int32_t groups, int32_t rows, int32_t cols, int32_t block, int32_t row0)
{
    weights w = {0};
    size_t all = (size_t)groups * (size_t)rows * (size_t)cols;
    float *v = tu_normal(all, 1, (uint64_t)(rows * 1000 + cols));
    w.value = tu_bytes(all * sizeof *w.value);
    w.data = tu_bytes(all * (size_t)gm_dtype_size(type));
    int32_t scale_cols = (cols + block - 1) / block;
    int32_t scale_rows = (row0 + groups * rows + block - 1) / block;
    w.scale = tu_normal((size_t)(scale_cols * scale_rows), 0.01f, 4);
    gm_rng r;
    gm_rng_init(&r, 9);
    for (size_t i = 0; i < all; i++) {
        if (type == GM_F32) {
            ((float *)w.data)[i] = v[i];
            w.value[i] = (double)v[i];
        } else if (type == GM_BF16) {
            ((uint16_t *)w.data)[i] = gm_f32_to_bf16(v[i]);
            w.value[i] = (double)gm_round_bf16(v[i]);
        } else {
            /* every code, subnormals and both zeros too, NaN not */
            uint8_t code = (uint8_t)gm_rng_below(&r, 256);
            if ((code & 0x7F) == 0x7F) code = 0x80;
            ((uint8_t *)w.data)[i] = code;
            int32_t row = row0 + (int32_t)(i / (size_t)cols), col = (int32_t)(i % (size_t)cols);
            w.value[i] = (double)gm_e4m3_to_f32(code) * (double)w.scale[row / block * scale_cols + col / block];
        }
    }
    for (int32_t g = 0; g < groups; g++) {
        uint8_t *at = (uint8_t *)w.data + (int64_t)g * rows * cols * gm_dtype_size(type);
        w.m[g] = (gm_matrix){.data = at, .dtype = type, .rows = rows, .cols = cols, .row0 = row0 + g * rows};
        if (type == GM_F8E4M3) {
            w.m[g].scale = w.scale;
            w.m[g].scale_cols = scale_cols;
            w.m[g].block_rows = w.m[g].block_cols = block;
        }
    }
    free(v);
    return w;
}

static void drop(weights *w)
{
    free(w->data), free(w->scale), free(w->value);
}

static void run(gm_isa isa, int threads, const weights *w, int32_t groups, const float *x, int64_t ldx, float *y,
                int64_t ldy, int32_t n, gm_act act, bool accumulate)
{
    int64_t before = gm_variant_count(GM_OP_linear, isa);
    gm_device *dev = tu_device(isa, threads);
    void *room = tu_workspace(gm_linear_workspace(dev, n, w->m[0].cols, groups));
    gm_linear(&(gm_linear_args){.x = x, .y = y, .w = w->m, .n = n, .n_groups = groups, .ldx = ldx, .ldy = ldy,
                                .x_group = w->m[0].cols + 1, .y_group = w->m[0].rows + 1, .act = act,
                                .accumulate = accumulate, .dev = dev, .workspace = room});
    tu_ran(GM_OP_linear, isa, before);
    free(room);
}

static void check(const weights *w, int32_t groups, const float *x, int64_t ldx, const float *y, int64_t ldy, int32_t n,
                  gm_act act, float base)
{
    int32_t rows = w->m[0].rows, cols = w->m[0].cols;
    for (int32_t t = 0; t < n; t++)
        for (int32_t g = 0; g < groups; g++) {
            for (int32_t o = 0; o < rows; o++) {
                double sum = 0, size = 0;
                for (int32_t k = 0; k < cols; k++) {
                    float v = x[t * ldx + g * (cols + 1) + k];
                    if (act == GM_ACT_BF16) v = gm_round_bf16(v);
                    double p = (double)v * w->value[((int64_t)g * rows + o) * cols + k];
                    sum += p;
                    size += fabs(p);
                }
                double got = (double)y[t * ldy + g * (rows + 1) + o], want = sum + (double)base;
                if (!(fabs(got - want) <= 1e-5 * (size + fabs((double)base))))
                    fail_msg("token %d, group %d, row %d: got %.9g, want %.9g", t, g, o, got, want);
            }
            assert_true(isnan(y[t * ldy + g * (rows + 1) + rows])); /* the gap behind the group */
        }
}

static void one_shape(gm_dtype type, int32_t groups, int32_t rows, int32_t cols, int32_t n, int32_t block, int32_t row0)
{
    weights w = make(type, groups, rows, cols, block, row0);
    int64_t ldx = groups * (cols + 1) + 3, ldy = groups * (rows + 1) + 5;
    float *x = tu_normal((size_t)(n * ldx), 1, 3);
    for (int act = 0; act < 2; act++)
        TU_EACH_ISA(isa) {
            float *y = tu_nan((size_t)(n * ldy));
            run(isa, 2, &w, groups, x, ldx, y, ldy, n, (gm_act)act, false);
            check(&w, groups, x, ldx, y, ldy, n, (gm_act)act, 0);
            for (int64_t t = 0; t < n; t++)
                for (int32_t g = 0; g < groups; g++)
                    for (int32_t o = 0; o < rows; o++) y[t * ldy + g * (rows + 1) + o] = 0.5f;
            run(isa, 3, &w, groups, x, ldx, y, ldy, n, (gm_act)act, true);
            check(&w, groups, x, ldx, y, ldy, n, (gm_act)act, 0.5f);
            free(y);
        }
    free(x);
    drop(&w);
}

static void test_shapes(void **state)
{
    (void)state;
    static const int32_t shapes[][3] = {{1, 1, 1},   {3, 7, 2},    {8, 8, 3},    {25, 31, 4},  {24, 128, 5},
                                        {70, 130, 7}, {33, 257, 6}, {48, 512, 9}, {5, 1030, 33}, {130, 600, 1}};
    for (size_t i = 0; i < TU_LEN(shapes); i++)
        for (gm_dtype t = GM_F32; t <= GM_F8E4M3; t++) {
            one_shape(t, 1, shapes[i][0], shapes[i][1], shapes[i][2], 128, 0);
            one_shape(t, 3, shapes[i][0], shapes[i][1], shapes[i][2], 128, 0);
        }
    one_shape(GM_BF16, 1, 9, 70, 300, 128, 0); /* more tokens than one pass takes */
    one_shape(GM_BF16, 2, 9, 70, 300, 128, 0);
}

/* Scale blocks that are not 128 wide, and heads whose rows begin inside one. */
static void test_fp8_blocks(void **state)
{
    (void)state;
    static const int32_t blocks[] = {4, 8, 16, 20, 32, 64, 128};
    for (size_t i = 0; i < TU_LEN(blocks); i++)
        for (int32_t row0 = 0; row0 < 30; row0 += 29) {
            one_shape(GM_F8E4M3, 1, 27, 150, 1, blocks[i], row0);
            one_shape(GM_F8E4M3, 1, 27, 150, 6, blocks[i], row0);
            one_shape(GM_F8E4M3, 2, 27, 150, 6, blocks[i], row0);
        }
}

/* All 256 codes through the product: x picks one column. NaN codes give NaN, even against a zero. */
static void test_fp8_codes(void **state)
{
    (void)state;
    uint8_t codes[256];
    float scale[2] = {0.5f, 3.0f};
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    gm_matrix m = {.data = codes, .dtype = GM_F8E4M3, .rows = 256, .cols = 1, .scale = scale, .scale_cols = 1,
                   .block_rows = 128, .block_cols = 128};
    TU_EACH_ISA(isa)
        for (int n = 1; n <= 6; n++)
            for (int act = 0; act < 2; act++) {
                gm_device *dev = tu_device(isa, 1);
                void *room = tu_workspace(gm_linear_workspace(dev, n, 1, 1));
                float x[6] = {1, 1, 1, 1, 1, 0}, y[6 * 256], want[6 * 256];
                for (int t = 0; t < n; t++)
                    for (int i = 0; i < 256; i++) want[t * 256 + i] = x[t] * (gm_e4m3_to_f32(codes[i]) * scale[i / 128]);
                gm_linear(&(gm_linear_args){.x = x, .y = y, .w = &m, .n = n, .n_groups = 1, .ldx = 1, .ldy = 256,
                                            .act = (gm_act)act, .dev = dev, .workspace = room});
                tu_near("code", y, want, (size_t)n * 256, 1e-6, 0);
                free(room);
            }
}

/* A token alone and the same token in batches around every change of kernel: the same bits. */
static void test_batch_invariance(void **state)
{
    (void)state;
    static const int32_t batches[] = {2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33, 65};
    static const int32_t shapes[][2] = {{53, 640}, {64, 130}, {31, 1100}};
    for (size_t i = 0; i < TU_LEN(shapes); i++)
        for (gm_dtype type = GM_F32; type <= GM_F8E4M3; type++)
            for (int32_t groups = 1; groups <= 2; groups++)
                for (int act = 0; act < 2; act++)
                    TU_EACH_ISA(isa) {
                        int32_t rows = shapes[i][0], cols = shapes[i][1], N = 65;
                        weights w = make(type, groups, rows, cols, 128, 0);
                        int64_t ldx = groups * (cols + 1), ldy = groups * (rows + 1);
                        float *x = tu_normal((size_t)(N * ldx), 1, 3), *one = tu_nan((size_t)(N * ldy));
                        for (int32_t t = 0; t < N; t++)
                            run(isa, 1, &w, groups, x + t * ldx, ldx, one + t * ldy, ldy, 1, (gm_act)act, false);
                        for (size_t b = 0; b < TU_LEN(batches); b++) {
                            float *y = tu_nan((size_t)(N * ldy));
                            run(isa, 3, &w, groups, x, ldx, y, ldy, batches[b], (gm_act)act, false);
                            tu_same("alone and in a batch", y, one, (size_t)(batches[b] * ldy) * 4);
                            free(y);
                        }
                        free(x), free(one);
                        drop(&w);
                    }
}

/* NaN and infinity in one token's x stay in that token. */
static void test_nan_in_x(void **state)
{
    (void)state;
    enum { ROWS = 26, COLS = 140, N = 7 };
    for (gm_dtype type = GM_F32; type <= GM_F8E4M3; type++)
        for (int act = 0; act < 2; act++)
            TU_EACH_ISA(isa) {
                weights w = make(type, 1, ROWS, COLS, 128, 0);
                float *x = tu_normal(N * COLS, 1, 3), *y = tu_nan(N * ROWS);
                x[3 * COLS + 139] = NAN;
                run(isa, 2, &w, 1, x, COLS, y, ROWS, N, (gm_act)act, false);
                for (int t = 0; t < N; t++)
                    for (int o = 0; o < ROWS; o++) assert_true(t == 3 ? isnan(y[t * ROWS + o]) : isfinite(y[t * ROWS + o]));
                free(x), free(y);
                drop(&w);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),           cmocka_unit_test(test_fp8_blocks), cmocka_unit_test(test_fp8_codes),
        cmocka_unit_test(test_batch_invariance), cmocka_unit_test(test_nan_in_x),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
