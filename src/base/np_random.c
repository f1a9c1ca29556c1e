#include "base/np_random.h"

#include <math.h>
#include <string.h>

#include "base/status.h"

/* ---- SeedSequence: entropy words spread over a pool of four, and state words drawn from the pool ---- */

enum { POOL = 4 };

static uint32_t hash_in(uint32_t value, uint32_t *c)
{
    value ^= *c;
    *c *= 0x931e8875u;
    value *= *c;
    return value ^ (value >> 16);
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ (r >> 16);
}

static void seed_pool(uint32_t *pool, const uint32_t *words, size_t n)
{
    uint32_t c = 0x43b0d7e5u;
    for (size_t i = 0; i < POOL; i++) pool[i] = hash_in(i < n ? words[i] : 0, &c);
    for (int src = 0; src < POOL; src++)
        for (int dst = 0; dst < POOL; dst++)
            if (src != dst) pool[dst] = mix(pool[dst], hash_in(pool[src], &c));
    for (size_t src = POOL; src < n; src++)
        for (int dst = 0; dst < POOL; dst++) pool[dst] = mix(pool[dst], hash_in(words[src], &c));
}

static uint32_t hash_out(uint32_t value, uint32_t *c)
{
    value ^= *c;
    *c *= 0x58f38dedu;
    value *= *c;
    return value ^ (value >> 16);
}

/* ---- PCG64 ---- */

static void pcg_step(gm_pcg64 *g)
{
    const unsigned __int128 mul = (unsigned __int128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    g->state = g->state * mul + g->inc;
}

void gm_pcg64_init(gm_pcg64 *g, const uint32_t *words, size_t n_words)
{
    uint32_t pool[POOL], c = 0x8b51f9ddu;
    uint64_t s[4];
    seed_pool(pool, words, n_words);
    for (int i = 0; i < 4; i++) {
        uint32_t low = hash_out(pool[2 * i % POOL], &c);
        s[i] = (uint64_t)hash_out(pool[(2 * i + 1) % POOL], &c) << 32 | low;
    }
    memset(g, 0, sizeof *g);
    g->inc = ((unsigned __int128)s[2] << 64 | s[3]) << 1 | 1;
    pcg_step(g);
    g->state += (unsigned __int128)s[0] << 64 | s[1];
    pcg_step(g);
}

void gm_pcg64_seed(gm_pcg64 *g, uint64_t seed)
{
    uint32_t words[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    gm_pcg64_init(g, words, words[1] ? 2 : 1);
}

uint64_t gm_pcg64_next64(gm_pcg64 *g)
{
    pcg_step(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned r = (unsigned)(g->state >> 122);
    return x >> r | x << (-r & 63);
}

uint32_t gm_pcg64_next32(gm_pcg64 *g)
{
    if (g->has_half) {
        g->has_half = false;
        return g->half;
    }
    uint64_t x = gm_pcg64_next64(g);
    g->half = (uint32_t)(x >> 32);
    g->has_half = true;
    return (uint32_t)x;
}

double gm_pcg64_uniform(gm_pcg64 *g)
{
    return (double)(gm_pcg64_next64(g) >> 11) * (1.0 / 9007199254740992.0);
}

/* Lemire's method, on 32 bits where the range allows it, as NumPy does: which width is used changes the
 * stream. */
int64_t gm_pcg64_integer(gm_pcg64 *g, int64_t low, int64_t high)
{
    GM_ASSERT(low < high);
    uint64_t range = (uint64_t)high - 1 - (uint64_t)low;
    if (range == 0) return low;
    if (range == UINT32_MAX) return low + gm_pcg64_next32(g);
    if (range == UINT64_MAX) return (int64_t)gm_pcg64_next64(g);
    if (range < UINT32_MAX) {
        uint32_t n = (uint32_t)range + 1;
        uint64_t m = (uint64_t)gm_pcg64_next32(g) * n;
        if ((uint32_t)m < n)
            for (uint32_t threshold = -n % n; (uint32_t)m < threshold;) m = (uint64_t)gm_pcg64_next32(g) * n;
        return (int64_t)((uint64_t)low + (m >> 32));
    }
    uint64_t n = range + 1;
    unsigned __int128 m = (unsigned __int128)gm_pcg64_next64(g) * n;
    if ((uint64_t)m < n)
        for (uint64_t threshold = -n % n; (uint64_t)m < threshold;)
            m = (unsigned __int128)gm_pcg64_next64(g) * n;
    return (int64_t)((uint64_t)low + (uint64_t)(m >> 64));
}

/* ---- MT19937 ---- */

void gm_mt19937_seed_numpy(gm_mt19937 *m, uint32_t seed)
{
    for (uint32_t i = 0; i < 624; i++) {
        m->key[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + i + 1;
    }
    m->at = 624;
    m->has_spare = false;
}

void gm_mt19937_seed_python(gm_mt19937 *m, uint64_t seed)
{
    uint32_t words[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t n = words[1] ? 2 : 1, i = 1, j = 0;
    uint32_t *k = m->key;
    gm_mt19937_seed_numpy(m, 19650218u);
    for (int t = 0; t < 624; t++) {
        k[i] = (k[i] ^ ((k[i - 1] ^ (k[i - 1] >> 30)) * 1664525u)) + words[j] + j;
        if (++i == 624) k[0] = k[623], i = 1;
        j = (j + 1) % n;
    }
    for (int t = 0; t < 623; t++) {
        k[i] = (k[i] ^ ((k[i - 1] ^ (k[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i == 624) k[0] = k[623], i = 1;
    }
    k[0] = 0x80000000u;
}

static void refill(gm_mt19937 *m)
{
    uint32_t *k = m->key;
    for (int i = 0; i < 624; i++) {
        uint32_t y = (k[i] & 0x80000000u) | (k[(i + 1) % 624] & 0x7fffffffu);
        k[i] = k[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    m->at = 0;
}

uint32_t gm_mt19937_next32(gm_mt19937 *m)
{
    if (m->at == 624) refill(m);
    uint32_t y = m->key[m->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

double gm_mt19937_uniform(gm_mt19937 *m)
{
    uint32_t a = gm_mt19937_next32(m) >> 5, b = gm_mt19937_next32(m) >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
}

static double exponential(gm_mt19937 *m)
{
    return -log(1.0 - gm_mt19937_uniform(m));
}

static double normal(gm_mt19937 *m)
{
    double x, y, r;
    if (m->has_spare) {
        m->has_spare = false;
        return m->spare;
    }
    do {
        x = 2.0 * gm_mt19937_uniform(m) - 1.0;
        y = 2.0 * gm_mt19937_uniform(m) - 1.0;
        r = x * x + y * y;
    } while (r >= 1.0 || r == 0.0);
    double f = sqrt(-2.0 * log(r) / r);
    m->spare = f * x;
    m->has_spare = true;
    return f * y;
}

static double gamma_below_one(gm_mt19937 *m, double shape)
{
    for (;;) {
        double u = gm_mt19937_uniform(m), v = exponential(m), x;
        if (u <= 1.0 - shape) {
            x = pow(u, 1.0 / shape);
            if (x <= v) return x;
        } else {
            double y = -log((1 - u) / shape);
            x = pow(1.0 - shape + shape * y, 1.0 / shape);
            if (x <= v + y) return x;
        }
    }
}

static double gamma_above_one(gm_mt19937 *m, double shape)
{
    double b = shape - 1 / 3.0, c = 1.0 / sqrt(9 * b);
    for (;;) {
        double x, v;
        do {
            x = normal(m);
            v = 1.0 + c * x;
        } while (v <= 0.0);
        v = v * v * v;
        double u = gm_mt19937_uniform(m);
        if (u < 1.0 - 0.0331 * (x * x) * (x * x)) return b * v;
        if (log(u) < 0.5 * x * x + b * (1.0 - v + log(v))) return b * v;
    }
}

double gm_mt19937_gamma(gm_mt19937 *m, double shape, double scale)
{
    if (shape == 1.0) return scale * exponential(m);
    return scale * (shape < 1.0 ? gamma_below_one(m, shape) : gamma_above_one(m, shape));
}

uint32_t gm_mt19937_below(gm_mt19937 *m, uint32_t n)
{
    GM_ASSERT(n > 0);
    int bits = 32 - __builtin_clz(n);
    uint32_t r;
    do r = gm_mt19937_next32(m) >> (32 - bits);
    while (r >= n);
    return r;
}

void gm_mt19937_shuffle(gm_mt19937 *m, size_t *order, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        size_t j = gm_mt19937_below(m, (uint32_t)i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

size_t gm_mt19937_choice(gm_mt19937 *m, size_t n)
{
    return (size_t)floor(gm_mt19937_uniform(m) * (double)n);
}
