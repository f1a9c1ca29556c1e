#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/foresee.h"

static void usage(FILE *to)
{
    fputs("usage: glimmer COMMAND ...\n\n"
          "  serve MODEL     HTTP server with the OpenAI dialect; flags as in `vllm serve`\n"
          "  chat MODEL      talk to a model in the terminal\n"
          "  inspect MODEL   what a checkpoint holds, what is wrong with it, bytes per token and per sequence\n"
          "  bench serve     load a server and measure it; flags, report and JSON as in `vllm bench serve`\n"
          "  bench grid FILE servers x shapes x concurrencies, one report\n"
          "  plan MODEL      memory map, session ceilings and predicted speed of every layout of a machine\n"
          "  simulate MODEL  a load through the scheduler and the cache on a virtual clock\n\n"
          "glimmer COMMAND --help shows the flags of a command; glimmer --version the version.\n",
          to);
}

bool gm_cmd_settings(gm_settings *s, gm_opt_command command, int argc, char **argv, int *status)
{
    gm_error err = {0};
    gm_str text = {0};
    static const char *const names[] = {[GM_OPT_SERVE] = "serve", [GM_OPT_CHAT] = "chat", [GM_OPT_INSPECT] = "inspect"};
    bool go = false;
    *status = 2;
    if (gm_settings_parse(s, command, argc, argv, &err)) {
        gm_opts_usage(&text, command);
        fprintf(stderr, "%sglimmer %s: error: %s\n", gm_str_c(&text), names[command], err.message);
    } else if (s->help) {
        gm_opts_help(&text, command, s->help_filter);
        fputs(gm_str_c(&text), stdout);
        *status = 0;
    } else if (!s->model) {
        gm_opts_usage(&text, command);
        fprintf(stderr, "%sglimmer %s: error: the following arguments are required: MODEL\n", gm_str_c(&text), names[command]);
    } else {
        go = true;
    }
    gm_str_fini(&text);
    if (!go) gm_settings_fini(s);
    return go;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    const char *c = argc > 1 ? argv[1] : "";
    if (!strcmp(c, "serve")) return gm_cmd_serve(argc - 2, argv + 2);
    if (!strcmp(c, "chat")) return gm_cmd_chat(argc - 2, argv + 2);
    if (!strcmp(c, "inspect")) return gm_cmd_inspect(argc - 2, argv + 2);
    if (!strcmp(c, "bench")) return gm_cmd_bench(argc - 2, argv + 2);
    if (!strcmp(c, "plan")) return gm_cmd_plan(argc - 2, argv + 2);
    if (!strcmp(c, "simulate")) return gm_cmd_simulate(argc - 2, argv + 2);
    if (!strcmp(c, "--version")) {
        puts("glimmer " GM_VERSION);
        return 0;
    }
    bool help = !strcmp(c, "--help") || !strcmp(c, "-h") || !strcmp(c, "help");
    usage(help ? stdout : stderr);
    if (!help && *c) fprintf(stderr, "\nglimmer: error: '%s' is not a command\n", c);
    return help ? 0 : 2;
}
