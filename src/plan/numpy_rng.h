/* NumPy's default generator (PCG64 seeded by SeedSequence) and its bounded integers, so that a drawn load has
 * the same lengths as the benchmark client's for the same seed. */
#ifndef GM_PLAN_NUMPY_RNG_H
#define GM_PLAN_NUMPY_RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gm_numpy_rng {
    unsigned __int128 state, inc;
    uint32_t half; /* the upper half of a word of which the lower was handed out */
    bool has_half;
} gm_numpy_rng;

void gm_numpy_rng_init(gm_numpy_rng *r, uint64_t seed);
uint64_t gm_numpy_rng_next(gm_numpy_rng *r);
double gm_numpy_rng_uniform(gm_numpy_rng *r); /* [0, 1) */
/* As Generator.integers(lo, hi): lo <= result < hi, hi - lo at most 2^32 - 1. */
int64_t gm_numpy_rng_integer(gm_numpy_rng *r, int64_t lo, int64_t hi);

#endif
