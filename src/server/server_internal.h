/* What the files of this folder share: a job (one HTTP request), its choices (one engine request each), and who may
 * touch which part when.
 *
 * A job is reference-counted: one reference for the connection, one for each queue it stands in, one for each engine
 * request until its FINISH, one for the response. Whoever drops the last one frees it.
 *
 *   network thread   head, body, route; conn while `lock` is held
 *   worker           request, prompts, choices, until it hands the job to a writer
 *   writer           choices and their text; one writer at a time has a job (writer_busy)
 *   engine thread    appends to `events` under `lock`, nothing else
 */
#ifndef GM_SERVER_INTERNAL_H
#define GM_SERVER_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/metrics.h"
#include "server/server.h"
#include "text/detok.h"
#include "text/tool_parse.h"

typedef struct gm_job gm_job;

typedef enum gm_route_kind { R_HEALTH, R_VERSION, R_MODELS, R_LOAD, R_METRICS, R_WORK, R_RESET } gm_route_kind;
typedef struct gm_route {
    const char *path;
    int methods;
    gm_route_kind kind;
    gm_api_kind api;
    bool open;      /* no key needed */
    bool unmetered; /* left out of http_* */
} gm_route;

/* A copy of an engine event. */
typedef struct gm_job_event {
    struct gm_job_event *next;
    int32_t choice;
    gm_event_kind kind;
    int32_t *tokens;
    int32_t n_tokens;
    gm_logprob_row *rows; /* of tokens or prompt positions; NULL: none */
    int32_t row_begin, n_rows;
    gm_finish finish;
    int32_t stop_token;
    bool stop_is_eos;
    char *message;
    int32_t n_prompt, n_cached, n_output;
} gm_job_event;

typedef struct gm_call {
    char id[32];
    gm_str name, args;
} gm_call;

/* logprobs while they are gathered: the chat form, or the four columns of the completions form. */
typedef struct gm_lp {
    gm_str items; /* chat */
    gm_str tokens, values, tops, offsets;
    int64_t n, chars;
} gm_lp;

typedef struct gm_choice {
    gm_job *job;
    int32_t index, prompt;
    gm_request_id id; /* under the job's lock */
    bool submitted, engine_done; /* under the job's lock: FINISH is in or was handled */

    gm_detok detok;
    gm_stopper *stopper;
    gm_reply *reply; /* NULL: all text is content */
    bool started, role_sent, done, has_held;
    int32_t held; /* the newest token, whose text waits until it is known not to be the end token */
    int32_t n_out, n_cached, n_reasoning;
    const char *finish; /* finish_reason; NULL: not yet */
    char *stop_text;    /* the stop string that was hit */
    int64_t stop_id;    /* -1: none */

    /* what the next chunk carries, or, without a stream, the whole answer */
    gm_str text;
    gm_reply_deltas deltas;
    gm_ids ids;
    gm_lp lp;
    int32_t n_pending;
    bool dirty;
    int64_t shown; /* chunks sent */

    gm_str reasoning, content; /* without a stream */
    gm_call *calls;
    int32_t n_calls, cap_calls;
    gm_str prompt_lp;
    int32_t n_prompt_lp;
} gm_choice;

typedef enum gm_job_stage { GM_STAGE_RECV, GM_STAGE_WORK, GM_STAGE_READY } gm_job_stage;

struct gm_job {
    gm_server *srv;
    atomic_int refs;
    gm_job *next, *prev; /* list of the server */

    /* network thread */
    const gm_route *route; /* NULL: none */
    gm_api_kind route_api;
    char method[8];
    char path[64]; /* for the log */
    gm_str body;
    bool too_large, json_type, bad_rank, sent_status;
    int deny; /* status decided from the head; 0: none */
    char allow[32];
    char *header_id, *origin;
    bool has_header_priority;
    int64_t header_priority;
    bool drain_body;
    size_t seen, sent; /* bytes of the two bodies */
    int64_t begun_us, arrived_us;
    int fd;
    uint32_t watch;

    pthread_mutex_t lock;
    struct MHD_Connection *conn; /* NULL: gone */
    gm_job_stage stage;
    bool suspended, gone, closed;
    bool streaming, out_done, out_failed;
    int status;
    int retry_after;
    gm_str out; /* the body, or the bytes of the stream not sent yet from out_pos on */
    size_t out_pos;
    int64_t last_out_us;
    gm_job_event *events, **events_tail;
    bool writer_busy, writer_held; /* in the queue or with a writer; events kept back until the client reads */
    bool counted_load;

    /* worker, then writer */
    gm_api_request req;
    char id[300];
    int64_t created;
    gm_ids *prompts;
    int n_prompts;
    gm_choice *choices;
    int32_t n_choices, n_open; /* n_open: without finish_reason */
    bool thinking, parsing, failed;
    gm_api_error error;
    int64_t prompt_tokens;
    bool ids_sent;

    gm_job *queue_next;
};

typedef struct gm_job_queue {
    pthread_mutex_t lock;
    pthread_cond_t more;
    gm_job *head, *tail;
    int n, n_max;
    bool closed;
} gm_job_queue;

struct gm_server {
    gm_server_params p;
    char **names;
    char *root, *fingerprint, *root_path, *role, *cache_dtype;
    struct MHD_Daemon *daemon;
    gm_job_queue prepare, write;
    pthread_t threads[16];
    int n_threads;
    pthread_t watcher;
    bool has_watcher;
    int epoll_fd, wake_fd;

    pthread_mutex_t jobs_lock;
    gm_job *jobs;
    int n_jobs;

    pthread_mutex_t watch_lock;
    struct {
        gm_job *job;
        uint32_t gen;
    } *watch;
    int n_watch;

    atomic_bool draining, stopping, stuck;
    atomic_llong body_bytes, load;
    gm_metrics metrics;
    int64_t started_s;
};

#define GM_STREAM_HIGH (256 * 1024) /* bytes the client did not read from which on events wait and merge */

/* http.c */
void gm_job_ref(gm_job *j);
void gm_job_unref(gm_job *j);
/* The answer is there: a whole body (taken from `body`), or the start of a stream. */
void gm_job_answer(gm_job *j, int status, gm_str *body);
void gm_job_answer_error(gm_job *j, const gm_api_error *e);
void gm_job_start_stream(gm_job *j);
/* Append to the stream and wake the connection; end: nothing follows. */
void gm_job_stream(gm_job *j, const gm_str *bytes, bool end);
/* Tell the engine to give up what still runs. */
void gm_job_cancel(gm_job *j);
bool gm_job_gone(gm_job *j);
void gm_job_to_writer(gm_job *j);
bool gm_job_queue_push(gm_job_queue *q, gm_job *j); /* takes a reference; false: full or closed */

/* prepare.c: on a worker */
void gm_job_prepare(gm_job *j);

/* reply.c: on a writer */
void gm_choice_init(gm_choice *c, gm_job *j, int32_t index, int32_t prompt);
void gm_choice_fini(gm_choice *c);
void gm_job_sink(void *choice, const gm_event *ev); /* on the engine thread */
void gm_job_write(gm_job *j);                       /* handles the events that are there */
void gm_job_events_free(gm_job_event *e);
void gm_random_hex(char *out, int n); /* n digits and a NUL */

#endif
