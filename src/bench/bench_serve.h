/* `glimmer bench serve`: one run against one server, from the settings to the printed report and the JSON file. */
#ifndef GM_BENCH_BENCH_SERVE_H
#define GM_BENCH_BENCH_SERVE_H

#include "base/opts.h"

/* Prints to stdout, the progress bar to stderr. GM_OK though requests failed; *completed says how many did not.
 * `stop` becomes nonzero to give up (GM_ECANCELED); may be NULL. */
gm_status gm_bench_serve(const gm_settings *s, volatile const int *stop, int64_t *completed, gm_error *err);

#endif
