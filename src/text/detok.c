#include "text/detok.h"

#include <string.h>

#include "text/text_internal.h"

void gm_detok_init(gm_detok *d, const gm_tokenizer *t, bool skip_special)
{
    *d = (gm_detok){.t = t, .skip_special = skip_special};
}

/* Keeps what no character is complete with yet: at most three bytes. */
static void feed(gm_detok *d, const char *bytes, size_t len, gm_str *out)
{
    if (!d->n_held) {
        size_t used = gm_text_scrub(out, bytes, len, true);
        d->n_held = (int)(len - used);
        memcpy(d->held, bytes + used, len - used);
        return;
    }
    while (len && d->n_held) { /* byte by byte until the held ones are settled */
        d->held[d->n_held++] = (unsigned char)*bytes++;
        len--;
        size_t used = gm_text_scrub(out, (const char *)d->held, (size_t)d->n_held, true);
        d->n_held -= (int)used;
        memmove(d->held, d->held + used, (size_t)d->n_held);
    }
    if (len) feed(d, bytes, len, out);
}

gm_status gm_detok_push(gm_detok *d, int32_t id, gm_str *out, gm_error *err)
{
    size_t len = 0;
    const char *bytes = gm_tokenizer_bytes(d->t, id, &len);
    if (!bytes) return gm_fail(err, GM_EARG, "token id %d has no text", id);
    if (!(d->skip_special && gm_tokenizer_is_special(d->t, id))) feed(d, bytes, len, out);
    return GM_OK;
}

void gm_detok_finish(gm_detok *d, gm_str *out)
{
    gm_text_scrub(out, (const char *)d->held, (size_t)d->n_held, false);
    d->n_held = 0;
}
