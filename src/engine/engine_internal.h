/* What the files of the engine share.
 *
 * Fields are owned by the engine thread unless they stand under "lock". A job (one submitted request) is made
 * by the submitting thread, handed over through the inbox, and from then on touched and freed by the engine
 * thread alone; other threads reach it only through the table of ids, under the lock. */
#ifndef GM_ENGINE_INTERNAL_H
#define GM_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "ops/sample/sample.h"
#include "sched/sched.h"

#include <pthread.h>

enum {
    GM_JOB_BUCKETS = 1024,    /* of the table of ids */
    GM_STEP_ROWS_MAX = 512,   /* rows of prompt log-probabilities a step may want */
    GM_LOGITS_ROWS_MAX = 256, /* of the logits buffer, which is also at most: */
    GM_LOGITS_BYTES_MAX = 64 << 20,
    GM_ROW_VALUES_MAX = 16384, /* top_* values in one event of prompt log-probabilities, at least one row */
    GM_FAILURES_MAX = 3,       /* failed steps in a row after which the device counts as dead */
};

typedef struct gm_job {
    gm_request request; /* first: what the scheduler hands back is the job */
    gm_event_sink sink;
    gm_sampling sampling; /* its arrays lie in the job's memory */
    uint64_t stream;      /* of random numbers */
    int32_t *tokens;      /* [request.n_tokens_max] prompt, then output */
    int32_t *end_ids;     /* eos and stop ids, masked while min_tokens are not reached */
    int32_t n_end_ids;
    bool penalized;
    gm_token_counts counts; /* where penalized */
    bool think_ended;

    /* Log-probability rows of the event being filled: [rows_cap], with top_cap values each. */
    gm_logprob_row *rows;
    int32_t *row_ids;
    float *row_values;
    int32_t rows_cap, top_cap, n_rows;

    int64_t first_token_us, last_token_us;

    /* lock */
    struct gm_job *hash_next, *inbox_next, *cancel_next;
    bool cancel_queued; /* on the cancel list: whoever takes it off there looks at done */
    bool done;          /* ended, and kept only because it is on the cancel list */
} gm_job;

/* One row of hidden states that the step keeps: the row after token `pos` of an item. */
typedef struct gm_out_row {
    int32_t item_idx;
    gm_pos pos;
    bool samples; /* the next token comes from it; otherwise it is the row of prompt position pos + 1 */
} gm_out_row;

struct gm_engine {
    gm_engine_params params;
    gm_backend *backend;
    gm_kv *kv;
    gm_sched *sched;
    gm_sampler *sampler;

    /* The step's arrays. */
    int32_t *token_ids; /* [batch_tokens_max] */
    int32_t *out_rows;  /* [batch_tokens_max] */
    gm_out_row *outs;   /* [batch_tokens_max] */
    gm_slice *slices;   /* [seqs_max] */
    float *logits;      /* [logits_rows][vocab_size] */
    float *raw;         /* [vocab_size] log-probabilities of the row being sampled */
    int32_t logits_rows;

    bool guarded;       /* allocations are forbidden now */
    int32_t n_failures; /* failed steps in a row */
    int64_t warned_us;  /* last warning about preemption */
    int64_t n_preempted_unwarned;

    double len_bounds[GM_HIST_MAX]; /* buckets of token counts, up to the model length */

    pthread_t thread;
    bool thread_started;
    bool lock_ready;
    pthread_mutex_t lock;
    pthread_cond_t work; /* the engine thread waits here */
    pthread_cond_t rest; /* drain waits here for n_open to become 0 */

    /* lock */
    gm_job *inbox, **inbox_end;
    gm_job *cancels, **cancels_end;
    int32_t n_inbox;
    gm_job *table[GM_JOB_BUCKETS];
    uint64_t last_id;
    int32_t n_live;        /* taken and not ended: what queued_reqs_max bounds */
    int32_t n_open;        /* the same until the FINISH event was delivered */
    int64_t queued_tokens; /* prompts of live requests without a token */
    bool draining, cancel_all, stopping;
    int64_t resets_asked, resets_done; /* of the prefix cache */
    bool reset_ok;                     /* the last one */
    pthread_cond_t reset;              /* who asked waits here */
    gm_engine_stats stats;
};

/* job.c */
gm_status gm_job_create(gm_job **out, const gm_engine *e, const gm_submit *s, gm_error *err);
void gm_job_destroy(gm_job *j);
int32_t gm_job_n_output(const gm_job *j);

/* engine.c: end the job in whatever state it is; it is gone afterwards. stop_token -1: none. */
typedef struct gm_ending {
    gm_finish finish;
    int32_t stop_token;
    bool stop_is_eos;
    const char *message;
} gm_ending;
void gm_engine_end(gm_engine *e, gm_job *j, const gm_ending *how);
void gm_engine_emit(gm_engine *e, gm_job *j, gm_event *ev);

/* step.c: plan and run one step. */
void gm_engine_step(gm_engine *e);
/* Forbid allocations from here on, or permit them, where alloc_guard is set; returns what held before. */
bool gm_engine_guard(gm_engine *e, bool on);

/* sampling.c */
void gm_engine_prompt_row(gm_engine *e, gm_job *j, gm_pos pos, float *logits);
void gm_engine_flush_rows(gm_engine *e, gm_job *j);
/* False when the request ended (the job is gone). */
bool gm_engine_sample_row(gm_engine *e, gm_job *j, float *logits);

/* engine_stats.c; all but init under the lock. */
void gm_stats_init(gm_engine *e);
void gm_stats_gauges(gm_engine *e);
void gm_stats_step(gm_engine *e, const gm_step *step);
void gm_stats_token(gm_engine *e, gm_job *j, int64_t now_us);
void gm_stats_end(gm_engine *e, const gm_job *j, gm_finish finish, int64_t now_us);

#endif
