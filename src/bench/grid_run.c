/* Processes of a grid: a server, and beside it one `bench serve` after the other. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/client.h"
#include "bench/grid.h"

extern char **environ;

enum { STOP_WAIT_S = 120, LOOK_MS = 100 };

/* ---- words of one point ---- */

typedef struct word_list {
    char **v;
    size_t n;
} word_list;

static void add(word_list *w, const char *word)
{
    w->v = gm_realloc_array(w->v, w->n + 2, sizeof *w->v);
    w->v[w->n++] = gm_strdup(word);
    w->v[w->n] = NULL;
}

static void add_pair(word_list *w, const char *flag, const char *value)
{
    add(w, flag);
    add(w, value);
}

static void add_int(word_list *w, const char *flag, int64_t v)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v);
    add_pair(w, flag, text);
}

static void add_json(word_list *w, const json_t *list)
{
    size_t i;
    json_t *v;
    char text[64];
    json_array_foreach(list, i, v)
    {
        if (json_is_integer(v)) snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        else if (json_is_real(v)) snprintf(text, sizeof text, "%.17g", json_real_value(v));
        add(w, json_is_string(v) ? json_string_value(v) : text);
    }
}

char **gm_grid_args(const gm_grid *g, const gm_grid_point *p, const char *program, int64_t kv_tokens)
{
    word_list w = {0};
    const gm_grid_server *s = &g->servers[p->server];
    const gm_grid_shape *h = &g->shapes[p->shape];
    const char *slash = strrchr(p->path, '/');
    char text[96];
    add(&w, program);
    add(&w, "bench");
    add(&w, "serve");
    add_pair(&w, "--base-url", s->url);
    if (h->input) add_int(&w, "--random-input-len", h->input);
    if (h->output) add_int(&w, "--random-output-len", h->output);
    if (h->prefix) add_int(&w, "--random-prefix-len", h->prefix);
    if (h->range_ratio) add_pair(&w, "--random-range-ratio", h->range_ratio);
    add_int(&w, "--num-prompts", p->num_prompts);
    add_int(&w, "--max-concurrency", p->concurrency);
    add_int(&w, "--seed", p->seed);
    add_pair(&w, "--percentile-metrics", "ttft,tpot,itl,e2el");
    add_pair(&w, "--metric-percentiles", "90,99");
    add_json(&w, json_object_get(g->file, "bench"));
    add_json(&w, s->bench);
    add_json(&w, h->bench);
    add(&w, "--disable-tqdm");
    add(&w, "--save-result");
    add_pair(&w, "--result-dir", "");
    gm_free(w.v[w.n - 1]);
    w.v[w.n - 1] = gm_strndup(p->path, (size_t)(slash - p->path));
    add_pair(&w, "--result-filename", slash + 1);
    snprintf(text, sizeof text, "grid_key=%s", p->key ? p->key : "");
    add_pair(&w, "--metadata", text);
    snprintf(text, sizeof text, "kv_cache_tokens=%lld", (long long)kv_tokens);
    if (kv_tokens > 0) add(&w, text);
    return w.v;
}

void gm_grid_args_free(char **argv)
{
    for (char **a = argv; a && *a; a++) gm_free(*a);
    gm_free(argv);
}

/* ---- processes ---- */

/* In a process group of its own, output to log; the words of argv are run as they are. -1: errno. */
static pid_t spawn(char *const *argv, const json_t *env, const char *log)
{
    pid_t pid = fork();
    if (pid) {
        if (pid > 0) setpgid(pid, pid);
        return pid;
    }
    setpgid(0, 0);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666), null = open("/dev/null", O_RDONLY);
    if (fd >= 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
    }
    if (null >= 0) dup2(null, STDIN_FILENO);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)env, key, v) if (json_is_string(v))
        setenv(key, json_string_value(v), 1);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* True when it has ended; *code as a shell would say it. */
static bool ended(pid_t pid, int *code, bool wait)
{
    int st;
    if (waitpid(pid, &st, wait ? 0 : WNOHANG) != pid) return false;
    *code = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
    return true;
}

/* The whole group: the shell may be gone before what it started. */
static void end_group(pid_t pid)
{
    int code;
    kill(-pid, SIGTERM);
    for (int i = 0; i < STOP_WAIT_S * 1000 / LOOK_MS; i++) {
        ended(pid, &code, false);
        if (kill(-pid, 0) && errno == ESRCH) return;
        usleep(LOOK_MS * 1000);
    }
    kill(-pid, SIGKILL);
    ended(pid, &code, true);
}

/* ---- a server ---- */

typedef struct served {
    pid_t pid; /* 0: not ours */
    char *log;
    int64_t kv_tokens;
} served;

static void read_log(const char *path, gm_str *out)
{
    FILE *f = fopen(path, "rb");
    char buf[65536];
    size_t n;
    gm_str_clear(out);
    while (f && (n = fread(buf, 1, sizeof buf, f)) > 0 && out->len < (size_t)1 << 28)
        gm_str_append(out, buf, n);
    if (f) fclose(f);
}

int64_t gm_grid_kv_tokens(const char *log, size_t len)
{
    static const char key[] = "GPU KV cache size: ";
    int64_t sum = 0;
    const char *p = log, *end = log + len;
    while ((p = memmem(p, (size_t)(end - p), key, sizeof key - 1))) {
        int64_t v = 0;
        for (p += sizeof key - 1; p < end && ((*p >= '0' && *p <= '9') || *p == ','); p++)
            if (*p != ',' && v < (int64_t)1 << 50) v = 10 * v + (*p - '0');
        sum += v;
    }
    return sum;
}

static bool answers(gm_client *c, const char *url)
{
    gm_str text = {0}, path = {0};
    long status = 0;
    gm_str_printf(&path, "%s/health", url);
    bool ok = !gm_client_fetch(c, "GET", gm_str_c(&path), NULL, 5, &status, &text, NULL) && status == 200;
    gm_str_fini(&text);
    gm_str_fini(&path);
    return ok;
}

static const char *tail_of(const gm_str *log)
{
    return gm_str_c(log) + (log->len > 600 ? log->len - 600 : 0);
}

static gm_status wait_ready(served *v, const gm_grid_server *s, gm_client *c, volatile const int *stop,
                            gm_error *err)
{
    int64_t until = gm_client_now_ns() + (int64_t)(s->ready_timeout_s * 1e9);
    gm_str log = {0};
    gm_status st = GM_OK;
    for (;;) {
        int code;
        read_log(v->log, &log);
        bool said = strstr(gm_str_c(&log), "Application startup complete") != NULL;
        if (answers(c, s->url)) break;
        if (ended(v->pid, &code, false)) {
            st = gm_fail(err, GM_EIO,
                         "server '%s' ended with status %d before it was ready; its log ends:\n%s", s->name,
                         code, tail_of(&log));
            v->pid = 0;
            break;
        }
        if (*stop) st = gm_fail(err, GM_ECANCELED, "stopped");
        else if (gm_client_now_ns() > until)
            st = gm_fail(err, GM_ETIMEOUT, "server '%s' was not ready after %.0f s%s; its log ends:\n%s",
                         s->name, s->ready_timeout_s, said ? " (it says it is, but does not answer)" : "",
                         tail_of(&log));
        if (st) break;
        usleep(LOOK_MS * 1000);
    }
    read_log(v->log, &log);
    v->kv_tokens = gm_grid_kv_tokens(gm_str_c(&log), log.len);
    gm_str_fini(&log);
    return st;
}

static void stop_server(served *v)
{
    if (v->pid > 0) end_group(v->pid);
    gm_free(v->log);
    *v = (served){0};
}

static gm_status start_server(served *v, const gm_grid *g, const gm_grid_server *s, gm_client *c,
                              volatile const int *stop, gm_error *err)
{
    gm_str path = {0}, line = {0};
    *v = (served){0};
    if (!s->command)
        return answers(c, s->url)
                   ? GM_OK
                   : gm_fail(err, GM_EIO, "server '%s': nothing answers at %s/health", s->name, s->url);
    if (answers(c, s->url))
        return gm_fail(err, GM_EIO, "server '%s': something answers at %s already", s->name, s->url);
    gm_str_printf(&path, "%s/server-", g->out);
    for (const char *p = s->name; *p; p++)
        gm_str_putc(&path, isalnum((unsigned char)*p) || strchr("._-", *p) ? *p : '-');
    gm_str_puts(&path, ".log");
    v->log = gm_str_take(&path);
    gm_str_puts(&line, s->command);
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, gm_str_take(&line), NULL};
    printf("server %s: %s\n", s->name, s->command);
    fflush(stdout);
    v->pid = spawn(argv, s->env, v->log);
    gm_free(argv[2]);
    gm_status st =
        v->pid < 0 ? gm_fail(err, GM_EIO, "fork: %s", strerror(errno)) : wait_ready(v, s, c, stop, err);
    if (st) stop_server(v);
    else if (v->kv_tokens)
        printf("server %s is ready; its cache holds %lld tokens\n", s->name, (long long)v->kv_tokens);
    else printf("server %s is ready\n", s->name);
    fflush(stdout);
    return st;
}

/* ---- points ---- */

static gm_status run_point(const gm_grid *g, gm_grid_point *p, const char *program, const served *v,
                           volatile const int *stop, gm_error *err)
{
    char **argv = gm_grid_args(g, p, program, v->kv_tokens);
    gm_str log = {0}, text = {0};
    int code = 0;
    gm_str_append(&log, p->path, strlen(p->path) - 5);
    gm_str_puts(&log, ".log");
    pid_t pid = spawn(argv, NULL, gm_str_c(&log));
    gm_status st = pid < 0 ? gm_fail(err, GM_EIO, "fork: %s", strerror(errno)) : GM_OK;
    while (!st && !ended(pid, &code, false)) {
        if (*stop) {
            end_group(pid);
            st = gm_fail(err, GM_ECANCELED, "stopped");
        }
        usleep(LOOK_MS * 1000 / 5);
    }
    if (!st) {
        gm_grid_point_load(p);
        read_log(gm_str_c(&log), &text);
        if (!p->record)
            st = gm_fail(err, GM_EIO, "bench serve ended with status %d; its output ends:\n%s", code,
                         tail_of(&text));
    }
    gm_str_fini(&log);
    gm_str_fini(&text);
    gm_grid_args_free(argv);
    return st;
}

static gm_status run_server_points(gm_grid *g, size_t server, const char *program, gm_client *c,
                                   volatile const int *stop, int *failed, gm_error *err)
{
    size_t missing = 0;
    served v = {0};
    for (size_t i = 0; i < g->n_points; i++) missing += g->points[i].server == server && !g->points[i].record;
    if (!missing) return GM_OK;
    gm_status st = start_server(&v, g, &g->servers[server], c, stop, err);
    for (size_t i = 0; i < g->n_points && !st; i++) {
        gm_grid_point *p = &g->points[i];
        if (p->server != server || p->record) continue;
        printf("  %-16s concurrency %-6lld ", g->shapes[p->shape].name, (long long)p->concurrency);
        fflush(stdout);
        st = run_point(g, p, program, &v, stop, err);
        if (!st)
            printf("%10.2f tok/s out, median TTFT %.1f ms, TPOT %.2f ms%s\n",
                   gm_grid_number(p, "output_throughput"), gm_grid_number(p, "median_ttft_ms"),
                   gm_grid_number(p, "median_tpot_ms"),
                   gm_grid_number(p, "failed") > 0 ? "  (some requests failed)" : "");
        else printf("%s\n", st == GM_ECANCELED ? "stopped" : err->message);
        fflush(stdout);
        if (st && st != GM_ECANCELED) {
            (*failed)++;
            st = GM_OK;
        }
    }
    stop_server(&v);
    return st;
}

static gm_status make_folder(const char *out, const char *sub, gm_error *err)
{
    gm_str path = {0};
    gm_str_printf(&path, "%s%s", out, sub);
    for (char *p = path.data + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path.data, 0777);
        *p = '/';
    }
    gm_status st = mkdir(gm_str_c(&path), 0777) && errno != EEXIST
                       ? gm_fail(err, GM_EIO, "%s: %s", gm_str_c(&path), strerror(errno))
                       : GM_OK;
    gm_str_fini(&path);
    return st;
}

gm_status gm_grid_run(gm_grid *g, const char *program, volatile const int *stop, int *failed, gm_error *err)
{
    gm_client *c = NULL;
    *failed = 0;
    gm_status st = make_folder(g->out, "/points", err);
    if (!st) st = gm_client_open(&c, &(gm_client_params){.streams_max = 4}, err);
    for (size_t s = 0; s < g->n_servers && !st; s++)
        st = run_server_points(g, s, program, c, stop, failed, err);
    gm_client_close(c);
    return st;
}
