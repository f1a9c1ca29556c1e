/* The progress bar, in the form that tqdm made familiar. */
#ifndef GM_BENCH_PROGRESS_H
#define GM_BENCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gm_progress {
    bool on, drawn;
} gm_progress;

/* user is a gm_progress; fits gm_drive_params.on_progress. */
void gm_progress_show(void *user, size_t done, size_t n, double seconds);
void gm_progress_end(gm_progress *p);

#endif
