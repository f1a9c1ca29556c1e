/* A request as the scheduler sees it: counts of tokens, no token.
 *
 *   NEW --add--> WAITING --step--> RUNNING --remove--> DONE
 *                   ^                 |
 *                   +--- PREEMPTED <--+     (waits again, in front; its cache is gone, its tokens are not)
 *
 * remove() is allowed in every state but NEW. There is no prefill and no decode phase: a step gives the
 * request some tokens so that `computed` catches up with `n_tokens`. */
#ifndef GM_SCHED_REQUEST_H
#define GM_SCHED_REQUEST_H

#include "kv/kv.h"

typedef enum gm_request_state {
    GM_REQUEST_NEW,
    GM_REQUEST_WAITING,
    GM_REQUEST_RUNNING,
    GM_REQUEST_PREEMPTED,
    GM_REQUEST_DONE,
} gm_request_state;

typedef struct gm_request {
    /* Set by gm_request_init(), then left alone. */
    uint64_t id;
    int64_t priority; /* lower first; used with the priority policy */
    int64_t arrived_us;
    int32_t n_prompt;
    int32_t n_tokens_max; /* prompt and output together */

    /* For prefix caching, set before add(): the token ids, of which the first n_tokens are read and borrowed until the
     * request is removed (NULL: it neither takes part nor looks anything up), and what begins the chain of hashes. */
    const int32_t *tokens;
    gm_prefix_salt salt;

    /* Prompt log-probabilities want a row of logits for each prompt token, which a step bounds
     * (step_rows_max). The owner moves rows_next on as it delivers; rows before it are not wanted again. Such a
     * request computes its whole prompt: rows cannot come from a cache. */
    bool prompt_rows;
    gm_pos rows_next; /* the next prompt position whose row is wanted: 1 .. n_prompt */

    /* Owned by the scheduler; others read. */
    gm_request_state state;
    int32_t n_tokens;  /* T: prompt and output so far */
    int32_t computed;  /* C: tokens in the cache, those of the step being run included */
    int32_t n_prefill; /* T at the last admission: what lies below is (re)computed prompt */
    int32_t n_cached;  /* prompt tokens that the first admission found in the cache */
    int32_t junction;  /* where cached pages end that have no state to go on from; 0: nowhere */
    int32_t n_preempted;
    int64_t scheduled_us;          /* first time it was given tokens; 0: never */
    int64_t place;                 /* FCFS order */
    int32_t heap_idx, running_idx; /* -1: not there */
    gm_kv_seq seq;
} gm_request;

/* Takes memory for the page table; n_tokens_max is the longest the sequence can get. Any thread. */
gm_status gm_request_init(gm_request *r, int32_t page_tokens, int32_t n_prompt, int32_t n_tokens_max,
                          gm_error *err);
/* The request must be NEW or DONE. Accepts a zeroed one. */
void gm_request_fini(gm_request *r);

/* Rows of logits that tokens [begin, begin + n) of the request would want for prompt log-probabilities. The
 * row after token p tells the distribution of position p + 1. */
int32_t gm_request_rows(const gm_request *r, int32_t begin, int32_t n);
/* The longest chunk from `begin`, at most n, that wants at most rows_max such rows. */
int32_t gm_request_clip_rows(const gm_request *r, int32_t begin, int32_t n, int32_t rows_max);

#endif
