/* Which of the native formats a checkpoint folder asks for. */
#include "text/chat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/sha256.h"
#include "text/text_internal.h"

#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)

typedef struct known {
    const char *sha256; /* or its first digits, where no more is published */
    gm_chat_format format;
    const char *remark; /* what of the template is not followed; NULL: nothing */
} known;

static const known templates[] = {
    {"172dc74a35e1752df75ecfb2b2cf9326d2852bb1379868ebeec9571654489679", GM_CHAT_GLM52, NULL},
    {"0c4099f3382d6c92700dfb99725025360966fd73032f0ecf32377c0d9e6309c5", GM_CHAT_GLM53, NULL},
    {"690b7052", GM_CHAT_GLM53, NULL},
    {"04c4e9e9", GM_CHAT_GLM53, NULL},
    {"c5b82b63", GM_CHAT_GLM53, "it drops earlier reasoning by default, the current one and Glimmer keep it"},
};

const char *gm_chat_format_name(gm_chat_format f)
{
    static const char *const names[] = {"GLM-5", "GLM-5.1", "GLM-5.2", "GLM-5.3"};
    return names[f];
}

/* Without a template: only GLM-5.2 has layers that share an index. */
static gm_chat_format by_family(const gm_model_config *c)
{
    if (c->family == GM_FAMILY_GLM5_NEXT) return GM_CHAT_GLM53;
    for (int32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].index == GM_INDEX_SHARED) return GM_CHAT_GLM52;
    return GM_CHAT_GLM51;
}

/* An edited template: what it mentions tells the formats apart. */
static gm_chat_format by_words(const gm_str *text, const gm_model_config *c)
{
    if (c->family == GM_FAMILY_GLM5_NEXT) return GM_CHAT_GLM53;
    if (gm_text_find(text->data, text->len, "Reasoning Effort"))
        return gm_text_find(text->data, text->len, "enable_thinking") ? GM_CHAT_GLM52 : GM_CHAT_GLM53;
    return gm_text_find(text->data, text->len, "defer_loading") ? GM_CHAT_GLM51 : by_family(c);
}

/* False: there is none. */
static gm_status read_template(gm_str *out, const char *path, bool *found, gm_error *err)
{
    FILE *f = fopen(path, "rb");
    *found = f != NULL;
    if (!f)
        return errno == ENOENT || errno == ENOTDIR ? GM_OK
                                                   : gm_fail(err, GM_EIO, "%s: %s", path, strerror(errno));
    char buf[8192];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, f)) > 0 && out->len <= TEMPLATE_BYTES_MAX)
        gm_str_append(out, buf, n);
    gm_status st = ferror(f) ? gm_fail(err, GM_EIO, "%s: cannot be read", path) : GM_OK;
    fclose(f);
    if (!st && out->len > TEMPLATE_BYTES_MAX)
        st = gm_fail(err, GM_EFORMAT, "%s: larger than %zu bytes", path, TEMPLATE_BYTES_MAX);
    return st;
}

static const known *find_known(const char *hex)
{
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (strncmp(hex, templates[i].sha256, strlen(templates[i].sha256)) == 0) return &templates[i];
    return NULL;
}

static gm_chat_format choose(const gm_str *text, const gm_model_config *c, gm_str *warning)
{
    char hex[65];
    gm_sha256_hex(hex, gm_str_c(text), text->len);
    const known *k = find_known(hex);
    gm_chat_format f = k ? k->format : by_words(text, c);
    if (!k)
        gm_str_printf(
            warning,
            "chat_template.jinja (SHA-256 %s) is not a known template; prompts are written as for %s", hex,
            gm_chat_format_name(f));
    else if (k->remark) gm_str_printf(warning, "chat_template.jinja is an old revision: %s", k->remark);
    return f;
}

gm_status gm_chat_detect(gm_chat_format *out, const char *dir, const gm_model_config *c, char **warning,
                         gm_error *err)
{
    gm_str path = {0}, text = {0}, words = {0};
    bool found = false;
    gm_str_printf(&path, "%s/chat_template.jinja", dir);
    gm_status st = read_template(&text, gm_str_c(&path), &found, err);
    if (!st) {
        *out = found ? choose(&text, c, &words) : by_family(c);
        if (warning) *warning = words.len ? gm_str_take(&words) : NULL;
    }
    gm_str_fini(&words);
    gm_str_fini(&text);
    gm_str_fini(&path);
    return st;
}
