/* The KDA layer's own ops: convolution, preparation, recurrence, gated norm. */
#include "ops/bench_util.h"
#include "ops/gated_norm/gated_norm.h"
#include "ops/kda_conv/kda_conv.h"
#include "ops/kda_prep/kda_prep.h"
#include "ops/kda_scan/kda_scan.h"

enum { H = 64, D = 128, LAYERS = 34 };

/* The slots of several layers in turn: the state of a layer (4 MiB) is not in a cache when its turn comes. */
typedef struct ctx {
    gm_kda_conv_args conv;
    gm_kda_prep_args prep;
    gm_kda_scan_args scan;
    gm_gated_norm_args norm;
    uint8_t *conv_state, *scan_state;
    int64_t conv_bytes, scan_bytes;
    int layers;
} ctx;

static void run_conv(void *p, int i)
{
    ctx *c = p;
    c->conv.state = c->conv_state + i % c->layers * c->conv_bytes;
    gm_kda_conv(&c->conv);
}

static void run_prep(void *p, int i)
{
    (void)i;
    gm_kda_prep(&((ctx *)p)->prep);
}

static void run_scan(void *p, int i)
{
    ctx *c = p;
    c->scan.state = c->scan_state + i % c->layers * c->scan_bytes;
    gm_kda_scan(&c->scan);
}

static void run_norm(void *p, int i)
{
    (void)i;
    gm_gated_norm(&((ctx *)p)->norm);
}

static void bench(int32_t n_slices, int32_t n)
{
    int32_t rows = n_slices * n, W = H * D;
    gm_slice *slices = gm_new_array(gm_slice, n_slices);
    gm_pos *pos = gm_new_array(gm_pos, rows);
    int32_t *slice_of = gm_new_array(int32_t, rows);
    for (int32_t i = 0; i < n_slices; i++) {
        slices[i] = (gm_slice){.token_begin = i * n, .n = {n}, .begin = {100}, .slot = {i}};
        for (int32_t k = 0; k < n; k++) pos[i * n + k].tok = 100 + k, slice_of[i * n + k] = i;
    }
    gm_rows all = {rows, pos, slice_of, slices, n_slices};
    ctx c = {.layers = LAYERS, .conv_bytes = (int64_t)n_slices * 3 * W * 2 * 3, .scan_bytes = (int64_t)n_slices * H * D * D * 4};
    if (c.layers * c.scan_bytes > (int64_t)2 << 30) c.layers = 4;
    c.conv_state = bu_noise(c.conv_bytes * c.layers);
    c.scan_state = (uint8_t *)bu_floats(c.scan_bytes * c.layers / 4);
    float *x = bu_floats((int64_t)rows * 3 * W), *y = bu_floats((int64_t)rows * 3 * W), *decay = bu_floats((int64_t)rows * W);
    float *beta = bu_floats((int64_t)rows * H), *w = bu_floats((int64_t)3 * W * 4), *o = bu_floats((int64_t)rows * W);
    for (int64_t i = 0; i < (int64_t)rows * W; i++) decay[i] = 0.9f;
    float *f = bu_floats((int64_t)rows * W), *out = bu_floats((int64_t)rows * W), *b = bu_floats((int64_t)rows * H);
    c.conv = (gm_kda_conv_args){.x = x, .w = w, .y = y, .slot_stride = 3 * W * 2 * 3, .rows = &all, .channels = 3 * W,
                                .taps = 4, .ldx = 3 * W, .ldy = 3 * W, .bf16 = true, .dev = bu_dev};
    c.prep = (gm_kda_prep_args){.q = y, .k = y + W, .f = f, .b = b, .A_log = w, .dt_bias = w, .decay = out, .beta = b,
                                .n = rows, .n_heads = H, .d_head = D, .ldq = 3 * W, .lower = -5, .dev = bu_dev};
    c.scan = (gm_kda_scan_args){.q = y, .k = y + W, .v = y + 2 * W, .decay = decay, .beta = beta, .o = o,
                                .slot_stride = H * D * D * 4, .rows = &all, .n_heads = H, .d_head = D, .ldq = 3 * W,
                                .dev = bu_dev};
    c.norm = (gm_gated_norm_args){.x = o, .g = f, .w = w, .y = out, .n = rows, .n_heads = H, .d_head = D, .eps = 1e-5f,
                                  .dev = bu_dev};
    char shape[96];
    snprintf(shape, sizeof shape, "%d sequences x %d tokens", n_slices, n);
    double r = rows;
    bu_run(&(bu_work){.op = "kda_conv", .shape = shape, .mem = n_slices * 3.0 * W * 2 * 3 * 2 + (rows > 16 ? r * 3 * W * 8 : 0),
                      .l2 = r * 3 * W * 8}, run_conv, &c);
    bu_run(&(bu_work){.op = "kda_prep", .shape = shape, .mem = rows > 16 ? r * W * 4 * 6 : 0, .l2 = r * W * 4 * 6}, run_prep, &c);
    bu_run(&(bu_work){.op = "kda_scan", .shape = shape, .mem = (double)n_slices * H * D * D * 8, .fma = r * H * D * D * 3},
           run_scan, &c);
    bu_run(&(bu_work){.op = "gated_norm", .shape = shape, .mem = rows > 16 ? r * W * 12 : 0, .l2 = r * W * 12}, run_norm, &c);
    gm_pages_free(c.scan_state, (size_t)(c.scan_bytes * c.layers) + 64);
}

int main(int argc, char **argv)
{
    bu_init(argc, argv);
    bench(1, 1);
    bench(8, 1);
    bench(1, 128);
    gm_device_close(bu_dev);
    return 0;
}
