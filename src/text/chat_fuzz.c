/* A request's JSON in every format: refused or rendered, never worse; spans tile the text, and encoding takes
 * control tokens from the template only. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_prompt(const gm_chat_prompt *p, const gm_tokenizer *t)
{
    size_t at = 0;
    if (gm_utf8_valid_len(gm_str_c(&p->text), p->text.len) != p->text.len) abort();
    for (size_t i = 0; i < p->n_spans; i++) {
        if (p->spans[i].begin != at || p->spans[i].end <= at) abort();
        at = p->spans[i].end;
    }
    if (at != p->text.len) abort();
    gm_ids ids = {0};
    gm_str out = {0};
    if (gm_chat_encode(p, t, false, &ids, NULL) || gm_tokenizer_decode(t, ids.data, ids.n, false, &out, NULL))
        abort();
    if (out.len != p->text.len || memcmp(out.data, p->text.data, out.len) != 0) abort();
    gm_ids_fini(&ids);
    gm_str_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static gm_tokenizer *tok;
    if (!tok && gm_tokenizer_open(&tok, GM_MODELS "/tiny-glm-5.3-flash", NULL)) abort();
    json_t *root = NULL;
    if (!size || gm_json_parse(&root, (const char *)data + 1, size - 1, "fuzz", NULL, NULL)) return 0;
    for (int f = GM_CHAT_GLM5; f <= GM_CHAT_GLM53; f++) {
        gm_chat_request req = {
            .messages = json_is_array(root) ? root : json_object_get(root, "messages"),
            .tools = json_object_get(root, "tools"),
            .reasoning_effort = json_object_get(root, "reasoning_effort"),
            .kwargs = json_object_get(root, "kwargs"),
            .add_generation_prompt = data[0] & 1,
            .continue_final_message = data[0] & 2,
        };
        gm_chat_prompt p = {0};
        gm_error err = {0};
        gm_status st = gm_chat_render(&p, (gm_chat_format)f, &req, &err);
        if (!st) check_prompt(&p, tok);
        else if (st != GM_EARG || !err.message[0]) abort();
        gm_chat_prompt_fini(&p);
    }
    json_decref(root);
    return 0;
}
