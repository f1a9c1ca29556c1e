#include "base/rng.h"

#include <math.h>

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t gm_mix64(uint64_t seed, uint64_t index)
{
    uint64_t x = seed ^ index * 0xD1342543DE82EF95u;
    splitmix(&x);
    return splitmix(&x);
}

void gm_rng_init(gm_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) r->s[i] = splitmix(&seed);
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t gm_rng_next(gm_rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double gm_rng_uniform(gm_rng *r)
{
    return (double)(gm_rng_next(r) >> 11) * 0x1.0p-53;
}

uint64_t gm_rng_below(gm_rng *r, uint64_t bound)
{
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound, x;
    do x = gm_rng_next(r);
    while (x >= limit);
    return x % bound;
}

double gm_rng_normal(gm_rng *r)
{
    double u = 1.0 - gm_rng_uniform(r); /* (0, 1]: the logarithm is finite */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * gm_rng_uniform(r));
}
