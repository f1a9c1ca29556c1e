/* Counters of a server's /metrics (vLLM's names, summed over engines), to compare before and after a run. */
#ifndef GM_BENCH_SCRAPE_H
#define GM_BENCH_SCRAPE_H

#include "base/str.h"

enum { GM_SPEC_POSITIONS = 64 };

typedef struct gm_counters {
    bool known;  /* there was a /metrics */
    bool prefix; /* with prefix cache counters */
    bool tokens; /* with token counters */
    bool spec;   /* with counters of speculative decoding */
    double prefix_queries, prefix_hits, prompt_tokens, generation_tokens;
    double drafts, draft_tokens, accepted_tokens;
    double accepted_at[GM_SPEC_POSITIONS];
    int n_positions;
} gm_counters;

void gm_counters_read(gm_counters *out, const char *text, size_t len);

#endif
