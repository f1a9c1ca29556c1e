/* The grid's page: one file, no script, no font or picture from elsewhere. Plots are inline SVG whose colours
 * come from the style sheet, so that they follow light and dark. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/grid.h"

enum { WIDTH = 440, HEIGHT = 300, LEFT = 58, RIGHT = 16, TOP = 14, BOTTOM = 44, TICKS_MAX = 24, COLORS = 8 };

static const char style[] =
    ":root{color-scheme:light "
    "dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--line:#d5dae0;--grid:#e9ecf0;--head:#f4f6f8;"
    "--c0:#0b62c4;--c1:#c2410c;--c2:#157f3b;--c3:#8b2fc9;--c4:#a16207;--c5:#be185d;--c6:#0f766e;--c7:#4b5563}"
    "\n"
    "@media "
    "(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e9ed;--dim:#9aa4af;--line:#3a424b;--grid:#272d34;"
    "--head:#1d2228;--c0:#6cb0ff;--c1:#ff9f6b;--c2:#6fd08c;--c3:#cf9bff;--c4:#e8c15a;--c5:#ff8fb8;--c6:#"
    "5fd3c6;--c7:#b6bfca}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:20px 16px "
    "60px;background:var(--bg);color:var(--fg);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
    "h1{font-size:1.6rem;line-height:1.25;margin:.2em 0 .4em}h2{font-size:1.25rem;margin:2em 0 "
    ".4em;padding-top:.6em;"
    "border-top:1px solid var(--line)}p{margin:.5em 0}.dim{color:var(--dim)}\n"
    "nav a{display:inline-block;margin:0 .9em .3em 0;padding:.3em 0}a{color:var(--c0)}\n"
    ".key{display:flex;flex-wrap:wrap;gap:.3em 1.2em;margin:.6em "
    "0;padding:0;list-style:none;font-size:.92rem}\n"
    ".key svg{width:34px;height:14px;vertical-align:-2px;margin-right:.4em}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:18px}\n"
    "figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:.95rem;margin-bottom:.2em}figcaption "
    "span{font-weight:400;"
    "color:var(--dim)}figure svg{display:block;width:100%;height:auto}\n"
    "svg text{font-size:12px;fill:var(--dim)}svg .axis{stroke:var(--line)}svg .grid{stroke:var(--grid)}\n"
    "svg .l{fill:none;stroke-width:2}svg .tail{stroke-dasharray:5 4;stroke-width:1.5}svg "
    ".cap{stroke-dasharray:2 3;stroke-width:1.5}\n"
    ".scroll{overflow-x:auto;margin:1em "
    "0;-webkit-overflow-scrolling:touch}table{border-collapse:collapse;font-size:.88rem;"
    "font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "th,td{padding:.35em .55em;border-bottom:1px solid "
    "var(--line);text-align:right}th{background:var(--head);font-weight:600}"
    "th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}th:first-"
    "child{background:var(--head)}\n"
    "code{display:block;overflow-x:auto;white-space:pre;background:var(--head);padding:.5em "
    ".7em;font-size:.85rem}\n"
    "@media (max-width:480px){body{padding:12px 14px 40px}svg text{font-size:13.5px}}\n";

static void put_text(gm_str *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        switch (*p) {
        case '<':
            gm_str_puts(out, "&lt;");
            break;
        case '>':
            gm_str_puts(out, "&gt;");
            break;
        case '&':
            gm_str_puts(out, "&amp;");
            break;
        case '"':
            gm_str_puts(out, "&quot;");
            break;
        default:
            gm_str_putc(out, *p);
        }
    }
}

/* ---- axes ---- */

typedef struct axis {
    double low, high; /* of the data, then of the axis */
    bool log;
    double from, to; /* in the picture */
} axis;

static void axis_take(axis *a, double v)
{
    if (!isfinite(v) || (a->log && v <= 0)) return;
    if (isnan(a->low) || v < a->low) a->low = v;
    if (isnan(a->high) || v > a->high) a->high = v;
}

static double place(const axis *a, double v)
{
    double t = a->log ? log(v / a->low) / log(a->high / a->low) : (v - a->low) / (a->high - a->low);
    return a->from + t * (a->to - a->from);
}

/* 1, 2 or 5 times a power of ten, so that about n steps cover the range. */
static double round_step(double range, int n)
{
    double raw = range / n, ten = pow(10, floor(log10(raw))), m = raw / ten;
    return ten * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static int linear_ticks(axis *a, double *at)
{
    if (isnan(a->high) || a->high <= 0) a->high = 1;
    a->low = 0;
    double step = round_step(a->high, 5);
    a->high = step * ceil(a->high * 1.02 / step);
    int n = 0;
    for (double v = 0; v <= a->high + step / 2 && n < TICKS_MAX; v += step) at[n++] = v;
    return n;
}

static int log_ticks(axis *a, double *at)
{
    static const double marks[] = {1, 2, 5, 1.5, 3, 7};
    if (isnan(a->low)) a->low = a->high = 1;
    double low = a->low / 1.15, high = a->high * 1.15;
    if (high < 4 * low) low /= 2, high *= 2;
    a->low = low;
    a->high = high;
    int n = 0;
    int n_marks = high / low < 15 ? 6 : high / low < 200 ? 3 : 1;
    for (int e = (int)floor(log10(low)); e <= (int)ceil(log10(high)); e++)
        for (int k = 0; k < n_marks; k++) {
            double v = marks[k] * pow(10, e);
            if (v >= low && v <= high && n < TICKS_MAX) at[n++] = v;
        }
    return n;
}

/* The concurrencies themselves, as long as they do not stand on each other. */
static int doubling_ticks(axis *a, const gm_grid *g, size_t shape, double *at)
{
    int n = 0;
    if (isnan(a->low)) a->low = a->high = 1;
    a->low /= 1.12;
    a->high *= 1.12;
    for (size_t i = 0; i < g->n_points; i++) {
        double v = (double)g->points[i].concurrency;
        bool fits = g->points[i].shape == shape && v >= a->low && v <= a->high;
        for (int k = 0; k < n && fits; k++) fits = fabs(place(a, v) - place(a, at[k])) > 30;
        if (fits && n < TICKS_MAX) at[n++] = v;
    }
    return n;
}

static void put_number(gm_str *out, double v)
{
    double m = fabs(v);
    if (m >= 1e6) gm_str_printf(out, "%.4gM", v / 1e6);
    else if (m >= 1e4) gm_str_printf(out, "%.4gk", v / 1e3);
    else gm_str_printf(out, "%.4g", v);
}

/* ---- one plot ---- */

typedef struct series {
    const char *key;
    bool tail; /* dashed */
} series;

typedef struct plot {
    const char *title, *unit;
    const series *lines;
    int n_lines;
    bool log_y, ratio; /* ratio: divided by the first server's value at the same concurrency */
    bool capacity;
} plot;

static const gm_grid_point *find_point(const gm_grid *g, size_t server, size_t shape, int64_t concurrency)
{
    for (size_t i = 0; i < g->n_points; i++) {
        const gm_grid_point *p = &g->points[i];
        if (p->server == server && p->shape == shape && p->concurrency == concurrency) return p;
    }
    return NULL;
}

static double value_of(const gm_grid *g, const plot *t, const gm_grid_point *p, const char *key)
{
    double v = gm_grid_number(p, key);
    if (!t->ratio) return v;
    const gm_grid_point *base = find_point(g, 0, p->shape, p->concurrency);
    double b = base ? gm_grid_number(base, key) : NAN;
    return b > 0 ? v / b : NAN;
}

/* Shapes besides colours: the lines can be told apart without seeing either. */
static void put_marker(gm_str *out, size_t server, double x, double y)
{
    int c = (int)(server % COLORS);
    switch (server % 4) {
    case 0:
        gm_str_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" fill=\"var(--c%d)\">", x, y, c);
        break;
    case 1:
        gm_str_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" fill=\"var(--c%d)\">",
                      x - 3.5, y - 3.5, c);
        break;
    case 2:
        gm_str_printf(out, "<path d=\"M%.1f %.1fl4.4 7.4h-8.8z\" fill=\"var(--c%d)\">", x, y - 4.6, c);
        break;
    default:
        gm_str_printf(out, "<path d=\"M%.1f %.1fl4.6 4.6-4.6 4.6-4.6-4.6z\" fill=\"var(--c%d)\">", x, y - 4.6,
                      c);
    }
}

static void end_marker(gm_str *out, size_t server)
{
    gm_str_puts(out, server % 4 == 0 ? "</circle>" : server % 4 == 1 ? "</rect>" : "</path>");
}

static int by_concurrency(const void *a, const void *b)
{
    int64_t x = (*(const gm_grid_point *const *)a)->concurrency,
            y = (*(const gm_grid_point *const *)b)->concurrency;
    return (x > y) - (x < y);
}

static void put_line(gm_str *out, const gm_grid *g, const plot *t, size_t server, size_t shape,
                     const series *s, const axis *x, const axis *y)
{
    const gm_grid_point *order[512];
    size_t n = 0;
    gm_str path = {0}, marks = {0};
    for (size_t i = 0; i < g->n_points && n < 512; i++) {
        const gm_grid_point *p = &g->points[i];
        double v = value_of(g, t, p, s->key);
        if (p->server == server && p->shape == shape && isfinite(v) && (!t->log_y || v > 0)) order[n++] = p;
    }
    qsort(order, n, sizeof *order, by_concurrency);
    for (size_t i = 0; i < n; i++) {
        double v = value_of(g, t, order[i], s->key), px = place(x, (double)order[i]->concurrency),
               py = place(y, v);
        gm_str_printf(&path, "%s%.1f %.1f", i ? "L" : "M", px, py);
        put_marker(&marks, server, px, py);
        gm_str_puts(&marks, "<title>");
        put_text(&marks, g->servers[server].name);
        gm_str_printf(&marks, ", concurrency %lld: ", (long long)order[i]->concurrency);
        gm_str_printf(&marks, t->ratio ? "%.3f" : "%.2f", v);
        gm_str_printf(&marks, " %s%s</title>", t->unit, s->tail ? " (p99)" : "");
        end_marker(&marks, server);
    }
    if (n > 1)
        gm_str_printf(out, "<path class=\"l%s\" stroke=\"var(--c%d)\" d=\"%s\"/>", s->tail ? " tail" : "",
                      (int)(server % COLORS), gm_str_c(&path));
    gm_str_append(out, gm_str_c(&marks), marks.len);
    gm_str_putc(out, '\n');
    gm_str_fini(&path);
    gm_str_fini(&marks);
}

static void put_axes(gm_str *out, const axis *x, const double *tx, int nx, const axis *y, const double *ty,
                     int ny)
{
    for (int i = 0; i < ny; i++) {
        double py = place(y, ty[i]);
        gm_str_printf(out,
                      "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" "
                      "y=\"%.1f\" text-anchor=\"end\">",
                      LEFT, WIDTH - RIGHT, py, py, LEFT - 7, py + 4);
        put_number(out, ty[i]);
        gm_str_puts(out, "</text>");
    }
    for (int i = 0; i < nx; i++) {
        double px = place(x, tx[i]);
        gm_str_printf(out,
                      "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text x=\"%.1f\" "
                      "y=\"%d\" text-anchor=\"middle\">",
                      px, px, HEIGHT - BOTTOM, HEIGHT - BOTTOM + 4, px, HEIGHT - BOTTOM + 18);
        put_number(out, tx[i]);
        gm_str_puts(out, "</text>");
    }
    gm_str_printf(out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>", LEFT, WIDTH - RIGHT,
                  HEIGHT - BOTTOM, HEIGHT - BOTTOM);
    gm_str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">concurrency</text>\n",
                  (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
}

static void put_capacities(gm_str *out, const gm_grid *g, size_t shape, const axis *x)
{
    for (size_t s = 0; s < g->n_servers; s++) {
        double c = gm_grid_capacity(g, s, shape);
        if (isnan(c) || c < x->low || c > x->high) continue;
        double px = place(x, c);
        bool right = px > WIDTH - 110;
        gm_str_printf(
            out,
            "<line class=\"cap\" stroke=\"var(--c%d)\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>",
            (int)(s % COLORS), px, px, TOP, HEIGHT - BOTTOM);
        put_text(out, g->servers[s].name);
        gm_str_printf(out,
                      ": the cache holds %.0f sessions</title></line><text x=\"%.1f\" y=\"%d\" "
                      "text-anchor=\"%s\" style=\"fill:var(--c%d)\">%.0f fit</text>\n",
                      floor(c), right ? px - 4 : px + 4, TOP + 10 + 14 * (int)(s % 4),
                      right ? "end" : "start", (int)(s % COLORS), floor(c));
    }
}

static void put_plot(gm_str *out, const gm_grid *g, size_t shape, const plot *t)
{
    axis x = {NAN, NAN, true, LEFT + 6, WIDTH - RIGHT - 4}, y = {NAN, NAN, t->log_y, HEIGHT - BOTTOM, TOP};
    double tx[TICKS_MAX], ty[TICKS_MAX];
    for (size_t i = 0; i < g->n_points; i++) {
        const gm_grid_point *p = &g->points[i];
        if (p->shape != shape) continue;
        axis_take(&x, (double)p->concurrency);
        for (int k = 0; k < t->n_lines; k++) axis_take(&y, value_of(g, t, p, t->lines[k].key));
    }
    if (t->ratio) axis_take(&y, 1);
    int nx = doubling_ticks(&x, g, shape, tx), ny = t->log_y ? log_ticks(&y, ty) : linear_ticks(&y, ty);
    gm_str_puts(out, "<figure><figcaption>");
    put_text(out, t->title);
    gm_str_printf(out, " <span>%s</span></figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
                  t->unit, WIDTH, HEIGHT);
    put_text(out, t->title);
    gm_str_puts(out, " against concurrency\">\n");
    put_axes(out, &x, tx, nx, &y, ty, ny);
    if (t->ratio) {
        double one = place(&y, 1);
        gm_str_printf(out,
                      "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke-width=\"2\"/>",
                      LEFT, WIDTH - RIGHT, one, one);
    }
    if (t->capacity) put_capacities(out, g, shape, &x);
    for (size_t s = t->ratio ? 1 : 0; s < g->n_servers; s++)
        for (int k = t->n_lines; k-- > 0;) put_line(out, g, t, s, shape, &t->lines[k], &x, &y);
    gm_str_puts(out, "</svg></figure>\n");
}

/* ---- the page ---- */

static void put_key(gm_str *out, const gm_grid *g)
{
    gm_str_puts(out, "<ul class=\"key\">");
    for (size_t s = 0; s < g->n_servers; s++) {
        gm_str_printf(out,
                      "<li><svg viewBox=\"0 0 34 14\" aria-hidden=\"true\"><path class=\"l\" "
                      "stroke=\"var(--c%d)\" d=\"M1 7H33\"/>",
                      (int)(s % COLORS));
        put_marker(out, s, 17, 7);
        end_marker(out, s);
        gm_str_puts(out, "</svg>");
        put_text(out, g->servers[s].name);
        gm_str_puts(out, "</li>");
    }
    gm_str_puts(out, "</ul>\n");
}

static void put_table(gm_str *out, const gm_grid *g, size_t shape)
{
    static const struct {
        const char *key, *title;
        int digits;
    } columns[] = {{"output_throughput", "output tok/s", 1},
                   {"total_token_throughput", "total tok/s", 1},
                   {"median_ttft_ms", "TTFT p50 (ms)", 1},
                   {"p99_ttft_ms", "TTFT p99 (ms)", 1},
                   {"median_tpot_ms", "TPOT p50 (ms)", 2},
                   {"p99_tpot_ms", "TPOT p99 (ms)", 2},
                   {"duration", "duration (s)", 1},
                   {"completed", "completed", 0},
                   {"failed", "failed", 0}};
    gm_str_puts(out, "<div class=\"scroll\"><table><thead><tr><th>server</th><th>concurrency</th>");
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        gm_str_printf(out, "<th>%s</th>", columns[k].title);
    gm_str_puts(out, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < g->n_points; i++) {
        const gm_grid_point *p = &g->points[i];
        if (p->shape != shape) continue;
        gm_str_puts(out, "<tr><td>");
        put_text(out, g->servers[p->server].name);
        gm_str_printf(out, "</td><td>%lld</td>", (long long)p->concurrency);
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            double v = gm_grid_number(p, columns[k].key);
            if (isnan(v)) gm_str_puts(out, "<td>–</td>");
            else gm_str_printf(out, "<td>%.*f</td>", columns[k].digits, v);
        }
        gm_str_puts(out, "</tr>\n");
    }
    gm_str_puts(out, "</tbody></table></div>\n");
}

static void put_capacity_text(gm_str *out, const gm_grid *g, size_t shape)
{
    int n = 0;
    for (size_t s = 0; s < g->n_servers; s++) {
        double c = gm_grid_capacity(g, s, shape);
        if (isnan(c)) continue;
        gm_str_puts(out, n++ ? "; "
                             : "<p class=\"dim\">Sessions of full length that the cache holds (dotted lines "
                               "where in range): ");
        put_text(out, g->servers[s].name);
        gm_str_printf(out, " %.0f", floor(c));
    }
    if (n) gm_str_puts(out, ". Beyond them requests wait or are preempted.</p>\n");
}

static void put_shape(gm_str *out, const gm_grid *g, size_t h)
{
    static const series output[] = {{"output_throughput", false}},
                        ttft[] = {{"median_ttft_ms", false}, {"p99_ttft_ms", true}},
                        tpot[] = {{"median_tpot_ms", false}, {"p99_tpot_ms", true}};
    char title[200];
    const gm_grid_shape *s = &g->shapes[h];
    gm_str_printf(out, "<section id=\"s%zu\"><h2>", h);
    put_text(out, s->name);
    gm_str_puts(out, "</h2>\n");
    if (s->input) {
        gm_str_printf(out, "<p class=\"dim\">%lld tokens in, %lld out", (long long)s->input,
                      (long long)s->output);
        if (s->range_ratio) gm_str_printf(out, ", each ± %s of it", s->range_ratio);
        if (s->prefix) gm_str_printf(out, ", behind a common prefix of %lld", (long long)s->prefix);
        gm_str_puts(out, ".</p>\n");
    }
    put_key(out, g);
    gm_str_puts(out, "<div class=\"plots\">\n");
    put_plot(
        out, g, h,
        &(plot){
            .title = "Output throughput", .unit = "tok/s", .lines = output, .n_lines = 1, .capacity = true});
    snprintf(title, sizeof title, "Throughput relative to %.120s", g->servers[0].name);
    if (g->n_servers > 1)
        put_plot(out, g, h,
                 &(plot){.title = title,
                         .unit = "times",
                         .lines = output,
                         .n_lines = 1,
                         .ratio = true,
                         .capacity = true});
    put_plot(out, g, h,
             &(plot){.title = "Time to first token",
                     .unit = "ms; median, dashed: p99",
                     .lines = ttft,
                     .n_lines = 2,
                     .log_y = true});
    put_plot(out, g, h,
             &(plot){.title = "Time per output token",
                     .unit = "ms; median, dashed: p99",
                     .lines = tpot,
                     .n_lines = 2});
    gm_str_puts(out, "</div>\n");
    put_capacity_text(out, g, h);
    put_table(out, g, h);
    gm_str_puts(out, "</section>\n");
}

static void put_servers(gm_str *out, const gm_grid *g)
{
    gm_str_puts(out, "<section><h2>Servers</h2>\n");
    for (size_t s = 0; s < g->n_servers; s++) {
        gm_str_puts(out, "<p><strong>");
        put_text(out, g->servers[s].name);
        gm_str_puts(out, "</strong></p><code>");
        put_text(out, g->servers[s].command ? g->servers[s].command : g->servers[s].url);
        gm_str_puts(out, "</code>\n");
    }
    gm_str_puts(out, "</section>\n");
}

void gm_grid_html(const gm_grid *g, gm_str *out)
{
    size_t measured = 0;
    for (size_t i = 0; i < g->n_points; i++) measured += g->points[i].record != NULL;
    gm_str_puts(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    put_text(out, g->title);
    gm_str_printf(out, "</title>\n<style>\n%s</style></head><body>\n<h1>", style);
    put_text(out, g->title);
    gm_str_printf(out,
                  "</h1>\n<p class=\"dim\">%zu of %zu points measured; glimmer " GM_VERSION ".</p>\n<nav>",
                  measured, g->n_points);
    for (size_t h = 0; h < g->n_shapes && g->n_shapes > 1; h++) {
        gm_str_printf(out, "<a href=\"#s%zu\">", h);
        put_text(out, g->shapes[h].name);
        gm_str_puts(out, "</a>");
    }
    gm_str_puts(out, "</nav>\n");
    for (size_t h = 0; h < g->n_shapes; h++) put_shape(out, g, h);
    put_servers(out, g);
    gm_str_puts(out, "</body></html>\n");
}
