/* JSON in the form that Python's json.dumps(ensure_ascii=False) writes. */
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest digits that read back as x, as d.ddde+xx. */
static void shortest(char *buf, size_t size, double x)
{
    for (int digits = 0; digits < 17; digits++) {
        snprintf(buf, size, "%.*e", digits, x);
        if (strtod(buf, NULL) == x) return;
    }
}

/* Python's repr(): plain below 1e16 and from 1e-4 on, with ".0" where it would look like an integer. */
static void put_real(gm_str *out, double x)
{
    char buf[40], digits[24];
    int n = 0;
    shortest(buf, sizeof buf, x);
    const char *s = buf;
    if (*s == '-') gm_str_putc(out, *s++);
    for (; *s && *s != 'e'; s++)
        if (*s != '.') digits[n++] = *s;
    int e = *s ? atoi(s + 1) : 0;
    if (e < -4 || e >= 16) {
        gm_str_putc(out, digits[0]);
        if (n > 1) gm_str_printf(out, ".%.*s", n - 1, digits + 1);
        gm_str_printf(out, "e%c%02d", e < 0 ? '-' : '+', abs(e));
    } else if (e < 0) {
        gm_str_puts(out, "0.");
        for (int i = -1; i > e; i--) gm_str_putc(out, '0');
        gm_str_append(out, digits, (size_t)n);
    } else {
        for (int i = 0; i < n || i <= e + 1; i++) {
            if (i == e + 1) gm_str_putc(out, '.');
            gm_str_putc(out, i < n ? digits[i] : '0');
        }
    }
}

static void put_object(gm_str *out, const json_t *v)
{
    const char *key, *between = "";
    size_t len;
    json_t *item;
    gm_str_putc(out, '{');
    json_object_keylen_foreach((json_t *)(uintptr_t)v, key, len, item)
    {
        gm_str_puts(out, between);
        gm_json_put_string(out, key, len);
        gm_str_puts(out, ": ");
        gm_chat_put_json(out, item);
        between = ", ";
    }
    gm_str_putc(out, '}');
}

static void put_array(gm_str *out, const json_t *v)
{
    size_t i;
    json_t *item;
    gm_str_putc(out, '[');
    json_array_foreach(v, i, item)
    {
        if (i) gm_str_puts(out, ", ");
        gm_chat_put_json(out, item);
    }
    gm_str_putc(out, ']');
}

void gm_chat_put_json(gm_str *out, const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        put_object(out, v);
        break;
    case JSON_ARRAY:
        put_array(out, v);
        break;
    case JSON_STRING:
        gm_json_put_string(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        gm_str_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        put_real(out, json_real_value(v));
        break;
    case JSON_TRUE:
        gm_str_puts(out, "true");
        break;
    case JSON_FALSE:
        gm_str_puts(out, "false");
        break;
    case JSON_NULL:
        gm_str_puts(out, "null");
        break;
    }
}
