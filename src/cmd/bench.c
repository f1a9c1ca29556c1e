/* glimmer bench serve | grid */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_serve.h"
#include "bench/grid.h"
#include "cmd/cmd.h"

static volatile int stopped;

static void on_signal(int sig)
{
    (void)sig;
    if (stopped) _exit(130);
    stopped = 1;
}

static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static int failed(const char *what, gm_status st, const gm_error *err)
{
    fflush(stdout);
    fprintf(stderr, "glimmer bench %s: error: %s\n", what, err->message);
    return st == GM_ECANCELED ? 130 : st == GM_EARG ? 2 : 1;
}

static bool is_set(const char *name)
{
    const char *v = getenv(name);
    return v && *v;
}

static gm_bench_env environment(void)
{
    return (gm_bench_env){.api_key = getenv("OPENAI_API_KEY"),
                          .proxy = is_set("http_proxy") || is_set("all_proxy") || is_set("ALL_PROXY"),
                          .stop = &stopped};
}

static int bench_serve(int argc, char **argv)
{
    gm_settings s;
    gm_error err = {0};
    gm_str text = {0};
    int64_t completed = 0;
    if (gm_settings_parse(&s, GM_OPT_BENCH, argc, argv, &err)) {
        gm_opts_usage(&text, GM_OPT_BENCH);
        fputs(gm_str_c(&text), stderr);
        gm_str_fini(&text);
        return failed("serve", GM_EARG, &err);
    }
    if (s.help) {
        gm_opts_help(&text, GM_OPT_BENCH, s.help_filter);
        fputs(gm_str_c(&text), stdout);
        gm_str_fini(&text);
        gm_settings_fini(&s);
        return 0;
    }
    gm_settings_put_changed(&s, &text);
    printf("Namespace(%s)\n", gm_str_c(&text));
    gm_str_fini(&text);
    catch_signals();
    gm_bench_env env = environment();
    gm_status st = gm_bench_serve(&s, &env, &completed, &err);
    gm_settings_fini(&s);
    if (st) return failed("serve", st, &err);
    return completed > 0 ? 0 : 1;
}

static void usage(FILE *to)
{
    fputs("usage: glimmer bench serve [--flag VALUE ...]   load a server; flags, report and JSON as in `vllm "
          "bench serve`\n"
          "       glimmer bench grid FILE [flags]           servers x shapes x concurrencies of a TOML or "
          "JSON file\n\n"
          "flags of bench grid:\n"
          "  --out FOLDER    where records and reports go (default: the file's \"out\", or its name without "
          "the ending)\n"
          "  --report-only   measure nothing, write the reports from the records that are there\n"
          "  --dry-run       show the points and the command lines\n",
          to);
}

typedef struct grid_flags {
    const char *file, *out;
    bool report_only, dry_run;
} grid_flags;

static bool read_grid_flags(grid_flags *f, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--report-only")) f->report_only = true;
        else if (!strcmp(argv[i], "--dry-run")) f->dry_run = true;
        else if (!strcmp(argv[i], "--resume")) continue; /* it always does */
        else if (!strcmp(argv[i], "--out") && i + 1 < argc) f->out = argv[++i];
        else if (!strncmp(argv[i], "--out=", 6)) f->out = argv[i] + 6;
        else if (argv[i][0] != '-' && !f->file) f->file = argv[i];
        else return false;
    }
    return f->file != NULL;
}

static void show_points(const gm_grid *g)
{
    for (size_t i = 0; i < g->n_points; i++) {
        const gm_grid_point *p = &g->points[i];
        char **a = gm_grid_args(g, p, "glimmer", 0);
        printf("%s %s: ", p->record ? "measured" : "missing ", g->servers[p->server].name);
        for (int k = 0; a[k]; k++) printf("%s%s", k ? " " : "", a[k]);
        putchar('\n');
        gm_grid_args_free(a);
    }
}

static int bench_grid(int argc, char **argv)
{
    grid_flags f = {0};
    gm_grid g;
    gm_error err = {0};
    char program[4096];
    int missed = 0;
    if (!read_grid_flags(&f, argc, argv)) {
        usage(stderr);
        return 2;
    }
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    if (n <= 0) {
        gm_fail(&err, GM_EIO, "this program's own path is not known (/proc/self/exe)");
        return failed("grid", GM_EIO, &err);
    }
    gm_status st = gm_grid_open(&g, f.file, f.out, &err);
    if (st) return failed("grid", st, &err);
    catch_signals();
    if (f.dry_run) {
        show_points(&g);
    } else {
        if (!f.report_only) st = gm_grid_run(&g, program, &stopped, &missed, &err);
        gm_error why = err;
        gm_status report = gm_grid_report(&g, &err);
        if (!report) printf("reports: %s/report.html, report.md, report.csv\n", g.out);
        if (st) err = why;
        else st = report;
    }
    gm_grid_close(&g);
    if (st) return failed("grid", st, &err);
    if (missed)
        fprintf(stderr, "glimmer bench grid: %d points failed; the same command tries them again\n", missed);
    return missed ? 1 : 0;
}

int gm_cmd_bench(int argc, char **argv)
{
    const char *c = argc > 0 ? argv[0] : "";
    if (!strcmp(c, "serve")) return bench_serve(argc - 1, argv + 1);
    if (!strcmp(c, "grid") && !(argc > 1 && !strcmp(argv[1], "--help")))
        return bench_grid(argc - 1, argv + 1);
    bool help = !strcmp(c, "grid") || !strcmp(c, "--help") || !strcmp(c, "-h");
    usage(help ? stdout : stderr);
    if (!help && *c) fprintf(stderr, "glimmer bench: error: '%s' is not a benchmark\n", c);
    return help ? 0 : 2;
}
