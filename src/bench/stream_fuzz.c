/* Bytes of an answer: cut in two at a place that the first byte chooses, they must give the events that they
 * give whole, and every event is read as a chunk. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bench/chunk.h"
#include "bench/scrape.h"
#include "bench/sse.h"
#include "bench/toml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_event(void *user, const char *data, size_t len)
{
    gm_str *all = user, text = {0}, error = {0};
    gm_chunk c;
    gm_str_append(all, data, len);
    gm_str_putc(all, '\n');
    gm_chunk_read(&c, data, len, &text, &error);
    gm_str_fini(&text);
    gm_str_fini(&error);
}

static void push(gm_str *out, const char *p, size_t n, size_t cut)
{
    gm_sse s = {.on_event = on_event, .user = out};
    gm_sse_push(&s, p, cut);
    gm_sse_push(&s, p + cut, n - cut);
    gm_sse_finish(&s);
    gm_sse_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    const char *p = (const char *)data + 1;
    size_t n = size - 1;
    gm_str whole = {0}, parts = {0};
    push(&whole, p, n, n);
    push(&parts, p, n, n ? data[0] % (n + 1) : 0);
    if (whole.len != parts.len || memcmp(gm_str_c(&whole), gm_str_c(&parts), whole.len)) abort();
    gm_str_fini(&whole);
    gm_str_fini(&parts);
    json_t *v = NULL;
    if (!gm_toml_parse(&v, p, n, "fuzz", NULL)) json_decref(v);
    gm_counters c;
    gm_counters_read(&c, p, n);
    return 0;
}
