#include "base/opts.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef enum opt_type { T_BOOL, T_INT, T_HUMAN, T_FLOAT, T_STR, T_LIST, T_JSON } opt_type;
typedef enum opt_group {
    G_MODEL, G_DEVICE, G_PARALLEL, G_SCHEDULER, G_CACHE, G_FRONTEND, G_LOGGING, G_CHAT, G_BENCH, G_INSPECT, G_COUNT
} opt_group;

static const char *const group_names[G_COUNT][2] = {
    {"model", "the checkpoint and how it is read"},
    {"device", "where and how the model runs"},
    {"parallel", "ranks"},
    {"scheduler", "who runs next and how many tokens"},
    {"cache", "memory for cached tokens and state"},
    {"frontend", "HTTP, prompts and answers"},
    {"logging", "what is written to the log"},
    {"chat", "the terminal session"},
    {"bench", "load, data sets and reports"},
    {"inspect", "what is shown of a checkpoint"},
};

typedef struct opt_row {
    opt_type type;
    const char *flag, *alias;
    opt_group group;
    const char *unit, *def;
    double lo, hi;
    const char *choices;
    unsigned commands;
    const char *help;
    size_t offset;
} opt_row;

static const opt_row rows[GM_OPT_COUNT] = {
#define X(field, TYPE, flag, alias, group, unit, def, lo, hi, choices, cmds, help)                                     \
    {T_##TYPE, flag, alias, G_##group, unit, def, lo, hi, choices, GM_OPT_##cmds, help, offsetof(gm_settings, field)},
    GM_OPT_TABLE(X)
#undef X
};

typedef enum ignored_kind { I_VALUE, I_FLAG, I_LIST, I_JSON } ignored_kind;
static const struct {
    const char *flag, *alias;
    ignored_kind kind;
} ignored_rows[] = {
#define Y(flag, alias, kind) {flag, alias, I_##kind},
    GM_OPT_IGNORED(Y)
#undef Y
};
enum { N_IGNORED = sizeof ignored_rows / sizeof *ignored_rows };

static void *field_of(const gm_settings *s, const opt_row *r)
{
    union {
        const char *in;
        char *out;
    } u = {.in = (const char *)s + r->offset}; /* rows describe a struct that the callers own */
    return u.out;
}

static const char *command_name(gm_opt_command c)
{
    return c == GM_OPT_BENCH ? "bench serve" : c == GM_OPT_SERVE ? "serve" : c == GM_OPT_CHAT ? "chat" : "inspect";
}

gm_status gm_human_int(int64_t *out, const char *text, gm_error *err)
{
    static const char lower[] = "kmgt", upper[] = "KMGT";
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '-')
        return gm_fail(err, GM_EARG, "invalid human_readable_int value: '%.64s'", text);
    errno = 0;
    double v = strtod(text, &end);
    bool decimal = memchr(text, '.', (size_t)(end - text)) != NULL;
    if (end == text || errno || !isfinite(v) || memchr(text, 'x', (size_t)(end - text)) ||
        memchr(text, 'e', (size_t)(end - text)) || memchr(text, 'E', (size_t)(end - text)))
        return gm_fail(err, GM_EARG, "invalid human_readable_int value: '%.64s'", text);
    double factor = 1;
    if (*end) {
        const char *lo = strchr(lower, *end), *up = strchr(upper, *end);
        if (end[1] || (!lo && !up)) return gm_fail(err, GM_EARG, "invalid human_readable_int value: '%.64s'", text);
        if (up && decimal)
            return gm_fail(err, GM_EARG, "decimals are not allowed with the binary suffix of '%.64s'; did you mean %.*s%c?",
                           text, (int)(end - text), text, (int)tolower(*end));
        for (const char *p = lo ? lower : upper; p <= (lo ? lo : up); p++) factor *= lo ? 1000.0 : 1024.0;
    } else if (decimal) {
        return gm_fail(err, GM_EARG, "invalid human_readable_int value: '%.64s'", text);
    }
    v *= factor;
    if (fabs(v) > 9e18) return gm_fail(err, GM_EARG, "'%.64s' is too large", text);
    *out = (int64_t)llround(v);
    return GM_OK;
}

/* True where word is one of "a|b|c". */
static bool in_choices(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && !memcmp(p, word, n)) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

static gm_status fail_choice(const opt_row *r, const char *word, gm_error *err)
{
    gm_str list = {0};
    for (const char *p = r->choices; *p;) {
        size_t len = strcspn(p, "|");
        gm_str_printf(&list, "%s'%.*s'", list.len ? ", " : "", (int)len, p);
        p += len + (p[len] == '|');
    }
    gm_status st = gm_fail(err, GM_EARG, "argument --%s: invalid choice: '%.64s' (choose from %s)", r->flag, word,
                           gm_str_c(&list));
    gm_str_fini(&list);
    return st;
}

static gm_status check_bounds(const opt_row *r, double v, const char *text, gm_error *err)
{
    if (r->lo > r->hi || (v >= r->lo && v <= r->hi)) return GM_OK;
    return gm_fail(err, GM_EARG, "argument --%s: %.64s is not between %.15g and %.15g", r->flag, text, r->lo, r->hi);
}

static bool parse_bool(const char *text, bool *out)
{
    bool yes = !strcasecmp(text, "true") || !strcasecmp(text, "yes") || !strcasecmp(text, "on") || !strcmp(text, "1");
    bool no = !strcasecmp(text, "false") || !strcasecmp(text, "no") || !strcasecmp(text, "off") || !strcmp(text, "0");
    *out = yes;
    return yes || no;
}

static gm_status set_number(gm_settings *s, const opt_row *r, const char *text, gm_error *err)
{
    if (r->choices[0] && in_choices(r->choices, text)) {
        *(int64_t *)field_of(s, r) = -1;
        return GM_OK;
    }
    if (r->type == T_FLOAT) {
        char *end;
        double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v))
            return gm_fail(err, GM_EARG, "argument --%s: invalid float value: '%.64s'", r->flag, text);
        *(double *)field_of(s, r) = v;
        return check_bounds(r, v, text, err);
    }
    int64_t v = 0;
    if (r->type == T_HUMAN) {
        if (gm_human_int(&v, text, err)) return gm_context(err, GM_EARG, "argument --%s", r->flag);
    } else {
        char *end;
        errno = 0;
        v = strtoll(text, &end, 10);
        if (end == text || *end || errno)
            return gm_fail(err, GM_EARG, "argument --%s: invalid int value: '%.64s'", r->flag, text);
    }
    *(int64_t *)field_of(s, r) = v;
    return check_bounds(r, (double)v, text, err);
}

static gm_status set_json(gm_settings *s, const opt_row *r, const char *text, gm_error *err)
{
    json_t *v = NULL;
    char what[96];
    snprintf(what, sizeof what, "argument --%s", r->flag);
    gm_status st = gm_json_parse(&v, text, strlen(text), what, NULL, err);
    if (st) return GM_EARG;
    bool list = r->def[0] == '[';
    if (list ? !json_is_array(v) : !json_is_object(v)) {
        json_decref(v);
        return gm_fail(err, GM_EARG, "argument --%s: needs a JSON %s", r->flag, list ? "list" : "object");
    }
    json_t **f = field_of(s, r);
    json_decref(*f);
    *f = v;
    return GM_OK;
}

static json_t *scalar_of(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &e);
    return v ? v : json_string(text);
}

/* --flag.a.b VALUE: one value deep inside a JSON setting; a trailing '+' appends to a list. */
static gm_status set_dotted(json_t **root, const char *flag, const char *path, const char *text, gm_error *err)
{
    if (!*root) *root = json_object();
    json_t *at = *root;
    char *copy = gm_strdup(path), *save = NULL, *key = strtok_r(copy, ".", &save);
    gm_status st = GM_OK;
    while (key) {
        char *next = strtok_r(NULL, ".", &save);
        if (next) {
            json_t *child = json_object_get(at, key);
            if (!json_is_object(child)) json_object_set_new(at, key, child = json_object());
            at = child;
        } else if (key[0] && key[strlen(key) - 1] == '+') {
            key[strlen(key) - 1] = 0;
            json_t *list = json_object_get(at, key);
            if (!json_is_array(list)) json_object_set_new(at, key, list = json_array());
            char *words = gm_strdup(text), *w2 = NULL;
            for (char *w = strtok_r(words, ",", &w2); w; w = strtok_r(NULL, ",", &w2))
                json_array_append_new(list, scalar_of(w));
            gm_free(words);
        } else if (json_object_set_new(at, key, scalar_of(text))) {
            st = gm_fail(err, GM_EARG, "argument --%s.%s: not a usable key", flag, path);
        }
        key = next;
    }
    gm_free(copy);
    return st;
}

static gm_status add_words(json_t **list, const char *text)
{
    if (!*list) *list = json_array();
    json_array_append_new(*list, json_string(text));
    return GM_OK;
}

static gm_status set_text(gm_settings *s, const opt_row *r, const char *text, gm_error *err)
{
    switch (r->type) {
    case T_BOOL: {
        bool v;
        if (!parse_bool(text, &v))
            return gm_fail(err, GM_EARG, "argument --%s: '%.64s' is neither true nor false", r->flag, text);
        *(bool *)field_of(s, r) = v;
        return GM_OK;
    }
    case T_INT:
    case T_HUMAN:
    case T_FLOAT: return set_number(s, r, text, err);
    case T_STR:
        if (r->choices[0] && !in_choices(r->choices, text)) return fail_choice(r, text, err);
        gm_free(*(char **)field_of(s, r));
        *(char **)field_of(s, r) = gm_strdup(text);
        return GM_OK;
    case T_LIST: return add_words(field_of(s, r), text);
    case T_JSON: return set_json(s, r, text, err);
    }
    return GM_OK;
}

static const opt_row *find_row(const char *name, size_t n)
{
    for (size_t i = 0; i < GM_OPT_COUNT; i++)
        if (strlen(rows[i].flag) == n && !memcmp(rows[i].flag, name, n)) return &rows[i];
    return NULL;
}

/* alias includes its dashes, as typed. */
static const opt_row *find_alias(const char *word, size_t n)
{
    for (size_t i = 0; i < GM_OPT_COUNT; i++)
        if (rows[i].alias[0] && strlen(rows[i].alias) == n && !memcmp(rows[i].alias, word, n)) return &rows[i];
    return NULL;
}

static int find_ignored(const char *name, size_t n, bool alias)
{
    for (int i = 0; i < N_IGNORED; i++) {
        const char *f = alias ? ignored_rows[i].alias : ignored_rows[i].flag;
        if (f[0] && strlen(f) == n && !memcmp(f, name, n)) return i;
    }
    return -1;
}

static bool is_absent(const char *name, size_t n)
{
    for (const char *p = GM_OPT_ABSENT; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && !memcmp(p, name, n)) return true;
        p += len;
        p += strspn(p, " ");
    }
    return false;
}

typedef struct words {
    gm_settings *s;
    gm_opt_command command;
    int argc, at;
    char *const *argv;
} words;

/* The next word is a value unless it looks like a flag; -1 and -0.5 are values. */
static bool has_value(const words *w)
{
    if (w->at >= w->argc) return false;
    const char *a = w->argv[w->at];
    return a[0] != '-' || !a[1] || isdigit((unsigned char)a[1]) || a[1] == '.';
}

static gm_status need_value(words *w, const char *flag, const char *inline_value, const char **out, gm_error *err)
{
    if (inline_value) {
        *out = inline_value;
        return GM_OK;
    }
    if (!has_value(w)) return gm_fail(err, GM_EARG, "argument --%s: expected one argument", flag);
    *out = w->argv[w->at++];
    return GM_OK;
}

static gm_status take_row(words *w, const opt_row *r, const char *path, const char *value, gm_error *err)
{
    gm_settings *s = w->s;
    gm_status st = GM_OK;
    if (!(r->commands & (unsigned)w->command))
        return gm_fail(err, GM_EARG, "argument --%s: not a flag of glimmer %s", r->flag, command_name(w->command));
    s->given[r - rows] = true;
    if (path) {
        if (r->type != T_JSON) return gm_fail(err, GM_EARG, "argument --%s: takes no dotted keys", r->flag);
        if ((st = need_value(w, r->flag, value, &value, err))) return st;
        return set_dotted(field_of(s, r), r->flag, path, value, err);
    }
    if (r->type == T_BOOL) {
        *(bool *)field_of(s, r) = true;
        return value ? set_text(s, r, value, err) : GM_OK;
    }
    if (r->type == T_LIST) {
        json_t **f = field_of(s, r);
        json_decref(*f);
        *f = json_array();
        if (value) return add_words(f, value);
        if (!has_value(w)) return gm_fail(err, GM_EARG, "argument --%s: expected at least one argument", r->flag);
        while (has_value(w)) add_words(f, w->argv[w->at++]);
        return GM_OK;
    }
    if ((st = need_value(w, r->flag, value, &value, err))) return st;
    return set_text(s, r, value, err);
}

static gm_status take_ignored(words *w, int i, bool dotted, const char *value, gm_error *err)
{
    gm_status st = GM_OK;
    char name[160];
    snprintf(name, sizeof name, "--%s", ignored_rows[i].flag);
    json_array_append_new(w->s->ignored, json_string(name));
    if (value || ignored_rows[i].kind == I_FLAG) return GM_OK;
    if (ignored_rows[i].kind == I_LIST && !dotted) {
        while (has_value(w)) w->at++;
        return GM_OK;
    }
    st = need_value(w, ignored_rows[i].flag, value, &value, err);
    return st;
}

/* word as typed; name is it without dashes, '_' made '-' up to the '=' or '.', and is modified. */
static gm_status take_flag(words *w, const char *word, gm_error *err)
{
    bool is_long = word[0] == '-' && word[1] == '-';
    const char *eq = strchr(word, '=');
    size_t n = eq ? (size_t)(eq - word) : strlen(word);
    const char *value = eq ? eq + 1 : NULL;
    gm_status st = GM_OK;
    char name[128];
    if (n >= sizeof name) return gm_fail(err, GM_EARG, "unrecognized arguments: %.64s...", word);
    memcpy(name, word, n);
    name[n] = 0;
    if (!strcmp(name, "-h") || !strcmp(name, "--help")) {
        w->s->help = true;
        gm_free(w->s->help_filter);
        w->s->help_filter = value ? gm_strdup(value) : NULL;
        return GM_OK;
    }
    if (!is_long && name[1] == 'O' && isdigit((unsigned char)name[2])) return GM_OK;
    char *dot = strchr(name, '.');
    const char *path = dot ? dot + 1 : NULL;
    if (dot) *dot = 0;
    for (char *p = name + 1; *p; p++)
        if (*p == '_') *p = '-';
    size_t len = strlen(name);
    const opt_row *r = is_long ? find_row(name + 2, len - 2) : NULL;
    if (!r) r = find_alias(name, len);
    if (r) return take_row(w, r, path, value, err);
    int i = is_long ? find_ignored(name + 2, len - 2, false) : find_ignored(name, len, true);
    if (i >= 0) return take_ignored(w, i, path != NULL, value, err);
    if (is_long && !strncmp(name, "--no-", 5)) {
        r = find_row(name + 5, len - 5);
        if (r && r->type == T_BOOL && (r->commands & (unsigned)w->command) && !value) {
            *(bool *)field_of(w->s, r) = false;
            w->s->given[r - rows] = true;
            return GM_OK;
        }
        i = find_ignored(name + 5, len - 5, false);
        if (i >= 0 && ignored_rows[i].kind == I_FLAG) return take_ignored(w, i, false, "", err);
    }
    if (is_absent(is_long ? name + 2 : name, is_long ? len - 2 : len) ||
        (is_long && !strncmp(name, "--no-", 5) && is_absent(name + 5, len - 5)))
        return gm_fail(err, GM_EARG, "argument %s: is a vLLM flag that glimmer does not have", name);
    st = gm_fail(err, GM_EARG, "unrecognized arguments: %.64s", name);
    return st;
}

static char *trim(char *p)
{
    while (isspace((unsigned char)*p)) p++;
    for (size_t n = strlen(p); n > 0 && isspace((unsigned char)p[n - 1]); n--) p[n - 1] = 0;
    return p;
}

static char *unquote(char *p)
{
    size_t n = strlen(p);
    if (n >= 2 && (p[0] == '"' || p[0] == '\'') && p[n - 1] == p[0]) {
        p[n - 1] = 0;
        return p + 1;
    }
    if (p[0] != '{' && p[0] != '[') { /* a comment ends a plain value */
        for (char *c = p; *c; c++)
            if (*c == '#' && (c == p || isspace((unsigned char)c[-1]))) {
                *c = 0;
                break;
            }
        return trim(p);
    }
    return p;
}

/* One "key: value" of the file as the words of a command line. */
static gm_status file_pair(gm_settings *s, gm_opt_command command, const char *key, char *value, gm_error *err)
{
    gm_str flag = {0};
    bool b;
    char *argv[2];
    int argc = 1;
    size_t n = strlen(key);
    char name[128];
    snprintf(name, sizeof name, "%s", key);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    const opt_row *r = find_row(name, strlen(name));
    int ig = find_ignored(name, strlen(name), false);
    bool is_flag = (r && r->type == T_BOOL) || (ig >= 0 && ignored_rows[ig].kind == I_FLAG);
    (void)n;
    if (is_flag && parse_bool(value, &b)) {
        gm_str_printf(&flag, "--%s%s", b ? "" : "no-", name);
    } else if (r && r->type == T_LIST && value[0] == '[') {
        /* [a, b] */
        size_t len = strlen(value);
        if (value[len - 1] == ']') value[len - 1] = 0;
        json_t **f = field_of(s, r);
        json_decref(*f);
        *f = json_array();
        char *save = NULL;
        for (char *p = strtok_r(value + 1, ",", &save); p; p = strtok_r(NULL, ",", &save)) add_words(f, unquote(trim(p)));
        s->given[r - rows] = true;
        gm_str_fini(&flag);
        return GM_OK;
    } else {
        gm_str_printf(&flag, "--%s=%s", name, value);
    }
    argv[0] = flag.data;
    words w = {s, command, argc, 1, argv};
    gm_status st = take_flag(&w, argv[0], err);
    gm_str_fini(&flag);
    return st;
}

/* The part of YAML that a flat map of flags needs: "key: value" lines, "- item" lists under a key, [a, b], JSON in one
 * line, quotes and comments. Anything deeper is refused. */
static gm_status read_file(gm_settings *s, gm_opt_command command, const char *path, gm_error *err)
{
    FILE *f = fopen(path, "rb");
    if (!f) return gm_fail(err, GM_EARG, "argument --config: %s: %s", path, strerror(errno));
    char *line = NULL, *list_key = NULL;
    size_t cap = 0;
    int no = 0;
    gm_status st = GM_OK;
    while (!st && getline(&line, &cap, f) >= 0) {
        no++;
        bool indented = line[0] == ' ' || line[0] == '\t';
        char *p = trim(line);
        if (!*p || *p == '#' || !strcmp(p, "---")) continue;
        if (p[0] == '-' && (p[1] == ' ' || !p[1]) && list_key) {
            for (char *q = list_key; *q; q++)
                if (*q == '_') *q = '-';
            const opt_row *r = find_row(list_key, strlen(list_key));
            if (!r || r->type != T_LIST) {
                st = gm_fail(err, GM_EARG, "argument --config: %s:%d: '%.64s' takes no list", path, no, list_key);
                break;
            }
            if (!s->given[r - rows]) {
                json_decref(*(json_t **)field_of(s, r));
                *(json_t **)field_of(s, r) = json_array();
            }
            s->given[r - rows] = true;
            add_words(field_of(s, r), unquote(trim(p + 1)));
            continue;
        }
        char *colon = strchr(p, ':');
        if (indented || !colon || (colon[1] && !isspace((unsigned char)colon[1]))) {
            st = gm_fail(err, GM_EARG,
                         "argument --config: %s:%d: only a flat map of 'key: value' lines is understood", path, no);
            break;
        }
        *colon = 0;
        char *key = unquote(trim(p)), *value = unquote(trim(colon + 1));
        gm_free(list_key);
        list_key = NULL;
        if (!*value) {
            list_key = gm_strdup(key);
            continue;
        }
        st = file_pair(s, command, key, value, err);
        if (st) st = gm_context(err, st, "%s:%d", path, no);
    }
    gm_free(list_key);
    free(line);
    fclose(f);
    return st;
}

static gm_status set_defaults(gm_settings *s, gm_error *err)
{
    gm_status st = GM_OK;
    for (size_t i = 0; i < GM_OPT_COUNT && !st; i++)
        if (rows[i].def[0]) st = set_text(s, &rows[i], rows[i].def, err);
    return st;
}

/* The file comes first, so that the command line beats it. */
static gm_status take_config(gm_settings *s, gm_opt_command command, int argc, char *const *argv, gm_error *err)
{
    for (int i = 0; i < argc; i++) {
        const char *path = NULL;
        if (!strncmp(argv[i], "--config=", 9)) path = argv[i] + 9;
        else if (!strcmp(argv[i], "--config")) path = i + 1 < argc ? argv[i + 1] : "";
        if (!path) continue;
        if (!*path) return gm_fail(err, GM_EARG, "argument --config: expected one argument");
        gm_status st = read_file(s, command, path, err);
        if (st) return st;
    }
    return GM_OK;
}

gm_status gm_settings_parse(gm_settings *out, gm_opt_command command, int argc, char *const *argv, gm_error *err)
{
    memset(out, 0, sizeof *out);
    gm_settings s = {0};
    s.ignored = json_array();
    words w = {&s, command, argc, 0, argv};
    bool plain_model = false;
    gm_status st = set_defaults(&s, err);
    GM_ASSERT(!st);
    st = take_config(&s, command, argc, argv, err);
    while (!st && w.at < argc) {
        const char *a = argv[w.at++];
        if (!strncmp(a, "--config=", 9)) continue;
        if (!strcmp(a, "--config")) {
            w.at++;
        } else if (a[0] == '-' && a[1]) {
            st = take_flag(&w, a, err);
        } else if (!plain_model) {
            plain_model = s.given[GM_OPT_ID_model] = true;
            gm_free(s.model);
            s.model = gm_strdup(a);
        } else {
            st = gm_fail(err, GM_EARG, "unrecognized arguments: %.64s", a);
        }
    }
    if (st) {
        gm_settings_fini(&s);
        return st;
    }
    *out = s;
    return GM_OK;
}

void gm_settings_fini(gm_settings *s)
{
    for (size_t i = 0; i < GM_OPT_COUNT; i++) {
        if (rows[i].type == T_STR) gm_free(*(char **)field_of(s, &rows[i]));
        if (rows[i].type == T_LIST || rows[i].type == T_JSON) json_decref(*(json_t **)field_of(s, &rows[i]));
    }
    json_decref(s->ignored);
    gm_free(s->help_filter);
    memset(s, 0, sizeof *s);
}

void gm_opts_usage(gm_str *out, gm_opt_command command)
{
    gm_str_printf(out, "usage: glimmer %s%s [--flag VALUE ...]   (--help, --help=GROUP, --help=WORD; --help=all: ignored ones too)\n",
                  command_name(command), command == GM_OPT_BENCH ? "" : " MODEL");
}

static bool contains_word(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

static bool row_matches(const opt_row *r, const char *filter)
{
    char word[64];
    snprintf(word, sizeof word, "%s", filter);
    for (char *p = word; *p; p++)
        if (*p == '_') *p = '-';
    const char *w = word + strspn(word, "-");
    return !strcasecmp(filter, "all") || !strcasecmp(filter, group_names[r->group][0]) || contains_word(r->flag, w) ||
           contains_word(r->help, filter);
}

static void put_row(gm_str *out, const opt_row *r)
{
    size_t start = out->len;
    gm_str_printf(out, "  --%s%s", r->type == T_BOOL ? "[no-]" : "", r->flag);
    if (r->alias[0]) gm_str_printf(out, ", %s", r->alias);
    if (r->type != T_BOOL) {
        bool choice = r->type == T_STR && r->choices[0];
        gm_str_printf(out, " %s", choice         ? r->choices
                                  : r->unit[0]   ? r->unit
                                  : r->type == T_STR ? "TEXT"
                                                     : "N");
        if (r->type == T_LIST) gm_str_puts(out, " ...");
    }
    size_t used = out->len - start;
    if (used < 38) gm_str_printf(out, "%*s", (int)(38 - used), "");
    else gm_str_printf(out, "\n%38s", "");
    gm_str_puts(out, r->help);
    if (r->def[0]) gm_str_printf(out, " [%s]", r->def);
    gm_str_putc(out, '\n');
}

void gm_opts_help(gm_str *out, gm_opt_command command, const char *filter)
{
    gm_opts_usage(out, command);
    gm_str_puts(out, "\nA flag may be written with '-' or '_', its value after '=' or a blank. Whole numbers of tokens and "
                     "bytes take\nk m g t (powers of 1000) or K M G T (powers of 1024). --config FILE reads a flat YAML map "
                     "of flags.\n");
    if (command & GM_OPT_RUN && !filter)
        gm_str_puts(out, "The reasoning and the tool-call parser are on by default; --reasoning-parser none and "
                         "--tool-call-parser none\nturn them off.\n");
    for (int g = 0; g < G_COUNT; g++) {
        bool head = false;
        for (size_t i = 0; i < GM_OPT_COUNT; i++) {
            const opt_row *r = &rows[i];
            if (r->group != (opt_group)g || !(r->commands & (unsigned)command)) continue;
            if (filter && !row_matches(r, filter)) continue;
            if (!head) gm_str_printf(out, "\n%s: %s\n", group_names[g][0], group_names[g][1]);
            head = true;
            put_row(out, r);
        }
    }
    if (filter && (!strcasecmp(filter, "all") || !strcasecmp(filter, "ignored"))) {
        gm_str_puts(out, "\naccepted, without effect (they choose a GPU library or a process layout):\n");
        for (int i = 0; i < N_IGNORED; i++) gm_str_printf(out, "  --%s", ignored_rows[i].flag);
        gm_str_putc(out, '\n');
    }
}

static void put_value(gm_str *out, const gm_settings *s, const opt_row *r)
{
    const void *f = field_of(s, r);
    switch (r->type) {
    case T_BOOL: gm_str_puts(out, *(const bool *)f ? "True" : "False"); break;
    case T_INT:
    case T_HUMAN: gm_str_printf(out, "%lld", (long long)*(const int64_t *)f); break;
    case T_FLOAT: gm_str_printf(out, "%g", *(const double *)f); break;
    case T_STR: gm_str_printf(out, "'%s'", *(char *const *)f ? *(char *const *)f : ""); break;
    case T_LIST:
    case T_JSON: gm_json_put(out, *(json_t *const *)f); break;
    }
}

void gm_settings_put_changed(const gm_settings *s, gm_str *out)
{
    gm_settings d = {0};
    gm_str a = {0}, b = {0};
    bool first = true;
    if (set_defaults(&d, NULL)) return;
    gm_str_putc(out, '{');
    for (size_t i = 0; i < GM_OPT_COUNT; i++) {
        if (!s->given[i]) continue;
        gm_str_clear(&a);
        gm_str_clear(&b);
        put_value(&a, s, &rows[i]);
        if (rows[i].def[0]) put_value(&b, &d, &rows[i]);
        if (rows[i].def[0] && !strcmp(gm_str_c(&a), gm_str_c(&b))) continue;
        gm_str_printf(out, "%s'", first ? "" : ", ");
        for (const char *p = rows[i].flag; *p; p++) gm_str_putc(out, *p == '-' ? '_' : *p);
        gm_str_printf(out, "': %s", i == GM_OPT_ID_api_key || i == GM_OPT_ID_header ? "['***']" : gm_str_c(&a));
        first = false;
    }
    gm_str_putc(out, '}');
    gm_str_fini(&a);
    gm_str_fini(&b);
    gm_settings_fini(&d);
}
