#include "ops/bench_util.h"
#include "ops/index_score/index_score.h"
#include "ops/index_topk/index_topk.h"

typedef struct ctx {
    gm_index_score_args score;
    gm_index_topk_args topk;
} ctx;

static void run_score(void *p, int i)
{
    (void)i;
    gm_index_score(&((ctx *)p)->score);
}

static void run_topk(void *p, int i)
{
    (void)i;
    gm_index_topk(&((ctx *)p)->topk);
}

static void bench(gm_kv_dtype type, const char *name, int32_t n, int32_t length)
{
    enum { H = 32, D = 128, POOL = 4, SELECT = 512 };
    int32_t n_pages = length / 64 + 1, visible = length / POOL;
    gm_page *pages = gm_new_array(gm_page, n_pages);
    for (int32_t i = 0; i < n_pages; i++) pages[i].id = (int32_t)((int64_t)i * 7919 % n_pages);
    gm_slice s = {.n = {n}, .begin = {length - n}, .pages = pages, .n_pages = n_pages};
    gm_pos *pos = gm_new_array(gm_pos, n);
    int32_t *slice_of = gm_new_array(int32_t, n), *n_sel = gm_new_array(int32_t, n);
    for (int32_t r = 0; r < n; r++) pos[r].tok = length - n + r;
    gm_rows rows = {n, pos, slice_of, &s, 1};
    gm_index_cache cache = {.n_pages = n_pages, .page_tokens = 64, .pool = POOL, .dtype = type, .d = D,
                            .key_bytes = gm_index_key_bytes(type, D)};
    cache.base = bu_noise((int64_t)n_pages * 16 * cache.key_bytes);
    float *scores = bu_floats((int64_t)n * visible);
    ctx c = {{.q = bu_floats((int64_t)n * H * D), .w = bu_floats((int64_t)n * H), .ldq = H * D, .ldw = H, .rows = &rows,
              .row_end = n, .n_heads = H, .cache = cache, .pools_skip = SELECT, .scores = scores, .lds = visible,
              .act = GM_ACT_BF16, .dev = bu_dev},
             {.scores = scores, .lds = visible, .rows = &rows, .row_end = n, .pool = POOL, .n_select = SELECT,
              .sel = gm_new_array(gm_pool_pos, (int64_t)n * SELECT), .n_sel = n_sel, .dev = bu_dev}};
    char shape[96];
    snprintf(shape, sizeof shape, "%s n=%d tokens=%d", name, n, length);
    double pools = (double)n * visible;
    bu_run(&(bu_work){.op = "index_score", .shape = shape, .mem = (double)visible * (double)cache.key_bytes + 4 * pools,
                      .fma = pools * H * D}, run_score, &c);
    bu_run(&(bu_work){.op = "index_topk", .shape = shape, .mem = 4 * pools}, run_topk, &c);
    gm_free(pages), gm_free(pos), gm_free(slice_of), gm_free(n_sel), gm_free(c.topk.sel);
}

int main(int argc, char **argv)
{
    bu_init(argc, argv);
    bench(GM_KV_BF16, "BF16", 1, 100000);
    bench(GM_KV_BF16, "BF16", 1, 1000000);
    bench(GM_KV_FP8, "FP8", 1, 100000);
    bench(GM_KV_BF16, "BF16", 64, 16384);
    gm_device_close(bu_dev);
    return 0;
}
