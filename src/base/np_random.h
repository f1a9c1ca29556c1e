/* The random numbers of NumPy and of Python, bit for bit, so that a seed draws the same lengths, prompts,
 * orders and arrivals here as in a client written in Python:
 *   gm_pcg64    numpy.random.default_rng(seed): SeedSequence, PCG64 (XSL-RR 128/64), Generator.integers() of int64
 *   gm_mt19937  numpy.random.seed(seed) with the legacy gamma(), and random.seed(seed) with shuffle(), choice(), choices()
 * Measured and simulated loads only: nothing here is for secrets. */
#ifndef GM_BASE_NP_RANDOM_H
#define GM_BASE_NP_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gm_pcg64 {
    unsigned __int128 state, inc;
    uint32_t half; /* the upper half of the last 64 bits, when has_half */
    bool has_half;
} gm_pcg64;

/* default_rng(words), a list of 32-bit words; one word w is default_rng(w). */
void gm_pcg64_init(gm_pcg64 *g, const uint32_t *words, size_t n_words);
void gm_pcg64_seed(gm_pcg64 *g, uint64_t seed); /* default_rng(seed) */
uint64_t gm_pcg64_next64(gm_pcg64 *g);
uint32_t gm_pcg64_next32(gm_pcg64 *g);
double gm_pcg64_uniform(gm_pcg64 *g); /* Generator.random() */
/* Generator.integers(low, high): low <= value < high; low < high. */
int64_t gm_pcg64_integer(gm_pcg64 *g, int64_t low, int64_t high);

typedef struct gm_mt19937 {
    uint32_t key[624];
    int at;
    double spare; /* the second of a pair of normals */
    bool has_spare;
} gm_mt19937;

void gm_mt19937_seed_numpy(gm_mt19937 *m, uint32_t seed);  /* numpy.random.seed(seed) */
void gm_mt19937_seed_python(gm_mt19937 *m, uint64_t seed); /* random.seed(seed) */
uint32_t gm_mt19937_next32(gm_mt19937 *m);
double gm_mt19937_uniform(gm_mt19937 *m);                           /* numpy's rand() and Python's random() */
double gm_mt19937_gamma(gm_mt19937 *m, double shape, double scale); /* numpy.random.gamma(); shape > 0 */
uint32_t gm_mt19937_below(gm_mt19937 *m,
                          uint32_t n); /* random._randbelow(n) of n > 0: what choice() and shuffle() use */
void gm_mt19937_shuffle(gm_mt19937 *m, size_t *order, size_t n); /* random.shuffle() */
size_t gm_mt19937_choice(gm_mt19937 *m, size_t n); /* the index that each draw of random.choices() takes */

#endif
