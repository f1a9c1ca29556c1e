/* Sends samples at their times, reads the streams and writes down what happened to each. The rules of
 * measurement: start   when the request is handed to the socket, after the wait for a free place under
 * max_concurrency first   the first chunk that carries a token. Completions: the first chunk with choices,
 * even with empty text. Chat: the first chunk with content, reasoning, a tool call or a finish_reason; a
 * chunk that only names the role is not a token gaps    from then on each chunk with choices is one sample,
 * whatever number of tokens is in it end     the last chunk with choices tokens  from the usage message;
 * without one the text is tokenized here, and without a tokenizer chunks are counted A request has failed
 * when the status is not 200, when the stream carries an error, holds no token, breaks off, or ends without a
 * finish_reason and without [DONE]. */
#ifndef GM_BENCH_DRIVE_H
#define GM_BENCH_DRIVE_H

#include "bench/body.h"
#include "bench/client.h"

typedef struct gm_outcome {
    bool ok;
    bool usage;                          /* the counts are the server's */
    int64_t start_ns, first_ns, last_ns; /* gm_client_now_ns() */
    int64_t queued_ns; /* from its arrival to start: the wait under max_concurrency, mostly */
    int64_t late_ns;   /* from when it could have been sent to start: the client's own fault */
    int64_t prompt_tokens, output_tokens, cached_tokens; /* cached: -1 unknown */
    float *gaps;                                         /* seconds, n_gaps of them */
    size_t n_gaps, cap_gaps;
    char *text;  /* with keep_text */
    char *error; /* of a failed request */
} gm_outcome;

typedef struct gm_drive_params {
    gm_client *client;
    const char *url;
    const char *id_prefix; /* of x-request-id */
    const gm_body_maker *body;
    const gm_tokenizer *tokenizer; /* to count where there is no usage; may be NULL */
    const gm_sample *samples;
    size_t n;
    const double *arrive_s;  /* [n]; NULL: all at 0 */
    int64_t max_concurrency; /* 0: no limit */
    bool keep_text;
    /* Called a few times a second and at the end; may be NULL. */
    void (*on_progress)(void *user, size_t done, size_t n, double seconds);
    void *user;
    volatile const int *stop; /* nonzero: drop everything and return GM_ECANCELED; may be NULL */
} gm_drive_params;

typedef struct gm_drive_result {
    gm_outcome *outcomes; /* [n] */
    size_t n;
    int64_t begun_ns, ended_ns;
    double cpu_s; /* processor time of this process */
    int64_t n_chunks;
    gm_client_delay loop;
} gm_drive_result;

gm_status gm_drive(gm_drive_result *out, const gm_drive_params *p, gm_error *err);
void gm_drive_result_fini(gm_drive_result *r);

#endif
