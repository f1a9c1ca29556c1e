/* `glimmer bench grid`: servers x shapes x concurrencies from one file. Each point is a `bench serve` of its
 * own whose JSON file is the record; what is recorded is not measured again, so a stopped grid goes on where
 * it stopped. */
#ifndef GM_BENCH_GRID_H
#define GM_BENCH_GRID_H

#include "base/json.h"

typedef struct gm_grid_server {
    char *name, *command, *url; /* command NULL: it runs already */
    double ready_timeout_s;
    json_t *env, *bench; /* owned by gm_grid.file */
} gm_grid_server;

typedef struct gm_grid_shape {
    char *name;
    int64_t input, output, prefix;         /* 0: said in its bench arguments */
    char *range_ratio;                     /* NULL: 0 */
    json_t *bench, *concurrency, *servers; /* servers NULL: all */
} gm_grid_shape;

/* A line of the report. */
typedef struct gm_grid_point {
    size_t server, shape;
    int64_t concurrency, num_prompts, seed;
    char *path, *key; /* the record's file; the hash of all that decides the point */
    json_t *record;   /* NULL: not measured yet */
} gm_grid_point;

typedef struct gm_grid {
    json_t *file;
    char *title, *out;
    gm_grid_server *servers;
    size_t n_servers;
    gm_grid_shape *shapes;
    size_t n_shapes;
    gm_grid_point *points; /* by server, then shape, then concurrency */
    size_t n_points;
} gm_grid;

/* *.json or *.toml; out_dir NULL: the file's "out", else its name without the ending. Reads the records that
 * are there. */
gm_status gm_grid_open(gm_grid *g, const char *path, const char *out_dir, gm_error *err);
void gm_grid_close(gm_grid *g);
/* Look for the record of a point again. */
void gm_grid_point_load(gm_grid_point *p);
/* A number of a record, of any JSON type that holds one; NAN: none. */
double gm_grid_number(const gm_grid_point *p, const char *key);
/* Sessions of this shape that the cache of the server holds: its tokens by input + output; NAN: unknown. */
double gm_grid_capacity(const gm_grid *g, size_t server, size_t shape);

/* Start and stop servers, run what is missing; progress on stdout. program: this executable. A point that
 * fails is reported and left for the next time; *failed counts them. */
gm_status gm_grid_run(gm_grid *g, const char *program, volatile const int *stop, int *failed, gm_error *err);
/* The words of a point's `bench serve`, NULL-terminated; free with gm_grid_args_free(). */
char **gm_grid_args(const gm_grid *g, const gm_grid_point *p, const char *program, int64_t kv_tokens);
void gm_grid_args_free(char **argv);
/* Sum of the "GPU KV cache size: N tokens" lines; 0: none. */
int64_t gm_grid_kv_tokens(const char *log, size_t len);

/* report.csv, report.md and report.html in g->out. */
gm_status gm_grid_report(const gm_grid *g, gm_error *err);
void gm_grid_csv(const gm_grid *g, gm_str *out);
void gm_grid_markdown(const gm_grid *g, gm_str *out);
void gm_grid_html(const gm_grid *g, gm_str *out);

#endif
