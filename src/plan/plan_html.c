/* The plan as one page: no script, no outside resource, colours that follow the reader's light or dark
 * setting. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/planner.h"

static const char style[] =
    ":root{--bg:#fff;--fg:#1b1f24;--dim:#59636e;--line:#d1d9e0;--card:#f6f8fa;--good:#1a7f37}"
    "@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#3d444d;--card:#"
    "161b22;--good:#3fb950}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 "
    "system-ui,sans-serif}"
    "main{max-width:64rem;margin:0 auto;padding:1rem}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    ".answer{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem}"
    "code{display:block;overflow-x:auto;white-space:pre;padding:.5rem;background:var(--bg);border:1px solid "
    "var(--line);border-radius:.3rem}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;white-space:nowrap}"
    "th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid "
    "var(--line)}th:first-child,td:first-child{text-align:left}"
    "tr.best td{color:var(--good);font-weight:600}figure{margin:1rem "
    "0}svg{width:100%;height:auto;display:block}"
    "svg text{fill:var(--fg);font:12px system-ui,sans-serif}svg .axis{stroke:var(--line)}svg "
    ".dim{fill:var(--dim)}"
    ".key{display:flex;flex-wrap:wrap;gap:.3rem 1rem;font-size:.85rem}.key "
    "span::before{content:'';display:inline-block;width:.8em;"
    "height:.8em;margin-right:.4em;border-radius:.2em;background:var(--c)}p.dim{color:var(--dim);font-size:."
    "9rem}";

/* Told apart also by those who do not see red and green alike (Okabe and Ito). */
static const char *const colours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                      "#56b4e9", "#d55e00", "#999933", "#882255"};
enum { N_COLOURS = sizeof colours / sizeof *colours };

static void text(gm_str *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') gm_str_puts(out, "&lt;");
        else if (*s == '>') gm_str_puts(out, "&gt;");
        else if (*s == '&') gm_str_puts(out, "&amp;");
        else if (*s == '"') gm_str_puts(out, "&quot;");
        else gm_str_putc(out, *s);
    }
}

static const char *colour_of(int32_t i)
{
    return colours[i / 2 % N_COLOURS];
}

enum { W = 640, H = 340, LEFT = 60, RIGHT = 12, TOP = 12, BOTTOM = 36 };

static double round_top(double v)
{
    double unit = pow(10, floor(log10(v > 0 ? v : 1)));
    const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (v <= steps[i] * unit) return steps[i] * unit;
    return v;
}

static double y_of(double v, double top)
{
    return H - BOTTOM - v / top * (H - TOP - BOTTOM);
}

static double x_of(double c, double most)
{
    return LEFT + log(c) / log(most > 1 ? most : 2) * (W - LEFT - RIGHT);
}

static void axes(gm_str *out, const gm_plan *plan, double top, double most)
{
    for (int i = 0; i <= 4; i++) {
        double v = top * i / 4, y = y_of(v, top);
        gm_str_printf(out,
                      "<line class=axis x1=%d x2=%d y1=%.1f y2=%.1f /><text class=dim x=%d y=%.1f "
                      "text-anchor=end>%.0f</text>",
                      LEFT, W - RIGHT, y, y, LEFT - 6, y + 4, v);
    }
    for (int32_t i = 0; i < plan->n_curve; i++)
        gm_str_printf(out, "<text class=dim x=%.1f y=%d text-anchor=middle>%d</text>",
                      x_of(plan->concurrency[i], most), H - BOTTOM + 16, (int)plan->concurrency[i]);
    gm_str_printf(out, "<text class=dim x=%d y=%d text-anchor=middle>requests in flight</text>",
                  (LEFT + W - RIGHT) / 2, H - 4);
}

static void throughput_plot(gm_str *out, const gm_plan *plan)
{
    double top = 1, most = plan->n_curve ? plan->concurrency[plan->n_curve - 1] : 1;
    for (int32_t i = 0; i < plan->n; i++)
        for (int32_t k = 0; k < plan->n_curve; k++) top = fmax(top, plan->candidates[i].curve[k]);
    top = round_top(top);
    gm_str_printf(out,
                  "<figure><svg viewBox='0 0 %d %d' role=img aria-label='output tokens a second over "
                  "requests in flight'>",
                  W, H);
    axes(out, plan, top, most);
    for (int32_t i = 0; i < plan->n; i++) {
        const gm_plan_candidate *d = &plan->candidates[i];
        if (!d->fits) continue;
        gm_str_printf(out, "<polyline fill=none stroke='%s' stroke-width=2%s points='", colour_of(i),
                      d->kv_dtype == GM_KV_FP8 ? " stroke-dasharray='5 4'" : "");
        for (int32_t k = 0; k < plan->n_curve; k++)
            gm_str_printf(out, "%.1f,%.1f ", x_of(plan->concurrency[k], most), y_of(d->curve[k], top));
        gm_str_puts(out, "'/>");
    }
    gm_str_puts(out, "</svg></figure><div class=key>");
    for (int32_t i = 0; i < plan->n; i += 2) {
        char name[48];
        gm_layout_name(&plan->candidates[i].layout, name, sizeof name);
        gm_str_printf(out, "<span style='--c:%s'>%s</span>", colour_of(i), name);
    }
    gm_str_puts(out, "</div><p class=dim>Output tokens a second. Solid: BF16 cache, dashed: FP8. Each point "
                     "is one burst of so many requests.</p>");
}

static void memory_plot(gm_str *out, const gm_plan *plan)
{
    static const char *const names[] = {"weights", "workspace", "reserve", "state slots", "pages"};
    enum { ROW = 26, NAME = 150 };
    int height = plan->n * ROW + 4;
    double scale = plan->n ? plan->candidates[0].map.budget : 1;
    gm_str_printf(out, "<figure><svg viewBox='0 0 %d %d' role=img aria-label='memory of one rank'>", W,
                  height);
    for (int32_t i = 0; i < plan->n; i++) {
        const gm_memory_map *m = &plan->candidates[i].map;
        double slots = m->n_slots * m->slot_bytes;
        double v[] = {m->weights.total, m->workspace, m->reserve, slots, m->cache > 0 ? m->cache - slots : 0},
               x = NAME;
        gm_str_puts(out, "<text x=0 ");
        gm_str_printf(out, "y=%d>%s</text>", (int)i * ROW + 17, plan->candidates[i].name);
        for (int k = 0; k < 5; k++) {
            double w = v[k] / scale * (W - NAME - 4);
            if (x + w > W) w = W - x;
            gm_str_printf(out,
                          "<rect x=%.1f y=%d width=%.1f height=%d fill='%s'><title>%s %.2f GB</title></rect>",
                          x, (int)i * ROW + 4, w > 0 ? w : 0, ROW - 8, colours[k], names[k], v[k] / 1e9);
            x += w;
        }
    }
    gm_str_puts(out, "</svg></figure><div class=key>");
    for (int k = 0; k < 5; k++) gm_str_printf(out, "<span style='--c:%s'>%s</span>", colours[k], names[k]);
    gm_str_printf(out, "</div><p class=dim>The bar's full width is the budget of a rank, %.2f GB.</p>",
                  scale / 1e9);
}

static void figures_table(gm_str *out, const gm_plan *plan, const gm_plan_params *p)
{
    gm_str_puts(out, "<div class=wide><table><thead><tr><th>layout, cache<th>output tok/s<th>TTFT mean, "
                     "s<th>p99<th>TPOT mean, ms<th>p99"
                     "<th>sequences held<th>bound by<th>preemptions");
    if (p->price_per_hour > 0) gm_str_puts(out, "<th>cost of 1M tokens");
    gm_str_puts(out, "</tr></thead><tbody>");
    for (int32_t i = 0; i < plan->n; i++) {
        const gm_plan_candidate *d = &plan->candidates[i];
        gm_str_printf(out, "<tr%s><td>%s%s", i == plan->best ? " class=best" : "", d->name,
                      i == plan->best ? " ✓" : "");
        if (!d->fits) {
            gm_str_puts(out, "<td colspan=8>weights do not fit</tr>");
            continue;
        }
        gm_str_printf(out, "<td>%.1f<td>%.2f<td>%.2f<td>%.2f<td>%.2f<td>%d<td>%s<td>%lld", d->output_rate,
                      d->ttft_mean / 1e3, d->ttft_p99 / 1e3, d->tpot_mean, d->tpot_p99, (int)d->ceiling.node,
                      gm_bound_name(d->ceiling.bound), (long long)d->preemptions);
        if (p->price_per_hour > 0) gm_str_printf(out, "<td>%.3f", d->cost_million);
        gm_str_puts(out, "</tr>");
    }
    gm_str_puts(out, "</tbody></table></div>");
}

static void parts_table(gm_str *out, const gm_plan *plan)
{
    gm_str_puts(out, "<div class=wide><table><thead><tr><th>ms of a decode step");
    for (int32_t i = 0; i < plan->n; i++)
        if (plan->candidates[i].fits) gm_str_printf(out, "<th>%s", plan->candidates[i].name);
    gm_str_puts(out, "</tr></thead><tbody>");
#define X(part, what)                                                                                        \
    gm_str_puts(out, "<tr><td>" what);                                                                       \
    for (int32_t i = 0; i < plan->n; i++) {                                                                  \
        const gm_plan_candidate *d = &plan->candidates[i];                                                   \
        if (d->fits)                                                                                         \
            gm_str_printf(out, "<td>%.2f",                                                                   \
                          d->decode_steps ? 1e3 * d->cost_decode.part / (double)d->decode_steps : 0);        \
    }                                                                                                        \
    gm_str_puts(out, "</tr>");
    GM_COST_PARTS(X)
#undef X
    gm_str_puts(out, "</tbody></table></div>");
}

void gm_plan_html(gm_str *out, const gm_plan *plan, const gm_plan_params *p, const char *model,
                  const gm_machine *m)
{
    gm_str line = {0};
    gm_str_puts(out, "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
                     "content='width=device-width,initial-scale=1'>"
                     "<meta name=color-scheme content='light dark'><title>");
    text(out, model);
    gm_str_printf(out, " on %s</title><style>%s</style></head><body><main><h1>", m->name, style);
    text(out, model);
    gm_str_printf(out, " on %s</h1><p>%d input and %d output tokens; ", m->name, (int)p->load.n_in,
                  (int)p->load.n_out);
    if (p->load.rate > 0) gm_str_printf(out, "%g requests a second", p->load.rate);
    else gm_str_printf(out, "%d requests in flight", (int)p->load.concurrency_max);
    gm_str_puts(out, ".</p><div class=answer><p>");
    gm_plan_sentence(&line, plan, p);
    text(out, gm_str_c(&line));
    gm_str_puts(out, "</p>");
    gm_str_clear(&line);
    gm_plan_command(&line, plan, p, model);
    if (line.len) {
        gm_str_puts(out, "<code>");
        text(out, gm_str_c(&line));
        gm_str_puts(out, "</code>");
    }
    gm_str_fini(&line);
    gm_str_puts(out, "</div><h2>Predicted for this load</h2>");
    figures_table(out, plan, p);
    if (plan->n_curve) {
        gm_str_puts(out, "<h2>Throughput over concurrency</h2>");
        throughput_plot(out, plan);
        gm_str_puts(out, "<p>");
        gm_plan_leaders(out, plan);
        gm_str_puts(out, ".</p><details><summary>Where lines cross</summary><ul>");
        for (int32_t i = 0; i < plan->n_crossings; i++)
            gm_str_printf(out, "<li>%s passes %s at about %.0f in flight",
                          plan->candidates[plan->crossings[i].b].name,
                          plan->candidates[plan->crossings[i].a].name, plan->crossings[i].concurrency);
        gm_str_puts(out, "</ul></details>");
    }
    gm_str_puts(out, "<h2>Memory of one rank</h2>");
    memory_plot(out, plan);
    gm_str_puts(out, "<h2>Where a decode step's time goes</h2>");
    parts_table(out, plan);
    gm_str_puts(out, "<p class=dim>Constants and their sources: ");
#define X(field, unit, what)                                                                                 \
    gm_str_printf(out, #field " %g " unit " (", m->field);                                                   \
    text(out, m->field##_source);                                                                            \
    gm_str_puts(out, "); ");
    GM_MACHINE_NUMBERS(X)
#undef X
    gm_str_puts(out, "</p></main></body></html>\n");
}
