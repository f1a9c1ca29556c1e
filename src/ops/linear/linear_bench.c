#include "ops/bench_util.h"
#include "ops/linear/linear.h"

/* Copies of the weights, together larger than any cache, used in turn. */
typedef struct ctx {
    gm_linear_args a;
    gm_matrix *w;
    int copies;
} ctx;

static void run(void *p, int i)
{
    ctx *c = p;
    c->a.w = c->w + (int64_t)(i % c->copies) * c->a.n_groups;
    gm_linear(&c->a);
}

static void bench(const char *name, gm_dtype type, gm_act act, int32_t groups, int32_t rows, int32_t cols, int32_t n)
{
    int64_t bytes = (int64_t)rows * cols * gm_dtype_size(type), all = bytes * groups;
    ctx c = {.copies = (int)(((int64_t)512 << 20) / all) + 1};
    if (c.copies > 64) c.copies = 64;
    uint8_t *data = bu_noise(all * c.copies);
    float *scale = bu_floats(((int64_t)groups * rows / 128 + 2) * (cols / 128 + 1));
    c.w = gm_new_array(gm_matrix, groups * c.copies);
    for (int64_t i = 0; i < groups * c.copies; i++)
        c.w[i] = (gm_matrix){.data = data + i * bytes, .dtype = type, .rows = rows, .cols = cols, .scale = scale,
                             .scale_cols = (cols + 127) / 128, .block_rows = 128, .block_cols = 128};
    float *x = bu_floats((int64_t)n * groups * cols), *y = bu_floats((int64_t)n * groups * rows);
    int64_t room = gm_linear_workspace(bu_dev, n, cols, groups);
    c.a = (gm_linear_args){.x = x, .y = y, .n = n, .n_groups = groups, .ldx = (int64_t)groups * cols, .x_group = cols,
                           .ldy = (int64_t)groups * rows, .y_group = rows, .act = act, .dev = bu_dev,
                           .workspace = gm_pages_alloc((size_t)room)};
    char shape[96];
    static const char *const types[] = {"F32", "BF16", "FP8"};
    snprintf(shape, sizeof shape, "%s %s n=%d", name, types[type], n);
    double ma = (double)all / (double)gm_dtype_size(type) * n;
    bool dot = act == GM_ACT_BF16 && type != GM_F32 && bu_limit.bf16 > 0;
    bu_work w = {.op = "linear", .shape = shape, .mem = (double)all + 4.0 * n * groups * (rows + cols),
                 .fma = dot ? 0 : ma, .bf16 = dot ? ma : 0};
    bu_run(&w, run, &c);
    gm_pages_free(c.a.workspace, (size_t)room);
    gm_pages_free(x, (size_t)n * (size_t)groups * (size_t)cols * 4 + 64);
    gm_pages_free(y, (size_t)n * (size_t)groups * (size_t)rows * 4 + 64);
    gm_pages_free(data, (size_t)(all * c.copies) + 64);
    gm_free(c.w);
}

int main(int argc, char **argv)
{
    bu_init(argc, argv);
    static const int32_t n[] = {1, 2, 4, 8, 32, 128};
    for (int i = 0; i < 6; i++) bench("kda qkv [8192][4096]", GM_BF16, GM_ACT_BF16, 1, 8192, 4096, n[i]);
    for (int i = 0; i < 6; i++) bench("dense up [12288][4096]", GM_F8E4M3, GM_ACT_BF16, 1, 12288, 4096, n[i]);
    for (int i = 0; i < 6; i += 5) {
        bench("router [288][4096]", GM_F32, GM_ACT_F32, 1, 288, 4096, n[i]);
        bench("b_proj [64][4096]", GM_BF16, GM_ACT_BF16, 1, 64, 4096, n[i]);
        bench("f_b [8192][128]", GM_BF16, GM_ACT_BF16, 1, 8192, 128, n[i]);
        bench("absorb q 64x[512][256]", GM_BF16, GM_ACT_BF16, 64, 512, 256, n[i]);
        bench("absorb o 64x[256][512]", GM_BF16, GM_ACT_BF16, 64, 256, 512, n[i]);
        bench("tiny [256][128]", GM_BF16, GM_ACT_BF16, 1, 256, 128, n[i]);
    }
    gm_device_close(bu_dev);
    return 0;
}
