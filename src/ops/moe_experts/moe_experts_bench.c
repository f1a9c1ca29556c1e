#include "ops/bench_util.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_route/moe_route.h"

typedef struct ctx {
    gm_moe_experts_args a;
    gm_moe_route_args route;
    int32_t *ids;
    int sets;
} ctx;

static void run(void *p, int i)
{
    ctx *c = p;
    c->a.ids = c->ids + (int64_t)(i % c->sets) * c->a.n * c->a.n_active;
    gm_moe_experts(&c->a);
}

static void run_route(void *p, int i)
{
    (void)i;
    gm_moe_route(&((ctx *)p)->route);
}

/* E experts in memory (fewer than the model's 288, more than any cache holds); another choice each time. */
static void bench(gm_dtype type, const char *name, int32_t n, int32_t E, int32_t d, int32_t f)
{
    enum { K = 8, SETS = 16 };
    int64_t bytes = (int64_t)d * f * gm_dtype_size(type);
    uint8_t *data = bu_noise(3 * bytes * E);
    float *scale = bu_floats((d / 128 + 1) * (f / 128 + 1));
    gm_matrix *m[3];
    for (int w = 0; w < 3; w++) {
        m[w] = gm_new_array(gm_matrix, E);
        for (int32_t e = 0; e < E; e++)
            m[w][e] = (gm_matrix){.data = data + (w * (int64_t)E + e) * bytes, .dtype = type, .rows = w == 2 ? d : f,
                                  .cols = w == 2 ? f : d, .scale = scale, .scale_cols = (w == 2 ? f : d) / 128 + 1,
                                  .block_rows = 128, .block_cols = 128};
    }
    ctx c = {.ids = gm_new_array(int32_t, (int64_t)SETS * n * K), .sets = SETS};
    gm_rng r;
    gm_rng_init(&r, 1);
    double busy = 0;
    for (int64_t t = 0; t < (int64_t)SETS * n; t++) {
        int32_t have = 0;
        for (int32_t e = 0; e < E && have < K; e++)
            if ((int32_t)gm_rng_below(&r, (uint64_t)(E - e)) < K - have) c.ids[t * K + have++] = e;
    }
    for (int s = 0; s < SETS; s++) {
        bool *hit = gm_new_array(bool, E);
        for (int64_t i = 0; i < (int64_t)n * K; i++) hit[c.ids[s * (int64_t)n * K + i]] = true;
        for (int32_t e = 0; e < E; e++) busy += hit[e];
        gm_free(hit);
    }
    busy /= SETS;
    int64_t room = gm_moe_experts_workspace(bu_dev, n, d, f, E, K);
    float *weights = bu_floats((int64_t)n * K);
    c.a = (gm_moe_experts_args){.x = bu_floats((int64_t)n * d), .y = bu_floats((int64_t)n * d), .weights = weights,
                                .gate = m[0], .up = m[1], .down = m[2], .n = n, .d = d, .f = f, .n_experts = E,
                                .n_active = K, .limit = 10, .act = GM_ACT_BF16, .dev = bu_dev,
                                .workspace = gm_pages_alloc((size_t)room)};
    char shape[96];
    snprintf(shape, sizeof shape, "%s n=%d", name, n);
    double ma = 3.0 * n * K * d * f;
    bool dot = type != GM_F32 && bu_limit.bf16 > 0;
    bu_run(&(bu_work){.op = "moe_experts", .shape = shape, .mem = busy * 3 * (double)bytes, .fma = dot ? 0 : ma,
                      .bf16 = dot ? ma : 0}, run, &c);
    c.route = (gm_moe_route_args){.logits = bu_floats((int64_t)n * 288), .ids = c.ids, .weights = weights,
                                  .n = n, .n_experts = 288, .n_active = K, .n_groups = 1,
                                  .topk_groups = 1, .scale = 2.5f, .norm_topk = true, .dev = bu_dev};
    float *bias = bu_floats(288);
    c.route.bias = bias;
    bu_run(&(bu_work){.op = "moe_route", .shape = shape, .l2 = (double)n * 288 * 4}, run_route, &c);
    gm_pages_free(c.a.workspace, (size_t)room);
    gm_pages_free(data, (size_t)(3 * bytes * E) + 64);
    for (int w = 0; w < 3; w++) gm_free(m[w]);
    gm_free(c.ids);
}

int main(int argc, char **argv)
{
    bu_init(argc, argv);
    bench(GM_F8E4M3, "FP8 4096x2048", 1, 32, 4096, 2048);
    bench(GM_F8E4M3, "FP8 4096x2048", 4, 32, 4096, 2048);
    bench(GM_BF16, "BF16 4096x2048", 1, 24, 4096, 2048);
    bench(GM_F8E4M3, "FP8 4096x2048", 128, 32, 4096, 2048);
    bench(GM_BF16, "BF16 tiny 128x64", 1, 16, 128, 64);
    gm_device_close(bu_dev);
    return 0;
}
