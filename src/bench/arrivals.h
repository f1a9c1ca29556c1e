/* When requests are to be sent: seconds from the start of the run. */
#ifndef GM_BENCH_ARRIVALS_H
#define GM_BENCH_ARRIVALS_H

#include "base/opts.h"

typedef struct gm_arrivals {
    double rate;       /* requests/s; INFINITY: all at once */
    double burstiness; /* INFINITY: constant gaps */
    const char *ramp;  /* "linear", "exponential" or NULL */
    int64_t ramp_start, ramp_end;
    int64_t seed;
} gm_arrivals;

gm_status gm_arrivals_read(gm_arrivals *out, const gm_settings *s, gm_error *err);
/* at[n], rising. With a fixed rate the last is n / rate exactly, as in vLLM: the sum of random gaps would be
 * off by a per cent or two, and so would every throughput. rates[n] (may be NULL): the rate in force at each.
 * GM_EARG: a rate of 0. */
gm_status gm_arrivals_fill(const gm_arrivals *a, double *at, double *rates, size_t n, gm_error *err);

#endif
