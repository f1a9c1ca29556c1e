/* A counter-free random stream (xoshiro256**, seeded by splitmix64; both by Blackman and Vigna, public domain).
 * The same seed gives the same numbers on every machine. */
#ifndef GM_BASE_RNG_H
#define GM_BASE_RNG_H

#include <stdint.h>

typedef struct gm_rng {
    uint64_t s[4];
} gm_rng;

void gm_rng_init(gm_rng *r, uint64_t seed);
uint64_t gm_rng_next(gm_rng *r);
double gm_rng_uniform(gm_rng *r);                  /* [0, 1), 53 bits */
uint64_t gm_rng_below(gm_rng *r, uint64_t bound);  /* [0, bound), unbiased; bound > 0 */
double gm_rng_normal(gm_rng *r);                   /* mean 0, variance 1 */

/* A stateless mixer: the value that element `index` of stream `seed` has. For data made in parallel. */
uint64_t gm_mix64(uint64_t seed, uint64_t index);

#endif
