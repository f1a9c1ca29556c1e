#include "plan/numpy_rng.h"

typedef unsigned __int128 u128;

static const u128 multiplier = ((u128)0x2360ED051FC65DA4u << 64) | 0x4385DF649FCCF645u;

static uint32_t hash_mix(uint32_t v, uint32_t *constant, uint32_t mult)
{
    v ^= *constant;
    *constant *= mult;
    v *= *constant;
    return v ^ v >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t v = 0xca01f9ddu * x - 0x4973f715u * y;
    return v ^ v >> 16;
}

void gm_numpy_rng_init(gm_numpy_rng *r, uint64_t seed)
{
    uint32_t pool[4], entropy[4] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, c = 0x43b0d7e5u;
    uint64_t words[4];
    for (int i = 0; i < 4; i++) pool[i] = hash_mix(entropy[i], &c, 0x931e8875u);
    for (int src = 0; src < 4; src++)
        for (int dst = 0; dst < 4; dst++)
            if (src != dst) pool[dst] = mix(pool[dst], hash_mix(pool[src], &c, 0x931e8875u));
    c = 0x8b51f9ddu;
    for (int i = 0; i < 4; i++) {
        uint32_t lo = hash_mix(pool[2 * i % 4], &c, 0x58f38dedu),
                 hi = hash_mix(pool[(2 * i + 1) % 4], &c, 0x58f38dedu);
        words[i] = (uint64_t)hi << 32 | lo;
    }
    r->has_half = false;
    r->inc = ((((u128)words[2] << 64) | words[3]) << 1) | 1;
    r->state = r->inc + (((u128)words[0] << 64) | words[1]);
    r->state = r->state * multiplier + r->inc;
}

uint64_t gm_numpy_rng_next(gm_numpy_rng *r)
{
    r->state = r->state * multiplier + r->inc;
    uint64_t hi = (uint64_t)(r->state >> 64), x = hi ^ (uint64_t)r->state;
    unsigned by = (unsigned)(hi >> 58);
    return x >> by | x << (-by & 63);
}

double gm_numpy_rng_uniform(gm_numpy_rng *r)
{
    return (double)(gm_numpy_rng_next(r) >> 11) * 0x1p-53;
}

static uint32_t next32(gm_numpy_rng *r)
{
    if (r->has_half) {
        r->has_half = false;
        return r->half;
    }
    uint64_t v = gm_numpy_rng_next(r);
    r->half = (uint32_t)(v >> 32);
    r->has_half = true;
    return (uint32_t)v;
}

int64_t gm_numpy_rng_integer(gm_numpy_rng *r, int64_t lo, int64_t hi)
{
    uint32_t n = (uint32_t)(hi - lo);
    if (n <= 1) return lo;
    uint64_t m = (uint64_t)next32(r) * n;
    if ((uint32_t)m < n)
        for (uint32_t least = -n % n; (uint32_t)m < least;) m = (uint64_t)next32(r) * n;
    return lo + (int64_t)(m >> 32);
}
