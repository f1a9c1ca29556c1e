#include "ops/moe_route/moe_route_internal.h"

#include <math.h>

/* Index of the largest value; ties and NaN: the lowest index wins, NaN never. -1 when all are taken. */
static int32_t largest(const float *v, const bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (taken[i]) continue;
        if (best < 0 || v[i] > v[best] || (isnan(v[best]) && !isnan(v[i]))) best = i;
    }
    return best;
}

/* A group's worth is the sum of its two best choices. Values of groups that lose are replaced. */
static void limit_groups(const gm_moe_route_args *a, float *choice)
{
    float worth[GM_EXPERTS_MAX];
    bool taken[GM_EXPERTS_MAX] = {false};
    int32_t per_group = a->n_experts / a->n_groups;
    for (int32_t g = 0; g < a->n_groups; g++) {
        const float *c = choice + g * per_group;
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = 0; i < per_group; i++) {
            if (c[i] > first) {
                second = first;
                first = c[i];
            } else if (c[i] > second) {
                second = c[i];
            }
        }
        worth[g] = per_group > 1 ? first + second : first;
    }
    for (int32_t i = 0; i < a->topk_groups; i++) {
        int32_t g = largest(worth, taken, a->n_groups);
        if (g >= 0) taken[g] = true;
    }
    for (int32_t e = 0; e < a->n_experts; e++)
        if (!taken[e / per_group]) choice[e] = -INFINITY;
}

/* The k best, kept sorted while walking: an expert enters behind those that are as good. NaN counts as -infinity. */
static void choose(const float *choice, int32_t E, int32_t k, bool *taken)
{
    float best[GM_EXPERTS_MAX];
    int32_t id[GM_EXPERTS_MAX], n = 0;
    for (int32_t e = 0; e < E; e++) {
        float c = isnan(choice[e]) ? -INFINITY : choice[e];
        if (n == k && !(c > best[n - 1])) continue;
        int32_t at = n < k ? n++ : n - 1;
        for (; at > 0 && c > best[at - 1]; at--) {
            best[at] = best[at - 1];
            id[at] = id[at - 1];
        }
        best[at] = c;
        id[at] = e;
    }
    for (int32_t i = 0; i < n; i++) taken[id[i]] = true;
}

void gm_moe_route_choose(const gm_moe_route_args *a, int64_t r, const float *s, float *choice)
{
    int32_t E = a->n_experts, k = a->n_active;
    bool taken[GM_EXPERTS_MAX] = {false};
    if (a->n_groups > 1) limit_groups(a, choice);
    choose(choice, E, k, taken);

    /* Rising ids: whoever sums over experts then sums in the same order. */
    int32_t *ids = a->ids + r * k, n = 0;
    float *weights = a->weights + r * k, sum = 0;
    for (int32_t e = 0; e < E; e++) {
        if (!taken[e]) continue;
        ids[n] = e;
        weights[n++] = s[e];
        sum += s[e];
    }
    for (int32_t i = 0; i < k; i++) {
        if (a->norm_topk) weights[i] /= sum + 1e-20f;
        weights[i] *= a->scale;
    }
}

void gm_moe_route_ref(const void *args, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const gm_moe_route_args *a = args;
    int32_t E = a->n_experts;
    for (int64_t r = begin; r < end; r++) {
        float s[GM_EXPERTS_MAX], choice[GM_EXPERTS_MAX];
        for (int32_t e = 0; e < E; e++) {
            s[e] = 1.0f / (1.0f + expf(-a->logits[r * E + e]));
            choice[e] = s[e] + a->bias[e];
        }
        gm_moe_route_choose(a, r, s, choice);
    }
}
