#include "ops/kda_scan/kda_scan.h"
#include "ops/test_util.h"

typedef struct data {
    int32_t n, H, D;
    int64_t ldq, stride;
    float *q, *k, *v, *decay, *beta;
} data;

/* As kda_prep leaves them: unit k, q of length D^-0.5, decay in (e^-5, 1), beta in (0, 1). */
static data make(int32_t n, int32_t H, int32_t D, uint64_t seed)
{
    data x = {.n = n, .H = H, .D = D, .ldq = 3 * H * D, .stride = ((int64_t)H * D * D + 16) * 4};
    x.q = tu_normal((size_t)(n * x.ldq), 1, seed);
    x.k = x.q + H * D;
    x.v = x.q + 2 * H * D;
    x.decay = tu_normal((size_t)(n * H * D), 2, seed + 1);
    x.beta = tu_normal((size_t)(n * H), 1, seed + 2);
    for (int32_t i = 0; i < n * H * D; i++) x.decay[i] = expf(-5.0f / (1 + expf(-x.decay[i])));
    for (int32_t i = 0; i < n * H; i++) x.beta[i] = 1 / (1 + expf(-x.beta[i]));
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < 2 * H; h++) {
            float *p = x.q + r * x.ldq + h * D, sum = 0;
            for (int32_t i = 0; i < D; i++) sum += p[i] * p[i];
            float s = (h < H ? 1 / sqrtf((float)D) : 1.0f) / sqrtf(sum + 1e-6f);
            for (int32_t i = 0; i < D; i++) p[i] *= s;
        }
    return x;
}

static void drop(data *x)
{
    free(x->q), free(x->decay), free(x->beta);
}

static void run(gm_isa isa, int threads, const data *x, const tu_batch *b, int64_t first, float *o, uint8_t *state)
{
    int64_t before = gm_variant_count(GM_OP_kda_scan, isa);
    gm_kda_scan(&(gm_kda_scan_args){.q = x->q + first * x->ldq, .k = x->k + first * x->ldq, .v = x->v + first * x->ldq,
                                    .decay = x->decay + first * x->H * x->D, .beta = x->beta + first * x->H,
                                    .o = o + first * x->H * x->D, .state = state, .slot_stride = x->stride,
                                    .rows = &b->rows, .n_heads = x->H, .d_head = x->D, .ldq = x->ldq,
                                    .dev = tu_device(isa, threads)});
    tu_ran(GM_OP_kda_scan, isa, before);
}

/* The recurrence in double. */
static void want_of(const data *x, const gm_slice *s, int32_t h, double *S, float *o)
{
    int32_t D = x->D;
    memset(S, 0, (size_t)(D * D) * sizeof *S);
    for (int64_t r = s->token_begin; r < s->token_begin + s->n.tok; r++) {
        const float *q = x->q + r * x->ldq + h * D, *k = x->k + r * x->ldq + h * D, *v = x->v + r * x->ldq + h * D;
        for (int32_t j = 0; j < D; j++) {
            double u = 0, out = 0;
            for (int32_t i = 0; i < D; i++) {
                S[i * D + j] *= (double)x->decay[(r * x->H + h) * D + i];
                u += (double)k[i] * S[i * D + j];
            }
            for (int32_t i = 0; i < D; i++) {
                S[i * D + j] += (double)k[i] * (double)x->beta[r * x->H + h] * ((double)v[j] - u);
                out += (double)q[i] * S[i * D + j];
            }
            o[(r * x->H + h) * D + j] = (float)out;
        }
    }
}

static void test_variants(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 4}, {3, 16}, {2, 33}, {5, 64}, {2, 128}, {1, 200}};
    for (size_t i = 0; i < TU_LEN(shapes); i++) {
        int32_t H = shapes[i][0], D = shapes[i][1], begin[] = {0, 0, 0}, n[] = {3, 40, 1};
        tu_batch b;
        tu_batch_init(&b, 3, begin, n, 16);
        data x = make(44, H, D, i);
        size_t all = (size_t)(44 * H * D);
        float *want = tu_nan(all);
        double *S = tu_bytes((size_t)(3 * H * D * D) * sizeof *S);
        for (int32_t s = 0; s < 3; s++)
            for (int32_t h = 0; h < H; h++) want_of(&x, &b.slices[s], h, S + (s * H + h) * D * D, want);
        TU_EACH_ISA(isa) {
            tu_region g = tu_region_new(3 * x.stride);
            float *o = tu_nan(all);
            run(isa, 3, &x, &b, 0, o, g.base);
            tu_near("o", o, want, all, 1e-5, 1e-6);
            for (int32_t s = 0; s < 3; s++) {
                const float *got = (float *)(void *)(g.base + b.slices[s].slot.id * x.stride);
                for (int32_t k = 0; k < H * D * D; k++)
                    assert_true(fabs((double)got[k] - S[s * H * D * D + k]) <= 1e-5);
                for (int32_t k = H * D * D * 4; k < x.stride; k++)
                    assert_int_equal(g.base[b.slices[s].slot.id * x.stride + k], 0xC5);
            }
            tu_region_check(&g);
            free(g.all), free(o);
        }
        free(want), free(S);
        drop(&x);
        tu_batch_fini(&b);
    }
}

/* Cuts of 1, 63, 64, 65, 199, 200 tokens, one thread or three: the same bits in o and in the state. */
static void test_cuts(void **state)
{
    (void)state;
    enum { N = 200, H = 2, D = 48 };
    static const int32_t cuts[] = {1, 63, 64, 65, 199, 200};
    int32_t begin[] = {0}, n[] = {N};
    tu_batch b;
    tu_batch_init(&b, 1, begin, n, 64);
    data x = make(N, H, D, 5);
    TU_EACH_ISA(isa) {
        tu_region g = tu_region_new(x.stride);
        float *o = tu_nan(N * H * D);
        run(isa, 1, &x, &b, 0, o, g.base);
        for (size_t c = 0; c < TU_LEN(cuts); c++) {
            tu_region h = tu_region_new(x.stride);
            float *z = tu_nan(N * H * D);
            for (int32_t done = 0; done < N;) {
                int32_t m = N - done < cuts[c] ? N - done : cuts[c];
                tu_batch part;
                tu_batch_cut(&part, &b, 0, done, m);
                run(isa, 3, &x, &part, done, z, h.base);
                tu_batch_fini(&part);
                done += m;
            }
            tu_same("o", z, o, N * H * D * 4);
            tu_same("state", h.base, g.base, (size_t)x.stride);
            free(h.all), free(z);
        }
        free(g.all), free(o);
    }
    drop(&x);
    tu_batch_fini(&b);
}

/* The chunked algebra and the recurrence are two ways to the same numbers, also where decay is steep. */
static void test_chunk_form(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 17, 63, 64};
    for (size_t i = 0; i < TU_LEN(sizes); i++) {
        int32_t n = sizes[i], D = 32, begin[] = {0}, len[] = {2 * n};
        tu_batch b;
        tu_batch_init(&b, 1, begin, len, 64);
        data x = make(2 * n, 1, D, 20 + i);
        for (int32_t k = 0; k < n * D; k += 3) x.decay[k] = 0.0068f;
        float *S = tu_bytes((size_t)(D * D) * 4), *o = tu_nan((size_t)(2 * n * D)), *want = tu_nan((size_t)(2 * n * D));
        float *part = tu_bytes((size_t)(5 * n * D) * 4), *lg = part + 3 * n * D;
        double *scratch = tu_bytes((size_t)(64 * 64 * 2 + 64 * D * 3 + D * D) * sizeof *scratch);
        tu_region g = tu_region_new(x.stride);
        run(GM_ISA_REF, 1, &x, &b, 0, want, g.base);
        memset(S, 0, (size_t)(D * D) * 4);
        for (int32_t c = 0; c < 2; c++) {
            for (int32_t r = 0; r < n; r++)
                for (int32_t k = 0; k < D; k++) {
                    int64_t row = c * n + r;
                    part[r * D + k] = x.q[row * x.ldq + k];
                    part[(n + r) * D + k] = x.k[row * x.ldq + k];
                    part[(2 * n + r) * D + k] = x.v[row * x.ldq + k];
                    lg[r * D + k] = logf(x.decay[row * D + k]);
                }
            gm_kda_chunk_ref(n, D, part, part + n * D, part + 2 * n * D, lg, x.beta + c * n, S, o + c * n * D, scratch);
        }
        tu_near("o", o, want, (size_t)(2 * n * D), 1e-5, 2e-6);
        tu_near("S", S, (float *)(void *)g.base, (size_t)(D * D), 1e-5, 2e-6);
        free(S), free(o), free(want), free(part), free(scratch), free(g.all);
        drop(&x);
        tu_batch_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_chunk_form)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
