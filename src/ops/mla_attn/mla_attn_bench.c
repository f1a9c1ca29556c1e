#include "ops/bench_util.h"
#include "ops/mla_attn/mla_attn.h"

typedef struct ctx {
    gm_mla_attn_args a;
} ctx;

static void run(void *p, int i)
{
    (void)i;
    gm_mla_attn(&((ctx *)p)->a);
}

/* n rows at the end of a sequence of `length` tokens, every fourth pool selected. */
static void bench(gm_kv_dtype type, const char *name, int32_t n, int32_t length, int32_t H, int32_t d_rope, int32_t pool,
                  int32_t n_select)
{
    int32_t n_pages = length / 64 + 1;
    gm_page *pages = gm_new_array(gm_page, n_pages);
    for (int32_t i = 0; i < n_pages; i++) pages[i].id = (int32_t)((int64_t)i * 7919 % n_pages);
    gm_slice s = {.n = {n}, .begin = {length - n}, .pages = pages, .n_pages = n_pages};
    gm_pos *pos = gm_new_array(gm_pos, n);
    int32_t *slice_of = gm_new_array(int32_t, n), *n_sel = gm_new_array(int32_t, n), keys = 0;
    gm_pool_pos *sel = gm_new_array(gm_pool_pos, (int64_t)n * n_select);
    for (int32_t r = 0; r < n; r++) {
        pos[r].tok = length - n + r;
        int32_t visible = (pos[r].tok + 1) / pool;
        n_sel[r] = visible < n_select ? visible : n_select;
        for (int32_t i = 0; i < n_sel[r]; i++) sel[r * n_select + i].pool = (int32_t)((int64_t)i * visible / n_sel[r]);
        keys = n_sel[r] * pool + (pos[r].tok + 1) % pool;
    }
    gm_rows rows = {n, pos, slice_of, &s, 1};
    gm_latent_cache cache = {.n_pages = n_pages, .page_tokens = 64, .dtype = type, .d_latent = 512, .d_rope = d_rope,
                             .row_bytes = gm_latent_row_bytes(type, 512, d_rope)};
    cache.base = bu_noise((int64_t)n_pages * 64 * cache.row_bytes);
    float *q = bu_floats((int64_t)n * H * 512), *qr = bu_floats((int64_t)n * H * 64), *o = bu_floats((int64_t)n * H * 512);
    int64_t room = gm_mla_attn_workspace(bu_dev, H, n_select, pool, 512, d_rope);
    ctx c = {{.q_lat = q, .q_rope = d_rope ? qr : NULL, .ldr = H * 64, .rope_stride = 64, .o = o, .rows = &rows,
              .cache = cache, .n_heads = H, .pool = pool, .n_select = n_select, .tail = pool > 1, .sel = sel,
              .n_sel = n_sel, .scale = 0.0625f, .dev = bu_dev, .workspace = gm_pages_alloc((size_t)room)}};
    char shape[96];
    snprintf(shape, sizeof shape, "%s n=%d keys=%d H=%d", name, n, keys, H);
    double ma = (double)n * keys * H * (2.0 * 512 + d_rope);
    bu_run(&(bu_work){.op = "mla_attn", .shape = shape, .mem = (double)n * keys * (double)cache.row_bytes, .fma = ma}, run,
           &c);
    gm_pages_free(c.a.workspace, (size_t)room);
    gm_free(pages), gm_free(pos), gm_free(slice_of), gm_free(n_sel), gm_free(sel);
}

int main(int argc, char **argv)
{
    bu_init(argc, argv);
    bench(GM_KV_BF16, "BF16", 1, 100000, 64, 0, 4, 512);
    bench(GM_KV_FP8, "FP8", 1, 100000, 64, 0, 4, 512);
    bench(GM_KV_BF16, "BF16", 1, 300, 64, 0, 4, 512);
    bench(GM_KV_BF16, "BF16", 16, 4096, 64, 0, 4, 512);
    bench(GM_KV_FP8, "FP8 rope", 4, 100000, 64, 64, 1, 2048);
    gm_device_close(bu_dev);
    return 0;
}
