/* A machine as numbers, each with its source: what the data sheets say, and a handful of constants fitted to
 * published runs. Built-in ones by name; others from a JSON file of the same keys (docs/planner.md). */
#ifndef GM_PLAN_MACHINE_H
#define GM_PLAN_MACHINE_H

#include "base/json.h"

/* X(field, "unit", "what it is"): one GPU's figures unless said otherwise. */
#define GM_MACHINE_SPECS(X)                                                                                  \
    X(mem_bytes, "B", "memory the driver reports")                                                           \
    X(mem_bw, "B/s", "memory bandwidth")                                                                     \
    X(mem_eff, "share", "of the memory bandwidth that a copy reaches")                                       \
    X(flops_bf16, "FLOP/s", "dense BF16 matrix rate")                                                        \
    X(flops_fp8, "FLOP/s", "dense FP8 matrix rate")                                                          \
    X(link_bw, "B/s", "to all other GPUs of the node together, one direction")                               \
    X(reduce_value_bytes, "B", "of one value in an all-reduce between tensor-parallel ranks")

/* At most five of these may be fitted; which ones is said in each one's source. */
#define GM_MACHINE_FITTED(X)                                                                                 \
    X(layer_us, "us", "time a layer takes in every step whatever its size: launches and small kernels")      \
    X(flop_eff, "share", "of the matrix rate that kernels reach")                                            \
    X(token_work, "passes", "times a token's activations travel through memory in a layer, on every rank")   \
    X(matmul_eff, "share",                                                                                   \
      "of the copy bandwidth that matrix products reach where matrix-vector kernels end")                    \
    X(expert_spread, "shape",                                                                                \
      "how evenly tokens choose experts: shape of a gamma distribution, infinite: evenly")

/* Memory an engine holds beside weights, computed workspace and cache, one stated figure for each kind of
 * layout. */
#define GM_MACHINE_RESERVES(X)                                                                               \
    X(reserve_tp_bytes, "B", "per rank, without data parallelism")                                           \
    X(reserve_dp_bytes, "B", "per rank, with data parallelism")

#define GM_MACHINE_NUMBERS(X) GM_MACHINE_SPECS(X) GM_MACHINE_FITTED(X) GM_MACHINE_RESERVES(X)

typedef struct gm_machine {
    char name[48];
    int32_t n_gpus;
#define X(field, unit, what) double field;
    GM_MACHINE_NUMBERS(X)
#undef X
#define X(field, unit, what) char field##_source[192];
    GM_MACHINE_NUMBERS(X)
#undef X
} gm_machine;

enum { GM_MACHINE_N_FITTED = 5 };

/* "8xMI300X", "4xH200", ...: a built-in GPU times a count. GM_ENOTFOUND lists the names. */
gm_status gm_machine_builtin(gm_machine *out, const char *name, gm_error *err);
/* A name, or the path of a machine file. */
gm_status gm_machine_open(gm_machine *out, const char *name_or_path, gm_error *err);
gm_status gm_machine_parse(gm_machine *out, const json_t *v, const char *what, gm_error *err);
/* The file form, sources included. */
json_t *gm_machine_json(const gm_machine *m);
/* Built-in names, one after the other; NULL past the end. */
const char *gm_machine_name(int32_t i);

/* The fitted constants as an array, in the order of GM_MACHINE_FITTED. */
void gm_machine_get_fitted(const gm_machine *m, double *v);
void gm_machine_set_fitted(gm_machine *m, const double *v);

#endif
