/* `glimmer bench serve`: one run against one server, from the settings to the printed report and the JSON
 * file. */
#ifndef GM_BENCH_BENCH_SERVE_H
#define GM_BENCH_BENCH_SERVE_H

#include "base/opts.h"

typedef struct gm_bench_env {
    const char *api_key;      /* sent as a bearer token; NULL: none */
    bool proxy;               /* the environment names an HTTP proxy: libcurl finds it */
    volatile const int *stop; /* becomes nonzero to give up (GM_ECANCELED); may be NULL */
} gm_bench_env;

/* Prints to stdout, the progress bar to stderr. GM_OK though requests failed; *completed says how many did
 * not. */
gm_status gm_bench_serve(const gm_settings *s, const gm_bench_env *env, int64_t *completed, gm_error *err);

#endif
