/* Who runs next and how many tokens each request gets, one step at a time.
 *
 * Pure: no clock, thread or tensor; requests and the cache are borrowed, and a step allocates nothing. The rules:
 *
 * 1. A step has a budget of batch_tokens_max tokens. Running requests come first, in the order they were admitted,
 *    then waiting ones, at most seqs_max running at once.
 * 2. A request gets as many tokens as it is behind, cut to long_prefill_threshold (unless it is the only one
 *    known), to the budget, and to the step's rows of prompt log-probabilities.
 * 3. A running request that gets no page preempts (policy.h), itself at worst. The victim loses its cache and waits
 *    again; what it had been given in this step is given back. A step that preempts admits nobody.
 * 4. The head of the queue is admitted or nobody is: with reserve_full_prompt its whole prompt must fit into free
 *    pages, and watermark * n_pages more (not so for the first request of a step); it must get a state slot; with
 *    chunked_prefill off its prompt must fit into the rest of the budget.
 * 5. `computed` moves on when the step is planned, not when it has run.
 * 6. The first request of the policy's order always gets on, since all others may be preempted for it and what can
 *    never fit is refused by gm_sched_fits(). So nobody starves, and if nothing moves the step names who is stuck.
 * 7. With prefix caching, an admission begins with the longest cached beginning of the request's tokens, at most all
 *    but one of them, and pins it before it asks for space: what it goes on from is never evicted for it. The full pages
 *    of a step become known to others when it has run, by gm_sched_commit(), not when it is planned.
 * 8. A model with state resumes only where a state was kept, and a state exists only where a chunk ends. So chunks of a
 *    prompt are cut to end on the last page boundary before its last token, on the multiples of snapshot_interval, and
 *    where cached pages end that have no state; there a state is kept. Past the prompt one snapshot a request moves
 *    along with the page boundaries, so that a turn, when it ends, leaves its last one. */
#ifndef GM_SCHED_SCHED_H
#define GM_SCHED_SCHED_H

#include "sched/batch.h"
#include "sched/policy.h"

typedef struct gm_sched gm_sched;

typedef struct gm_sched_params {
    int32_t batch_tokens_max;
    int32_t seqs_max;
    int32_t model_len_max; /* prompt and output of a request */
    int32_t long_prefill_threshold; /* 0: off */
    int32_t step_rows_max; /* rows of prompt log-probabilities a step may want; 0: no bound */
    bool chunked_prefill;
    bool reserve_full_prompt;
    double watermark; /* [0, 1) */
    int32_t snapshot_interval; /* tokens, rounded up to pages; 0: off */
    gm_sched_policy policy;
} gm_sched_params;

/* kv is borrowed. GM_EARG where the limits contradict each other. */
gm_status gm_sched_create(gm_sched **out, const gm_sched_params *params, gm_kv *kv, gm_error *err);
/* No request may be left. */
void gm_sched_destroy(gm_sched *s);

/* GM_EARG with the reason where a request of this size could never run to its end, even alone. It depends on
 * constants only, so any thread may ask. */
gm_status gm_sched_fits(const gm_sched *s, int32_t n_prompt, int32_t n_tokens_max, gm_error *err);

/* Put a NEW request at the end of the queue. It is borrowed until removed. */
void gm_sched_add(gm_sched *s, gm_request *r);

/* Plan a step. The plan is borrowed until the next call; requests in it must not be removed while it is in use
 * without the caller forgetting their item. */
gm_step *gm_sched_step(gm_sched *s, int64_t now_us);

/* The step has run: what it computed can be reused from now on. Before any append() or remove() of its requests. Adds
 * the step's saves, to be carried out before the next step. Does nothing without prefix caching. */
void gm_sched_commit(gm_sched *s);
/* The saves of the step failed: none of them counts. */
void gm_sched_drop_saves(gm_sched *s);

/* The step gave the request one more token. */
void gm_sched_append(gm_sched *s, gm_request *r);

/* Finished or cancelled: its pages and slot are free at once. */
void gm_sched_remove(gm_sched *s, gm_request *r);

int32_t gm_sched_running(const gm_sched *s);
int32_t gm_sched_waiting(const gm_sched *s);
int64_t gm_sched_preemptions(const gm_sched *s);

/* Tokens of first admissions that looked for a cached beginning, and those found; in all, and of the last
 * GM_PREFIX_WINDOW requests. */
#define GM_PREFIX_WINDOW 1000
typedef struct gm_prefix_hits {
    int64_t queries, hits, recent_queries, recent_hits;
} gm_prefix_hits;
gm_prefix_hits gm_sched_prefix_hits(const gm_sched *s);
/* Any request, for a caller that removes all of them; NULL when there is none. */
gm_request *gm_sched_any(const gm_sched *s);

/* GM_EINTERNAL with the reason unless states, lists and held space agree. */
gm_status gm_sched_check(const gm_sched *s, gm_error *err);

#endif
