/* From one row of logits to a token, and log-probabilities of a row.
 *
 * gm_sample() on logits [vocab_size] (f32), in this order:
 *   1. allowed ids: all others become -inf;   2. bad words;   3. banned ids become -inf;   4. logit bias is added;
 *   5. penalties: for ids of prompt or output, x > 0 ? x / repetition : x * repetition; for ids of the output,
 *      x - frequency * count, then x - presence;
 *   6. temperature 0: the largest, of equals the lowest id. Otherwise w = exp((x - max) / temperature), and of these
 *      remain: min_p: w >= min_p * max w; then the top_k largest (of equals the lower ids); then the fewest largest
 *      that hold top_p of the weight that is left (of equals the lower ids);
 *   7. the token at which the running sum of w, in id order, first exceeds u * sum.
 * NaN counts as -inf. Ids from vocab_used on are never the result. The result depends on nothing but the arguments,
 * so a request gives the same tokens alone and in any batch.
 *
 * Log-probabilities are x - log(sum(exp(x))) over all of vocab_size, f32, with the sum in blocks of f32 added up in
 * f64. Tolerance between variants: 1e-5 relative in sums and weights; comparisons are exact. */
#ifndef GM_OPS_SAMPLE_H
#define GM_OPS_SAMPLE_H

#include "device/device.h"
#include "ops/sample/token_counts.h"

typedef struct gm_sampler gm_sampler; /* workspace and variant; one row at a time */

gm_status gm_sampler_create(gm_sampler **out, int32_t vocab_size, int32_t vocab_used, gm_isa isa, gm_error *err);
void gm_sampler_destroy(gm_sampler *s);
const char *gm_sampler_variant(const gm_sampler *s);

typedef struct gm_sample_args {
    float *logits; /* [vocab_size], changed in place */
    float temperature; /* below 1e-5: greedy */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off */
    int32_t top_k;     /* 0: off */
    const gm_token_counts *counts; /* NULL: no penalties */
    float repetition, presence, frequency;
    const int32_t *allowed_ids; /* [n_allowed]; n_allowed 0: all */
    int32_t n_allowed;
    const int32_t *banned_ids; /* [n_banned] */
    int32_t n_banned;
    const int32_t *bias_ids; /* [n_bias] */
    const float *bias_values;
    int32_t n_bias;
    const int32_t *bad_ids; /* n_bad sequences end to end; the last id is masked when the output ends with the rest */
    const int32_t *bad_lens;
    int32_t n_bad;
    const int32_t *output; /* [n_output] tokens so far; read for bad words only */
    int32_t n_output;
    double u; /* [0, 1) */
} gm_sample_args;

/* The token, or -1 where nothing is left to choose from: every logit is NaN or masked. */
int32_t gm_sample(gm_sampler *s, const gm_sample_args *a);

/* The number in [0, 1) for output position `index` of random stream `stream`. It depends on nothing else, so
 * recomputation after preemption and the make-up of batches do not shift it. */
double gm_sample_uniform(uint64_t stream, int64_t index);

/* out[i] = log-probability of id i; out may be logits. NaN becomes -inf. */
void gm_log_softmax(gm_sampler *s, const float *logits, float *out);

/* 1 + the number of values in x[vocab_size] that are greater than x[id]. */
int32_t gm_rank(gm_sampler *s, const float *x, int32_t id);

/* The n largest of x[vocab_size] in falling order, of equals the lower id first; NaN and -inf are left out. Returns
 * how many there are. */
int32_t gm_top_n(gm_sampler *s, const float *x, int32_t n, int32_t *ids, float *values);

#endif
