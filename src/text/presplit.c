#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/presplit.h"

#include <pcre2.h>

#include "base/mem.h"

#define JIT_STACK_MAX ((size_t)8 << 20)

struct gm_presplit {
    pcre2_code *code;
    bool jit;
};

struct gm_presplit_run {
    const pcre2_code *code;
    bool jit;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    size_t next_begin, next_end; /* a match that was found behind an unmatched part */
};

gm_status gm_presplit_create(gm_presplit **out, const char *pattern, size_t len, const char *what,
                             gm_error *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                  &code, &at, NULL);
    if (!c) {
        PCRE2_UCHAR text[256] = {0};
        pcre2_get_error_message(code, text, sizeof text);
        return gm_fail(err, GM_EFORMAT, "%s: pre_tokenizer: the regular expression is wrong at %zu: %s", what,
                       (size_t)at, (char *)text);
    }
    gm_presplit *p = gm_new(gm_presplit);
    p->code = c;
    p->jit = pcre2_jit_compile(c, PCRE2_JIT_COMPLETE) == 0; /* without it matching is slower, not different */
    *out = p;
    return GM_OK;
}

void gm_presplit_destroy(gm_presplit *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    gm_free(p);
}

gm_presplit_run *gm_presplit_start(const gm_presplit *p)
{
    gm_presplit_run *r = gm_new(gm_presplit_run);
    r->code = p->code;
    r->jit = p->jit;
    r->match = pcre2_match_data_create(1, NULL); /* only the whole match is asked for */
    r->limits = pcre2_match_context_create(NULL);
    GM_ASSERT(r->match && r->limits);
    return r;
}

void gm_presplit_stop(gm_presplit_run *r)
{
    if (!r) return;
    pcre2_jit_stack_free(r->stack);
    pcre2_match_context_free(r->limits);
    pcre2_match_data_free(r->match);
    gm_free(r);
}

/* A long run of blanks takes a step of backtracking a character, so the limit grows with the text; it is
 * there for expressions that would never end. */
static void set_limit(gm_presplit_run *r, size_t len)
{
    size_t steps = 1000000 + 16 * len;
    pcre2_set_match_limit(r->limits, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
}

static int interpret_at(gm_presplit_run *r, const char *text, size_t len, size_t at)
{
    return pcre2_match(r->code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->match,
                       r->limits);
}

/* The JIT's own stack is 32 KiB: when it is too small a large one is tried, and then the interpreter. */
static int match_at(gm_presplit_run *r, const char *text, size_t len, size_t at)
{
    if (!r->jit) return interpret_at(r, text, len, at);
    int rc = pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, at, 0, r->match, r->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !r->stack) {
        r->stack = pcre2_jit_stack_create(64 << 10, JIT_STACK_MAX, NULL);
        if (r->stack) {
            pcre2_jit_stack_assign(r->limits, NULL, r->stack);
            rc = pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, at, 0, r->match, r->limits);
        }
    }
    return rc == PCRE2_ERROR_JIT_STACKLIMIT ? interpret_at(r, text, len, at) : rc;
}

static size_t next_char(const char *text, size_t len, size_t at)
{
    do at++;
    while (at < len && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

gm_status gm_presplit_next(gm_presplit_run *r, const char *text, size_t len, size_t at, bool restart,
                           size_t *end, gm_error *err)
{
    if (restart) {
        set_limit(r, len);
        r->next_begin = r->next_end = 0;
    }
    if (!restart && r->next_begin == at && r->next_end > at) {
        *end = r->next_end;
        return GM_OK;
    }
    size_t from = at;
    while (from < len) {
        int rc = match_at(r, text, len, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0)
            return gm_fail(err, GM_EFORMAT, "the pre-split's regular expression gave up (PCRE2 error %d)",
                           rc);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(r->match);
        if (o[0] < from || o[1] < o[0])
            return gm_fail(err, GM_EFORMAT, "the pre-split's matches are out of order");
        if (o[1] == o[0]) { /* an empty match is no word */
            from = next_char(text, len, o[0]);
            continue;
        }
        r->next_begin = o[0];
        r->next_end = o[1];
        *end = o[0] > at ? o[0] : o[1];
        return GM_OK;
    }
    *end = len;
    return GM_OK;
}
