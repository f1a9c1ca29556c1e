/* Time of one row at the vocabulary of GLM-5, each variant; the limit is reading the row once. */
#include "ops/sample/sample.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

enum { V = 154880, ROUNDS = 50 };

static void measure(gm_sampler *s, const float *row, float *x, const char *what, gm_sample_args a)
{
    int64_t best_us = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(x, row, V * sizeof *x);
        a.logits = x;
        a.u = gm_sample_uniform(1, i);
        int64_t begin = gm_now_us();
        (void)gm_sample(s, &a);
        int64_t us = gm_now_us() - begin;
        if (us < best_us) best_us = us;
    }
    printf("%-10s %-22s %6lld us  %6.2f GB/s\n", gm_sampler_variant(s), what, (long long)best_us,
           V * sizeof *x / 1e3 / (double)(best_us ? best_us : 1));
}

int main(void)
{
    float *row = gm_new_array(float, V), *x = gm_new_array(float, V);
    gm_rng rng;
    gm_rng_init(&rng, 1);
    for (int i = 0; i < V; i++) row[i] = (float)gm_rng_normal(&rng) * 3;
    for (int isa = GM_ISA_REF; isa <= GM_ISA_AVX2 && isa <= (int)gm_isa_detect(); isa++) {
        gm_sampler *s = NULL;
        if (gm_sampler_create(&s, V, V, (gm_isa)isa, NULL)) return 1;
        gm_sample_args a = {.temperature = 0, .top_p = 1, .repetition = 1};
        measure(s, row, x, "greedy", a);
        a.temperature = 1;
        measure(s, row, x, "temperature", a);
        a.top_k = 50;
        measure(s, row, x, "top_k 50", a);
        a.top_k = 0;
        a.top_p = 0.95f;
        measure(s, row, x, "top_p 0.95", a);
        a.top_k = 50;
        a.min_p = 0.05f;
        measure(s, row, x, "top_k, top_p, min_p", a);
        gm_sampler_destroy(s);
    }
    gm_free(row);
    gm_free(x);
    return 0;
}
