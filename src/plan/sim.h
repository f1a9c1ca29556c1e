/* A load through the real scheduler and cache on a virtual clock. Each data-parallel rank has a scheduler and
 * a cache of its own; all step together, and the cost model says how long a step takes. Integer nanoseconds,
 * so that taking many equal steps at once gives exactly what taking them one by one gives. */
#ifndef GM_PLAN_SIM_H
#define GM_PLAN_SIM_H

#include "plan/cost.h"
#include "plan/sim_load.h"
#include "sched/sched.h"

typedef struct gm_sim_params {
    gm_server_limits limits;
    int32_t long_prefill_threshold;
    bool chunked_prefill, reserve_full_prompt;
    double watermark;
    gm_sched_policy policy;
    int32_t n_pages; /* of one scheduler; 0: as the memory map says */
    int32_t
        price_every; /* of equal steps price each n-th and let it stand for those after it (for fits); 0: 1 */
    bool step_by_step; /* never take equal steps at once (for tests) */
    /* The front end reads and tokenizes prompts one after the other: so long for each, and for each of its
     * tokens. */
    int64_t front_request_ns, front_token_ns;
    int64_t step_ns; /* every step takes this long; 0: as the cost model says */
    bool check;      /* prove the scheduler's and the cache's invariants after each step */
    /* Called for each admission and preemption, in order; may be NULL. */
    void (*on_event)(void *user, bool preempted, int32_t request);
    void *user;
} gm_sim_params;

/* What the front end of a Python server needs, as a tokenizer of about a million tokens a second gives it. */
enum { GM_SIM_FRONT_REQUEST_NS = 1000000, GM_SIM_FRONT_TOKEN_NS = 1000 };

typedef struct gm_sim_request {
    int64_t sent_ns, first_ns, end_ns; /* first_ns: of the first token */
    int32_t n_in, n_out, n_preempted, rank;
    bool failed; /* could never run: too long for the cache or the model length */
} gm_sim_request;

/* One gap between two tokens of a request, and how often it occurred. */
typedef struct gm_sim_gap {
    int64_t ns, n;
} gm_sim_gap;

typedef struct gm_sim_result {
    gm_sim_request *requests;
    int32_t n;
    gm_sim_gap *gaps;
    int64_t n_gaps, cap_gaps;
    int64_t *second_tokens; /* [n_seconds] tokens in each whole second */
    int64_t n_seconds;
    int64_t duration_ns;                    /* to the end of the last request */
    int64_t steps, preemptions, recomputed; /* recomputed: tokens computed again after a preemption */
    int32_t waiting_max, running_max;
    double waiting_mean;      /* over time, in the schedulers */
    double pages_peak;        /* share of the pages, the fullest scheduler */
    gm_step_cost cost;        /* where the time went, seconds */
    gm_step_cost cost_decode; /* the part in steps without prompt tokens */
    int64_t decode_steps;
    gm_memory_map map;
} gm_sim_result;

/* GM_ECAPACITY where the weights do not fit, GM_EARG where the limits contradict each other. */
gm_status gm_sim_run(gm_sim_result *out, const gm_model_config *c, const gm_machine *m, const gm_layout *l,
                     const gm_sim_params *p, const gm_load *load, gm_error *err);
void gm_sim_result_fini(gm_sim_result *r);

#endif
