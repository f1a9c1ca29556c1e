#include "bench/scrape.h"

#include <stdlib.h>
#include <string.h>

static bool named(const char *line, size_t n, const char *name)
{
    size_t k = strlen(name);
    return n > k && !memcmp(line, name, k) && (line[k] == '{' || line[k] == ' ' || line[k] == '\t');
}

static void take_position(gm_counters *c, const char *line, double value)
{
    static const char key[] = "position=\"";
    const char *at = strstr(line, key);
    if (!at) return;
    long pos = strtol(at + sizeof key - 1, NULL, 10);
    if (pos < 0 || pos >= GM_SPEC_POSITIONS) return;
    c->accepted_at[pos] += value;
    if (pos >= c->n_positions) c->n_positions = (int)pos + 1;
}

static void take_line(gm_counters *c, const char *line, size_t n)
{
    const struct {
        const char *name;
        double *sum;
        bool *seen;
    } wanted[] = {{"vllm:prefix_cache_queries_total", &c->prefix_queries, &c->prefix},
                  {"vllm:prefix_cache_hits_total", &c->prefix_hits, &c->prefix},
                  {"vllm:prompt_tokens_total", &c->prompt_tokens, &c->tokens},
                  {"vllm:generation_tokens_total", &c->generation_tokens, &c->tokens},
                  {"vllm:spec_decode_num_drafts_total", &c->drafts, &c->spec},
                  {"vllm:spec_decode_num_draft_tokens_total", &c->draft_tokens, &c->spec},
                  {"vllm:spec_decode_num_accepted_tokens_total", &c->accepted_tokens, &c->spec}};
    const char *end = strrchr(line, '}');
    double value = strtod(end ? end + 1 : line + strcspn(line, " \t"), NULL);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (named(line, n, wanted[i].name)) {
            *wanted[i].sum += value;
            *wanted[i].seen = true;
        }
    if (named(line, n, "vllm:spec_decode_num_accepted_tokens_per_pos_total")) take_position(c, line, value);
}

void gm_counters_read(gm_counters *out, const char *text, size_t len)
{
    gm_str line = {0};
    *out = (gm_counters){.known = true};
    for (size_t at = 0; at < len;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - text) - at : len - at;
        if (n > 5 && !memcmp(text + at, "vllm:", 5)) {
            gm_str_clear(&line);
            gm_str_append(&line, text + at, n);
            take_line(out, gm_str_c(&line), n);
        }
        at += n + 1;
    }
    gm_str_fini(&line);
}
