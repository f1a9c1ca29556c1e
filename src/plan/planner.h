/* Every layout and cache precision of a machine against one load: memory, ceilings, predicted figures; who
 * wins where. */
#ifndef GM_PLAN_PLANNER_H
#define GM_PLAN_PLANNER_H

#include "plan/sim_report.h"

enum { GM_PLAN_CANDIDATES_MAX = 32, GM_PLAN_CURVE_MAX = 16, GM_PLAN_CROSSINGS_MAX = 32 };

typedef struct gm_plan_params {
    gm_sim_params sim;     /* limits; layout and cache precision are set for each candidate */
    gm_load_random load;   /* rate or concurrency_max; n: how many requests */
    gm_limits_ms targets;  /* ttft and tpot at the 99th percentile; 0: none */
    double price_per_hour; /* 0: unknown */
    bool curve;            /* also throughput over concurrency, for crossings and plots */
} gm_plan_params;

typedef struct gm_plan_candidate {
    char name[64];
    gm_layout layout;
    gm_kv_dtype kv_dtype;
    gm_engine_kind engine;
    gm_memory_map map;
    gm_ceiling ceiling; /* sequences of the load's length */
    bool fits, meets;   /* meets: runs the load and keeps the targets */
    double output_rate, request_rate, total_rate, ttft_mean, ttft_p50, ttft_p99, tpot_mean, tpot_p50,
        tpot_p99, cost_million;
    int64_t failed, preemptions, steps, decode_steps;
    gm_step_cost cost, cost_decode;
    double curve[GM_PLAN_CURVE_MAX]; /* output tokens a second at plan->concurrency[i] */
} gm_plan_candidate;

/* Where b's throughput passes a's as concurrency grows, interpolated between the points of the curve. */
typedef struct gm_plan_crossing {
    int32_t a, b;
    double concurrency;
} gm_plan_crossing;

typedef struct gm_plan {
    gm_plan_candidate candidates[GM_PLAN_CANDIDATES_MAX];
    int32_t n, best; /* best: -1 where none meets the targets */
    int32_t concurrency[GM_PLAN_CURVE_MAX], n_curve;
    gm_plan_crossing crossings[GM_PLAN_CROSSINGS_MAX];
    int32_t n_crossings;
} gm_plan;

gm_status gm_plan_make(gm_plan *out, const gm_model_config *c, const gm_machine *m, const gm_plan_params *p,
                       gm_error *err);

/* The recommendation: one sentence, and the command that starts it (empty where there is none). */
void gm_plan_sentence(gm_str *out, const gm_plan *plan, const gm_plan_params *p);
void gm_plan_command(gm_str *out, const gm_plan *plan, const gm_plan_params *p, const char *model);

/* Which layout leads at which point of the curve, in one line. */
void gm_plan_leaders(gm_str *out, const gm_plan *plan);

/* One self-contained page. */
void gm_plan_html(gm_str *out, const gm_plan *plan, const gm_plan_params *p, const char *model,
                  const gm_machine *m);

#endif
