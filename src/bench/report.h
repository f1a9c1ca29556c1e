/* A run's report: the text that is printed and the JSON that is kept, both in vLLM's form (labels, key names
 * and their order), with what the client says about itself behind. */
#ifndef GM_BENCH_REPORT_H
#define GM_BENCH_REPORT_H

#include "bench/arrivals.h"
#include "bench/figures.h"
#include "bench/scrape.h"

typedef struct gm_run_report {
    const gm_settings *s;
    const gm_arrivals *arrivals;
    const gm_figures_params *fp;
    const gm_figures *f;
    const gm_drive_result *run;
    const gm_sample *samples; /* as sent, [run->n] */
    const gm_counters *before, *after;
    const char *model_id, *tokenizer_id; /* tokenizer_id NULL: none */
    const char *date;                    /* YYYYMMDD-HHMMSS */
    const json_t *rps_changes;           /* array or NULL */
    bool counted_prompts; /* prompt lengths can be compared: text as the server counts it, no chat template */
} gm_run_report;

void gm_run_report_text(const gm_run_report *r, gm_str *out);
/* One object, no newline. */
void gm_run_report_json(const gm_run_report *r, gm_str *out);
/* The file's name, without --result-dir. */
void gm_run_report_file_name(const gm_run_report *r, gm_str *out);

/* "ttft,tpot" in s->percentile_metrics and numbers in s->metric_percentiles, KEY:MS in s->goodput. */
gm_status gm_run_report_params_read(gm_figures_params *out, bool shown[GM_METRIC_COUNT], const gm_settings *s,
                                    gm_error *err);

/* A number as Python's repr() writes a float: the fewest digits that read back the same. */
void gm_put_repr(gm_str *out, double v);

#endif
