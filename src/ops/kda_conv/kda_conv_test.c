#include "ops/kda_conv/kda_conv.h"
#include "ops/test_util.h"

typedef struct data {
    int32_t C, K, n_slots;
    int64_t ldx, ldy, stride;
    bool bf16;
    float *x, *w;
} data;

static void run(gm_isa isa, const data *d, const tu_batch *b, const float *x, float *y, uint8_t *state)
{
    int64_t before = gm_variant_count(GM_OP_kda_conv, isa);
    gm_kda_conv(&(gm_kda_conv_args){.x = x, .w = d->w, .y = y, .state = state, .slot_stride = d->stride, .rows = &b->rows,
                                    .channels = d->C, .taps = d->K, .ldx = d->ldx, .ldy = d->ldy, .bf16 = d->bf16,
                                    .dev = tu_device(isa, 3)});
    tu_ran(GM_OP_kda_conv, isa, before);
}

static double at(const data *d, const gm_slice *s, int32_t t, int32_t c)
{
    if (t < 0) return 0;
    float v = d->x[(s->token_begin + t) * d->ldx + c];
    return (double)(d->bf16 ? gm_round_bf16(v) : v);
}

static void one(int32_t C, int32_t K, bool bf16)
{
    int32_t begin[] = {0, 0, 0}, n[] = {1, 23, 2};
    tu_batch b;
    tu_batch_init(&b, 3, begin, n, 8);
    data d = {.C = C, .K = K, .n_slots = 3, .ldx = C + 2, .ldy = C + 3, .bf16 = bf16};
    int64_t used = (int64_t)(K - 1) * C * (bf16 ? 2 : 4);
    d.stride = (used + 64) / 4 * 4;
    d.x = tu_normal((size_t)(26 * d.ldx), 1, 1);
    d.w = tu_normal((size_t)(C * K), 1, 2);
    float *first = NULL;
    TU_EACH_ISA(isa) {
        tu_region g = tu_region_new(3 * d.stride); /* full of rubbish: begin 0 must not read it */
        float *y = tu_nan((size_t)(26 * d.ldy));
        run(isa, &d, &b, d.x, y, g.base);
        for (int32_t i = 0; i < 3; i++)
            for (int32_t t = 0; t < n[i]; t++) {
                int64_t r = b.slices[i].token_begin + t;
                for (int32_t c = 0; c < C; c++) {
                    double s = 0;
                    for (int32_t j = 0; j < K; j++) s += (double)d.w[c * K + j] * at(&d, &b.slices[i], t - K + 1 + j, c);
                    double want = s / (1 + exp(-s)), got = (double)y[r * d.ldy + c];
                    if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want)))) fail_msg("got %g, want %g", got, want);
                }
                for (int64_t c = C; c < d.ldy; c++) assert_true(isnan(y[r * d.ldy + c]));
            }
        tu_region_check(&g);
        for (int32_t s = 0; s < 3; s++) /* behind the state of a slot nothing is written */
            for (int64_t k = used; k < d.stride; k++) assert_int_equal(g.base[s * d.stride + k], 0xC5);

        /* The long slice in two cuts at every place, and token by token: the same bits, y and state. */
        for (int32_t cut = 0; cut < 23; cut++) {
            tu_region h = tu_region_new(3 * d.stride);
            float *z = tu_nan((size_t)(26 * d.ldy));
            for (int32_t done = 0; done < 23;) {
                int32_t m = cut == 0 ? 1 : done == 0 ? cut : 23 - cut;
                tu_batch part;
                tu_batch_cut(&part, &b, 1, done, m);
                run(isa, &d, &part, d.x + (1 + done) * d.ldx, z + (1 + done) * d.ldy, h.base);
                tu_batch_fini(&part);
                done += m;
            }
            for (int32_t t = 1; t < 24; t++) tu_same("cut: y", z + t * d.ldy, y + t * d.ldy, (size_t)C * 4);
            int64_t slot = b.slices[1].slot.id * d.stride;
            tu_same("cut: state", h.base + slot, g.base + slot, (size_t)d.stride);
            tu_region_check(&h);
            free(h.all), free(z);
        }
        if (!first) first = tu_copy((float *)(void *)g.base, (size_t)(3 * d.stride / 4));
        else tu_same("state of the variants", g.base, first, (size_t)(3 * d.stride));
        free(g.all), free(y);
    }
    free(first), free(d.x), free(d.w);
    tu_batch_fini(&b);
}

static void test_variants_and_cuts(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        one(1, 4, bf16);
        one(7, 2, bf16);
        one(16, 4, bf16);
        one(33, 3, bf16);
        one(300, 4, bf16);
        one(520, 8, bf16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants_and_cuts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
