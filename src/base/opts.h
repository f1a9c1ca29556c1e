/* Settings: parsed once, from the command line and an optional --config file, into one struct from one table
 * (opts_table.h), and passed down from there. Flags may use '_' or '-', a value may follow '=' or a blank, the last one
 * given wins, every boolean has a --no- twin. JSON settings also take dotted keys (--hf-overrides.index_topk 4). */
#ifndef GM_BASE_OPTS_H
#define GM_BASE_OPTS_H

#include "base/json.h"
#include "base/opts_table.h"

typedef enum gm_opt_command {
    GM_OPT_SERVE = 1,
    GM_OPT_CHAT = 2,
    GM_OPT_INSPECT = 4,
    GM_OPT_RUN = GM_OPT_SERVE | GM_OPT_CHAT,
    GM_OPT_ALL = GM_OPT_RUN | GM_OPT_INSPECT,
    GM_OPT_BENCH = 256,
    GM_OPT_SERVE_BENCH = GM_OPT_SERVE | GM_OPT_BENCH,
    GM_OPT_CHAT_BENCH = GM_OPT_CHAT | GM_OPT_BENCH,
    GM_OPT_RUN_BENCH = GM_OPT_RUN | GM_OPT_BENCH,
    GM_OPT_ANY = GM_OPT_ALL | GM_OPT_BENCH,
} gm_opt_command;

#define GM_CTYPE_BOOL bool
#define GM_CTYPE_INT int64_t
#define GM_CTYPE_HUMAN int64_t
#define GM_CTYPE_FLOAT double
#define GM_CTYPE_STR char *
#define GM_CTYPE_LIST json_t * /* array of strings */
#define GM_CTYPE_JSON json_t *

typedef enum gm_opt_id {
#define X(field, TYPE, ...) GM_OPT_ID_##field,
    GM_OPT_TABLE(X)
#undef X
    GM_OPT_COUNT
} gm_opt_id;

typedef struct gm_settings {
#define X(field, TYPE, ...) GM_CTYPE_##TYPE field;
    GM_OPT_TABLE(X)
#undef X
    bool given[GM_OPT_COUNT]; /* set by the command line or the file */
    json_t *ignored;          /* array of flags that were accepted and have no effect */
    bool help;
    char *help_filter; /* of --help=WORD; NULL: the overview */
} gm_settings;
#define gm_settings_given(s, field) ((s)->given[GM_OPT_ID_##field])

/* argv holds the words after the subcommand. GM_EARG: the message is what argparse would say ("argument --x: ..."). */
gm_status gm_settings_parse(gm_settings *out, gm_opt_command command, int argc, char *const *argv, gm_error *err);
void gm_settings_fini(gm_settings *s);

/* "usage: glimmer serve [MODEL] [flags] ...", one line. */
void gm_opts_usage(gm_str *out, gm_opt_command command);
/* filter NULL: the groups; "all", a group's name, or a word: the flags that match, each with unit and default. */
void gm_opts_help(gm_str *out, gm_opt_command command, const char *filter);
/* {'port': 8001, ...}: what was set to something other than its default; keys are not shown. */
void gm_settings_put_changed(const gm_settings *s, gm_str *out);

/* 32k, 32K, 2.5k, 1024. GM_EARG with the reason. */
gm_status gm_human_int(int64_t *out, const char *text, gm_error *err);

#endif
