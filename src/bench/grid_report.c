#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/grid.h"

typedef struct column {
    const char *key, *title;
    int digits;
} column;

static const column csv_columns[] = {
    {"completed", NULL, 0},
    {"failed", NULL, 0},
    {"duration", NULL, 3},
    {"request_throughput", NULL, 4},
    {"output_throughput", NULL, 3},
    {"total_token_throughput", NULL, 3},
    {"mean_ttft_ms", NULL, 3},
    {"median_ttft_ms", NULL, 3},
    {"p90_ttft_ms", NULL, 3},
    {"p99_ttft_ms", NULL, 3},
    {"mean_tpot_ms", NULL, 3},
    {"median_tpot_ms", NULL, 3},
    {"p90_tpot_ms", NULL, 3},
    {"p99_tpot_ms", NULL, 3},
    {"mean_itl_ms", NULL, 3},
    {"p99_itl_ms", NULL, 3},
    {"mean_e2el_ms", NULL, 3},
    {"p99_e2el_ms", NULL, 3},
    {"total_input_tokens", NULL, 0},
    {"total_output_tokens", NULL, 0},
    {"prefix_cache_hits", NULL, 0},
    {"kv_cache_tokens", NULL, 0},
    {"client_p99_send_lateness_ms", NULL, 3},
    {"client_p99_loop_delay_ms", NULL, 3},
};
static const column md_columns[] = {
    {"output_throughput", "out tok/s", 1},
    {"total_token_throughput", "total tok/s", 1},
    {"median_ttft_ms", "TTFT p50 ms", 1},
    {"p99_ttft_ms", "TTFT p99 ms", 1},
    {"median_tpot_ms", "TPOT p50 ms", 2},
    {"p99_tpot_ms", "TPOT p99 ms", 2},
    {"duration", "s", 1},
    {"failed", "failed", 0},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static void put_quoted(gm_str *out, const char *text)
{
    gm_str_putc(out, '"');
    for (const char *p = text; *p; p++) {
        if (*p == '"') gm_str_putc(out, '"');
        gm_str_putc(out, *p);
    }
    gm_str_putc(out, '"');
}

void gm_grid_csv(const gm_grid *g, gm_str *out)
{
    gm_str_puts(out, "server,shape,input,output,concurrency,num_prompts");
    for (size_t k = 0; k < COUNT(csv_columns); k++) gm_str_printf(out, ",%s", csv_columns[k].key);
    gm_str_putc(out, '\n');
    for (size_t i = 0; i < g->n_points; i++) {
        const gm_grid_point *p = &g->points[i];
        const gm_grid_shape *h = &g->shapes[p->shape];
        put_quoted(out, g->servers[p->server].name);
        gm_str_putc(out, ',');
        put_quoted(out, h->name);
        gm_str_printf(out, ",%lld,%lld,%lld,%lld", (long long)h->input, (long long)h->output,
                      (long long)p->concurrency, (long long)p->num_prompts);
        for (size_t k = 0; k < COUNT(csv_columns); k++) {
            double v = gm_grid_number(p, csv_columns[k].key);
            if (isnan(v)) gm_str_putc(out, ',');
            else gm_str_printf(out, ",%.*f", csv_columns[k].digits, v);
        }
        gm_str_putc(out, '\n');
    }
}

static void put_cell(gm_str *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '|') gm_str_putc(out, '\\');
        gm_str_putc(out, *p);
    }
}

static void markdown_capacity(const gm_grid *g, size_t shape, gm_str *out)
{
    for (size_t s = 0; s < g->n_servers; s++) {
        double c = gm_grid_capacity(g, s, shape);
        if (isnan(c)) continue;
        gm_str_puts(out, "The cache of ");
        put_cell(out, g->servers[s].name);
        gm_str_printf(out, " holds %.0f sessions of this shape.\n", floor(c));
    }
}

void gm_grid_markdown(const gm_grid *g, gm_str *out)
{
    gm_str_puts(out, "# ");
    gm_str_puts(out, g->title);
    gm_str_putc(out, '\n');
    for (size_t h = 0; h < g->n_shapes; h++) {
        gm_str_printf(out, "\n## %s\n\n| server | concurrency |", g->shapes[h].name);
        for (size_t k = 0; k < COUNT(md_columns); k++) gm_str_printf(out, " %s |", md_columns[k].title);
        gm_str_puts(out, "\n|---|---:|");
        for (size_t k = 0; k < COUNT(md_columns); k++) gm_str_puts(out, "---:|");
        gm_str_putc(out, '\n');
        for (size_t i = 0; i < g->n_points; i++) {
            const gm_grid_point *p = &g->points[i];
            if (p->shape != h) continue;
            gm_str_puts(out, "| ");
            put_cell(out, g->servers[p->server].name);
            gm_str_printf(out, " | %lld |", (long long)p->concurrency);
            for (size_t k = 0; k < COUNT(md_columns); k++) {
                double v = gm_grid_number(p, md_columns[k].key);
                if (isnan(v)) gm_str_puts(out, " – |");
                else gm_str_printf(out, " %.*f |", md_columns[k].digits, v);
            }
            gm_str_putc(out, '\n');
        }
        gm_str_putc(out, '\n');
        markdown_capacity(g, h, out);
    }
    gm_str_puts(out, "\n## Servers\n\n");
    for (size_t s = 0; s < g->n_servers; s++) {
        gm_str_puts(out, "- ");
        gm_str_puts(out, g->servers[s].name);
        if (g->servers[s].command) gm_str_printf(out, ": `%s`\n", g->servers[s].command);
        else gm_str_printf(out, ": %s\n", g->servers[s].url);
    }
}

static gm_status write_out(const gm_grid *g, const char *name, void (*make)(const gm_grid *, gm_str *),
                           gm_error *err)
{
    gm_str text = {0}, path = {0}, part = {0};
    gm_str_printf(&path, "%s/%s", g->out, name);
    gm_str_printf(&part, "%s.part", gm_str_c(&path));
    make(g, &text);
    FILE *f = fopen(gm_str_c(&part), "wb");
    bool ok = f && fwrite(gm_str_c(&text), 1, text.len, f) == text.len;
    ok = f && !fclose(f) && ok;
    ok = ok && !rename(gm_str_c(&part), gm_str_c(&path));
    gm_status st = ok ? GM_OK : gm_fail(err, GM_EIO, "%s: %s", gm_str_c(&path), strerror(errno));
    gm_str_fini(&text);
    gm_str_fini(&path);
    gm_str_fini(&part);
    return st;
}

gm_status gm_grid_report(const gm_grid *g, gm_error *err)
{
    gm_status st = write_out(g, "report.csv", gm_grid_csv, err);
    if (!st) st = write_out(g, "report.md", gm_grid_markdown, err);
    return st ? st : write_out(g, "report.html", gm_grid_html, err);
}
