#include "plan/sim_load.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/np_random.h"

enum { N_MAX = 10000000, LEN_MAX = 1 << 28 };

static double normal(gm_pcg64 *r)
{
    double u = 1 - gm_pcg64_uniform(r), v = gm_pcg64_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Marsaglia and Tsang; a shape below 1 through shape + 1. */
static double gamma_draw(gm_pcg64 *r, double shape)
{
    if (shape < 1) return gamma_draw(r, shape + 1) * pow(1 - gm_pcg64_uniform(r), 1 / shape);
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(r), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(1 - gm_pcg64_uniform(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* Gaps of mean 1 / rate, then scaled so that the last request comes at n / rate. */
static void draw_arrivals(gm_load *l, const gm_load_random *p, gm_pcg64 *r)
{
    double *t = gm_new_array(double, p->n), sum = 0;
    for (int32_t i = 0; i < p->n; i++) t[i] = sum += gamma_draw(r, p->burstiness) / (p->rate * p->burstiness);
    double scale = sum > 0 ? p->n / p->rate / sum : 0;
    for (int32_t i = 0; i < p->n; i++) l->items[i].arrival_ns = llround(t[i] * scale * 1e9);
    gm_free(t);
}

static gm_status check_random(const gm_load_random *p, gm_error *err)
{
    if (p->n < 1 || p->n > N_MAX)
        return gm_fail(err, GM_EARG, "number of prompts is %d, must be from 1 to %d", p->n, N_MAX);
    if (p->n_in < 1 || p->n_in > LEN_MAX)
        return gm_fail(err, GM_EARG, "input length is %d, must be from 1 to %d", p->n_in, LEN_MAX);
    if (p->n_out < 1 || p->n_out > LEN_MAX)
        return gm_fail(err, GM_EARG, "output length is %d, must be from 1 to %d", p->n_out, LEN_MAX);
    if (!(p->range_in >= 0 && p->range_in < 1 && p->range_out >= 0 && p->range_out < 1))
        return gm_fail(err, GM_EARG, "range ratio must be in [0, 1)");
    if (!(p->rate >= 0) || !isfinite(p->rate))
        return gm_fail(err, GM_EARG, "request rate is %g, must be above 0, or inf", p->rate);
    if (p->rate > 0 && !(p->burstiness > 0 && p->burstiness <= 1e6))
        return gm_fail(err, GM_EARG, "burstiness is %g, must be above 0", p->burstiness);
    if (p->concurrency_max < 0) return gm_fail(err, GM_EARG, "max concurrency is %d", p->concurrency_max);
    return GM_OK;
}

gm_status gm_load_draw(gm_load *out, const gm_load_random *p, gm_error *err)
{
    gm_status st = check_random(p, err);
    if (st) return st;
    gm_pcg64 r;
    int64_t in_lo = (int64_t)floor(p->n_in * (1 - p->range_in)),
            in_hi = (int64_t)ceil(p->n_in * (1 + p->range_in));
    int64_t out_lo = (int64_t)floor(p->n_out * (1 - p->range_out)),
            out_hi = (int64_t)ceil(p->n_out * (1 + p->range_out));
    if (out_lo < 1) out_lo = 1;
    if (in_lo < 1) return gm_fail(err, GM_EARG, "shortest input would be %lld tokens", (long long)in_lo);
    gm_pcg64_seed(&r, p->seed);
    *out = (gm_load){
        .items = gm_new_array(gm_load_item, p->n), .n = p->n, .concurrency_max = p->concurrency_max};
    for (int32_t i = 0; i < p->n; i++)
        out->items[i].n_in = (int32_t)gm_pcg64_integer(&r, in_lo, in_hi + 1);
    for (int32_t i = 0; i < p->n; i++)
        out->items[i].n_out = (int32_t)gm_pcg64_integer(&r, out_lo, out_hi + 1);
    if (p->rate > 0) draw_arrivals(out, p, &r);
    return GM_OK;
}

/* ---- recorded loads ---- */

static int by_arrival(const void *a, const void *b)
{
    const gm_load_item *x = a, *y = b;
    return (x->arrival_ns > y->arrival_ns) - (x->arrival_ns < y->arrival_ns);
}

static gm_status put(gm_load *l, const json_t *at, const json_t *in, const json_t *n_out, const char *what,
                     int64_t line, gm_error *err)
{
    double t = json_number_value(at);
    if (!json_is_number(at) || !(t >= 0 && t < 1e9))
        return gm_fail(err, GM_EFORMAT, "%s: request %lld: the arrival must be seconds from 0 up", what,
                       (long long)line);
    if (!json_is_integer(in) || json_integer_value(in) < 1 || json_integer_value(in) > LEN_MAX)
        return gm_fail(err, GM_EFORMAT, "%s: request %lld: the input must be 1 to %d tokens", what,
                       (long long)line, LEN_MAX);
    if (!json_is_integer(n_out) || json_integer_value(n_out) < 1 || json_integer_value(n_out) > LEN_MAX)
        return gm_fail(err, GM_EFORMAT, "%s: request %lld: the output must be 1 to %d tokens", what,
                       (long long)line, LEN_MAX);
    if (l->n == N_MAX) return gm_fail(err, GM_EFORMAT, "%s: more than %d requests", what, N_MAX);
    if ((l->n & (l->n - 1)) == 0)
        l->items = gm_realloc_array(l->items, l->n ? 2 * (size_t)l->n : 1, sizeof *l->items);
    l->items[l->n++] =
        (gm_load_item){llround(t * 1e9), (int32_t)json_integer_value(in), (int32_t)json_integer_value(n_out)};
    return GM_OK;
}

static gm_status parse_detailed(gm_load *l, const json_t *v, const char *what, gm_error *err)
{
    const json_t *t = json_object_get(v, "start_times"), *in = json_object_get(v, "input_lens"),
                 *n = json_object_get(v, "output_lens");
    double first = INFINITY;
    size_t count = json_array_size(t);
    gm_status st = GM_OK;
    if (count != json_array_size(in) || count != json_array_size(n))
        return gm_fail(err, GM_EFORMAT, "%s: start_times, input_lens and output_lens differ in length", what);
    for (size_t i = 0; i < count; i++) first = fmin(first, json_number_value(json_array_get(t, i)));
    for (size_t i = 0; i < count && !st; i++) {
        json_t *out_len = json_array_get(n, i),
               *at = json_real(json_number_value(json_array_get(t, i)) - first);
        if (json_integer_value(out_len) > 0)
            st = put(l, at, json_array_get(in, i), out_len, what, (int64_t)i, err); /* 0: it failed */
        json_decref(at);
    }
    return st;
}

static gm_status parse_lines(gm_load *l, const char *text, size_t len, const char *what, gm_error *err)
{
    int64_t line = 0;
    gm_status st = GM_OK;
    for (size_t at = 0; at < len && !st;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - text) - at : len - at;
        char name[300];
        json_t *v = NULL;
        line++;
        snprintf(name, sizeof name, "%.250s, line %lld", what, (long long)line);
        bool blank = strspn(text + at, " \t\r\n") >= n;
        if (!blank) st = gm_json_parse(&v, text + at, n, name, NULL, err);
        if (!blank && !st)
            st = put(l, json_object_get(v, "arrival_s"), json_object_get(v, "input"),
                     json_object_get(v, "output"), what, line, err);
        json_decref(v);
        at += n + 1;
    }
    return st;
}

gm_status gm_load_parse(gm_load *out, const char *text, size_t len, const char *what, gm_error *err)
{
    gm_load l = {0};
    json_t *v = NULL;
    gm_status st = gm_json_parse(&v, text, len, what, NULL, NULL);
    if (!st && json_object_get(v, "start_times")) st = parse_detailed(&l, v, what, err);
    else st = parse_lines(&l, text, len, what, err);
    json_decref(v);
    if (!st && l.n == 0) st = gm_fail(err, GM_EFORMAT, "%s: no request in it", what);
    if (st) {
        gm_load_fini(&l);
        return st;
    }
    qsort(l.items, (size_t)l.n, sizeof *l.items, by_arrival);
    int64_t first = l.items[0].arrival_ns;
    for (int32_t i = 0; i < l.n; i++) l.items[i].arrival_ns -= first;
    *out = l;
    return GM_OK;
}

gm_status gm_load_read(gm_load *out, const char *path, gm_error *err)
{
    FILE *f = fopen(path, "rb");
    if (!f) return gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    gm_str text = {0};
    char buf[65536];
    for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0 && text.len < 1u << 30;)
        gm_str_append(&text, buf, n);
    gm_status st = ferror(f) ? gm_fail(err, GM_EIO, "%s: cannot be read", path) : GM_OK;
    fclose(f);
    if (!st) st = gm_load_parse(out, gm_str_c(&text), text.len, path, err);
    gm_str_fini(&text);
    return st;
}

void gm_load_fini(gm_load *l)
{
    gm_free(l->items);
    *l = (gm_load){0};
}
