#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "model/model_internal.h"

/* ---- memory ---- */

typedef struct gm_weights_block {
    struct gm_weights_block *next;
    void *data;
    size_t size;
} gm_weights_block;

void *gm_weights_block_alloc(gm_weights *w, size_t size)
{
    void *p = gm_pages_alloc(size);
    if (!p) return NULL;
    gm_weights_block *b = gm_new(gm_weights_block);
    *b = (gm_weights_block){w->blocks, p, size};
    w->blocks = b;
    return p;
}

void gm_weights_close(gm_weights *w)
{
    if (!w) return;
    while (w->blocks) {
        gm_weights_block *next = w->blocks->next;
        gm_pages_free(w->blocks->data, w->blocks->size);
        gm_free(w->blocks);
        w->blocks = next;
    }
    gm_checkpoint_close(w->checkpoint);
    gm_arena_fini(&w->arena);
    gm_str_fini(&w->skipped);
    gm_free(w->layers);
    gm_free(w);
}

const gm_model_config *gm_weights_config(const gm_weights *w)
{
    return &w->config;
}

int64_t gm_weights_bytes(const gm_weights *w)
{
    return w->bytes;
}

const char *gm_weights_skipped(const gm_weights *w)
{
    return gm_str_c(&w->skipped);
}

/* ---- binding ---- */

/* Which dtypes a tensor may have. */
typedef enum tensor_class {
    CLASS_MATRIX,     /* BF16, F32, or FP8 with its scale */
    CLASS_MATRIX_16,  /* never FP8: embedding, head, router, index head weights, mHC */
    CLASS_VECTOR,     /* BF16 or F32; used as F32 */
    CLASS_VECTOR_F32, /* F32 only: rounding these changes which experts win, or what the state forgets */
} tensor_class;

typedef struct binder {
    gm_weights *w;
    gm_device *dev;
    const char *prefix; /* of the text tower: "model.language_model." or "model." */
    uint8_t *used;      /* [tensors of the checkpoint] */
    uint64_t seed;      /* of dummy weights */
    const gm_weights_progress *progress;
    int64_t n_bound;
    gm_status st; /* the first failure; what follows it does nothing */
    gm_error *err;
} binder;

typedef struct source {
    const void *data;
    gm_st_dtype dtype;
} source;

static void shape_text(gm_str *s, const int64_t *shape, int32_t n)
{
    gm_str_putc(s, '[');
    for (int32_t i = 0; i < n; i++) gm_str_printf(s, "%s%lld", i ? ", " : "", (long long)shape[i]);
    gm_str_putc(s, ']');
}

static void wrong_shape(binder *b, const gm_tensor_entry *e, const int64_t *shape, int32_t n_dims)
{
    gm_str found = {0}, want = {0};
    shape_text(&found, e->shape, e->n_dims);
    shape_text(&want, shape, n_dims);
    b->st = gm_fail(b->err, GM_EFORMAT, "%s: tensor %s has shape %s, the config needs %s",
                    gm_checkpoint_file(b->w->checkpoint, e->file), e->name, gm_str_c(&found), gm_str_c(&want));
    gm_str_fini(&found);
    gm_str_fini(&want);
}

static bool dtype_fits(gm_st_dtype t, tensor_class k)
{
    if (t == GM_ST_F32) return true;
    if (t == GM_ST_BF16) return k != CLASS_VECTOR_F32;
    return t == GM_ST_F8_E4M3 && k == CLASS_MATRIX;
}

static const char *dtypes_wanted(tensor_class k)
{
    return k == CLASS_VECTOR_F32 ? "F32" : k == CLASS_MATRIX ? "BF16, F32 or F8_E4M3" : "BF16 or F32";
}

static void mark_used(binder *b, const gm_tensor_entry *e)
{
    b->used[e - gm_checkpoint_at(b->w->checkpoint, 0)] = 1;
    b->w->bytes += e->bytes;
    b->n_bound++;
    if (b->progress && b->progress->fn)
        b->progress->fn(b->progress->user, b->n_bound, gm_checkpoint_count(b->w->checkpoint), b->w->bytes);
}

static const gm_tensor_entry *find_checked(binder *b, const char *name, const int64_t *shape, int32_t n_dims)
{
    const gm_tensor_entry *e = gm_checkpoint_find(b->w->checkpoint, name);
    if (!e) {
        b->st = gm_fail(b->err, GM_EFORMAT, "tensor %s is missing from the checkpoint", name);
        return NULL;
    }
    bool same = e->n_dims == n_dims;
    for (int32_t i = 0; same && i < n_dims; i++) same = e->shape[i] == shape[i];
    if (!same) {
        wrong_shape(b, e, shape, n_dims);
        return NULL;
    }
    mark_used(b, e);
    return e;
}

/* The mapped bytes; a copy where the file has them at an address that the type cannot be read from. */
static const void *aligned_data(binder *b, const gm_tensor_entry *e)
{
    int64_t size = gm_st_dtype_size(e->dtype);
    if ((uintptr_t)e->data % (uintptr_t)size == 0) return e->data;
    void *p = gm_weights_block_alloc(b->w, (size_t)e->bytes);
    if (!p) b->st = gm_fail(b->err, GM_ENOMEM, "no memory for a copy of tensor %s (%lld bytes)", e->name, (long long)e->bytes);
    else memcpy(p, e->data, (size_t)e->bytes);
    return p;
}

static source take(binder *b, const char *name, tensor_class k, const int64_t *shape, int32_t n_dims)
{
    const gm_tensor_entry *e = find_checked(b, name, shape, n_dims);
    if (!e) return (source){0};
    if (!dtype_fits(e->dtype, k)) {
        b->st = gm_fail(b->err, GM_EFORMAT, "%s: tensor %s is %s, needed is %s", gm_checkpoint_file(b->w->checkpoint, e->file),
                        name, gm_st_dtype_name(e->dtype), dtypes_wanted(k));
        return (source){0};
    }
    return (source){aligned_data(b, e), e->dtype};
}

static source invent(binder *b, const char *name, gm_st_dtype dtype, gm_fill fill, int64_t fan_in, const int64_t *shape,
                     int32_t n_dims)
{
    int64_t n = 1;
    for (int32_t i = 0; i < n_dims; i++) n *= shape[i];
    int64_t bytes = n * gm_st_dtype_size(dtype);
    void *p = gm_weights_block_alloc(b->w, (size_t)bytes);
    if (!p) {
        b->st = gm_fail(b->err, GM_ENOMEM, "no memory for dummy tensor %s (%lld bytes)", name, (long long)bytes);
        return (source){0};
    }
    gm_dummy_fill(p, dtype, n, fan_in, fill, b->seed, name, b->dev);
    b->w->bytes += bytes;
    return (source){p, dtype};
}

/* printf into a tensor name that lives as long as the binder's call */
typedef struct tensor_name {
    char text[256];
} tensor_name;
static tensor_name named(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static tensor_name named(const char *fmt, ...)
{
    tensor_name n;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(n.text, sizeof n.text, fmt, ap);
    va_end(ap);
    return n;
}

static const float *bind_scale(binder *b, const char *weight, int64_t rows, int64_t cols)
{
    int64_t shape[2] = {(rows + 127) / 128, (cols + 127) / 128};
    tensor_name n = named("%s_scale_inv", weight);
    if (!b->w->checkpoint) return invent(b, n.text, GM_ST_F32, GM_FILL_SCALE, cols, shape, 2).data;
    if (!gm_checkpoint_find(b->w->checkpoint, n.text)) {
        b->st = gm_fail(b->err, GM_EFORMAT, "tensor %s is F8_E4M3, but its scale %s is missing", weight, n.text);
        return NULL;
    }
    return take(b, n.text, CLASS_VECTOR_F32, shape, 2).data;
}

/* name: full name of the weight. may_fp8: a dummy checkpoint stores it in FP8 when the config is quantised. */
static gm_matrix bind_matrix(binder *b, const char *name, int64_t rows, int64_t cols, tensor_class k, bool may_fp8)
{
    gm_matrix m = {.rows = (int32_t)rows, .cols = (int32_t)cols, .block_rows = 128, .block_cols = 128};
    int64_t shape[2] = {rows, cols};
    if (b->st) return m;
    gm_st_dtype dummy = may_fp8 && k == CLASS_MATRIX && b->w->config.fp8 ? GM_ST_F8_E4M3 : GM_ST_BF16;
    source s = b->w->checkpoint ? take(b, name, k, shape, 2) : invent(b, name, dummy, GM_FILL_MATRIX, cols, shape, 2);
    if (b->st) return m;
    m.data = s.data;
    m.dtype = s.dtype == GM_ST_F32 ? GM_F32 : s.dtype == GM_ST_BF16 ? GM_BF16 : GM_F8E4M3;
    if (m.dtype == GM_F8E4M3) {
        m.scale = bind_scale(b, name, rows, cols);
        m.scale_cols = (int32_t)((cols + 127) / 128);
    }
    return m;
}

static gm_matrix bind(binder *b, const char *base, const char *leaf, int64_t rows, int64_t cols)
{
    return bind_matrix(b, named("%s%s", base, leaf).text, rows, cols, CLASS_MATRIX, true);
}

static gm_matrix bind_16(binder *b, const char *base, const char *leaf, int64_t rows, int64_t cols)
{
    return bind_matrix(b, named("%s%s", base, leaf).text, rows, cols, CLASS_MATRIX_16, false);
}

/* A tensor of `n` values used as FP32: read in place where it is stored so, else converted. */
static const float *bind_values(binder *b, const char *name, tensor_class k, gm_fill fill, const int64_t *shape, int32_t n_dims)
{
    if (b->st) return NULL;
    int64_t n = 1;
    for (int32_t i = 0; i < n_dims; i++) n *= shape[i];
    source s = b->w->checkpoint ? take(b, name, k, shape, n_dims)
                                : invent(b, name, GM_ST_F32, fill, shape[n_dims - 1], shape, n_dims);
    if (b->st || s.dtype == GM_ST_F32) return s.data;
    float *out = gm_arena_alloc(&b->w->arena, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) out[i] = gm_bf16_to_f32(((const uint16_t *)s.data)[i]);
    return out;
}

static const float *bind_vector(binder *b, const char *base, const char *leaf, int64_t n, tensor_class k, gm_fill fill)
{
    return bind_values(b, named("%s%s", base, leaf).text, k, fill, &n, 1);
}

static const float *bind_norm(binder *b, const char *base, const char *leaf, int64_t n)
{
    return bind_vector(b, base, leaf, n, CLASS_VECTOR, GM_FILL_ONES);
}

/* ---- MLA ---- */

static float matrix_at(const gm_matrix *m, int64_t r, int64_t c)
{
    int64_t i = r * m->cols + c;
    if (m->dtype == GM_F32) return ((const float *)m->data)[i];
    if (m->dtype == GM_BF16) return gm_bf16_to_f32(((const uint16_t *)m->data)[i]);
    return gm_e4m3_to_f32(((const uint8_t *)m->data)[i]) * m->scale[(r / 128) * m->scale_cols + c / 128];
}

/* rows of kv_b for one head, transposed or not, as a matrix of its own. FP8 becomes FP32: a head's rows may begin
 * inside a scale block, and the transposed product could not use the blocks at all. */
static gm_matrix split_rows(binder *b, const gm_matrix *kv_b, int64_t row, int32_t n, bool transpose)
{
    int64_t d = kv_b->cols;
    gm_matrix m = {.rows = (int32_t)(transpose ? d : n), .cols = (int32_t)(transpose ? n : d), .block_rows = 128, .block_cols = 128};
    m.dtype = kv_b->dtype == GM_BF16 ? GM_BF16 : GM_F32;
    if (!transpose && kv_b->dtype != GM_F8E4M3) { /* rows follow one another: in place */
        m.data = (const uint8_t *)kv_b->data + row * d * gm_dtype_size(m.dtype);
        return m;
    }
    void *p = gm_weights_block_alloc(b->w, (size_t)(n * d * gm_dtype_size(m.dtype)));
    if (!p) {
        b->st = gm_fail(b->err, GM_ENOMEM, "no memory for a head's part of kv_b_proj");
        return m;
    }
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < d; c++) {
            int64_t at = transpose ? c * n + r : r * d + c;
            float x = matrix_at(kv_b, row + r, c);
            if (m.dtype == GM_BF16) ((uint16_t *)p)[at] = gm_f32_to_bf16(x);
            else ((float *)p)[at] = x;
        }
    }
    m.data = p;
    return m;
}

static void bind_indexer(binder *b, gm_indexer_weights *x, const char *base)
{
    const gm_model_config *c = &b->w->config;
    int64_t d = c->d_model, di = c->index_d_head;
    bool fp8 = c->family == GM_FAMILY_GLM_MOE_DSA;
    x->wq_b = bind_matrix(b, named("%swq_b.weight", base).text, c->index_n_heads * di, c->q_lora_rank, CLASS_MATRIX, fp8);
    x->wk = bind_matrix(b, named("%swk.weight", base).text, di, d, CLASS_MATRIX, fp8);
    x->head_weights = bind_16(b, base, "weights_proj.weight", c->index_n_heads, d);
    x->k_norm_w = bind_norm(b, base, "k_norm.weight", di);
    x->k_norm_b = bind_vector(b, base, "k_norm.bias", di, CLASS_VECTOR, GM_FILL_BIAS);
    if (!c->index_compress) return;
    int64_t ape[2] = {c->index_pool, di};
    x->pool_gate = bind_16(b, base, "index_kpool_compress_gate", di, d);
    x->pool_ape = bind_values(b, named("%sindex_kpool_compress_ape", base).text, CLASS_VECTOR, GM_FILL_BIAS, ape, 2);
}

static void bind_mla(binder *b, gm_mla_weights *m, const char *base, bool own_indexer)
{
    const gm_model_config *c = &b->w->config;
    int64_t d = c->d_model, qk = c->d_nope + c->d_rope, kv = c->d_nope + c->d_v;
    m->q_a = bind(b, base, "q_a_proj.weight", c->q_lora_rank, d);
    m->q_a_norm = bind_norm(b, base, "q_a_layernorm.weight", c->q_lora_rank);
    m->q_b = bind(b, base, "q_b_proj.weight", c->n_heads * qk, c->q_lora_rank);
    m->kv_a = bind(b, base, "kv_a_proj_with_mqa.weight", c->d_latent + c->d_rope, d);
    m->kv_a_norm = bind_norm(b, base, "kv_a_layernorm.weight", c->d_latent);
    gm_matrix kv_b = bind_matrix(b, named("%skv_b_proj.weight", base).text, c->n_heads * kv, c->d_latent, CLASS_MATRIX,
                                 c->family == GM_FAMILY_GLM_MOE_DSA);
    m->o = bind(b, base, "o_proj.weight", d, (int64_t)c->n_heads * c->d_v);
    m->uk = gm_arena_alloc(&b->w->arena, (size_t)c->n_heads * sizeof *m->uk);
    m->uv = gm_arena_alloc(&b->w->arena, (size_t)c->n_heads * sizeof *m->uv);
    for (int32_t h = 0; h < c->n_heads && !b->st; h++) {
        m->uk[h] = split_rows(b, &kv_b, h * kv, c->d_nope, true);
        m->uv[h] = split_rows(b, &kv_b, h * kv + c->d_nope, c->d_v, false);
    }
    if (own_indexer) bind_indexer(b, &m->index, named("%sindexer.", base).text);
}

/* ---- the other layer kinds ---- */

static const float *bind_conv(binder *b, const char *base, int64_t width, int64_t taps)
{
    static const char *const parts[3] = {"q", "k", "v"};
    int64_t shape[3] = {width, 1, taps};
    size_t n = (size_t)(width * taps);
    float *out = gm_arena_alloc(&b->w->arena, 3 * n * sizeof *out);
    for (size_t i = 0; i < 3; i++) {
        const float *w = bind_values(b, named("%s%s_conv1d.weight", base, parts[i]).text, CLASS_VECTOR, GM_FILL_MATRIX, shape, 3);
        if (w) memcpy(out + i * n, w, n * sizeof *out);
    }
    return out;
}

static void bind_kda(binder *b, gm_kda_weights *k, const char *base)
{
    const gm_model_config *c = &b->w->config;
    int64_t d = c->d_model, h = c->kda_d_head, width = (int64_t)c->kda_n_heads * h;
    k->q = bind_matrix(b, named("%sq_proj.weight", base).text, width, d, CLASS_MATRIX, false);
    k->k = bind_matrix(b, named("%sk_proj.weight", base).text, width, d, CLASS_MATRIX, false);
    k->v = bind_matrix(b, named("%sv_proj.weight", base).text, width, d, CLASS_MATRIX, false);
    k->conv = bind_conv(b, base, width, c->kda_conv);
    k->f_a = bind_matrix(b, named("%sf_a_proj.weight", base).text, h, d, CLASS_MATRIX, false);
    k->f_b = bind_matrix(b, named("%sf_b_proj.weight", base).text, width, h, CLASS_MATRIX, false);
    k->g_a = bind_matrix(b, named("%sg_a_proj.weight", base).text, h, d, CLASS_MATRIX, false);
    k->g_b = bind_matrix(b, named("%sg_b_proj.weight", base).text, width, h, CLASS_MATRIX, false);
    k->b = bind_matrix(b, named("%sb_proj.weight", base).text, c->kda_n_heads, d, CLASS_MATRIX, false);
    k->A_log = bind_vector(b, base, "A_log", c->kda_n_heads, CLASS_VECTOR_F32, GM_FILL_A_LOG);
    k->dt_bias = bind_vector(b, base, "dt_bias", width, CLASS_VECTOR_F32, GM_FILL_BIAS);
    k->o_norm = bind_norm(b, base, "o_norm.weight", h);
    k->o = bind_matrix(b, named("%so_proj.weight", base).text, d, width, CLASS_MATRIX, false);
}

static void bind_mlp(binder *b, gm_mlp_weights *m, const char *base, int64_t width)
{
    int64_t d = b->w->config.d_model;
    m->gate = bind(b, base, "gate_proj.weight", width, d);
    m->up = bind(b, base, "up_proj.weight", width, d);
    m->down = bind(b, base, "down_proj.weight", d, width);
}

/* One product reads all experts with one set of instructions: they must be stored alike. */
static void check_alike(binder *b, const gm_matrix *m, int32_t n, const char *base)
{
    for (int32_t e = 1; e < n && !b->st; e++)
        if (m[e].dtype != m[0].dtype)
            b->st = gm_fail(b->err, GM_EFORMAT, "%s: experts 0 and %d are stored in different dtypes", base, e);
}

static void bind_moe(binder *b, gm_moe_weights *m, const char *base)
{
    const gm_model_config *c = &b->w->config;
    size_t n = (size_t)c->n_experts;
    m->router = bind_16(b, base, "gate.weight", c->n_experts, c->d_model);
    m->bias = bind_vector(b, base, "gate.e_score_correction_bias", c->n_experts, CLASS_VECTOR_F32, GM_FILL_BIAS);
    m->gate = gm_arena_alloc(&b->w->arena, n * sizeof *m->gate);
    m->up = gm_arena_alloc(&b->w->arena, n * sizeof *m->up);
    m->down = gm_arena_alloc(&b->w->arena, n * sizeof *m->down);
    for (int32_t e = 0; e < c->n_experts && !b->st; e++) {
        gm_mlp_weights one = {0};
        bind_mlp(b, &one, named("%sexperts.%d.", base, e).text, c->d_expert);
        m->gate[e] = one.gate;
        m->up[e] = one.up;
        m->down[e] = one.down;
    }
    check_alike(b, m->gate, c->n_experts, base);
    check_alike(b, m->up, c->n_experts, base);
    check_alike(b, m->down, c->n_experts, base);
    if (c->n_shared) bind_mlp(b, &m->shared, named("%sshared_experts.", base).text, (int64_t)c->d_expert * c->n_shared);
}

static void bind_hc(binder *b, gm_hc_weights *h, const char *base, const char *site)
{
    const gm_model_config *c = &b->w->config;
    int64_t s = c->n_streams, mix = s * (2 + s);
    h->fn = bind_16(b, base, named("hc_%s_fn", site).text, mix, s * c->d_model);
    h->base = bind_vector(b, base, named("hc_%s_base", site).text, mix, CLASS_VECTOR, GM_FILL_BIAS);
    h->scale = bind_vector(b, base, named("hc_%s_scale", site).text, 3, CLASS_VECTOR, GM_FILL_ONES);
}

static void bind_layer(binder *b, int32_t i)
{
    const gm_model_config *c = &b->w->config;
    gm_layer_weights *l = &b->w->layers[i];
    tensor_name base = named("%slayers.%d.", b->prefix, i);
    l->input_norm = bind_norm(b, base.text, "input_layernorm.weight", c->d_model);
    l->post_norm = bind_norm(b, base.text, "post_attention_layernorm.weight", c->d_model);
    if (c->n_streams > 1) {
        bind_hc(b, &l->hc_attn, base.text, "attn");
        bind_hc(b, &l->hc_ffn, base.text, "ffn");
    }
    tensor_name attn = named("%sself_attn.", base.text), mlp = named("%smlp.", base.text);
    if (c->layers[i].mixer == GM_MIXER_KDA) bind_kda(b, &l->kda, attn.text);
    else bind_mla(b, &l->mla, attn.text, c->layers[i].index == GM_INDEX_OWN);
    if (c->layers[i].ffn == GM_FFN_DENSE) bind_mlp(b, &l->mlp, mlp.text, c->d_ffn);
    else bind_moe(b, &l->moe, mlp.text);
}

/* ---- what is left over ---- */

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Layer number of a tensor of the text tower, and what follows it; -1: not a layer's. */
static int32_t layer_of(const binder *b, const char *name, const char **rest)
{
    char fmt[64];
    int32_t layer = -1;
    int used = 0;
    snprintf(fmt, sizeof fmt, "%slayers.%%6d.%%n", b->prefix);
    if (sscanf(name, fmt, &layer, &used) < 1 || used == 0 || layer < 0) return -1;
    *rest = name + used;
    return layer;
}

typedef struct leftover {
    int64_t vision, mtp, beyond, shared_index;
} leftover;

/* A tensor that nobody asked for is an error, unless it is one of those that are known to ride along. */
static void classify(binder *b, const gm_tensor_entry *e, leftover *n)
{
    const gm_model_config *c = &b->w->config;
    const char *rest = "";
    int32_t layer = layer_of(b, e->name, &rest);
    if (starts_with(e->name, "model.visual.") || starts_with(e->name, "visual.")) n->vision++;
    else if (layer >= c->n_layers && layer < c->n_layers + c->n_mtp_layers) n->mtp++;
    else if (layer >= c->n_layers) n->beyond++;
    else if (layer >= 0 && c->layers[layer].index == GM_INDEX_SHARED && starts_with(rest, "self_attn.indexer.")) n->shared_index++;
    else if (c->tie_embeddings && strcmp(e->name, "lm_head.weight") == 0) return;
    else
        b->st = gm_fail(b->err, GM_EFORMAT, "%s: tensor %s is not part of this model (%s)",
                        gm_checkpoint_file(b->w->checkpoint, e->file), e->name, c->model_type);
}

static void check_leftovers(binder *b)
{
    leftover n = {0};
    for (int64_t i = 0; i < gm_checkpoint_count(b->w->checkpoint) && !b->st; i++)
        if (!b->used[i]) classify(b, gm_checkpoint_at(b->w->checkpoint, i), &n);
    const struct {
        int64_t n;
        const char *what;
    } parts[] = {{n.vision, "vision tower"},
                 {n.mtp, "MTP block"},
                 {n.beyond, "layers beyond num_hidden_layers"},
                 {n.shared_index, "indexers of layers that share a selection"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].n)
            gm_str_printf(&b->w->skipped, "%s%lld tensors (%s)", b->w->skipped.len ? ", " : "", (long long)parts[i].n, parts[i].what);
    const char *strays = gm_checkpoint_strays(b->w->checkpoint);
    if (strays[0]) gm_str_printf(&b->w->skipped, "%sfiles not named by the index (%s)", b->w->skipped.len ? ", " : "", strays);
}

static void bind_all(binder *b)
{
    const gm_model_config *c = &b->w->config;
    b->w->embed = bind_16(b, b->prefix, "embed_tokens.weight", c->vocab_size, c->d_model);
    b->w->norm = bind_norm(b, b->prefix, "norm.weight", c->d_model);
    b->w->head = c->tie_embeddings ? b->w->embed : bind_16(b, "", "lm_head.weight", c->vocab_size, c->d_model);
    for (int32_t i = 0; i < c->n_layers && !b->st; i++) bind_layer(b, i);
}

static gm_weights *weights_new(const gm_model_config *c)
{
    gm_weights *w = gm_new(gm_weights);
    w->config = *c;
    w->layers = gm_new_array(gm_layer_weights, c->n_layers);
    return w;
}

gm_status gm_weights_open(gm_weights **out, const char *dir, const gm_model_config *c, gm_device *dev,
                          const gm_weights_progress *progress, gm_error *err)
{
    gm_weights *w = weights_new(c);
    binder b = {.w = w, .dev = dev, .progress = progress, .err = err};
    b.st = gm_checkpoint_open(&w->checkpoint, dir, err);
    if (b.st) goto done;
    bool nested = gm_checkpoint_find(w->checkpoint, "model.language_model.embed_tokens.weight") != NULL;
    b.prefix = nested ? "model.language_model." : "model.";
    b.used = gm_new_array(uint8_t, gm_checkpoint_count(w->checkpoint) + 1);
    bind_all(&b);
    if (!b.st) check_leftovers(&b);
    gm_free(b.used);
done:
    if (b.st) gm_weights_close(w);
    else *out = w;
    return b.st;
}

gm_status gm_weights_dummy(gm_weights **out, const gm_model_config *c, gm_device *dev, uint64_t seed, gm_error *err)
{
    gm_weights *w = weights_new(c);
    binder b = {.w = w, .dev = dev, .prefix = "model.", .seed = seed, .err = err};
    bind_all(&b);
    if (b.st) gm_weights_close(w);
    else *out = w;
    return b.st;
}
