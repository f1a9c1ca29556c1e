#include "bench/grid.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bench/toml.h"

enum { FILE_MAX = 1 << 20 };

/* ---- reading the file ---- */

static gm_status read_whole(const char *path, gm_str *out, gm_error *err)
{
    FILE *f = fopen(path, "rb");
    char buf[65536];
    size_t n;
    if (!f) return gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    while ((n = fread(buf, 1, sizeof buf, f)) > 0 && out->len <= FILE_MAX) gm_str_append(out, buf, n);
    fclose(f);
    return out->len > FILE_MAX ? gm_fail(err, GM_EFORMAT, "%s: more than a megabyte", path) : GM_OK;
}

static gm_status read_file(json_t **out, const char *path, gm_error *err)
{
    gm_str text = {0};
    const char *dot = strrchr(path, '.');
    gm_status st = read_whole(path, &text, err);
    if (!st && dot && !strcmp(dot, ".toml")) st = gm_toml_parse(out, gm_str_c(&text), text.len, path, err);
    else if (!st) st = gm_json_parse(out, gm_str_c(&text), text.len, path, NULL, err);
    gm_str_fini(&text);
    if (!st && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return gm_fail(err, GM_EFORMAT, "%s: not a table", path);
    }
    return st;
}

static gm_status only_keys(const json_t *o, const char *allowed, const char *what, gm_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        char word[80];
        if ((size_t)snprintf(word, sizeof word, " %s ", key) >= sizeof word || !strstr(allowed, word))
            return gm_fail(err, GM_EFORMAT, "%s: unknown key '%.64s' (known:%s)", what, key, allowed);
    }
    return GM_OK;
}

/* May be absent; *out is borrowed from o. */
static gm_status get(json_t **out, const json_t *o, const char *key, json_type type, const char *what,
                     gm_error *err)
{
    *out = json_object_get(o, key);
    if (!*out || json_typeof(*out) == type || (type == JSON_REAL && json_is_number(*out))) return GM_OK;
    return gm_fail(err, GM_EFORMAT, "%s: '%s' has the wrong type", what, key);
}

static gm_status get_text(char **out, const json_t *o, const char *key, const char *what, gm_error *err)
{
    json_t *v;
    gm_status st = get(&v, o, key, JSON_STRING, what, err);
    if (!st && v) *out = gm_strdup(json_string_value(v));
    return st;
}

static gm_status get_int(int64_t *out, const json_t *o, const char *key, int64_t low, const char *what,
                         gm_error *err)
{
    json_t *v;
    gm_status st = get(&v, o, key, JSON_INTEGER, what, err);
    if (!st && v) *out = json_integer_value(v);
    if (!st && v && *out < low)
        return gm_fail(err, GM_EFORMAT, "%s: '%s' must be at least %lld", what, key, (long long)low);
    return st;
}

/* A list of strings or numbers, taken as command line words. */
static gm_status get_words(json_t **out, const json_t *o, const char *key, const char *what, gm_error *err)
{
    size_t i;
    json_t *v;
    gm_status st = get(out, o, key, JSON_ARRAY, what, err);
    if (st) return st;
    json_array_foreach(*out, i, v) if (!json_is_string(v) && !json_is_number(v)) return gm_fail(
        err, GM_EFORMAT, "%s: '%s' holds something other than strings and numbers", what, key);
    return GM_OK;
}

static gm_status get_concurrency(json_t **out, const json_t *o, const char *what, gm_error *err)
{
    size_t i;
    json_t *v;
    gm_status st = get(out, o, "concurrency", JSON_ARRAY, what, err);
    if (st) return st;
    json_array_foreach(
        *out, i, v) if (!json_is_integer(v) || json_integer_value(v) < 1 ||
                        json_integer_value(v) >
                            1000000) return gm_fail(err, GM_EFORMAT,
                                                    "%s: 'concurrency' is a list of whole numbers from 1",
                                                    what);
    return GM_OK;
}

static gm_status read_server(gm_grid_server *s, const json_t *o, size_t i, gm_error *err)
{
    char what[64];
    json_t *v;
    snprintf(what, sizeof what, "server %zu", i + 1);
    gm_status st = only_keys(o, " name command url ready_timeout_s env bench ", what, err);
    if (!st) st = get_text(&s->name, o, "name", what, err);
    if (!st && !s->name) st = gm_fail(err, GM_EFORMAT, "%s: it needs a 'name'", what);
    if (!st) st = get_text(&s->command, o, "command", what, err);
    if (!st) st = get_text(&s->url, o, "url", what, err);
    if (!st && !s->url) s->url = gm_strdup("http://127.0.0.1:8000");
    if (!st) st = get(&v, o, "ready_timeout_s", JSON_REAL, what, err);
    if (!st) s->ready_timeout_s = v ? json_number_value(v) : 3600;
    if (!st) st = get(&s->env, o, "env", JSON_OBJECT, what, err);
    if (!st) st = get_words(&s->bench, o, "bench", what, err);
    return st;
}

static gm_status read_shape(gm_grid_shape *s, const json_t *o, size_t i, gm_error *err)
{
    char what[64], name[96];
    json_t *v;
    snprintf(what, sizeof what, "shape %zu", i + 1);
    gm_status st =
        only_keys(o, " name input output prefix range_ratio bench concurrency servers ", what, err);
    if (!st) st = get_text(&s->name, o, "name", what, err);
    if (!st) st = get_int(&s->input, o, "input", 1, what, err);
    if (!st) st = get_int(&s->output, o, "output", 1, what, err);
    if (!st) st = get_int(&s->prefix, o, "prefix", 0, what, err);
    if (!st) st = get(&v, o, "range_ratio", JSON_REAL, what, err);
    if (!st && v) {
        snprintf(name, sizeof name, "%.6g", json_number_value(v));
        s->range_ratio = gm_strdup(name);
    }
    if (!st) st = get_words(&s->bench, o, "bench", what, err);
    if (!st) st = get_concurrency(&s->concurrency, o, what, err);
    if (!st) st = get_words(&s->servers, o, "servers", what, err);
    if (!st && !s->bench && (!s->input || !s->output))
        st = gm_fail(err, GM_EFORMAT,
                     "%s: it needs 'input' and 'output', or 'bench' arguments that name a data set", what);
    if (!st && !s->name) {
        snprintf(name, sizeof name, "%lld/%lld", (long long)s->input, (long long)s->output);
        s->name = gm_strdup(name);
    }
    return st;
}

/* ---- points ---- */

static bool is_among(const json_t *list, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) if (json_is_string(v) && !strcmp(json_string_value(v), name)) return true;
    return false;
}

static void put_file_word(gm_str *out, const char *word)
{
    for (const char *p = word; *p; p++)
        gm_str_putc(out, isalnum((unsigned char)*p) || strchr("._-", *p) ? *p : '-');
}

static void hash_text(uint64_t *h, const char *text)
{
    for (const char *p = text; *p; p++) *h = gm_mix64(*h, (unsigned char)*p);
    *h = gm_mix64(*h, 256);
}

/* All that decides what the point measures: if one of them changes, the record is of another point. */
static char *make_key(const gm_grid *g, const gm_grid_point *p)
{
    const gm_grid_server *s = &g->servers[p->server];
    char text[32];
    uint64_t h = 0;
    gm_str env = {0};
    char **argv = gm_grid_args(g, p, "", 0);
    for (int i = 0; argv[i]; i++) {
        if (!strcmp(argv[i], "--result-dir") || !strcmp(argv[i], "--metadata")) i++;
        else hash_text(&h, argv[i]);
    }
    hash_text(&h, s->command ? s->command : "");
    if (s->env) gm_json_put(&env, s->env);
    hash_text(&h, gm_str_c(&env));
    gm_str_fini(&env);
    gm_grid_args_free(argv);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
    return gm_strdup(text);
}

static void add_point(gm_grid *g, size_t server, size_t shape, int64_t concurrency, int64_t prompts,
                      int64_t seed)
{
    gm_str path = {0};
    g->points = gm_realloc_array(g->points, g->n_points + 1, sizeof *g->points);
    gm_grid_point *p = &g->points[g->n_points++];
    *p = (gm_grid_point){
        .server = server, .shape = shape, .concurrency = concurrency, .num_prompts = prompts, .seed = seed};
    gm_str_printf(&path, "%s/points/", g->out);
    put_file_word(&path, g->servers[server].name);
    gm_str_puts(&path, "__");
    put_file_word(&path, g->shapes[shape].name);
    gm_str_printf(&path, "__c%lld.json", (long long)concurrency);
    p->path = gm_str_take(&path);
    p->key = make_key(g, p);
    gm_grid_point_load(p);
}

static gm_status make_points(gm_grid *g, gm_error *err)
{
    int64_t factor = 1, fixed = 0, seed = 0;
    json_t *all;
    gm_status st = get_int(&factor, g->file, "prompts_per_concurrency", 1, "the file", err);
    if (!st) st = get_int(&fixed, g->file, "num_prompts", 1, "the file", err);
    if (!st) st = get_int(&seed, g->file, "seed", 0, "the file", err);
    if (!st) st = get_concurrency(&all, g->file, "the file", err);
    for (size_t s = 0; s < g->n_servers && !st; s++) {
        /* Each point has a seed of its own, the same for all servers: no point finds its prompts in the cache
         * that an earlier one filled. */
        int64_t index = 0;
        for (size_t h = 0; h < g->n_shapes && !st; h++) {
            const json_t *list = g->shapes[h].concurrency ? g->shapes[h].concurrency : all;
            size_t i;
            json_t *c;
            if (!json_array_size(list))
                st = gm_fail(err, GM_EFORMAT, "shape '%s' has no 'concurrency'", g->shapes[h].name);
            json_array_foreach(list, i, c)
            {
                index++;
                if (g->shapes[h].servers && !is_among(g->shapes[h].servers, g->servers[s].name)) continue;
                int64_t n = json_integer_value(c);
                add_point(g, s, h, n, fixed ? fixed : factor * n, seed + index);
            }
        }
    }
    return st;
}

static gm_status check_names(const gm_grid *g, gm_error *err)
{
    for (size_t a = 0; a < g->n_points; a++)
        for (size_t b = 0; b < a; b++)
            if (!strcmp(g->points[a].path, g->points[b].path))
                return gm_fail(err, GM_EFORMAT,
                               "two points have the record %s: give servers and shapes different names",
                               g->points[a].path);
    return GM_OK;
}

static gm_status read_lists(gm_grid *g, gm_error *err)
{
    json_t *servers, *shapes, *bench, *o;
    size_t i;
    gm_status st = only_keys(
        g->file, " title out bench server shape concurrency prompts_per_concurrency num_prompts seed ",
        "the file", err);
    if (!st) st = get(&servers, g->file, "server", JSON_ARRAY, "the file", err);
    if (!st) st = get(&shapes, g->file, "shape", JSON_ARRAY, "the file", err);
    if (!st) st = get_words(&bench, g->file, "bench", "the file", err);
    if (st) return st;
    if (!json_array_size(servers) || !json_array_size(shapes))
        return gm_fail(err, GM_EFORMAT, "the file needs at least one 'server' and one 'shape'");
    g->servers = gm_new_array(gm_grid_server, json_array_size(servers));
    g->shapes = gm_new_array(gm_grid_shape, json_array_size(shapes));
    json_array_foreach(servers, i, o) if (!st) st = read_server(&g->servers[g->n_servers++], o, i, err);
    json_array_foreach(shapes, i, o) if (!st) st = read_shape(&g->shapes[g->n_shapes++], o, i, err);
    return st;
}

static gm_status choose_out(gm_grid *g, const char *path, const char *out_dir, gm_error *err)
{
    const char *dot = strrchr(path, '.');
    gm_status st = get_text(&g->out, g->file, "out", "the file", err);
    if (st) return st;
    if (out_dir) {
        gm_free(g->out);
        g->out = gm_strdup(out_dir);
    }
    if (!g->out) g->out = gm_strndup(path, dot && dot > path ? (size_t)(dot - path) : strlen(path));
    st = get_text(&g->title, g->file, "title", "the file", err);
    if (!st && !g->title) g->title = gm_strdup("Benchmark grid");
    return st;
}

gm_status gm_grid_open(gm_grid *g, const char *path, const char *out_dir, gm_error *err)
{
    memset(g, 0, sizeof *g);
    gm_status st = read_file(&g->file, path, err);
    if (!st) st = choose_out(g, path, out_dir, err);
    if (!st) st = read_lists(g, err);
    if (!st) st = make_points(g, err);
    if (!st) st = check_names(g, err);
    if (st) {
        gm_context(err, st, "%s", path);
        gm_grid_close(g);
    }
    return st;
}

void gm_grid_close(gm_grid *g)
{
    for (size_t i = 0; i < g->n_servers; i++) {
        gm_free(g->servers[i].name);
        gm_free(g->servers[i].command);
        gm_free(g->servers[i].url);
    }
    for (size_t i = 0; i < g->n_shapes; i++) {
        gm_free(g->shapes[i].name);
        gm_free(g->shapes[i].range_ratio);
    }
    for (size_t i = 0; i < g->n_points; i++) {
        gm_free(g->points[i].path);
        gm_free(g->points[i].key);
        json_decref(g->points[i].record);
    }
    gm_free(g->servers);
    gm_free(g->shapes);
    gm_free(g->points);
    gm_free(g->title);
    gm_free(g->out);
    json_decref(g->file);
    memset(g, 0, sizeof *g);
}

void gm_grid_point_load(gm_grid_point *p)
{
    json_decref(p->record);
    p->record = NULL;
    if (gm_json_load(&p->record, p->path, NULL, NULL)) return;
    const char *key = json_string_value(json_object_get(p->record, "grid_key"));
    if (key && !strcmp(key, p->key) && json_integer_value(json_object_get(p->record, "completed")) > 0)
        return;
    json_decref(p->record);
    p->record = NULL;
}

double gm_grid_number(const gm_grid_point *p, const char *key)
{
    const json_t *v = json_object_get(p->record, key);
    if (json_is_number(v)) return json_number_value(v);
    if (!json_is_string(v)) return NAN;
    char *end;
    double d = strtod(json_string_value(v), &end);
    return end > json_string_value(v) && !*end ? d : NAN;
}

double gm_grid_capacity(const gm_grid *g, size_t server, size_t shape)
{
    double each = (double)(g->shapes[shape].input + g->shapes[shape].output + g->shapes[shape].prefix);
    for (size_t i = 0; i < g->n_points && each > 0; i++) {
        double tokens = gm_grid_number(&g->points[i], "kv_cache_tokens");
        if (g->points[i].server == server && g->points[i].record && tokens > 0) return tokens / each;
    }
    return NAN;
}
