/* The work of one step: which requests get tokens, how many, and in what order they lie in the batch. */
#ifndef GM_SCHED_BATCH_H
#define GM_SCHED_BATCH_H

#include "sched/request.h"

typedef struct gm_step_item {
    gm_request *request;
    gm_pos begin; /* tokens of it already in the cache */
    gm_chunk_len n;
    bool samples; /* this chunk ends at its last token, so the step yields the next one */
} gm_step_item;

typedef struct gm_step {
    gm_step_item *items; /* [n_items], room for cap */
    int32_t n_items, cap;
    int32_t n_tokens; /* sum of n */
    int32_t n_rows;   /* rows of logits wanted for prompt log-probabilities */
    int32_t n_preempted;
    /* Copies of state, each list to be carried out in its order: loads before the step, saves (which
     * gm_sched_commit() adds) between it and the next. Room for cap each: at most one an item. */
    gm_slot_copy *loads, *saves;
    int32_t n_loads, n_saves;
    /* Set when something waits, nothing runs and still nothing could be admitted. The caller must remove()
     * and fail it: a queue that stands still helps nobody. */
    gm_request *stuck;
} gm_step;

gm_status gm_step_init(gm_step *s, int32_t n_items_max, gm_error *err);
void gm_step_fini(gm_step *s);
void gm_step_clear(gm_step *s);
void gm_step_push(gm_step *s, gm_request *r, int32_t n);
/* Take the request's item out again, keeping the order of the others. False where it has none. */
bool gm_step_drop(gm_step *s, const gm_request *r);

#endif
