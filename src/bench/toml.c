#include "bench/toml.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 32 };

typedef struct reader {
    const char *p, *end, *what;
    int line, depth;
    gm_error *err;
} reader;

static gm_status nonsense(reader *r, const char *why)
{
    return gm_fail(r->err, GM_EFORMAT, "%s:%d: %s", r->what, r->line, why);
}

static char at(const reader *r)
{
    return r->p < r->end ? *r->p : 0;
}

static void step(reader *r)
{
    if (*r->p++ == '\n') r->line++;
}

static void blanks(reader *r)
{
    while (at(r) == ' ' || at(r) == '\t') r->p++;
}

static void comment(reader *r)
{
    blanks(r);
    if (at(r) == '#')
        while (r->p < r->end && *r->p != '\n') r->p++;
}

/* Blanks, comments and line ends. */
static void gap(reader *r)
{
    for (;;) {
        comment(r);
        if (at(r) != '\n' && at(r) != '\r') return;
        step(r);
    }
}

static gm_status line_end(reader *r)
{
    comment(r);
    if (at(r) == '\r') r->p++;
    if (r->p == r->end) return GM_OK;
    if (*r->p != '\n') return nonsense(r, "something follows the value on its line");
    step(r);
    return GM_OK;
}

static bool starts(const reader *r, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(r->end - r->p) >= n && !memcmp(r->p, word, n);
}

static gm_status escape(reader *r, gm_str *out)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    char c = at(r), digits[9] = "";
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        gm_str_putc(out, to[hit - from]);
        r->p++;
        return GM_OK;
    }
    int n = c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!n || r->end - r->p <= n) return nonsense(r, "an unknown escape in a string");
    memcpy(digits, r->p + 1, (size_t)n);
    if (strspn(digits, "0123456789abcdefABCDEF") != (size_t)n)
        return nonsense(r, "an unknown escape in a string");
    gm_str_put_utf8(out, (uint32_t)strtoul(digits, NULL, 16));
    r->p += n + 1;
    return GM_OK;
}

static gm_status string(reader *r, gm_str *out)
{
    char quote = *r->p, three[4] = {quote, quote, quote, 0};
    bool block = starts(r, three), literal = quote == '\'';
    r->p += block ? 3 : 1;
    if (block && at(r) == '\r') r->p++;
    if (block && at(r) == '\n') step(r);
    for (;;) {
        if (r->p == r->end || (!block && *r->p == '\n')) return nonsense(r, "a string is not closed");
        if (block ? starts(r, three) : *r->p == quote) break;
        if (*r->p == '\\' && !literal) {
            r->p++;
            if (block && (at(r) == '\n' || at(r) == '\r')) {
                while (r->p < r->end && isspace((unsigned char)*r->p)) step(r);
                continue;
            }
            gm_status st = escape(r, out);
            if (st) return st;
            continue;
        }
        gm_str_putc(out, *r->p);
        step(r);
    }
    r->p += block ? 3 : 1;
    return GM_OK;
}

static gm_status key_part(reader *r, gm_str *out)
{
    blanks(r);
    gm_str_clear(out);
    if (at(r) == '"' || at(r) == '\'') {
        if (starts(r, "\"\"\"") || starts(r, "'''")) return nonsense(r, "a key cannot be a block string");
        return string(r, out);
    }
    while (isalnum((unsigned char)at(r)) || at(r) == '_' || at(r) == '-') gm_str_putc(out, *r->p++);
    return out->len ? GM_OK : nonsense(r, "a key is missing");
}

/* From `table` along a dotted key: the table that holds its last part, which is left in *last. */
static gm_status key_path(reader *r, json_t **table, gm_str *last)
{
    for (;;) {
        gm_status st = key_part(r, last);
        if (st) return st;
        blanks(r);
        if (at(r) != '.') return GM_OK;
        r->p++;
        json_t *child = json_object_get(*table, gm_str_c(last));
        if (!child) {
            child = json_object();
            if (json_object_set_new(*table, gm_str_c(last), child)) return nonsense(r, "not a usable key");
        }
        if (json_is_array(child)) child = json_array_get(child, json_array_size(child) - 1);
        if (!json_is_object(child)) return nonsense(r, "a key goes into something that is no table");
        *table = child;
    }
}

static gm_status value(reader *r, json_t **out);

static gm_status pair(reader *r, json_t *table)
{
    gm_str last = {0};
    json_t *v = NULL;
    gm_status st = key_path(r, &table, &last);
    blanks(r);
    if (!st && at(r) != '=') st = nonsense(r, "'=' is missing after a key");
    if (!st) {
        r->p++;
        st = value(r, &v);
    }
    if (!st && json_object_get(table, gm_str_c(&last))) st = nonsense(r, "a key is there twice");
    if (!st && json_object_set(table, gm_str_c(&last), v)) st = nonsense(r, "not a usable key");
    json_decref(v);
    gm_str_fini(&last);
    return st;
}

static gm_status array(reader *r, json_t **out)
{
    json_t *list = json_array(), *v = NULL;
    gm_status st = GM_OK;
    r->p++;
    for (;;) {
        gap(r);
        if (at(r) == ']') break;
        if ((st = value(r, &v))) break;
        json_array_append_new(list, v);
        gap(r);
        if (at(r) == ',') r->p++;
        else if (at(r) != ']') {
            st = nonsense(r, "',' or ']' is missing in a list");
            break;
        }
    }
    if (st) {
        json_decref(list);
        return st;
    }
    r->p++;
    *out = list;
    return GM_OK;
}

static gm_status inline_table(reader *r, json_t **out)
{
    json_t *table = json_object();
    gm_status st = GM_OK;
    r->p++;
    blanks(r);
    while (at(r) != '}') {
        if ((st = pair(r, table))) break;
        blanks(r);
        if (at(r) == ',') {
            r->p++;
            blanks(r);
        } else if (at(r) != '}') {
            st = nonsense(r, "',' or '}' is missing in a table");
            break;
        }
    }
    if (st) {
        json_decref(table);
        return st;
    }
    r->p++;
    *out = table;
    return GM_OK;
}

static gm_status scalar(reader *r, json_t **out)
{
    char word[64], *end;
    size_t n = 0;
    while (r->p < r->end && (isalnum((unsigned char)*r->p) || strchr("+-._:", *r->p)) &&
           n < sizeof word - 1) {
        if (*r->p != '_') word[n++] = *r->p;
        r->p++;
    }
    word[n] = 0;
    if (!n) return nonsense(r, "a value is missing");
    if (!strcmp(word, "true") || !strcmp(word, "false")) {
        *out = json_boolean(word[0] == 't');
        return GM_OK;
    }
    errno = 0;
    long long i = strtoll(word, &end, !strncmp(word, "0x", 2) ? 16 : 10);
    if (!*end && !errno) {
        *out = json_integer(i);
        return GM_OK;
    }
    double d = strtod(word, &end);
    if (*end || !isdigit((unsigned char)word[strspn(word, "+-")]))
        return nonsense(r,
                        "a value is neither a number, a string, true nor false (dates are not understood)");
    *out = json_real(d);
    return *out ? GM_OK : nonsense(r, "a number is out of range");
}

static gm_status value(reader *r, json_t **out)
{
    gm_str s = {0};
    blanks(r);
    char c = at(r);
    gm_status st;
    if (c == '"' || c == '\'') {
        st = string(r, &s);
        *out = st ? NULL : json_stringn(gm_str_c(&s), s.len);
        if (!st && !*out) st = nonsense(r, "a string is not UTF-8");
        gm_str_fini(&s);
        return st;
    }
    if (c != '[' && c != '{') return scalar(r, out);
    if (r->depth++ == DEPTH_MAX) return nonsense(r, "nested too deeply");
    st = c == '[' ? array(r, out) : inline_table(r, out);
    r->depth--;
    return st;
}

/* [a.b] or [[a.b]] */
static gm_status header(reader *r, json_t *root, json_t **table)
{
    gm_str last = {0};
    bool list = starts(r, "[[");
    json_t *in = root;
    r->p += list ? 2 : 1;
    gm_status st = key_path(r, &in, &last);
    blanks(r);
    if (!st && !starts(r, list ? "]]" : "]")) st = nonsense(r, "']' is missing");
    json_t *old = st ? NULL : json_object_get(in, gm_str_c(&last));
    if (!st && old && !(list ? json_is_array(old) : json_is_object(old)))
        st = nonsense(r, "a table is there as something else");
    if (!st) {
        r->p += list ? 2 : 1;
        *table = !list && old ? old : json_object();
        if (list && !old) json_object_set_new(in, gm_str_c(&last), old = json_array());
        if (list) json_array_append_new(old, *table);
        else if (!old) json_object_set_new(in, gm_str_c(&last), *table);
    }
    gm_str_fini(&last);
    return st;
}

gm_status gm_toml_parse(json_t **out, const char *text, size_t len, const char *what, gm_error *err)
{
    reader r = {text, text + len, what, 1, 0, err};
    if (gm_utf8_valid_len(text, len) != len) return gm_fail(err, GM_EFORMAT, "%s: not UTF-8", what);
    json_t *root = json_object(), *table = root;
    gm_status st = GM_OK;
    for (;;) {
        gap(&r);
        if (r.p == r.end) break;
        st = *r.p == '[' ? header(&r, root, &table) : pair(&r, table);
        if (!st) st = line_end(&r);
        if (st) break;
    }
    if (st) {
        json_decref(root);
        return st;
    }
    *out = root;
    return GM_OK;
}
