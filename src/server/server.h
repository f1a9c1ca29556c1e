/* The HTTP server: routes, the OpenAI dialect, streams and metrics, over one engine.
 *
 * One network thread (libmicrohttpd) reads requests and writes answers and does nothing that takes time; workers parse,
 * render and tokenize; writers turn engine events into text. A client that goes away is noticed while its request is
 * queued, in prefill or in decode, and becomes a cancel message to the engine. docs/http.md has the routes. */
#ifndef GM_SERVER_SERVER_H
#define GM_SERVER_SERVER_H

#include "engine/engine.h"
#include "server/openai.h"
#include "text/chat.h"

typedef struct gm_server gm_server;

typedef struct gm_server_params {
    int listen_fd;                 /* taken over, also on failure */
    const char *tls_key, *tls_cert; /* PEM text; NULL: plain HTTP */
    gm_engine *engine;              /* borrowed, outlives the server */
    const gm_tokenizer *tokenizer;  /* NULL: token ids only */
    gm_chat_format chat;
    const char *const *names; /* served names; answers carry the first */
    int n_names;
    const char *root;         /* the MODEL argument */
    const char *fingerprint;  /* system_fingerprint */
    const char *root_path;    /* prefix removed from paths; NULL: none */
    const char *response_role;
    gm_api_rules rules;
    const int32_t *eos;
    int32_t n_eos;
    const json_t *default_kwargs; /* object or NULL */
    const json_t *api_keys;       /* array of strings; NULL or empty: open */
    const json_t *cors_origins, *cors_methods, *cors_headers; /* arrays; NULL: no CORS headers */
    bool cors_credentials;
    bool reasoning_parser, tool_parser, special_in_text;
    bool reasoning_content; /* also write reasoning_content */
    bool exclude_tools_when_none, tokens_as_ids, request_id_headers, prompt_tokens_details, track_load;
    bool log_requests, access_log;
    double sse_keep_alive_s; /* 0: off */
    double health_step_s;    /* 0: off */
    size_t body_max;
    int connections_max;
    int n_workers; /* threads that prepare requests; 0: two */
    /* for vllm:cache_config_info */
    int32_t page_tokens, n_pages;
    int64_t cache_tokens;
    double cache_concurrency;
    const char *cache_dtype;
    bool prefix_caching;
} gm_server_params;

/* A bound, listening TCP socket; host NULL: all addresses; port 0: *port_out says which the system chose. */
gm_status gm_listen_tcp(int *fd, const char *host, int port, int *port_out, gm_error *err);
gm_status gm_listen_unix(int *fd, const char *path, gm_error *err);

/* Starts serving. What the params point to is copied, except for the engine, tokenizer and JSON values, which are
 * borrowed. */
gm_status gm_server_create(gm_server **out, const gm_server_params *p, gm_error *err);
/* /health says 503 from now on; requests are still answered. */
void gm_server_set_draining(gm_server *s);
/* Wait until no request is open, at most this long; false: some still are. */
bool gm_server_wait_idle(gm_server *s, double seconds);
/* Drops what is still open. The engine must have no request of this server in flight or go on running until here. */
void gm_server_destroy(gm_server *s);

/* "Available routes are:" and one line a route. */
void gm_server_log_routes(void);
/* The text of /metrics. */
void gm_server_put_metrics(gm_server *s, gm_str *out);
/* NULL, or why /health would say 503. */
const char *gm_server_unhealthy(gm_server *s);

#endif
