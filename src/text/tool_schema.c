#include "text/tool_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "text/chat.h"
#include "text/text_internal.h"

/* Schemas come from requests: references and branches are followed so far and no farther. */
#define HOPS_MAX 8
#define NODES_MAX 256
#define NUMBER_MAX 4096 /* characters */

/* ---- reading schemas ---- */

/* One step of a JSON pointer ("~1" is "/", "~0" is "~"). */
static const json_t *pointer_step(const json_t *at, const char *name, size_t len)
{
    gm_str key = {0};
    for (size_t i = 0; i < len; i++) {
        bool escape = name[i] == '~' && i + 1 < len && (name[i + 1] == '0' || name[i + 1] == '1');
        gm_str_putc(&key, !escape ? name[i] : name[++i] == '1' ? '/' : '~');
    }
    const json_t *to = json_object_getn(at, gm_str_c(&key), key.len);
    gm_str_fini(&key);
    return to;
}

static const json_t *follow(const json_t *schema, const json_t *root)
{
    for (int hop = 0; hop < HOPS_MAX; hop++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref) return schema;
        if (*ref != '#') return NULL;
        schema = root;
        for (ref++; *ref == '/' && schema;) {
            size_t len = strcspn(++ref, "/");
            schema = pointer_step(schema, ref, len);
            ref += len;
        }
    }
    return NULL;
}

static const struct {
    const char *name;
    bool prefix;
    unsigned type;
} type_names[] = {
    {"null", false, GM_TYPE_NULL},       {"none", false, GM_TYPE_NULL},
    {"integer", false, GM_TYPE_INTEGER}, {"int", true, GM_TYPE_INTEGER},
    {"uint", true, GM_TYPE_INTEGER},     {"long", true, GM_TYPE_INTEGER},
    {"short", true, GM_TYPE_INTEGER},    {"unsigned", true, GM_TYPE_INTEGER},
    {"number", false, GM_TYPE_NUMBER},   {"float", true, GM_TYPE_NUMBER},
    {"double", false, GM_TYPE_NUMBER},   {"boolean", false, GM_TYPE_BOOLEAN},
    {"bool", false, GM_TYPE_BOOLEAN},    {"object", false, GM_TYPE_OBJECT},
    {"dict", true, GM_TYPE_OBJECT},      {"array", false, GM_TYPE_ARRAY},
    {"arr", true, GM_TYPE_ARRAY},        {"list", true, GM_TYPE_ARRAY},
    {"sequence", true, GM_TYPE_ARRAY},   {"string", false, GM_TYPE_STRING},
    {"str", false, GM_TYPE_STRING},      {"text", false, GM_TYPE_STRING},
    {"varchar", false, GM_TYPE_STRING},  {"char", false, GM_TYPE_STRING},
    {"enum", false, GM_TYPE_STRING},
};

static unsigned named_type(const json_t *v)
{
    const char *s = json_string_value(v);
    for (size_t i = 0; s && i < sizeof type_names / sizeof *type_names; i++) {
        size_t len = strlen(type_names[i].name);
        if (strncasecmp(s, type_names[i].name, len) == 0 && (type_names[i].prefix || s[len] == 0))
            return type_names[i].type;
    }
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return GM_TYPE_OBJECT;
    case JSON_ARRAY:
        return GM_TYPE_ARRAY;
    case JSON_STRING:
        return GM_TYPE_STRING;
    case JSON_INTEGER:
        return GM_TYPE_INTEGER;
    case JSON_REAL:
        return GM_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return GM_TYPE_BOOLEAN;
    case JSON_NULL:
        return GM_TYPE_NULL;
    }
    return 0;
}

static const char *const branch_names[] = {"anyOf", "oneOf", "allOf"};
#define N_BRANCHES (sizeof branch_names / sizeof *branch_names)

static unsigned collect_types(const json_t *schema, const json_t *root, int depth, int *nodes)
{
    schema = follow(schema, root);
    if (!schema || depth > HOPS_MAX || --*nodes < 0) return 0;
    const json_t *type = json_object_get(schema, "type"), *fixed = json_object_get(schema, "const");
    unsigned types = named_type(type);
    size_t i;
    json_t *v;
    json_array_foreach(type, i, v) types |= named_type(v);
    json_array_foreach(json_object_get(schema, "enum"), i, v) types |= type_of_value(v);
    if (fixed) types |= type_of_value(fixed);
    for (size_t b = 0; b < N_BRANCHES; b++)
        json_array_foreach(json_object_get(schema, branch_names[b]), i, v) types |=
            collect_types(v, root, depth + 1, nodes);
    if (types && json_is_true(json_object_get(schema, "nullable"))) types |= GM_TYPE_NULL;
    return types;
}

unsigned gm_schema_types(const json_t *schema, const json_t *root)
{
    int nodes = NODES_MAX;
    unsigned types = collect_types(schema, root, 0, &nodes);
    return types ? types : GM_TYPE_STRING;
}

/* The first schema that says something on a child: under `field`, and there under key unless that is NULL. */
static const json_t *find_child(const json_t *schema, const json_t *root, const char *field, const char *key,
                                size_t len, int depth, int *nodes)
{
    schema = follow(schema, root);
    if (!schema || depth > HOPS_MAX || --*nodes < 0) return NULL;
    const json_t *at = json_object_get(schema, field);
    if (key) at = json_object_getn(at, key, len);
    if (json_is_object(at)) return at;
    for (size_t b = 0; b < N_BRANCHES; b++) {
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(schema, branch_names[b]), i, v)
        {
            at = find_child(v, root, field, key, len, depth + 1, nodes);
            if (at) return at;
        }
    }
    return NULL;
}

const json_t *gm_schema_property(const json_t *schema, const json_t *root, const char *key, size_t len)
{
    int nodes = NODES_MAX;
    const json_t *at = find_child(schema, root, "properties", key, len, 0, &nodes);
    return at ? at : find_child(schema, root, "additionalProperties", NULL, 0, 0, &nodes);
}

static const json_t *items_of(const json_t *schema, const json_t *root)
{
    int nodes = NODES_MAX;
    return find_child(schema, root, "items", NULL, 0, 0, &nodes);
}

/* ---- scalars ---- */

static bool is_word(const char *s, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(s, word, len) == 0;
}

static size_t digits_at(const char *s, size_t len, size_t i)
{
    size_t from = i;
    while (i < len && s[i] >= '0' && s[i] <= '9') i++;
    return i - from;
}

static bool put_integer(gm_str *out, const char *s, size_t len)
{
    bool minus = len && *s == '-';
    if (len && (*s == '-' || *s == '+')) s++, len--;
    if (!len || digits_at(s, len, 0) != len) return false;
    while (len > 1 && *s == '0') s++, len--;
    if (minus && *s != '0') gm_str_putc(out, '-');
    gm_str_append(out, s, len);
    return true;
}

static bool number_syntax(const char *s, size_t len)
{
    size_t i = len && (*s == '-' || *s == '+'), n = digits_at(s, len, i);
    i += n;
    if (i < len && s[i] == '.') {
        size_t more = digits_at(s, len, i + 1);
        i += more + 1;
        n += more;
    }
    if (!n) return false;
    if (i == len) return true;
    if (s[i] != 'e' && s[i] != 'E') return false;
    i++;
    if (i < len && (s[i] == '-' || s[i] == '+')) i++;
    n = digits_at(s, len, i);
    return n && i + n == len;
}

static bool put_number(gm_str *out, const char *s, size_t len)
{
    if (len > NUMBER_MAX || !number_syntax(s, len)) return false;
    char *copy = gm_strndup(s, len);
    double x = strtod(copy, NULL);
    gm_free(copy);
    if (!isfinite(x)) return false;
    if (x == trunc(x)) {
        gm_str_printf(out, "%.0f", x == 0 ? 0.0 : x);
        return true;
    }
    json_t *v = json_real(x);
    gm_chat_put_json(out, v);
    json_decref(v);
    return true;
}

static bool put_boolean(gm_str *out, const char *s, size_t len)
{
    bool yes = is_word(s, len, "true") || is_word(s, len, "1");
    if (!yes && !is_word(s, len, "false") && !is_word(s, len, "0")) return false;
    gm_str_puts(out, yes ? "true" : "false");
    return true;
}

/* ---- containers ---- */

static json_t *typed_child(json_t *v, const json_t *schema, const json_t *root);

/* Types what is inside a container, in place. */
static void type_inside(json_t *v, const json_t *schema, const json_t *root)
{
    size_t i, len;
    const char *key;
    json_t *item;
    if (json_is_array(v)) {
        const json_t *items = items_of(schema, root);
        if (!items) return;
        json_array_foreach(v, i, item)
        {
            json_t *typed = typed_child(item, items, root);
            if (typed) json_array_set_new(v, i, typed);
        }
    } else if (json_is_object(v)) {
        void *next;
        json_object_keylen_foreach_safe(v, next, key, len, item)
        {
            const json_t *child = gm_schema_property(schema, root, key, len);
            json_t *typed = child ? typed_child(item, child, root) : NULL;
            if (typed) json_object_setn_new(v, key, len, typed);
        }
    }
}

static json_t *parse_any(const char *s, size_t len)
{
    json_t *v = NULL;
    return gm_json_parse(&v, s, len, "value", NULL, NULL) ? NULL : v;
}

/* A new value for v, or NULL where it stays (its inside may have changed). */
static json_t *typed_child(json_t *v, const json_t *schema, const json_t *root)
{
    if (!json_is_string(v)) {
        type_inside(v, schema, root);
        return NULL;
    }
    if (gm_schema_types(schema, root) & GM_TYPE_STRING) return NULL;
    gm_str s = {0};
    gm_schema_put_value(&s, json_string_value(v), json_string_length(v), schema, root);
    json_t *typed = parse_any(gm_str_c(&s), s.len);
    gm_str_fini(&s);
    return typed;
}

static bool put_container(gm_str *out, const char *s, size_t len, unsigned types, const json_t *schema,
                          const json_t *root)
{
    bool fits = len && ((*s == '{' && (types & GM_TYPE_OBJECT)) || (*s == '[' && (types & GM_TYPE_ARRAY)));
    json_t *v = fits ? parse_any(s, len) : NULL;
    if (!v) return false;
    type_inside(v, schema, root);
    gm_chat_put_json(out, v);
    json_decref(v);
    return true;
}

static bool put_any_json(gm_str *out, const char *s, size_t len)
{
    json_t *v = parse_any(s, len);
    if (!v) return false;
    gm_chat_put_json(out, v);
    json_decref(v);
    return true;
}

void gm_schema_put_value(gm_str *out, const char *text, size_t len, const json_t *schema, const json_t *root)
{
    unsigned types = gm_schema_types(schema, root);
    size_t n = len;
    const char *s = gm_text_strip(text, &n);
    if ((types & GM_TYPE_NULL) && is_word(s, n, "null")) gm_str_puts(out, "null");
    else if ((types & GM_TYPE_INTEGER) && put_integer(out, s, n)) return;
    else if ((types & GM_TYPE_NUMBER) && put_number(out, s, n)) return;
    else if ((types & GM_TYPE_BOOLEAN) && put_boolean(out, s, n)) return;
    else if (put_container(out, s, n, types, schema, root)) return;
    else if (!(types & GM_TYPE_STRING) && put_any_json(out, s, n)) return;
    else gm_json_put_string(out, text, len);
}
