/* A lexer cuts the text into the eight tags and runs of other text; the machine below acts on these and on
 * nothing else, so how the text was cut into pieces cannot matter. Inside a run every action is additive. */
#include "text/tool_parse.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "text/text_internal.h"
#include "text/tool_schema.h"
#include "text/u64_map.h"

typedef enum tag {
    THINK,
    THINK_END,
    CALL,
    CALL_END,
    KEY_TAG,
    KEY_END,
    VALUE_TAG,
    VALUE_END_TAG,
    N_TAGS,
} tag;

static const char *const tag_text[N_TAGS] = {"<think>",   "</think>",   "<tool_call>", "</tool_call>",
                                             "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
#define TAG_MAX 12 /* characters of the longest */

typedef enum state {
    REASONING,
    CONTENT,
    NAME,      /* after <tool_call> */
    BETWEEN,   /* in a call, between its elements */
    KEY,       /* after <arg_key> */
    VALUE,     /* after <arg_value> */
    VALUE_END, /* after an </arg_value> that closes the value only if <arg_key> or </tool_call> comes next */
} state;

typedef struct tool {
    const char *name;
    size_t len;
    const json_t *schema;
    size_t order;
} tool;

/* The name being read. Tools are sorted, so those that still fit are a range. */
typedef struct name_match {
    gm_str raw;             /* all since <tool_call> */
    size_t begin;           /* of the name in raw, behind blanks */
    size_t lo, hi;          /* tools that begin with what was read */
    const tool *best;       /* the longest tool that what was read begins with */
    const tool *short_best; /* the next shorter one */
} name_match;

/* How much may stand around a name before it is taken for prose. */
#define NAME_SLACK 128

struct gm_reply {
    gm_reply_params p;
    bool think_tags, tool_tags;
    tool *tools;
    size_t n_tools, name_max;

    state state, origin; /* origin: where a call that turns out to be none goes back to */
    char part[4];        /* of a character that is not complete yet */
    size_t n_part;
    char held[TAG_MAX]; /* the beginning of a tag */
    size_t n_held;

    gm_str blanks;        /* at the end of the content: dropped if a call follows */
    bool text_since_call; /* content was shown since the last call */
    name_match name;

    const tool *tool;   /* of the open call */
    bool shown, opened; /* the call is shown; its "{" went out */
    gm_str key, value, tail;
    bool have_key, skip, streamed; /* the open value: not wanted; sent piece by piece */
    gm_u64_map seen;               /* hashes of the call's keys */
    int32_t n_calls, n_shown;

    gm_reply_deltas *out; /* during a call of push or finish */
};

/* ---- deltas ---- */

void gm_reply_deltas_clear(gm_reply_deltas *d)
{
    for (size_t i = 0; i < d->n; i++) gm_free(d->data[i].text);
    d->n = 0;
}

void gm_reply_deltas_fini(gm_reply_deltas *d)
{
    gm_reply_deltas_clear(d);
    gm_free(d->data);
    *d = (gm_reply_deltas){0};
}

/* The room that a text of this length has: a power of two, so that appending is cheap without a field for it.
 */
static size_t room_for(size_t len)
{
    size_t room = 32;
    while (room < len + 1) room *= 2;
    return room;
}

static void append_text(gm_reply_delta *d, const char *s, size_t len)
{
    if (!d->text || room_for(d->len) != room_for(d->len + len))
        d->text = gm_realloc_array(d->text, room_for(d->len + len), 1);
    memcpy(d->text + d->len, s, len);
    d->len += len;
    d->text[d->len] = 0;
}

static void emit(gm_reply *r, gm_reply_kind kind, int32_t index, const char *s, size_t len)
{
    gm_reply_deltas *o = r->out;
    if (!len) return;
    gm_reply_delta *last = o->n ? &o->data[o->n - 1] : NULL;
    if (last && last->kind == kind && last->index == index && kind != GM_REPLY_CALL) {
        append_text(last, s, len);
        return;
    }
    if (o->n == o->cap) {
        o->cap = o->cap ? 2 * o->cap : 8;
        o->data = gm_realloc_array(o->data, o->cap, sizeof *o->data);
    }
    o->data[o->n] = (gm_reply_delta){.kind = kind, .index = index};
    append_text(&o->data[o->n++], s, len);
}

static void emit_args(gm_reply *r, const char *s, size_t len)
{
    if (r->shown) emit(r, GM_REPLY_ARGS, r->n_shown - 1, s, len);
}

/* ---- content and reasoning ---- */

/* Where there may be calls the blanks at the end wait: before a call they are dropped. */
static void content_text(gm_reply *r, const char *s, size_t len)
{
    size_t n = len;
    while (r->tool_tags && n && gm_is_blank(s[n - 1])) n--;
    if (n) {
        emit(r, GM_REPLY_CONTENT, 0, gm_str_c(&r->blanks), r->blanks.len);
        gm_str_clear(&r->blanks);
        emit(r, GM_REPLY_CONTENT, 0, s, n);
        r->text_since_call = true;
    }
    gm_str_append(&r->blanks, s + n, len - n);
}

static void plain_text(gm_reply *r, const char *s, size_t len)
{
    if (r->state == REASONING) emit(r, GM_REPLY_REASONING, 0, s, len);
    else content_text(r, s, len);
}

/* ---- calls ---- */

static void call_begin(gm_reply *r, const tool *t)
{
    gm_str_clear(&r->blanks);
    r->tool = t;
    r->shown = r->p.parallel || r->n_calls == 0;
    r->n_calls++;
    r->opened = r->have_key = false;
    gm_u64_map_fini(&r->seen);
    if (r->shown) emit(r, GM_REPLY_CALL, r->n_shown++, t->name, t->len);
    r->state = BETWEEN;
}

static void call_end(gm_reply *r)
{
    if (r->opened) emit_args(r, "}", 1);
    else emit_args(r, "{}", 2);
    r->tool = NULL;
    r->text_since_call = false;
    r->state = CONTENT;
}

static void put_key(gm_reply *r)
{
    gm_str s = {0};
    gm_str_puts(&s, r->opened ? ", " : "{");
    gm_json_put_string(&s, gm_str_c(&r->key), r->key.len);
    gm_str_puts(&s, ": ");
    emit_args(r, s.data, s.len);
    gm_str_fini(&s);
    r->opened = true;
}

static const json_t *key_schema(const gm_reply *r)
{
    return gm_schema_property(r->tool->schema, r->tool->schema, gm_str_c(&r->key), r->key.len);
}

static void key_end(gm_reply *r)
{
    size_t len = r->key.len;
    const char *s = gm_text_strip(gm_str_c(&r->key), &len);
    if (len) {
        gm_str_erase_head(&r->key, (size_t)(s - r->key.data));
        r->key.data[r->key.len = len] = 0;
    }
    r->have_key = len > 0;
    r->state = BETWEEN;
}

/* Of a key that comes twice the first value counts: in a stream it has gone out already. */
static void value_begin(gm_reply *r)
{
    r->skip = !r->have_key || !gm_u64_map_put(&r->seen, XXH3_64bits(r->key.data, r->key.len), 1);
    r->streamed = !r->skip && gm_schema_types(key_schema(r), r->tool->schema) == GM_TYPE_STRING;
    gm_str_clear(&r->value);
    if (r->streamed) {
        put_key(r);
        emit_args(r, "\"", 1);
    }
    r->state = VALUE;
}

static void value_text(gm_reply *r, const char *s, size_t len)
{
    if (r->skip || !r->shown) return;
    if (!r->streamed) {
        gm_str_append(&r->value, s, len);
        return;
    }
    gm_str quoted = {0};
    gm_json_put_string(&quoted, s, len);
    emit_args(r, quoted.data + 1, quoted.len - 2);
    gm_str_fini(&quoted);
}

static void value_end(gm_reply *r)
{
    if (r->streamed) {
        emit_args(r, "\"", 1);
    } else if (!r->skip) {
        gm_str s = {0};
        put_key(r);
        gm_schema_put_value(&s, gm_str_c(&r->value), r->value.len, key_schema(r), r->tool->schema);
        emit_args(r, gm_str_c(&s), s.len);
        gm_str_fini(&s);
    }
    gm_str_clear(&r->tail);
    r->have_key = false;
    r->state = BETWEEN;
}

/* The </arg_value> that was held back is text after all. */
static void value_goes_on(gm_reply *r)
{
    value_text(r, gm_str_c(&r->tail), r->tail.len);
    gm_str_clear(&r->tail);
    r->state = VALUE;
}

/* ---- names ---- */

static void name_begin(gm_reply *r)
{
    r->origin = r->state;
    r->state = NAME;
    gm_str_clear(&r->name.raw);
    r->name = (name_match){.raw = r->name.raw, .lo = 0, .hi = r->n_tools};
}

/* No call: what was held goes out as the text it is. */
static void name_fail(gm_reply *r)
{
    r->state = r->origin;
    plain_text(r, tag_text[CALL], strlen(tag_text[CALL]));
    plain_text(r, gm_str_c(&r->name.raw), r->name.raw.len);
}

/* Narrow the range by the character at depth d. Names are sorted: those that end here come first. */
static void name_narrow(gm_reply *r, size_t d, char c)
{
    name_match *m = &r->name;
    const tool *t = r->tools;
    while (m->lo < m->hi && (t[m->lo].len <= d || (unsigned char)t[m->lo].name[d] < (unsigned char)c))
        m->lo++;
    while (m->lo < m->hi && (unsigned char)t[m->hi - 1].name[d] > (unsigned char)c) m->hi--;
    if (m->lo < m->hi && t[m->lo].len == d + 1) {
        m->short_best = m->best;
        m->best = &t[m->lo];
    }
}

/* What may follow a name: blanks, or (where <arg_key> is missing) one key between blanks. */
static bool tail_fits(const char *s, size_t len)
{
    size_t i = 0;
    while (i < len && gm_is_blank(s[i])) i++;
    while (i < len && !gm_is_blank(s[i])) i++;
    while (i < len && gm_is_blank(s[i])) i++;
    return i == len;
}

/* False: this cannot become a name. */
static bool name_push(gm_reply *r, char c)
{
    name_match *m = &r->name;
    bool leading = m->begin == m->raw.len && gm_is_blank(c);
    gm_str_putc(&m->raw, c);
    if (m->raw.len > r->name_max + NAME_SLACK) return false;
    if (leading) {
        m->begin++;
        return true;
    }
    if (m->lo < m->hi) name_narrow(r, m->raw.len - 1 - m->begin, c);
    if (m->lo < m->hi) return true;
    if (!m->best) return false;
    size_t at = m->begin + m->best->len;
    return tail_fits(m->raw.data + at, m->raw.len - at);
}

static void on_text(gm_reply *r, const char *s, size_t len);

static void name_text(gm_reply *r, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!name_push(r, s[i])) {
            name_fail(r);
            on_text(r, s + i + 1, len - i - 1);
            return;
        }
}

/* What was read, without blanks around it. */
static const char *name_read(const gm_reply *r, size_t *len)
{
    const char *s = gm_str_c(&r->name.raw) + r->name.begin;
    *len = r->name.raw.len - r->name.begin;
    while (*len && gm_is_blank(s[*len - 1])) --*len;
    return s;
}

static bool name_known(const gm_reply *r)
{
    size_t len;
    name_read(r, &len);
    return r->name.best && r->name.best->len == len;
}

/* <tool_call>NAMEKEY</arg_key>: the model left <arg_key> out. The longest tool that leaves a key counts. */
static bool name_with_key(gm_reply *r)
{
    size_t len;
    const char *s = name_read(r, &len);
    const tool *t = r->name.best;
    if (t && t->len == len) t = r->name.short_best;
    if (!t) return false;
    call_begin(r, t);
    gm_str_clear(&r->key);
    gm_str_append(&r->key, s + t->len, len - t->len);
    key_end(r);
    return true;
}

/* ---- the machine ---- */

static void on_text(gm_reply *r, const char *s, size_t len)
{
    size_t n = 0;
    if (!len) return;
    switch (r->state) {
    case REASONING:
    case CONTENT:
        plain_text(r, s, len);
        break;
    case NAME:
        name_text(r, s, len);
        break;
    case BETWEEN:
        while (n < len && gm_is_blank(s[n])) n++;
        if (n < len) r->have_key = false;
        break;
    case KEY:
        gm_str_append(&r->key, s, len);
        break;
    case VALUE:
        value_text(r, s, len);
        break;
    case VALUE_END:
        while (n < len && gm_is_blank(s[n])) n++;
        gm_str_append(&r->tail, s, n);
        if (n == len) break;
        value_goes_on(r);
        value_text(r, s + n, len - n);
        break;
    }
}

static void tag_as_text(gm_reply *r, tag t)
{
    on_text(r, tag_text[t], strlen(tag_text[t]));
}

static void tag_in_text(gm_reply *r, tag t)
{
    if (t == CALL && r->tool_tags) name_begin(r);
    else if (t == THINK && r->think_tags) r->state = REASONING;
    else if (t == THINK_END && r->think_tags) r->state = CONTENT;
    else if (t == CALL_END && r->state == CONTENT && r->n_calls && !r->text_since_call)
        return; /* closed twice */
    else tag_as_text(r, t);
}

static void on_tag(gm_reply *r, tag t);

static void tag_in_name(gm_reply *r, tag t)
{
    if ((t == KEY_TAG || t == CALL_END) && name_known(r)) {
        call_begin(r, r->name.best);
        on_tag(r, t);
    } else if (t != KEY_END || !name_with_key(r)) {
        name_fail(r);
        if (t == CALL_END) tag_as_text(r, t);
        else on_tag(r, t);
    }
}

static void tag_in_call(gm_reply *r, tag t)
{
    switch (t) {
    case KEY_TAG:
        gm_str_clear(&r->key);
        r->have_key = false;
        r->state = KEY;
        break;
    case KEY_END:
        if (r->state == KEY) key_end(r);
        break;
    case VALUE_TAG:
        if (r->state == KEY) key_end(r);
        value_begin(r);
        break;
    case CALL_END:
        call_end(r);
        break;
    case CALL: /* the last one was not closed */
        call_end(r);
        name_begin(r);
        break;
    default:
        if (r->state == KEY) tag_as_text(r, t);
    }
}

static void on_tag(gm_reply *r, tag t)
{
    switch (r->state) {
    case REASONING:
    case CONTENT:
        tag_in_text(r, t);
        break;
    case NAME:
        tag_in_name(r, t);
        break;
    case BETWEEN:
    case KEY:
        tag_in_call(r, t);
        break;
    case VALUE:
        if (t == VALUE_END_TAG) {
            gm_str_puts(&r->tail, tag_text[t]);
            r->state = VALUE_END;
        } else {
            tag_as_text(r, t);
        }
        break;
    case VALUE_END:
        if (t == KEY_TAG || t == CALL_END) value_end(r);
        else value_goes_on(r);
        on_tag(r, t);
        break;
    }
}

/* ---- the lexer ---- */

/* 1: s is the beginning of a tag, 2: it is *which, 0: neither. No tag begins another one. */
static int tag_fits(const char *s, size_t len, tag *which)
{
    for (int t = 0; t < N_TAGS; t++) {
        if (strncmp(tag_text[t], s, len) != 0) continue;
        *which = (tag)t;
        return tag_text[t][len] ? 1 : 2;
    }
    return 0;
}

static void lex(gm_reply *r, const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        if (!r->n_held) {
            const char *open = memchr(s + i, '<', len - i);
            size_t end = open ? (size_t)(open - s) : len;
            on_text(r, s + i, end - i);
            if (open) r->held[r->n_held++] = '<';
            i = end + 1;
            continue;
        }
        tag t = N_TAGS;
        r->held[r->n_held] = s[i];
        int fits = tag_fits(r->held, r->n_held + 1, &t);
        if (fits) r->n_held++, i++;
        if (fits == 1) continue;
        size_t n = r->n_held;
        r->n_held = 0;
        if (fits == 2) on_tag(r, t);
        else on_text(r, r->held, n);
    }
}

/* ---- the face ---- */

static int by_name(const void *a, const void *b)
{
    const tool *x = a, *y = b;
    int c = memcmp(x->name, y->name, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static const json_t *schema_of(const json_t *f)
{
    static const char *const names[] = {"parameters", "input_schema"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(f, names[i]);
        if (json_is_object(v)) return v;
    }
    return NULL;
}

/* Tools come wrapped ({"function": {...}}) or flat. */
static void read_tools(gm_reply *r, const json_t *tools)
{
    size_t i, n = 0;
    json_t *v;
    r->tools = gm_new_array(tool, json_array_size(tools) + 1);
    json_array_foreach(tools, i, v)
    {
        const json_t *f = json_object_get(v, "function"), *name;
        if (!json_is_object(f)) f = v;
        name = json_object_get(f, "name");
        if (json_string_length(name))
            r->tools[n++] = (tool){json_string_value(name), json_string_length(name), schema_of(f), i};
    }
    qsort(r->tools, n, sizeof *r->tools, by_name);
    for (i = 0; i < n; i++) { /* of two tools with one name the first counts */
        const tool *last = r->n_tools ? &r->tools[r->n_tools - 1] : NULL, *t = &r->tools[i];
        if (last && last->len == t->len && memcmp(last->name, t->name, t->len) == 0) continue;
        if (t->len > r->name_max) r->name_max = t->len;
        r->tools[r->n_tools++] = *t;
    }
}

gm_reply *gm_reply_create(const gm_reply_params *p)
{
    gm_reply *r = gm_new(gm_reply);
    r->p = *p;
    if (p->tools) read_tools(r, p->tools);
    r->tool_tags = r->n_tools > 0;
    r->think_tags = p->thinking && p->reasoning;
    r->state = r->think_tags ? REASONING : CONTENT;
    return r;
}

void gm_reply_destroy(gm_reply *r)
{
    if (!r) return;
    gm_str *const strings[] = {&r->blanks, &r->name.raw, &r->key, &r->value, &r->tail};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) gm_str_fini(strings[i]);
    gm_u64_map_fini(&r->seen);
    gm_free(r->tools);
    gm_free(r);
}

void gm_reply_push(gm_reply *r, const char *text, size_t len, gm_reply_deltas *out)
{
    if (!len) return;
    r->out = out;
    if (!r->n_part && gm_utf8_valid_len(text, len) == len) {
        lex(r, text, len);
        return;
    }
    gm_str all = {0}, clean = {0};
    gm_str_append(&all, r->part, r->n_part);
    gm_str_append(&all, text, len);
    size_t used = gm_text_scrub(&clean, all.data, all.len, true);
    r->n_part = all.len - used;
    memcpy(r->part, all.data + used, r->n_part);
    lex(r, gm_str_c(&clean), clean.len);
    gm_str_fini(&clean);
    gm_str_fini(&all);
}

/* A reply that ended by itself has its open call closed; one that was cut keeps just what went out. */
static void finish_call(gm_reply *r, bool truncated)
{
    if (truncated) return;
    if (r->state == VALUE || r->state == VALUE_END) value_end(r);
    call_end(r);
}

static void finish_text(gm_reply *r)
{
    if (r->state == CONTENT && (!r->n_calls || r->text_since_call))
        emit(r, GM_REPLY_CONTENT, 0, gm_str_c(&r->blanks), r->blanks.len);
    gm_str_clear(&r->blanks);
}

void gm_reply_finish(gm_reply *r, bool truncated, gm_reply_deltas *out)
{
    gm_str rest = {0};
    r->out = out;
    gm_text_scrub(&rest, r->part, r->n_part, false);
    r->n_part = 0;
    lex(r, gm_str_c(&rest), rest.len);
    gm_str_fini(&rest);

    size_t n_held = r->n_held;
    r->n_held = 0;
    if (r->state < BETWEEN || !truncated)
        on_text(r, r->held, n_held); /* in a call it was the beginning of a tag */
    if (r->state == NAME) {
        if (!truncated && name_known(r)) call_begin(r, r->name.best);
        else name_fail(r);
    }
    if (r->state >= BETWEEN) finish_call(r, truncated);
    finish_text(r);
}

int32_t gm_reply_calls(const gm_reply *r)
{
    return r->n_shown;
}

bool gm_reply_in_reasoning(const gm_reply *r)
{
    return r->state == REASONING;
}
