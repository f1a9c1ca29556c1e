/* The fitted constants of a machine, from published points of benchmark runs. Each point is predicted by a
 * simulated run; Nelder-Mead searches the logarithms of the constants for the least squared relative error.
 */
#ifndef GM_PLAN_FIT_H
#define GM_PLAN_FIT_H

#include "plan/sim.h"

typedef struct gm_fit_point {
    char shape[24];
    gm_layout layout;
    gm_kv_dtype kv_dtype;
    int32_t n_in, n_out, concurrency; /* one burst of `concurrency` requests */
    double output_tok_s;              /* published */
    double predicted;                 /* by gm_fit_predict() */
} gm_fit_point;

typedef struct gm_fit_set {
    gm_fit_point *points;
    int32_t n;
    gm_server_limits limits; /* as the runs had them */
} gm_fit_set;

/* The form of tests/fixtures/plan/glm53-mi300x.json. */
gm_status gm_fit_set_parse(gm_fit_set *out, const json_t *v, const char *what, gm_error *err);
void gm_fit_set_fini(gm_fit_set *s);

/* Fill `predicted` of every point whose shape is not `skip` (NULL: all). */
gm_status gm_fit_predict(gm_fit_set *s, const gm_model_config *c, const gm_machine *m, const char *skip,
                         gm_error *err);

typedef struct gm_fit_error {
    double mean, worst; /* absolute relative error */
    int32_t worst_idx, n;
} gm_fit_error;

/* Over the points of one shape, or all (NULL). */
gm_fit_error gm_fit_error_of(const gm_fit_set *s, const char *shape);

/* Better constants into m, starting from its own. The points of shape `skip` are not looked at. */
gm_status gm_fit_run(gm_machine *m, gm_fit_set *s, const gm_model_config *c, const char *skip, int32_t rounds,
                     gm_error *err);

#endif
