#include "text/chat.h"

#include <string.h>

#include "base/mem.h"
#include "text/text_internal.h"

typedef struct renderer {
    gm_chat_prompt *p;
    gm_chat_format f;
    const gm_chat_request *req;
    gm_error *err;
    bool thinking;      /* the generation prompt opens <think> */
    bool keep_thinking; /* reasoning of turns before the last user message stays */
    size_t first_kept;  /* turns from here on keep it always */
} renderer;

/* ---- spans ---- */

static void put(gm_chat_prompt *p, const char *text, size_t len, bool content)
{
    if (!len) return;
    size_t begin = p->text.len;
    gm_str_append(&p->text, text, len);
    if (p->n_spans && p->spans[p->n_spans - 1].content == content) {
        p->spans[p->n_spans - 1].end = p->text.len;
        return;
    }
    if (p->n_spans == p->cap_spans) {
        p->cap_spans = p->cap_spans ? 2 * p->cap_spans : 16;
        p->spans = gm_realloc_array(p->spans, p->cap_spans, sizeof *p->spans);
    }
    p->spans[p->n_spans++] = (gm_chat_span){begin, p->text.len, content};
}

static void put_control(gm_chat_prompt *p, const char *text)
{
    put(p, text, strlen(text), false);
}

static void put_content_json(gm_chat_prompt *p, const json_t *v)
{
    gm_str s = {0};
    gm_chat_put_json(&s, v);
    put(p, gm_str_c(&s), s.len, true);
    gm_str_fini(&s);
}

/* A string as it is, anything else as JSON. */
static void put_content_value(gm_chat_prompt *p, const json_t *v)
{
    if (json_is_string(v)) put(p, json_string_value(v), json_string_length(v), true);
    else put_content_json(p, v);
}

void gm_chat_prompt_fini(gm_chat_prompt *p)
{
    gm_str_fini(&p->text);
    gm_free(p->spans);
    *p = (gm_chat_prompt){0};
}

/* ---- flags ---- */

/* Jinja's idea of true. */
static bool truthy(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return json_object_size(v) > 0;
    case JSON_ARRAY:
        return json_array_size(v) > 0;
    case JSON_STRING:
        return json_string_length(v) > 0;
    case JSON_INTEGER:
        return json_integer_value(v) != 0;
    case JSON_REAL:
        return json_real_value(v) != 0;
    case JSON_TRUE:
        return true;
    default:
        return false;
    }
}

/* A template argument; NULL where it is absent or null. */
static const json_t *kwarg(const gm_chat_request *req, const char *name)
{
    const json_t *v = json_object_get(req->kwargs, name);
    return json_is_null(v) ? NULL : v;
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static const json_t *top_effort(const gm_chat_request *req)
{
    return json_is_null(req->reasoning_effort) ? NULL : req->reasoning_effort;
}

static const char *effort_word(const renderer *r)
{
    const json_t *v = top_effort(r->req);
    if (!v) v = kwarg(r->req, "reasoning_effort");
    if (is_text(v, "high")) return "High";
    if (r->f == GM_CHAT_GLM53 && is_text(v, "low")) return "Low";
    return "Max";
}

/* GLM-5.3 always thinks. Elsewhere enable_thinking decides, and without it an effort of "none". */
static bool thinking_on(const renderer *r)
{
    if (r->f == GM_CHAT_GLM53) return true;
    const json_t *v = kwarg(r->req, "enable_thinking");
    return v ? truthy(v) : !is_text(top_effort(r->req), "none");
}

static bool keeps_thinking(const renderer *r)
{
    const json_t *v = kwarg(r->req, "clear_thinking");
    return v ? !truthy(v) : r->f == GM_CHAT_GLM53;
}

/* ---- tools ---- */

static const char tools_head[] =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
static const char tools_tail[] =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
    "format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

static const json_t *inner_function(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return json_is_object(f) ? f : tool;
}

static void put_tool(const renderer *r, const json_t *tool)
{
    if (r->f == GM_CHAT_GLM5) {
        put_content_json(r->p, tool);
        return;
    }
    json_t *copy = json_copy((json_t *)(uintptr_t)inner_function(tool)); /* shallow: the values are shared */
    GM_ASSERT(copy);
    json_object_del(copy, "defer_loading");
    json_object_del(copy, "strict");
    put_content_json(r->p, copy);
    json_decref(copy);
}

static bool is_deferred(const renderer *r, const json_t *tool)
{
    return r->f != GM_CHAT_GLM5 && (truthy(json_object_get(tool, "defer_loading")) ||
                                    truthy(json_object_get(inner_function(tool), "defer_loading")));
}

static gm_status put_tools(const renderer *r)
{
    const json_t *tools = r->req->tools;
    if (!tools || json_is_null(tools)) return GM_OK;
    if (!json_is_array(tools)) return gm_fail(r->err, GM_EARG, "tools: must be an array");
    if (json_array_size(tools) == 0) return GM_OK;
    put_control(r->p, tools_head);
    size_t i, n_shown = 0;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        if (!json_is_object(tool)) return gm_fail(r->err, GM_EARG, "tools[%zu]: must be an object", i);
        if (is_deferred(r, tool)) continue;
        put_tool(r, tool);
        put_control(r->p, "\n");
        n_shown++;
    }
    if (!n_shown && r->f == GM_CHAT_GLM53)
        put_control(r->p, "\n"); /* its line feed stands before the end tag */
    put_control(r->p, tools_tail);
    return GM_OK;
}

/* ---- content ---- */

typedef struct media {
    const char *type, *noun, *marker;
} media;

#define IMAGE "<|begin_of_image|><|image|><|end_of_image|>"
#define VIDEO "<|begin_of_video|><|video|><|end_of_video|>"
#define AUDIO "<|begin_of_audio|><|end_of_audio|>"
static const media media_types[] = {
    {"image", "image", IMAGE}, {"image_url", "image", IMAGE}, {"input_image", "image", IMAGE},
    {"video", "video", VIDEO}, {"video_url", "video", VIDEO}, {"input_video", "video", VIDEO},
    {"audio", "audio", AUDIO}, {"audio_url", "audio", AUDIO}, {"input_audio", "audio", AUDIO},
};

static bool put_media(const renderer *r, gm_chat_prompt *to, const char *type)
{
    for (size_t i = 0; i < sizeof media_types / sizeof *media_types; i++) {
        const media *m = &media_types[i];
        if (strcmp(type, m->type) != 0) continue;
        if (r->f == GM_CHAT_GLM53) {
            put_control(to, m->marker);
            return true;
        }
        put_control(to, "<reminder>You are unable to process this ");
        put_control(to, m->noun);
        put_control(to,
                    " because you don't have multi-modal input ability. Try different methods.</reminder>");
        return true;
    }
    return false;
}

static gm_status put_part(const renderer *r, gm_chat_prompt *to, const json_t *part, size_t msg, size_t i)
{
    if (json_is_string(part)) {
        put_content_value(to, part);
        return GM_OK;
    }
    if (!json_is_object(part))
        return gm_fail(r->err, GM_EARG, "messages[%zu].content[%zu]: must be a string or an object", msg, i);
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type) return gm_fail(r->err, GM_EARG, "messages[%zu].content[%zu].type: must be a string", msg, i);
    if (put_media(r, to, type)) return GM_OK;
    const char *field = strcmp(type, "refusal") == 0 ? "refusal" : "text";
    if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 &&
        strcmp(type, "refusal") != 0)
        return gm_fail(r->err, GM_EARG, "messages[%zu].content[%zu].type: unknown part type \"%.40s\"", msg,
                       i, type);
    const json_t *text = json_object_get(part, field);
    if (!json_is_string(text))
        return gm_fail(r->err, GM_EARG, "messages[%zu].content[%zu].%s: must be a string", msg, i, field);
    put_content_value(to, text);
    return GM_OK;
}

/* A message's content: nothing where it is null or absent. */
static gm_status put_content(const renderer *r, gm_chat_prompt *to, const json_t *content, size_t msg)
{
    if (!content || json_is_null(content)) return GM_OK;
    if (json_is_string(content)) {
        put_content_value(to, content);
        return GM_OK;
    }
    if (!json_is_array(content))
        return gm_fail(r->err, GM_EARG, "messages[%zu].content: must be a string or an array of parts", msg);
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        gm_status st = put_part(r, to, part, msg, i);
        if (st) return st;
    }
    return GM_OK;
}

/* ---- assistant ---- */

typedef struct text {
    const char *s;
    size_t len;
} text;

static const char *find_last(const char *s, size_t len, const char *needle)
{
    const char *last = NULL, *hit = s;
    while ((hit = gm_text_find(hit, len - (size_t)(hit - s), needle))) last = hit++;
    return last;
}

/* Reasoning that stands inside the content: <think>...</think>rest. */
static bool split_reasoning(text *content, text *reasoning)
{
    const char *close = gm_text_find(content->s, content->len, "</think>");
    if (!close) return false;
    const char *end = content->s + content->len, *rest = find_last(content->s, content->len, "</think>") + 8;
    const char *open = find_last(content->s, (size_t)(close - content->s), "<think>");
    const char *begin = open ? open + 7 : content->s;
    *reasoning = (text){begin, (size_t)(close - begin)};
    *content = (text){rest, (size_t)(end - rest)};
    return true;
}

static bool given_reasoning(const json_t *m, text *out)
{
    const json_t *v = json_object_get(m, "reasoning_content");
    if (!json_is_string(v)) v = json_object_get(m, "reasoning");
    if (!json_is_string(v)) return false;
    *out = (text){json_string_value(v), json_string_length(v)};
    return true;
}

/* show: there is reasoning and this turn keeps it. */
static void put_think_block(const renderer *r, text reasoning, bool show)
{
    if (r->f == GM_CHAT_GLM5) {
        reasoning.s = gm_text_strip(reasoning.s, &reasoning.len);
        show = show && reasoning.len;
    }
    if (show || r->f >= GM_CHAT_GLM52) put_control(r->p, "<think>");
    if (show) put(r->p, reasoning.s, reasoning.len, true);
    put_control(r->p, "</think>");
}

/* Arguments of a past call as an object (a new reference). Clients send them as a JSON string, at times
 * encoded twice. Empty text and null mean none. What is no object becomes one argument of the name
 * "arguments", so that a call that was cut off cannot make every later request fail and nothing that the
 * model wrote is lost. */
static json_t *arguments_object(const json_t *v)
{
    json_t *parsed = NULL;
    const json_t *at = v;
    for (int i = 0; i < 2 && json_is_string(at); i++) {
        json_t *next = NULL;
        size_t len = json_string_length(at);
        gm_text_strip(json_string_value(at), &len);
        if (!len) next = json_null();
        else if (gm_json_parse(&next, json_string_value(at), json_string_length(at), "arguments", NULL, NULL))
            break;
        json_decref(parsed);
        at = parsed = next;
    }
    json_t *out = NULL;
    if (json_is_object(at)) out = json_incref((json_t *)(uintptr_t)at);
    else if (!at || json_is_null(at)) out = json_object();
    else out = json_pack("{sO}", "arguments", v);
    json_decref(parsed);
    GM_ASSERT(out);
    return out;
}

static gm_status put_call(const renderer *r, const json_t *call, size_t msg, size_t i)
{
    const json_t *f = inner_function(call), *name = json_object_get(f, "name");
    if (!json_is_object(call))
        return gm_fail(r->err, GM_EARG, "messages[%zu].tool_calls[%zu]: must be an object", msg, i);
    if (!json_is_string(name))
        return gm_fail(r->err, GM_EARG, "messages[%zu].tool_calls[%zu]%s.name: must be a string", msg, i,
                       f == call ? "" : ".function");
    put_control(r->p, "<tool_call>");
    put_content_value(r->p, name);
    json_t *args = arguments_object(json_object_get(f, "arguments")), *value;
    const char *key;
    size_t len;
    json_object_keylen_foreach(args, key, len, value)
    {
        put_control(r->p, "<arg_key>");
        put(r->p, key, len, true);
        put_control(r->p, "</arg_key><arg_value>");
        put_content_value(r->p, value);
        put_control(r->p, "</arg_value>");
    }
    json_decref(args);
    put_control(r->p, "</tool_call>");
    return GM_OK;
}

static gm_status put_calls(const renderer *r, const json_t *m, size_t msg)
{
    const json_t *calls = json_object_get(m, "tool_calls");
    if (!calls || json_is_null(calls)) return GM_OK;
    if (!json_is_array(calls))
        return gm_fail(r->err, GM_EARG, "messages[%zu].tool_calls: must be an array", msg);
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call)
    {
        gm_status st = put_call(r, call, msg, i);
        if (st) return st;
    }
    return GM_OK;
}

static void put_generation_prompt(const renderer *r)
{
    put_control(r->p, "<|assistant|>");
    if (r->thinking) put_control(r->p, "<think>");
    else put_control(r->p, r->f == GM_CHAT_GLM52 ? "<think></think>" : "</think>");
    r->p->thinking = r->thinking;
}

/* The last turn, left open: inside its reasoning where it has no content yet. */
static gm_status put_open_turn(const renderer *r, const json_t *m, size_t msg, text content, text reasoning,
                               bool has)
{
    if (json_array_size(json_object_get(m, "tool_calls")))
        return gm_fail(r->err, GM_EARG, "messages[%zu].tool_calls: a turn with calls cannot be continued",
                       msg);
    if (!content.len) {
        gm_chat_prompt *p = r->p;
        if (!has || !reasoning.len) {
            put_generation_prompt(r);
            return GM_OK;
        }
        put_control(p, "<|assistant|><think>");
        put(p, reasoning.s, reasoning.len, true);
        p->thinking = true;
        return GM_OK;
    }
    put_control(r->p, "<|assistant|>");
    put_think_block(r, reasoning, has);
    put(r->p, content.s, content.len, true);
    return GM_OK;
}

static gm_status put_assistant(const renderer *r, const json_t *m, size_t msg, bool open)
{
    gm_chat_prompt flat = {0};
    gm_status st = put_content(r, &flat, json_object_get(m, "content"), msg);
    if (!st) {
        text reasoning = {"", 0}, content = {gm_str_c(&flat.text), flat.text.len};
        bool has = given_reasoning(m, &reasoning) || split_reasoning(&content, &reasoning);
        content.s = gm_text_strip(content.s, &content.len);
        if (open) {
            st = put_open_turn(r, m, msg, content, reasoning, has);
        } else {
            put_control(r->p, "<|assistant|>");
            put_think_block(r, reasoning, has && (r->keep_thinking || msg >= r->first_kept));
            put(r->p, content.s, content.len, true);
            st = put_calls(r, m, msg);
        }
    }
    gm_chat_prompt_fini(&flat);
    return st;
}

/* ---- tool results ---- */

static void put_response(const renderer *r, const json_t *v)
{
    put_control(r->p, "<tool_response>");
    put_content_value(r->p, v);
    put_control(r->p, "</tool_response>");
}

/* A search result that names a tool: its signature, also where the list above left it out. */
static void put_reference(const renderer *r, const json_t *part)
{
    const json_t *name = json_object_get(part, "name");
    if (!name) name = json_object_get(part, "tool_name");
    put_control(r->p, "<tool_response><tools>\n");
    size_t i;
    json_t *tool;
    json_array_foreach(r->req->tools, i, tool)
    {
        const json_t *n = json_object_get(inner_function(tool), "name");
        if (!json_is_string(n) || !json_equal(n, name)) continue;
        put_tool(r, tool);
        put_control(r->p, "\n");
    }
    put_control(r->p, "</tools></tool_response>");
}

/* Text parts that stand together are one result; a part with an output and a reference are results of their
 * own. */
static gm_status put_result_parts(const renderer *r, const json_t *parts, size_t msg)
{
    bool open = false;
    size_t i;
    json_t *part;
    if (json_array_size(parts) == 0) put_control(r->p, "<tool_response></tool_response>");
    json_array_foreach(parts, i, part)
    {
        const json_t *output = json_object_get(part, "output");
        bool reference = is_text(json_object_get(part, "type"), "tool_reference");
        bool apart = output || reference;
        if (open && apart) put_control(r->p, "</tool_response>");
        if (!open && !apart) put_control(r->p, "<tool_response>");
        open = !apart;
        if (output) put_response(r, output);
        else if (reference) put_reference(r, part);
        else {
            gm_status st = put_part(r, r->p, part, msg, i);
            if (st) return st;
        }
    }
    if (open) put_control(r->p, "</tool_response>");
    return GM_OK;
}

static gm_status put_result(const renderer *r, size_t msg)
{
    const json_t *content = json_object_get(json_array_get(r->req->messages, msg), "content");
    if (json_is_array(content)) return put_result_parts(r, content, msg);
    put_control(r->p, "<tool_response>");
    gm_status st = put_content(r, r->p, content, msg);
    put_control(r->p, "</tool_response>");
    return st;
}

/* Results begin..end in the order of the calls before them. False: some result has no id of its own among the
 * calls, and the order is the messages'. */
static bool call_order(const renderer *r, size_t begin, size_t end, size_t *order)
{
    const json_t *calls =
        begin ? json_object_get(json_array_get(r->req->messages, begin - 1), "tool_calls") : NULL;
    size_t n_calls = json_array_size(calls), n = 0, i;
    json_t *by_id = json_object(), *call;
    size_t *result_of = gm_new_array(size_t, n_calls ? n_calls : 1); /* message index + 1 */
    json_array_foreach(calls, i, call)
    {
        const char *id = json_string_value(json_object_get(call, "id"));
        if (id) json_object_set_new(by_id, id, json_integer((json_int_t)i));
    }
    bool ok = true;
    for (i = begin; i < end && ok; i++) {
        const char *id =
            json_string_value(json_object_get(json_array_get(r->req->messages, i), "tool_call_id"));
        const json_t *at = id ? json_object_get(by_id, id) : NULL;
        ok = at && !result_of[json_integer_value(at)];
        if (ok) result_of[json_integer_value(at)] = i + 1;
    }
    for (i = 0; i < n_calls && ok; i++)
        if (result_of[i]) order[n++] = result_of[i] - 1;
    gm_free(result_of);
    json_decref(by_id);
    return ok;
}

static gm_status put_results(const renderer *r, size_t begin, size_t end)
{
    size_t *order = gm_new_array(size_t, end - begin);
    gm_status st = GM_OK;
    if (r->f != GM_CHAT_GLM53 || !call_order(r, begin, end, order))
        for (size_t i = begin; i < end; i++) order[i - begin] = i;
    put_control(r->p, "<|observation|>");
    for (size_t i = 0; i < end - begin && !st; i++) st = put_result(r, order[i]);
    gm_free(order);
    return st;
}

/* ---- messages ---- */

static const char *role_of(const renderer *r, size_t i)
{
    return json_string_value(json_object_get(json_array_get(r->req->messages, i), "role"));
}

static gm_status check_messages(const renderer *r)
{
    const json_t *messages = r->req->messages;
    size_t n = json_array_size(messages);
    if (!json_is_array(messages)) return gm_fail(r->err, GM_EARG, "messages: must be an array");
    for (size_t i = 0; i < n; i++) {
        if (!json_is_object(json_array_get(messages, i)))
            return gm_fail(r->err, GM_EARG, "messages[%zu]: must be an object", i);
        if (!role_of(r, i)) return gm_fail(r->err, GM_EARG, "messages[%zu].role: must be a string", i);
    }
    if (!r->req->continue_final_message) return GM_OK;
    if (r->req->add_generation_prompt)
        return gm_fail(r->err, GM_EARG,
                       "continue_final_message and add_generation_prompt exclude each other");
    if (!n || strcmp(role_of(r, n - 1), "assistant") != 0)
        return gm_fail(r->err, GM_EARG, "continue_final_message: the last message must be the assistant's");
    return GM_OK;
}

static gm_status put_messages(const renderer *r)
{
    size_t n = json_array_size(r->req->messages);
    gm_status st = GM_OK;
    for (size_t i = 0; i < n && !st; i++) {
        const json_t *m = json_array_get(r->req->messages, i);
        const char *role = role_of(r, i);
        if (strcmp(role, "assistant") == 0) {
            st = put_assistant(r, m, i, r->req->continue_final_message && i + 1 == n);
        } else if (strcmp(role, "tool") == 0) {
            size_t end = i + 1;
            while (end < n && strcmp(role_of(r, end), "tool") == 0) end++;
            st = put_results(r, i, end);
            i = end - 1;
        } else if (strcmp(role, "user") == 0 || strcmp(role, "system") == 0 ||
                   strcmp(role, "developer") == 0) {
            put_control(r->p, *role == 'u' ? "<|user|>" : "<|system|>");
            st = put_content(r, r->p, json_object_get(m, "content"), i);
        } /* the templates pass over other roles */
    }
    return st;
}

static gm_status render(renderer *r)
{
    gm_status st = check_messages(r);
    if (st) return st;
    r->thinking = thinking_on(r);
    r->keep_thinking = keeps_thinking(r);
    for (size_t i = json_array_size(r->req->messages); i-- > 0 && !r->first_kept;)
        if (strcmp(role_of(r, i), "user") == 0) r->first_kept = i + 1;
    put_control(r->p, "[gMASK]<sop>");
    if (r->f == GM_CHAT_GLM53 || (r->f == GM_CHAT_GLM52 && r->thinking)) {
        put_control(r->p, "<|system|>Reasoning Effort: ");
        put_control(r->p, effort_word(r));
    }
    st = put_tools(r);
    if (!st) st = put_messages(r);
    if (!st && r->req->add_generation_prompt) put_generation_prompt(r);
    return st;
}

gm_status gm_chat_render(gm_chat_prompt *out, gm_chat_format f, const gm_chat_request *req, gm_error *err)
{
    gm_chat_prompt p = {0};
    renderer r = {.p = &p, .f = f, .req = req, .err = err};
    gm_status st = render(&r);
    if (st) gm_chat_prompt_fini(&p);
    else *out = p;
    return st;
}

gm_status gm_chat_encode(const gm_chat_prompt *p, const gm_tokenizer *t, bool special_in_text, gm_ids *ids,
                         gm_error *err)
{
    gm_text_range all = {0, p->text.len}, *ranges = NULL;
    size_t n = 0;
    if (special_in_text)
        return gm_tokenizer_encode_ranges(t, gm_str_c(&p->text), p->text.len, &all, 1, ids, err);
    ranges = gm_new_array(gm_text_range, p->n_spans ? p->n_spans : 1);
    for (size_t i = 0; i < p->n_spans; i++)
        if (!p->spans[i].content) ranges[n++] = (gm_text_range){p->spans[i].begin, p->spans[i].end};
    gm_status st = gm_tokenizer_encode_ranges(t, gm_str_c(&p->text), p->text.len, ranges, n, ids, err);
    gm_free(ranges);
    return st;
}
