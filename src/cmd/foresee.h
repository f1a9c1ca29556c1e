/* What `plan` and `simulate` share: flags of their own beside those of serve, and a server's limits from
 * both. */
#ifndef GM_CMD_FORESEE_H
#define GM_CMD_FORESEE_H

#include "base/opts.h"
#include "plan/sim_report.h"

typedef enum gm_flag_kind {
    GM_FLAG_BOOL,
    GM_FLAG_TEXT,
    GM_FLAG_LIST,
    GM_FLAG_IGNORED,
    GM_FLAG_IGNORED_BOOL
} gm_flag_kind;

/* A flag of the command's own. TEXT: the value; LIST: values up to the next flag, joined by blanks. */
typedef struct gm_flag {
    const char *name; /* without "--" */
    gm_flag_kind kind;
    const char *unit, *help;
    char **text; /* TEXT, LIST: where the value goes (gm_free) */
    bool *set;   /* BOOL; --no-NAME clears it */
} gm_flag;

/* Takes the command's own flags; all other words are parsed as those of `serve`. Shows help and errors.
 * False: leave with *status. */
bool gm_foresee_parse(gm_settings *s, const char *command, const gm_flag *flags, int argc, char **argv,
                      int *status);
void gm_flags_free(const gm_flag *flags);

gm_status gm_flag_int(int32_t *out, const char *flag, const char *text, int32_t lo, gm_error *err);
gm_status gm_flag_number(double *out, const char *flag, const char *text, double lo, gm_error *err);

/* Layout and limits as the flags of serve ask for; what is not given is what servers of that engine default
 * to. */
gm_status gm_foresee_server(gm_layout *l, gm_sim_params *p, const gm_settings *s, const gm_model_config *c,
                            const gm_machine *m, const char *engine, bool kv_shard, gm_error *err);

/* Run the checkpoint on this machine's CPU under a few short loads, fit a machine to them, write its file. */
gm_status gm_measure_cpu(const gm_settings *s, const char *path, gm_error *err);

int gm_cmd_plan(int argc, char **argv);
int gm_cmd_simulate(int argc, char **argv);

#endif
