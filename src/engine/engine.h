/* The engine: one thread that owns the scheduler, the cache and the device, and runs steps while there is work.
 * Token ids go in, token ids come out; it knows no text, JSON or socket.
 *
 * Other threads talk to it with gm_engine_submit() and gm_engine_cancel(), both of which only put a message on a
 * bounded queue. Results come back through the request's sink, called on the engine thread: it must be short, must
 * not block, and must not call the engine except for gm_engine_cancel(). The last event of every request, whatever
 * happens, is exactly one GM_EVENT_FINISH; after it the sink is not called again. */
#ifndef GM_ENGINE_ENGINE_H
#define GM_ENGINE_ENGINE_H

#include "config/model_config.h"
#include "engine/backend.h"
#include "sched/policy.h"
#include "sched/sched.h"

typedef struct gm_engine gm_engine;
typedef uint64_t gm_request_id; /* never 0, never reused */

typedef struct gm_sampling {
    float temperature;   /* 0: greedy (top_k, top_p, min_p then do nothing) */
    float top_p;         /* (0, 1]; 1: off */
    int32_t top_k;       /* 0: off */
    float min_p;         /* [0, 1]; 0: off */
    float repetition_penalty;                   /* > 0; over prompt and output; 1: off */
    float presence_penalty, frequency_penalty;  /* over output; 0: off */
    bool has_seed;
    int64_t seed;
    int32_t logprobs;        /* -1: none; 0: only the chosen token's; n: with the n best */
    int32_t prompt_logprobs; /* likewise for the prompt tokens */
    bool all_logprobs, all_prompt_logprobs; /* the whole vocabulary, in id order, instead of the n best */
    int32_t min_tokens, max_tokens; /* max_tokens >= 1 */
    bool ignore_eos;
    const int32_t *stop_token_ids;
    int32_t n_stop_token_ids;
    const int32_t *bias_ids; /* logit_bias */
    const float *bias_values;
    int32_t n_bias;
    const int32_t *allowed_ids; /* only these may be sampled; n_allowed 0: all */
    int32_t n_allowed;
    /* bad_words: sequences of ids laid end to end; the last id of one is masked when the output ends with the rest */
    const int32_t *bad_ids;
    const int32_t *bad_lens;
    int32_t n_bad;
    /* thinking_token_budget: when think_budget >= 0 and that many tokens were made without think_end among them,
     * the next token is forced to be think_end */
    int32_t think_budget;
    int32_t think_end; /* id, -1: none */
} gm_sampling;

#define GM_SAMPLING_DEFAULT                                                                                  \
    ((gm_sampling){.temperature = 1,                                                                         \
                   .top_p = 1,                                                                               \
                   .repetition_penalty = 1,                                                                  \
                   .logprobs = -1,                                                                           \
                   .prompt_logprobs = -1,                                                                    \
                   .max_tokens = 16,                                                                         \
                   .think_budget = -1,                                                                       \
                   .think_end = -1})

typedef enum gm_finish {
    GM_FINISH_NONE,
    GM_FINISH_STOP,   /* an end token, or one of stop_token_ids */
    GM_FINISH_LENGTH, /* max_tokens or the model length */
    GM_FINISH_ABORT,  /* cancelled, or the engine is shutting down */
    GM_FINISH_ERROR,  /* the step failed; the event has the message */
} gm_finish;

/* Log-probabilities of one position. top_* are the n best in falling order (ties: lower id first), or, with
 * all_*, every id in order (then top_ids is NULL). */
typedef struct gm_logprob_row {
    int32_t token; /* the token that stands at the position */
    float logprob; /* its log-probability (raw: before penalties and temperature) */
    int32_t rank;  /* 1: the most likely */
    int32_t n_top;
    const int32_t *top_ids;
    const float *top_logprobs;
} gm_logprob_row;

typedef enum gm_event_kind {
    GM_EVENT_TOKENS,          /* n_tokens >= 1 new output tokens */
    GM_EVENT_PROMPT_LOGPROBS, /* rows for prompt positions row_begin .. row_begin + n_rows - 1 (never position 0) */
    GM_EVENT_FINISH,
} gm_event_kind;

typedef struct gm_event {
    gm_event_kind kind;
    gm_request_id id;
    /* TOKENS */
    const int32_t *tokens; /* an end token that finishes the request is included */
    int32_t n_tokens;
    const gm_logprob_row *logprobs; /* [n_tokens], NULL where none were asked for */
    /* PROMPT_LOGPROBS */
    int32_t row_begin, n_rows;
    const gm_logprob_row *rows;
    /* FINISH */
    gm_finish finish;
    int32_t stop_token; /* the id that ended it: an eos id or a stop_token_id; -1: none */
    bool stop_is_eos;
    const char *message; /* GM_FINISH_ERROR */
    int32_t n_prompt, n_cached, n_output, n_preempted;
    int64_t arrived_us, scheduled_us, first_token_us, finished_us; /* gm_now_us(); 0: never */
} gm_event;

typedef struct gm_event_sink {
    void (*fn)(void *user, const gm_event *ev); /* what ev points to is gone when fn returns */
    void *user;
} gm_event_sink;

typedef struct gm_submit {
    const int32_t *prompt; /* [n_prompt], copied */
    int32_t n_prompt;
    gm_sampling sampling;  /* its arrays are copied */
    int64_t priority;      /* lower first; used with the priority policy */
    int64_t arrived_us;    /* 0: now */
    const char *cache_salt; /* requests reuse each other's cache only where it is equal; NULL: none */
    gm_event_sink sink;
} gm_submit;

typedef struct gm_engine_params {
    int32_t eos[GM_EOS_MAX], n_eos;
    int32_t vocab_size;   /* rows of the logits */
    int32_t vocab_used;   /* ids from here on have no text and are never sampled; = vocab_size: none masked */
    int32_t model_len_max; /* prompt + output */
    int32_t batch_tokens_max;  /* --max-num-batched-tokens */
    int32_t seqs_max;          /* --max-num-seqs */
    int32_t long_prefill_threshold; /* 0: off */
    bool chunked_prefill;
    bool reserve_full_prompt;  /* --scheduler-reserve-full-isl */
    double watermark;
    gm_sched_policy policy;
    int32_t queued_reqs_max;   /* -1: no limit */
    int64_t queued_tokens_max; /* -1: no limit */
    int32_t page_tokens, n_pages;
    int32_t n_slots; /* of running requests and of snapshots; 0: the model keeps no state */
    bool prefix_caching;
    int32_t snapshot_interval; /* --state-snapshot-interval; 0: only where prompts and turns end */
    uint64_t seed; /* of requests without one; ranks that serve together need different ones */
    bool alloc_guard; /* abort on an allocation within a step (debug builds) */
} gm_engine_params;

/* Start the thread. The backend is borrowed and is called from the engine thread only. */
gm_status gm_engine_create(gm_engine **out, const gm_engine_params *p, gm_backend *backend, gm_error *err);
/* Cancels what still runs (each gets its FINISH), stops the thread, frees. */
void gm_engine_destroy(gm_engine *e);

/* GM_ECAPACITY: a queue limit is reached (the message says which). GM_EARG: the request can never run (longer
 * than the model length or than the whole cache) or a parameter is out of bounds; the message says why. GM_ECANCELED:
 * the engine is draining. GM_EDEVICE: the device failed for good. GM_ENOMEM: no memory for the request.
 * max_tokens is cut to what the model length leaves. *id is set before the first event. */
gm_status gm_engine_submit(gm_engine *e, const gm_submit *s, gm_request_id *id, gm_error *err);
/* Whether submit would take a request now as far as queue limits, draining and the device go (same answers): to be
 * asked before a prompt is tokenized, so that a full server refuses cheaply. */
gm_status gm_engine_has_room(gm_engine *e, gm_error *err);
/* Unknown and finished ids are ignored. Takes effect between two steps; pages and slot are free at once then. */
void gm_engine_cancel(gm_engine *e, gm_request_id id);

/* Forget all cached content. False where a request holds some of it, or where the engine thread has not come to it
 * within timeout_s (it still will). Blocks: not for a sink. */
bool gm_engine_reset_prefix_cache(gm_engine *e, double timeout_s);

/* Stop taking requests (submit answers GM_ECANCELED), let the others go on for up to drain_s seconds, cancel the rest. */
void gm_engine_drain(gm_engine *e, double drain_s);

/* A consistent picture of the engine, for /metrics, /health and the periodic log line; any thread. */
#define GM_HIST_MAX 40
typedef struct gm_histogram {
    const double *bounds; /* upper bounds, +Inf not included */
    int32_t n_bounds;
    int64_t counts[GM_HIST_MAX + 1]; /* per bucket, the last is +Inf; not cumulative */
    int64_t n;
    double sum;
} gm_histogram;

typedef struct gm_engine_stats {
    int32_t running, waiting; /* waiting: those not yet taken up by the engine thread included */
    int32_t pages_total, pages_used, slots_total, slots_used; /* used: by requests; what is only cached is not */
    int32_t pages_cached, snapshots;
    int64_t pages_evicted, snapshots_taken, snapshots_evicted;
    int64_t cached_prompt_tokens; /* part of prompt_tokens */
    gm_prefix_hits prefix;
    int64_t prompt_tokens, generation_tokens, preemptions, steps;
    int64_t computed_prompt_tokens; /* recomputation after preemption included */
    int64_t finished[5]; /* by gm_finish */
    int64_t last_step_us; /* gm_now_us() at the end of the last step; 0: none yet */
    int64_t step_begun_us; /* of the step in progress, so that a watchdog can tell a long one; 0: none */
    bool dead;            /* the device failed for good */
    char dead_reason[256];
    /* itl_s: each token event after the first of its request; iteration_tokens: each step; the others at most once
     * a request, when it ends, whatever the reason; those that need a first token only where there was one. The
     * bounds live as long as the engine. */
    gm_histogram queue_s, prefill_s, decode_s, inference_s, e2e_s, itl_s, tpot_s, iteration_tokens;
    gm_histogram prompt_len, generation_len, max_tokens_param, prefill_computed, preemptions_per_req;
} gm_engine_stats;
void gm_engine_stats_get(gm_engine *e, gm_engine_stats *out);

#endif
