/* A simulated run told as `vllm bench serve` tells a measured one: the same printed block, the same JSON
 * keys. */
#ifndef GM_PLAN_SIM_REPORT_H
#define GM_PLAN_SIM_REPORT_H

#include "plan/stats.h"

typedef struct gm_report_info {
    const char *model, *label; /* label may be NULL */
    const char *date;          /* YYYYMMDD-HHMMSS, from the caller's clock */
    double request_rate;       /* 0: inf */
    double burstiness;
    int32_t concurrency_max; /* 0: none */
    bool goodput;            /* limits were given */
    unsigned metrics;        /* bit m: gm_metric m is reported */
    double percentiles[16];
    int32_t n_percentiles;
    bool detailed;
} gm_report_info;

json_t *gm_report_json(const gm_summary *s, const gm_report_info *i);
void gm_report_text(gm_str *out, const gm_summary *s, const gm_report_info *i);

/* Where the time went, part by part: text, and an object of seconds. */
void gm_report_explain(gm_str *out, const gm_sim_result *r);
json_t *gm_report_explain_json(const gm_sim_result *r);

/* The memory of one rank, line by line. */
void gm_report_memory(gm_str *out, const gm_memory_map *m, const gm_layout *l);
json_t *gm_report_memory_json(const gm_memory_map *m, const gm_layout *l);

#endif
