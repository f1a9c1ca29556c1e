/* Tokens a second of the forward step with logits: prompts in chunks, and decodes of several sequences at once.
 *   forward_bench MODEL_DIR [--dummy] [--context N] [--seqs N] [--threads N] [--isa NAME] [--kv bfloat16|fp8|float32]
 *                 [--act bfloat16]      N of --context: tokens, a multiple of 128; of --seqs: at most 32
 * Prints a line a measurement: median and spread over the steps, and for decodes the bytes of weights and cache that one
 * step must read, as a rate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "model/model_internal.h"

enum { CHUNK = 512, SEQS_MAX = 32, STEPS = 24, PROMPT_RUNS = 3 };

typedef struct bench {
    int32_t context, chunk, seqs;
    gm_device *dev;
    gm_model_config config;
    gm_weights *w;
    gm_model *m;
    gm_footprint foot;
    gm_page *pages; /* [SEQS_MAX][n_pages] */
    int32_t n_pages;
    float *logits;
} bench;

static void must(gm_status st, const gm_error *err)
{
    if (!st) return;
    fprintf(stderr, "forward_bench: %s\n", err->message);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void step(bench *b, const int32_t *ids, const gm_slice *slices, int32_t n_slices, int32_t n, bool logits_of_all)
{
    gm_error err = {0};
    int32_t rows[SEQS_MAX], n_out = 0;
    for (int32_t i = 0; i < n_slices; i++)
        if (logits_of_all || i == n_slices - 1) rows[n_out++] = slices[i].token_begin + slices[i].n.tok - 1;
    gm_batch batch = {.token_ids = ids, .n_tokens = n, .slices = slices, .n_slices = n_slices, .out_rows = rows, .n_out = n_out};
    must(gm_model_step(b->m, &batch, &err), &err);
    must(gm_model_logits(b->m, 0, n_out, b->logits, &err), &err);
}

static gm_slice slice_of(const bench *b, int32_t seq, int32_t row, int32_t n, int32_t begin)
{
    return (gm_slice){row, {n}, {begin}, b->pages + (size_t)seq * (size_t)b->n_pages, b->n_pages, {b->foot.slot_bytes ? seq : -1}};
}

/* Fill the context of a sequence; seconds it took. */
static double prompt(bench *b, int32_t seq)
{
    int32_t ids[CHUNK];
    gm_rng rng;
    gm_rng_init(&rng, (uint64_t)seq);
    int64_t t0 = gm_now_us();
    for (int32_t at = 0; at < b->context; at += b->chunk) {
        for (int32_t i = 0; i < b->chunk; i++) ids[i] = (int32_t)gm_rng_below(&rng, (uint64_t)b->config.vocab_size);
        gm_slice s = slice_of(b, seq, 0, b->chunk, at);
        step(b, ids, &s, 1, b->chunk, true);
    }
    return (double)(gm_now_us() - t0) * 1e-6;
}

static void measure_prompts(bench *b)
{
    double t[PROMPT_RUNS];
    prompt(b, 0); /* pages touched, weights read */
    for (int i = 0; i < PROMPT_RUNS; i++) t[i] = prompt(b, 0);
    qsort(t, PROMPT_RUNS, sizeof *t, by_value);
    printf("  prompt %d tokens in chunks of %d: %9.1f tokens/s (%.1f .. %.1f)\n", b->context, b->chunk, b->context / t[PROMPT_RUNS / 2],
           b->context / t[PROMPT_RUNS - 1], b->context / t[0]);
}

static void measure_decodes(bench *b, int32_t n)
{
    double t[STEPS];
    int32_t ids[SEQS_MAX];
    gm_slice s[SEQS_MAX];
    gm_rng rng;
    gm_rng_init(&rng, 99);
    for (int k = -2; k < STEPS; k++) {
        for (int32_t i = 0; i < n; i++) {
            ids[i] = (int32_t)gm_rng_below(&rng, (uint64_t)b->config.vocab_size);
            s[i] = slice_of(b, i, i, 1, b->context + k + 2);
        }
        int64_t t0 = gm_now_us();
        step(b, ids, s, n, n, true);
        if (k >= 0) t[k] = (double)(gm_now_us() - t0) * 1e-6;
    }
    qsort(t, STEPS, sizeof *t, by_value);
    double median = t[STEPS / 2];
    printf("  decode, %2d sequences at %d tokens: %9.1f tokens/s, step %.3f ms (%.3f .. %.3f)", n, b->context, n / median, median * 1e3,
           t[0] * 1e3, t[STEPS - 1] * 1e3);
    if (n == 1) printf(", about %.2f GB/s of weights", 2.0 * (double)b->foot.params_active / median * 1e-9);
    printf("\n");
}

int main(int argc, char **argv)
{
    gm_error err = {0};
    const char *dir = NULL, *isa_name = "auto", *kv_name = "bfloat16";
    bool dummy = false, bf16 = false;
    int threads = 0;
    bench b = {.context = 1024, .chunk = CHUNK, .seqs = SEQS_MAX};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--dummy")) dummy = true;
        else if (!strcmp(argv[i], "--context") && i + 1 < argc) b.context = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--seqs") && i + 1 < argc) b.seqs = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc) threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc) isa_name = argv[++i];
        else if (!strcmp(argv[i], "--kv") && i + 1 < argc) kv_name = argv[++i];
        else if (!strcmp(argv[i], "--act") && i + 1 < argc) bf16 = !strcmp(argv[++i], "bfloat16");
        else dir = argv[i];
    }
    if (b.context < 128 || b.context % 128 || b.seqs < 1 || b.seqs > SEQS_MAX) dir = NULL;
    if (b.context % b.chunk) b.chunk = 128;
    if (!dir) {
        fprintf(stderr, "usage: forward_bench MODEL_DIR [--dummy] [--context N] [--seqs N] [--threads N] [--isa NAME] [--kv DTYPE] [--act DTYPE]\n");
        return 2;
    }
    gm_isa isa = GM_ISA_REF;
    gm_kv_dtype kv = GM_KV_BF16;
    must(gm_isa_parse(&isa, isa_name, &err), &err);
    must(gm_kv_dtype_parse(&kv, kv_name, &err), &err);
    must(gm_device_open_cpu(&b.dev, isa, threads, &err), &err);
    must(gm_model_config_load(&b.config, dir, NULL, &err), &err);
    int64_t t0 = gm_now_us();
    if (dummy) must(gm_weights_dummy(&b.w, &b.config, b.dev, 1, &err), &err);
    else must(gm_weights_open(&b.w, dir, &b.config, b.dev, NULL, &err), &err);
    double load_s = (double)(gm_now_us() - t0) * 1e-6;
    gm_footprint_params fp = {kv, gm_kv_index_dtype(kv), bf16};
    b.foot = gm_footprint_compute(&b.config, &fp);
    b.n_pages = gm_footprint_pages(&b.foot, b.context + STEPS + 8);
    gm_model_params p = {.act = bf16 ? GM_ACT_BF16 : GM_ACT_F32,
                         .kv_dtype = kv,
                         .index_dtype = gm_kv_index_dtype(kv),
                         .page_tokens = b.foot.page_tokens,
                         .n_pages = b.seqs * b.n_pages,
                         .n_slots = b.foot.slot_bytes ? b.seqs : 0,
                         .batch_tokens_max = CHUNK,
                         .batch_slices_max = b.seqs,
                         .positions_max = b.n_pages * b.foot.page_tokens};
    must(gm_model_create(&b.m, b.w, &p, b.dev, &err), &err);
    b.pages = gm_new_array(gm_page, b.seqs * b.n_pages);
    for (int32_t i = 0; i < b.seqs * b.n_pages; i++) b.pages[i].id = i;
    b.logits = gm_new_array(float, (int64_t)b.seqs * b.config.vocab_size);

    printf("%s%s: %.3f billion parameters (%.3f active), weights %.2f GiB in %.1f s, %s, %d threads, pages %s, products %s\n", dir,
           dummy ? " (dummy weights)" : "", (double)b.foot.params_total * 1e-9, (double)b.foot.params_active * 1e-9,
           (double)gm_weights_bytes(b.w) / 0x1p30, load_s, gm_isa_name(isa), gm_device_threads(b.dev), gm_kv_dtype_name(kv),
           bf16 ? "BF16" : "FP32");
    measure_prompts(&b);
    for (int32_t i = 1; i < b.seqs; i++) prompt(&b, i);
    for (int32_t n = 1; n <= b.seqs; n = n == 1 ? 8 : n * 4) measure_decodes(&b, n);

    gm_free(b.logits);
    gm_free(b.pages);
    gm_model_destroy(b.m);
    gm_weights_close(b.w);
    gm_device_close(b.dev);
    return 0;
}
