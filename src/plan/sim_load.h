/* A load: requests with their times and lengths, drawn or recorded. */
#ifndef GM_PLAN_SIM_LOAD_H
#define GM_PLAN_SIM_LOAD_H

#include "base/json.h"

typedef struct gm_load_item {
    int64_t arrival_ns; /* when the client wants to send it, from the start of the run */
    int32_t n_in, n_out;
} gm_load_item;

typedef struct gm_load {
    gm_load_item *items; /* by arrival */
    int32_t n;
    int32_t concurrency_max; /* 0: no limit; the client holds back what is above it */
} gm_load;

/* The random dataset of `vllm bench serve`: the same lengths for the same seed (NumPy's generator). */
typedef struct gm_load_random {
    int32_t n, n_in, n_out;
    double range_in, range_out; /* range ratio, [0, 1) */
    double rate;                /* requests a second; 0: all at once */
    double burstiness;
    int32_t concurrency_max;
    uint64_t seed;
} gm_load_random;

gm_status gm_load_draw(gm_load *out, const gm_load_random *p, gm_error *err);

/* JSON lines {"arrival_s":..., "input":..., "output":...}, or the detailed result of a benchmark run
 * (start_times, input_lens, output_lens). Sorted by arrival; the first one becomes time 0. */
gm_status gm_load_read(gm_load *out, const char *path, gm_error *err);
gm_status gm_load_parse(gm_load *out, const char *text, size_t len, const char *what, gm_error *err);

void gm_load_fini(gm_load *l);

#endif
