#include "plan/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct number {
    const char *key, *unit;
    size_t value, source;
} number;

static const number numbers[] = {
#define X(field, unit, what)                                                                                 \
    {#field, unit, offsetof(gm_machine, field), offsetof(gm_machine, field##_source)},
    GM_MACHINE_NUMBERS(X)
#undef X
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers, SOURCE_LEN = sizeof((gm_machine *)0)->mem_bw_source };

static double *value_of(gm_machine *m, const number *n)
{
    return (double *)(void *)((char *)m + n->value);
}

static char *source_of(gm_machine *m, const number *n)
{
    return (char *)m + n->source;
}

#define FITTED_ON "fitted to published runs of GLM-5.3-Flash FP8, vLLM 0.31.0, 8x MI300X (glimmer plan --fit)"
#define TAKEN_OVER "taken over from 8xMI300X, not measured on this machine"
#define SOLVED "solved from the published token pool on 8x MI300X (docs/planner.md)"

/* The constants of the one machine that published points were fitted on; the others take them over. */
static const double fitted[GM_MACHINE_N_FITTED] = {241.7, 0.1669, 17.43, 0.5661, 0.1957};
static const double reserve_tp = 4.04e9, reserve_dp = 4.16e9;

static const struct {
    const char *gpu;
    double mem_bytes, mem_bw, mem_eff, bf16, fp8, link_bw, reduce_value_bytes;
    const char *mem_source, *sheet;
    bool measured;
} gpus[] = {
    {"MI300X", 206141652992, 5.3e12, 0.81, 1307.4e12, 2614.9e12, 448e9, 0.5625, "rocm-smi, VRAM Total Memory",
     "AMD Instinct MI300X data sheet; links: 7 x 64 GB/s Infinity Fabric", true},
    {"MI325X", 274861129728, 6.0e12, 0.81, 1307.4e12, 2614.9e12, 448e9, 2,
     "256 GiB less 16 MiB, as rocm-smi reports its kin",
     "AMD Instinct MI325X data sheet; links: 7 x 64 GB/s Infinity Fabric", false},
    {"H200", 150754820096, 4.8e12, 0.9, 989.5e12, 1979e12, 450e9, 2, "nvidia-smi, 143771 MiB",
     "NVIDIA H200 data sheet; links: NVLink 4, 900 GB/s both directions", false},
    {"H100", 85520809984, 3.35e12, 0.9, 989.5e12, 1979e12, 450e9, 2, "nvidia-smi, 81559 MiB",
     "NVIDIA H100 SXM data sheet; links: NVLink 4, 900 GB/s both directions", false},
    {"B200", 192265846784, 8.0e12, 0.9, 2250e12, 4500e12, 900e9, 2, "nvidia-smi, 183359 MiB",
     "NVIDIA B200 data sheet (dense rates); links: NVLink 5, 1.8 TB/s both directions", false},
    {"MI355X", 309220868096, 8.0e12, 0.81, 2516.6e12, 5033.2e12, 537.6e9, 2, "rocm-smi, VRAM Total Memory",
     "AMD Instinct MI355X data sheet (dense rates); links: 7 x 76.8 GB/s Infinity Fabric", false},
};
enum { N_GPUS = sizeof gpus / sizeof *gpus };

const char *gm_machine_name(int32_t i)
{
    static const char *const names[] = {"8xMI300X", "8xMI325X", "8xH200", "8xH100", "8xB200", "8xMI355X"};
    return i >= 0 && i < (int32_t)(sizeof names / sizeof *names) ? names[i] : NULL;
}

void gm_machine_get_fitted(const gm_machine *m, double *v)
{
    int i = 0;
#define X(field, unit, what) v[i++] = m->field;
    GM_MACHINE_FITTED(X)
#undef X
}

void gm_machine_set_fitted(gm_machine *m, const double *v)
{
    int i = 0;
#define X(field, unit, what) m->field = v[i++];
    GM_MACHINE_FITTED(X)
#undef X
}

static void fill(gm_machine *m, int i)
{
    m->mem_bytes = gpus[i].mem_bytes;
    m->mem_bw = gpus[i].mem_bw;
    m->mem_eff = gpus[i].mem_eff;
    m->flops_bf16 = gpus[i].bf16;
    m->flops_fp8 = gpus[i].fp8;
    m->link_bw = gpus[i].link_bw;
    m->reduce_value_bytes = gpus[i].reduce_value_bytes;
    m->reserve_tp_bytes = reserve_tp;
    m->reserve_dp_bytes = reserve_dp;
    gm_machine_set_fitted(m, fitted);
#define X(field, unit, what) snprintf(m->field##_source, SOURCE_LEN, "%s", gpus[i].sheet);
    GM_MACHINE_SPECS(X)
#undef X
    snprintf(m->reduce_value_bytes_source, SOURCE_LEN, "%s",
             gpus[i].reduce_value_bytes < 2
                 ? "INT4 with a BF16 scale for each 32 values: the setting of the published runs"
                 : "BF16, the default of servers");
    snprintf(
        m->mem_eff_source, SOURCE_LEN, "%s",
        gpus[i].mem_eff < 0.9
            ? "BabelStream on MI300X, 81 % of the peak (Ambati et al., MI300X performance analysis, 2025)"
            : "BabelStream, up to 90 % of the peak on NVIDIA GPUs (Ambati et al., 2025)");
    snprintf(m->mem_bytes_source, SOURCE_LEN, "%s", gpus[i].mem_source);
#define X(field, unit, what)                                                                                 \
    snprintf(m->field##_source, SOURCE_LEN, "%s", gpus[i].measured ? FITTED_ON : TAKEN_OVER);
    GM_MACHINE_FITTED(X)
#undef X
#define X(field, unit, what) snprintf(m->field##_source, SOURCE_LEN, "%s", SOLVED);
    GM_MACHINE_RESERVES(X)
#undef X
}

gm_status gm_machine_builtin(gm_machine *out, const char *name, gm_error *err)
{
    char *end = NULL;
    long n = strtol(name, &end, 10);
    for (int i = 0; i < N_GPUS; i++) {
        if (n < 1 || n > 1024 || *end != 'x' || strcasecmp(end + 1, gpus[i].gpu) != 0) continue;
        *out = (gm_machine){.n_gpus = (int32_t)n};
        snprintf(out->name, sizeof out->name, "%ldx%s", n, gpus[i].gpu);
        fill(out, i);
        return GM_OK;
    }
    return gm_fail(err, GM_ENOTFOUND,
                   "'%.64s' is not a machine: use 8xMI300X, 8xMI325X, 8xH200, 8xH100, 8xB200, 8xMI355X, "
                   "another count of "
                   "these, or the path of a machine file",
                   name);
}

static gm_status parse_number(gm_machine *m, const number *n, const json_t *v, const char *what,
                              gm_error *err)
{
    const json_t *o = json_object_get(v, n->key), *x = json_object_get(o, "value"),
                 *s = json_object_get(o, "source");
    if (!o) return gm_fail(err, GM_EFORMAT, "%s: '%s' is missing", what, n->key);
    if (!json_is_number(x) || !(json_number_value(x) >= 0) || !isfinite(json_number_value(x)))
        return gm_fail(err, GM_EFORMAT, "%s: '%s' needs a value that is a number, zero or more", what,
                       n->key);
    if (!json_is_string(s) || !*json_string_value(s))
        return gm_fail(err, GM_EFORMAT, "%s: '%s' needs a source: say where the number comes from", what,
                       n->key);
    *value_of(m, n) = json_number_value(x);
    snprintf(source_of(m, n), SOURCE_LEN, "%s", json_string_value(s));
    return GM_OK;
}

static gm_status check(const gm_machine *m, const char *what, gm_error *err)
{
    const struct {
        const char *key;
        double v, lo, hi;
    } bounds[] = {
        {"mem_bytes", m->mem_bytes, 1e6, 1e15},   {"mem_bw", m->mem_bw, 1e6, 1e15},
        {"flops_bf16", m->flops_bf16, 1e6, 1e18}, {"flops_fp8", m->flops_fp8, 1e6, 1e18},
        {"link_bw", m->link_bw, 1e3, 1e15},       {"reduce_value_bytes", m->reduce_value_bytes, 0, 8},
        {"mem_eff", m->mem_eff, 1e-4, 1},         {"flop_eff", m->flop_eff, 1e-5, 1},
        {"layer_us", m->layer_us, 0, 1e7},        {"expert_spread", m->expert_spread, 1e-3, 1e9},
        {"token_work", m->token_work, 0, 1e6},    {"matmul_eff", m->matmul_eff, 1e-3, 1}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].v < bounds[i].lo || bounds[i].v > bounds[i].hi)
            return gm_fail(err, GM_EFORMAT, "%s: '%s' is %g, must be from %g to %g", what, bounds[i].key,
                           bounds[i].v, bounds[i].lo, bounds[i].hi);
    return GM_OK;
}

gm_status gm_machine_parse(gm_machine *out, const json_t *v, const char *what, gm_error *err)
{
    gm_machine m = {0};
    const char *key;
    json_t *each;
    const json_t *name = json_object_get(v, "name"), *n = json_object_get(v, "n_gpus");
    if (!json_is_object(v)) return gm_fail(err, GM_EFORMAT, "%s: not an object", what);
    if (!json_is_string(name)) return gm_fail(err, GM_EFORMAT, "%s: 'name' is missing", what);
    if (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > 1024)
        return gm_fail(err, GM_EFORMAT, "%s: 'n_gpus' must be a whole number from 1 to 1024", what);
    snprintf(m.name, sizeof m.name, "%s", json_string_value(name));
    m.n_gpus = (int32_t)json_integer_value(n);
    json_t *object = json_deep_copy(v);
    gm_status st = GM_OK;
    json_object_foreach(object, key, each)
    {
        bool known = !strcmp(key, "name") || !strcmp(key, "n_gpus");
        for (int i = 0; i < N_NUMBERS; i++) known |= !strcmp(key, numbers[i].key);
        if (!known && !st)
            st = gm_fail(err, GM_EFORMAT, "%s: '%.64s' is not a key of a machine file", what, key);
    }
    json_decref(object);
    for (int i = 0; i < N_NUMBERS && !st; i++) st = parse_number(&m, &numbers[i], v, what, err);
    if (!st) st = check(&m, what, err);
    if (!st) *out = m;
    return st;
}

gm_status gm_machine_open(gm_machine *out, const char *name_or_path, gm_error *err)
{
    if (!strchr(name_or_path, '/') && access(name_or_path, R_OK) != 0)
        return gm_machine_builtin(out, name_or_path, err);
    json_t *v = NULL;
    gm_status st =
        gm_json_load(&v, name_or_path, &(gm_json_limits){.bytes_max = 1 << 20, .depth_max = 8}, err);
    if (!st) st = gm_machine_parse(out, v, name_or_path, err);
    json_decref(v);
    return st;
}

json_t *gm_machine_json(const gm_machine *m)
{
    gm_machine copy = *m;
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(m->name));
    json_object_set_new(o, "n_gpus", json_integer(m->n_gpus));
    for (int i = 0; i < N_NUMBERS; i++) {
        json_t *e = json_object();
        json_object_set_new(e, "value", json_real(*value_of(&copy, &numbers[i])));
        json_object_set_new(e, "unit", json_string(numbers[i].unit));
        json_object_set_new(e, "source", json_string(source_of(&copy, &numbers[i])));
        json_object_set_new(o, numbers[i].key, e);
    }
    return o;
}
