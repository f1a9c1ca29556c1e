#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Jansson recurses once a level; the scan keeps hostile nesting away from its stack. */
static bool too_deep(const char *s, size_t len, int depth_max)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > depth_max) return true;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return false;
}

/* Jansson quotes the offending input ("unexpected token near '...'"): keep only what went wrong. */
static void strip_echo(char *text)
{
    char *near = strstr(text, " near '");
    if (near) *near = 0;
}

gm_status gm_json_parse(json_t **out, const char *text, size_t len, const char *what,
                        const gm_json_limits *limits, gm_error *err)
{
    size_t bytes_max = limits && limits->bytes_max ? limits->bytes_max : (size_t)1 << 30;
    int depth_max = limits && limits->depth_max ? limits->depth_max : 128;
    if (len > bytes_max)
        return gm_fail(err, GM_EFORMAT, "%s: %zu bytes, at most %zu are accepted", what, len, bytes_max);
    if (too_deep(text, len, depth_max))
        return gm_fail(err, GM_EFORMAT, "%s: nested deeper than %d levels", what, depth_max);
    json_error_t je;
    json_t *v = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!v) {
        strip_echo(je.text);
        return gm_fail(err, GM_EFORMAT, "%s: JSON error at line %d column %d: %s", what, je.line, je.column,
                       je.text);
    }
    *out = v;
    return GM_OK;
}

gm_status gm_json_load(json_t **out, const char *path, const gm_json_limits *limits, gm_error *err)
{
    size_t bytes_max = limits && limits->bytes_max ? limits->bytes_max : (size_t)1 << 30;
    FILE *f = fopen(path, "rb");
    if (!f) return gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    gm_str text = {0};
    char buf[65536];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, f)) > 0 && text.len <= bytes_max) gm_str_append(&text, buf, n);
    gm_status st = GM_OK;
    if (ferror(f)) st = gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    fclose(f);
    if (!st) st = gm_json_parse(out, gm_str_c(&text), text.len, path, limits, err);
    gm_str_fini(&text);
    return st;
}

void gm_json_put_string(gm_str *out, const char *s, size_t len)
{
    gm_str_putc(out, '"');
    size_t i = 0;
    while (i < len) {
        size_t ok = gm_utf8_valid_len(s + i, len - i), start = i;
        for (; i < start + ok; i++) {
            unsigned char c = (unsigned char)s[i];
            switch (c) {
            case '"': gm_str_puts(out, "\\\""); break;
            case '\\': gm_str_puts(out, "\\\\"); break;
            case '\n': gm_str_puts(out, "\\n"); break;
            case '\r': gm_str_puts(out, "\\r"); break;
            case '\t': gm_str_puts(out, "\\t"); break;
            case '\b': gm_str_puts(out, "\\b"); break;
            case '\f': gm_str_puts(out, "\\f"); break;
            default:
                if (c < 0x20) gm_str_printf(out, "\\u%04x", c);
                else gm_str_putc(out, (char)c);
            }
        }
        if (i < len) { /* one byte that no valid sequence holds */
            gm_str_put_utf8(out, 0xFFFD);
            i++;
        }
    }
    gm_str_putc(out, '"');
}

static int dump_to_str(const char *buffer, size_t size, void *data)
{
    gm_str_append(data, buffer, size);
    return 0;
}

void gm_json_put(gm_str *out, const json_t *v)
{
    json_dump_callback(v, dump_to_str, out, JSON_COMPACT | JSON_ENCODE_ANY);
}
