#include "bench/arrivals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/np_random.h"

static gm_status positive(double *out, const char *text, const char *flag, gm_error *err)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || isnan(*out))
        return gm_fail(err, GM_EARG, "argument --%s: invalid float value: '%.64s'", flag, text);
    if (*out <= 0) return gm_fail(err, GM_EARG, "argument --%s: must be above 0, not %.64s", flag, text);
    return GM_OK;
}

static gm_status read_ramp(gm_arrivals *a, const gm_settings *s, gm_error *err)
{
    if (isfinite(a->rate))
        return gm_fail(err, GM_EARG,
                       "with --ramp-up-strategy do not give --request-rate: the ramp is the rate");
    if (!gm_settings_given(s, ramp_up_start_rps) || !gm_settings_given(s, ramp_up_end_rps))
        return gm_fail(err, GM_EARG, "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
    if (a->ramp_start > a->ramp_end)
        return gm_fail(err, GM_EARG, "--ramp-up-start-rps must not be above --ramp-up-end-rps");
    if (!strcmp(a->ramp, "exponential") && a->ramp_start == 0)
        return gm_fail(err, GM_EARG, "an exponential ramp cannot start at 0 requests/s");
    return GM_OK;
}

gm_status gm_arrivals_read(gm_arrivals *out, const gm_settings *s, gm_error *err)
{
    *out = (gm_arrivals){.ramp = s->ramp_up_strategy,
                         .ramp_start = s->ramp_up_start_rps,
                         .ramp_end = s->ramp_up_end_rps,
                         .seed = s->seed};
    gm_status st = positive(&out->rate, s->request_rate, "request-rate", err);
    if (!st) st = positive(&out->burstiness, s->burstiness, "burstiness", err);
    return !st && out->ramp ? read_ramp(out, s, err) : st;
}

static double rate_at(const gm_arrivals *a, size_t i, size_t n)
{
    double done = (double)i / (double)(n > 1 ? n - 1 : 1), start = (double)a->ramp_start,
           end = (double)a->ramp_end;
    if (!a->ramp) return a->rate;
    return strcmp(a->ramp, "linear") ? start * pow(end / start, done) : start + (end - start) * done;
}

gm_status gm_arrivals_fill(const gm_arrivals *a, double *at, double *rates, size_t n, gm_error *err)
{
    gm_mt19937 m;
    double sum = 0;
    gm_mt19937_seed_numpy(&m, (uint32_t)a->seed);
    for (size_t i = 0; i < n; i++) {
        double rate = rate_at(a, i, n);
        if (!(rate > 0))
            return gm_fail(err, GM_EARG, "the ramp gives request %zu a rate of 0: start above 0 requests/s",
                           i);
        if (isfinite(rate))
            sum += isinf(a->burstiness) ? 1 / rate
                                        : gm_mt19937_gamma(&m, a->burstiness, 1 / (rate * a->burstiness));
        at[i] = sum;
        if (rates) rates[i] = rate;
    }
    if (!a->ramp && sum > 0)
        for (size_t i = 0; i < n; i++) at[i] *= (double)n / a->rate / sum;
    return GM_OK;
}
