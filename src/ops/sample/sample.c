#include "ops/sample/sample.h"

#include "base/mem.h"
#include "base/rng.h"
#include "ops/sample/sample_internal.h"

#include <math.h>
#include <string.h>

struct gm_sampler {
    const gm_scans *scan;
    int32_t vocab_size, vocab_used;
    float *weights;    /* [vocab_size] */
    int32_t *top_ids;  /* [vocab_size] */
    float *top_values; /* [vocab_size] */
};

static const gm_scans *choose(gm_isa isa)
{
#if defined(__x86_64__)
    if (isa >= GM_ISA_AVX2) return &gm_scans_avx2;
#else
    (void)isa;
#endif
    return &gm_scans_ref;
}

gm_status gm_sampler_create(gm_sampler **out, int32_t vocab_size, int32_t vocab_used, gm_isa isa,
                            gm_error *err)
{
    if (vocab_size < 1 || vocab_used < 1 || vocab_used > vocab_size)
        return gm_fail(err, GM_EARG, "sampler: vocabulary of %d, %d used", vocab_size, vocab_used);
    gm_sampler *s = gm_try_alloc(1, sizeof *s);
    if (!s) return gm_fail(err, GM_ENOMEM, "sampler: no memory");
    s->scan = choose(isa);
    s->vocab_size = vocab_size;
    s->vocab_used = vocab_used;
    s->weights = gm_try_alloc((size_t)vocab_size, sizeof *s->weights);
    s->top_ids = gm_try_alloc((size_t)vocab_size, sizeof *s->top_ids);
    s->top_values = gm_try_alloc((size_t)vocab_size, sizeof *s->top_values);
    if (!s->weights || !s->top_ids || !s->top_values) {
        gm_sampler_destroy(s);
        return gm_fail(err, GM_ENOMEM, "sampler: no memory for a vocabulary of %d", vocab_size);
    }
    *out = s;
    return GM_OK;
}

void gm_sampler_destroy(gm_sampler *s)
{
    if (!s) return;
    gm_free(s->weights);
    gm_free(s->top_ids);
    gm_free(s->top_values);
    gm_free(s);
}

const char *gm_sampler_variant(const gm_sampler *s)
{
    return s->scan->name;
}

double gm_sample_uniform(uint64_t stream, int64_t index)
{
    gm_rng rng;
    gm_rng_init(&rng, gm_mix64(stream, (uint64_t)index));
    return gm_rng_uniform(&rng);
}

/* ---- edits of the row ---- */

static void mask(gm_sampler *s, float *x, int32_t id)
{
    if (id >= 0 && id < s->vocab_size) x[id] = -INFINITY;
}

static void keep_allowed(gm_sampler *s, const gm_sample_args *a)
{
    float *x = a->logits, *kept = s->weights;
    int32_t n = 0;
    /* Longer than the vocabulary only with repeated ids; then the values are not needed twice. */
    for (int32_t i = 0; i < a->n_allowed && n < s->vocab_size; i++) {
        int32_t id = a->allowed_ids[i];
        if (id < 0 || id >= s->vocab_size) continue;
        kept[n] = x[id];
        s->top_ids[n++] = id;
    }
    for (int32_t i = 0; i < s->vocab_size; i++) x[i] = -INFINITY;
    for (int32_t i = 0; i < n; i++) x[s->top_ids[i]] = kept[i];
}

static void mask_bad_words(gm_sampler *s, const gm_sample_args *a)
{
    const int32_t *word = a->bad_ids;
    for (int32_t i = 0; i < a->n_bad; word += a->bad_lens[i++]) {
        int32_t lead = a->bad_lens[i] - 1;
        if (lead < 0 || lead > a->n_output) continue;
        if (lead == 0 || !memcmp(a->output + a->n_output - lead, word, (size_t)lead * sizeof *word))
            mask(s, a->logits, word[lead]);
    }
}

static void penalize(const gm_sample_args *a)
{
    for (int32_t i = 0; i < a->counts->n; i++) {
        gm_token_count e = a->counts->entries[i];
        float x = a->logits[e.id];
        x = x > 0 ? x / a->repetition : x * a->repetition;
        if (e.n_output > 0) {
            x -= a->frequency * (float)e.n_output;
            x -= a->presence;
        }
        a->logits[e.id] = x;
    }
}

static void edit_row(gm_sampler *s, const gm_sample_args *a)
{
    if (a->n_allowed > 0) keep_allowed(s, a);
    mask_bad_words(s, a);
    for (int32_t i = 0; i < a->n_banned; i++) mask(s, a->logits, a->banned_ids[i]);
    for (int32_t i = 0; i < a->n_bias; i++)
        if (a->bias_ids[i] >= 0 && a->bias_ids[i] < s->vocab_size)
            a->logits[a->bias_ids[i]] += a->bias_values[i];
    if (a->counts) penalize(a);
}

/* ---- the largest ---- */

static int32_t argmax(const gm_scans *scan, const float *x, int32_t n)
{
    int32_t best = -1, i = scan->next_above(x, 0, n, -INFINITY);
    for (; i < n; i = scan->next_above(x, i + 1, n, x[i])) best = i;
    return best;
}

/* A heap with the worst at its root: the smallest value, of equals the highest id. */
typedef struct top_heap {
    int32_t *ids;
    float *values;
    int32_t n;
} top_heap;

static bool worse(const top_heap *h, int32_t i, int32_t j)
{
    return h->values[i] < h->values[j] || (h->values[i] == h->values[j] && h->ids[i] > h->ids[j]);
}

static void exchange(top_heap *h, int32_t i, int32_t j)
{
    int32_t id = h->ids[i];
    float v = h->values[i];
    h->ids[i] = h->ids[j];
    h->values[i] = h->values[j];
    h->ids[j] = id;
    h->values[j] = v;
}

static void settle(top_heap *h, int32_t i)
{
    for (;;) {
        int32_t worst = i, left = 2 * i + 1;
        if (left < h->n && worse(h, left, worst)) worst = left;
        if (left + 1 < h->n && worse(h, left + 1, worst)) worst = left + 1;
        if (worst == i) return;
        exchange(h, i, worst);
        i = worst;
    }
}

static void offer(top_heap *h, int32_t cap, int32_t id, float value)
{
    if (h->n == cap) {
        h->ids[0] = id;
        h->values[0] = value;
        settle(h, 0);
        return;
    }
    int32_t i = h->n++;
    h->ids[i] = id;
    h->values[i] = value;
    for (; i > 0 && worse(h, i, (i - 1) / 2); i = (i - 1) / 2) exchange(h, i, (i - 1) / 2);
}

/* Ids come in rising order, so a later one never displaces its equal: "above the root" is the whole test, and
 * the scan can jump to the next that passes it. */
static top_heap collect_top(const gm_scans *scan, const float *x, int32_t n_ids, int32_t n, int32_t *ids,
                            float *values)
{
    top_heap h = {ids, values, 0};
    float bar = -INFINITY;
    for (int32_t i = 0; n > 0 && (i = scan->next_above(x, i, n_ids, bar)) < n_ids; i++) {
        offer(&h, n, i, x[i]);
        if (h.n == n) bar = h.values[0];
    }
    return h;
}

int32_t gm_top_n(gm_sampler *s, const float *x, int32_t n, int32_t *ids, float *values)
{
    top_heap h = collect_top(s->scan, x, s->vocab_size, n, ids, values);
    int32_t found = h.n;
    while (h.n > 1) {
        exchange(&h, 0, h.n - 1);
        h.n--;
        settle(&h, 0);
    }
    return found;
}

int32_t gm_rank(gm_sampler *s, const float *x, int32_t id)
{
    return 1 + s->scan->count_above(x, s->vocab_size, x[id]);
}

/* ---- the choice by weight ---- */

static void keep_min_p(float *w, int32_t n, float min_p)
{
    for (int32_t i = 0; i < n; i++) w[i] = w[i] < min_p ? 0 : w[i]; /* the largest weight is 1 */
}

static void keep_top_k(gm_sampler *s, const float *x, float *w, int32_t k)
{
    top_heap h = collect_top(s->scan, x, s->vocab_used, k, s->top_ids, s->top_values);
    float bar = h.values[0];
    int32_t last = -1; /* of the equals at the bar the lowest ids are in */
    for (int32_t i = 0; i < h.n; i++)
        if (h.values[i] == bar && h.ids[i] > last) last = h.ids[i];
    for (int32_t i = 0; i < s->vocab_used; i++) w[i] = x[i] > bar || (x[i] == bar && i <= last) ? w[i] : 0;
}

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Weights as the bits of floats: of one sign they are ordered as the numbers are. */
typedef struct bit_range {
    uint32_t lo, hi; /* the weights from lo on hold the target, those from hi on do not */
} bit_range;

static bit_range bisect(const gm_scans *scan, const float *w, int32_t n, double target, bit_range r,
                        uint32_t width)
{
    while (r.hi - r.lo > width) {
        uint32_t mid = r.lo + (r.hi - r.lo) / 2;
        if (scan->sum_from(w, n, from_bits(mid)) >= target) r.lo = mid;
        else r.hi = mid;
    }
    return r;
}

/* The smallest weight that is needed for the target, without sorting. Once its order of magnitude is known,
 * the smaller weights can be left out, and those are nearly all of a vocabulary. */
static float find_bar(gm_sampler *s, const float *w, int32_t n, double target)
{
    enum { OCTAVE = 1 << 23 };
    bit_range r =
        bisect(s->scan, w, n, target, (bit_range){0, 0x3f800001}, OCTAVE); /* weights are in [0, 1] */
    float least = from_bits(r.lo), *dense = s->top_values;
    int32_t n_dense = 0;
    for (int32_t i = 0; i < n; i++) {
        dense[n_dense] = w[i]; /* no branch; n_dense <= i */
        n_dense += w[i] >= least;
    }
    return from_bits(bisect(s->scan, dense, n_dense, target, r, 1).lo);
}

/* The fewest largest weights that hold the share top_p. */
static void keep_top_p(gm_sampler *s, float *w, int32_t n, float top_p)
{
    double target = (double)top_p * s->scan->sum_from(w, n, 0);
    float bar = find_bar(s, w, n, target);
    double mass = s->scan->sum_from(w, n, nextafterf(bar, 2));
    for (int32_t i = 0; i < n; i++) w[i] = w[i] < bar ? 0 : w[i];
    for (int32_t i = 0; i < n; i++) {
        if (w[i] != bar) continue;
        if (mass < target) mass += (double)bar;
        else w[i] = 0;
    }
}

static int32_t block_len(int32_t begin, int32_t n)
{
    return n - begin < GM_SCAN_BLOCK ? n - begin : GM_SCAN_BLOCK;
}

/* The last id with a weight: the answer where rounding lets the running sum end just short of u * total. */
static int32_t last_weight(const float *w, int32_t begin, int32_t end)
{
    for (int32_t i = end - 1; i >= begin; i--)
        if (w[i] > 0) return i;
    return -1;
}

static int32_t draw_in_block(const float *w, int32_t begin, int32_t end, double left)
{
    for (int32_t i = begin; i < end; i++) {
        left -= (double)w[i];
        if (left < 0) return i;
    }
    return last_weight(w, begin, end);
}

static int32_t draw(const gm_scans *scan, const float *w, int32_t n, double u)
{
    double total = 0;
    for (int32_t b = 0; b < n; b += GM_SCAN_BLOCK) total += scan->sum_from(w + b, block_len(b, n), 0);
    double left = u * total;
    for (int32_t b = 0; b < n; b += GM_SCAN_BLOCK) {
        double block = scan->sum_from(w + b, block_len(b, n), 0);
        if (left < block) return draw_in_block(w, b, b + block_len(b, n), left);
        left -= block;
    }
    return last_weight(w, 0, n);
}

int32_t gm_sample(gm_sampler *s, const gm_sample_args *a)
{
    edit_row(s, a);
    const float *x = a->logits;
    int32_t n = s->vocab_used, best = argmax(s->scan, x, n);
    if (best < 0 || a->temperature < 1e-5f || x[best] == INFINITY) return best;

    float *w = s->weights;
    (void)s->scan->exp_row(x, n, x[best], 1 / a->temperature, w);
    if (a->min_p > 0) keep_min_p(w, n, a->min_p);
    if (a->top_k > 0 && a->top_k < n) keep_top_k(s, x, w, a->top_k);
    if (a->top_p < 1) keep_top_p(s, w, n, a->top_p);
    return draw(s->scan, w, n, a->u);
}

void gm_log_softmax(gm_sampler *s, const float *logits, float *out)
{
    int32_t n = s->vocab_size, best = argmax(s->scan, logits, n);
    float max = best < 0 ? 0 : logits[best];
    float log_sum = (float)log(s->scan->exp_row(logits, n, max, 1, NULL));
    for (int32_t i = 0; i < n; i++) {
        float lp = logits[i] - max - log_sum;
        out[i] = lp == lp ? lp : -INFINITY;
    }
}
