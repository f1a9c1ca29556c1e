#include "bench/body.h"

#include <string.h>

static json_t *common_members(const gm_settings *s, bool chat, const char *model, bool ignore_eos)
{
    json_t *o = json_object(), *options = json_object();
    json_object_set_new(o, "model", json_string(model));
    if (!chat) json_object_set_new(o, "repetition_penalty", json_real(1.0));
    if (gm_settings_given(s, logprobs)) {
        json_object_set_new(o, "logprobs", chat ? json_true() : json_integer(s->logprobs));
        if (chat) json_object_set_new(o, "top_logprobs", json_integer(s->logprobs));
    }
    json_object_set_new(o, "stream", json_true());
    json_object_set_new(options, "include_usage", json_true());
    json_object_set_new(o, "stream_options", options);
    if (ignore_eos) json_object_set_new(o, "ignore_eos", json_true());
    if (s->use_beam_search) json_object_set_new(o, "use_beam_search", json_true());
    if (gm_settings_given(s, top_p)) json_object_set_new(o, "top_p", json_real(s->top_p));
    if (gm_settings_given(s, top_k)) json_object_set_new(o, "top_k", json_integer(s->top_k));
    if (gm_settings_given(s, min_p)) json_object_set_new(o, "min_p", json_real(s->min_p));
    if (gm_settings_given(s, temperature)) json_object_set_new(o, "temperature", json_real(s->temperature));
    if (gm_settings_given(s, frequency_penalty))
        json_object_set_new(o, "frequency_penalty", json_real(s->frequency_penalty));
    if (gm_settings_given(s, presence_penalty))
        json_object_set_new(o, "presence_penalty", json_real(s->presence_penalty));
    if (gm_settings_given(s, repetition_penalty))
        json_object_set_new(o, "repetition_penalty", json_real(s->repetition_penalty));
    if (s->extra_body) json_object_update(o, s->extra_body);
    return o;
}

void gm_body_maker_init(gm_body_maker *m, const gm_settings *s, bool chat, const char *model, bool ignore_eos)
{
    json_t *o = common_members(s, chat, model, ignore_eos);
    gm_str all = {0};
    *m = (gm_body_maker){.chat = chat,
                         .own_limit = json_object_get(o, chat ? "max_completion_tokens" : "max_tokens")};
    gm_json_put(&all, o);
    gm_str_append(&m->common, gm_str_c(&all) + 1, all.len - 2);
    gm_str_fini(&all);
    json_decref(o);
}

void gm_body_maker_fini(gm_body_maker *m)
{
    gm_str_fini(&m->common);
}

static void put_ids(gm_str *out, const gm_sample *s)
{
    gm_str_reserve(out, (size_t)s->n_ids * 7);
    gm_str_putc(out, '[');
    for (int32_t i = 0; i < s->n_ids; i++) {
        char digits[16];
        int n = 0;
        for (uint32_t v = (uint32_t)s->ids[i]; n == 0 || v; v /= 10) digits[15 - n++] = (char)('0' + v % 10);
        if (i) gm_str_putc(out, ',');
        gm_str_append(out, digits + 16 - n, (size_t)n);
    }
    gm_str_putc(out, ']');
}

void gm_body_make(const gm_body_maker *m, const gm_sample *s, gm_str *out)
{
    gm_str_reserve(out, s->text_len + s->text_len / 16 + m->common.len + 256);
    gm_str_puts(out, m->chat ? "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                             : "{\"prompt\":");
    if (s->text) gm_json_put_string(out, s->text, s->text_len);
    else put_ids(out, s);
    if (m->chat) gm_str_puts(out, "}]}]");
    if (s->output_len >= 0 && !m->own_limit)
        gm_str_printf(out, ",\"%s\":%d", m->chat ? "max_completion_tokens" : "max_tokens", s->output_len);
    gm_str_putc(out, ',');
    gm_str_append(out, gm_str_c(&m->common), m->common.len);
    gm_str_putc(out, '}');
}
