#include "io/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"

static const struct {
    const char *name;
    int64_t size;
} dtypes[] = {
    [GM_ST_BOOL] = {"BOOL", 1},       [GM_ST_U8] = {"U8", 1},     [GM_ST_I8] = {"I8", 1},   [GM_ST_F8_E4M3] = {"F8_E4M3", 1},
    [GM_ST_F8_E5M2] = {"F8_E5M2", 1}, [GM_ST_I16] = {"I16", 2},   [GM_ST_U16] = {"U16", 2}, [GM_ST_F16] = {"F16", 2},
    [GM_ST_BF16] = {"BF16", 2},       [GM_ST_I32] = {"I32", 4},   [GM_ST_U32] = {"U32", 4}, [GM_ST_F32] = {"F32", 4},
    [GM_ST_I64] = {"I64", 8},         [GM_ST_U64] = {"U64", 8},   [GM_ST_F64] = {"F64", 8},
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0], HEADER_MAX = 100 << 20 };

const char *gm_st_dtype_name(gm_st_dtype t)
{
    return dtypes[t].name;
}

int64_t gm_st_dtype_size(gm_st_dtype t)
{
    return dtypes[t].size;
}

typedef struct st_file {
    char *path;
    uint8_t *map;
    size_t size;
} st_file;

struct gm_checkpoint {
    st_file *files;
    int32_t n_files;
    gm_tensor_entry *entries; /* sorted by name */
    int64_t n_entries, cap_entries;
    gm_arena names;
    gm_str strays;
};

/* ---- one header ---- */

static gm_status parse_dtype(gm_st_dtype *out, const json_t *v, const char *what, const char *tensor, gm_error *err)
{
    const char *s = json_string_value(v);
    for (int i = 0; s && i < N_DTYPES; i++) {
        if (strcmp(s, dtypes[i].name) == 0) {
            *out = (gm_st_dtype)i;
            return GM_OK;
        }
    }
    return gm_fail(err, GM_EFORMAT, "%s: tensor %s: dtype '%.32s' is not known", what, tensor, s ? s : "(not a string)");
}

static gm_status parse_shape(gm_tensor_entry *e, const json_t *v, const char *what, gm_error *err)
{
    if (!json_is_array(v) || json_array_size(v) > GM_TENSOR_DIMS_MAX)
        return gm_fail(err, GM_EFORMAT, "%s: tensor %s: shape is to be a list of at most %d integers", what, e->name,
                       GM_TENSOR_DIMS_MAX);
    e->n_dims = (int32_t)json_array_size(v);
    e->bytes = gm_st_dtype_size(e->dtype);
    for (int32_t i = 0; i < e->n_dims; i++) {
        const json_t *d = json_array_get(v, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return gm_fail(err, GM_EFORMAT, "%s: tensor %s: dim %d is not a natural number", what, e->name, i);
        e->shape[i] = json_integer_value(d);
        if (__builtin_mul_overflow(e->bytes, e->shape[i], &e->bytes))
            return gm_fail(err, GM_EFORMAT, "%s: tensor %s: its size overflows", what, e->name);
    }
    return GM_OK;
}

/* Offsets relative to the end of the header; the data part is data_len bytes long. */
static gm_status parse_entry(gm_tensor_entry *e, int64_t *begin, const char *name, const json_t *v, uint64_t data_len,
                             const char *what, gm_error *err)
{
    e->name = name;
    if (strlen(name) > 512) return gm_fail(err, GM_EFORMAT, "%s: a tensor's name has more than 512 bytes", what);
    if (!json_is_object(v)) return gm_fail(err, GM_EFORMAT, "%s: tensor %s: its entry is to be an object", what, name);
    gm_status st = parse_dtype(&e->dtype, json_object_get(v, "dtype"), what, name, err);
    if (!st) st = parse_shape(e, json_object_get(v, "shape"), what, err);
    if (st) return st;
    const json_t *off = json_object_get(v, "data_offsets"), *a = json_array_get(off, 0), *b = json_array_get(off, 1);
    if (!json_is_array(off) || json_array_size(off) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return gm_fail(err, GM_EFORMAT, "%s: tensor %s: data_offsets is to be a list of two integers", what, name);
    json_int_t from = json_integer_value(a), to = json_integer_value(b);
    if (from < 0 || to < from)
        return gm_fail(err, GM_EFORMAT, "%s: tensor %s: data_offsets [%lld, %lld] are out of order", what, name,
                       (long long)from, (long long)to);
    if (to - from != e->bytes)
        return gm_fail(err, GM_EFORMAT, "%s: tensor %s: data_offsets hold %lld bytes, dtype and shape need %lld", what, name,
                       (long long)(to - from), (long long)e->bytes);
    if ((uint64_t)to > data_len)
        return gm_fail(err, GM_EFORMAT, "%s: tensor %s ends at byte %lld of the data, the file holds only %llu (is it cut short?)",
                       what, name, (long long)to, (unsigned long long)data_len);
    *begin = from;
    return GM_OK;
}

typedef struct span {
    int64_t begin, end;
    const char *name;
} span;

static int span_order(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* The format demands that the tensors cover the data without overlap or hole. */
static gm_status check_spans(span *spans, size_t n, uint64_t data_len, const char *what, gm_error *err)
{
    qsort(spans, n, sizeof *spans, span_order);
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].begin < at)
            return gm_fail(err, GM_EFORMAT, "%s: tensors %s and %s overlap", what, spans[i - 1].name, spans[i].name);
        if (spans[i].begin > at)
            return gm_fail(err, GM_EFORMAT, "%s: %lld bytes before tensor %s belong to no tensor", what,
                           (long long)(spans[i].begin - at), spans[i].name);
        at = spans[i].end;
    }
    if ((uint64_t)at != data_len)
        return gm_fail(err, GM_EFORMAT, "%s: the tensors need %lld bytes of data, the file holds %llu", what, (long long)at,
                       (unsigned long long)data_len);
    return GM_OK;
}

/* Parse the header; on success *header is the JSON object (owned by the caller) and *data_at the offset of the data. */
static gm_status read_header(json_t **header, uint64_t *data_at, const uint8_t *bytes, size_t len, uint64_t file_size,
                             const char *what, gm_error *err)
{
    uint64_t n = 0;
    if (file_size < 8 || len < 8)
        return gm_fail(err, GM_EFORMAT, "%s: %llu bytes are too short for a safetensors file", what,
                       (unsigned long long)file_size);
    memcpy(&n, bytes, 8);
    if (n > HEADER_MAX)
        return gm_fail(err, GM_EFORMAT, "%s: a header of %llu bytes is announced, at most %d are accepted", what,
                       (unsigned long long)n, HEADER_MAX);
    if (n > file_size - 8 || n > len - 8)
        return gm_fail(err, GM_EFORMAT, "%s: the header needs %llu bytes, the file holds %llu in all (is it cut short?)", what,
                       (unsigned long long)n + 8, (unsigned long long)file_size);
    gm_json_limits limits = {.bytes_max = HEADER_MAX, .depth_max = 8};
    gm_status st = gm_json_parse(header, (const char *)bytes + 8, (size_t)n, what, &limits, err);
    if (st) return st;
    if (!json_is_object(*header)) {
        json_decref(*header);
        *header = NULL;
        return gm_fail(err, GM_EFORMAT, "%s: the header is to be a JSON object", what);
    }
    *data_at = n + 8;
    return GM_OK;
}

/* Check every entry of a header. With c, append them, the names copied and data pointing behind `data`. */
static gm_status take_entries(gm_checkpoint *c, int32_t file, json_t *header, const uint8_t *data, uint64_t data_len,
                              const char *what, gm_error *err)
{
    size_t n = 0;
    span *spans = gm_new_array(span, json_object_size(header) + 1);
    gm_status st = GM_OK;
    const char *name;
    json_t *v;
    json_object_foreach(header, name, v)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        gm_tensor_entry e = {.file = file};
        int64_t begin = 0;
        st = parse_entry(&e, &begin, name, v, data_len, what, err);
        if (st) break;
        spans[n++] = (span){begin, begin + e.bytes, name};
        if (!c) continue;
        if (c->n_entries == c->cap_entries) {
            c->cap_entries = c->cap_entries ? 2 * c->cap_entries : 256;
            c->entries = gm_realloc_array(c->entries, (size_t)c->cap_entries, sizeof *c->entries);
        }
        e.name = gm_arena_strndup(&c->names, name, strlen(name));
        e.data = data + begin;
        c->entries[c->n_entries++] = e;
    }
    if (!st) st = check_spans(spans, n, data_len, what, err);
    gm_free(spans);
    return st;
}

gm_status gm_safetensors_check(const uint8_t *bytes, size_t len, uint64_t file_size, const char *what, gm_error *err)
{
    json_t *header = NULL;
    uint64_t at = 0;
    gm_status st = read_header(&header, &at, bytes, len, file_size, what, err);
    if (!st) st = take_entries(NULL, 0, header, NULL, file_size - at, what, err);
    json_decref(header);
    return st;
}

/* ---- files ---- */

static gm_status map_file(st_file *f, gm_error *err)
{
    struct stat sb;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return gm_fail(err, errno == ENOENT ? GM_ENOTFOUND : GM_EIO, "%s: %s", f->path, strerror(errno));
    gm_status st = GM_OK;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        st = gm_fail(err, GM_EIO, "%s: not a regular file", f->path);
    } else if (sb.st_size < 8) {
        st = gm_fail(err, GM_EFORMAT, "%s: %lld bytes are too short for a safetensors file", f->path, (long long)sb.st_size);
    } else {
        f->size = (size_t)sb.st_size;
        void *p = mmap(NULL, f->size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) st = gm_fail(err, GM_EIO, "%s: cannot map %zu bytes: %s", f->path, f->size, strerror(errno));
        else f->map = p;
    }
    close(fd);
    return st;
}

/* path is taken over */
static gm_status add_file(gm_checkpoint *c, char *path, gm_error *err)
{
    c->files = gm_realloc_array(c->files, (size_t)c->n_files + 1, sizeof *c->files);
    st_file *f = &c->files[c->n_files];
    *f = (st_file){.path = path};
    int32_t index = c->n_files++;
    json_t *header = NULL;
    uint64_t at = 0;
    gm_status st = map_file(f, err);
    if (!st) st = read_header(&header, &at, f->map, f->size, f->size, path, err);
    if (!st) st = take_entries(c, index, header, f->map + at, f->size - at, path, err);
    json_decref(header);
    return st;
}

static int entry_order(const void *a, const void *b)
{
    return strcmp(((const gm_tensor_entry *)a)->name, ((const gm_tensor_entry *)b)->name);
}

static gm_status sort_entries(gm_checkpoint *c, gm_error *err)
{
    if (c->n_entries) qsort(c->entries, (size_t)c->n_entries, sizeof *c->entries, entry_order);
    for (int64_t i = 1; i < c->n_entries; i++)
        if (strcmp(c->entries[i - 1].name, c->entries[i].name) == 0)
            return gm_fail(err, GM_EFORMAT, "tensor %s stands in %s and in %s", c->entries[i].name,
                           c->files[c->entries[i - 1].file].path, c->files[c->entries[i].file].path);
    return GM_OK;
}

static char *join_path(const char *dir, const char *name)
{
    gm_str s = {0};
    gm_str_printf(&s, "%s/%s", dir, name);
    return gm_str_take(&s);
}

/* A shard is a plain file of the folder: an index must not lead elsewhere. */
static bool plain_name(const char *s)
{
    return s[0] && s[0] != '.' && !strchr(s, '/');
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static gm_status open_shards(gm_checkpoint *c, const char *dir, const json_t *map, const char *index_path, gm_error *err)
{
    json_t *shards = json_object(); /* the set of file names, in order of appearance */
    const char *name, *shard;
    json_t *v;
    gm_status st = GM_OK;
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        shard = json_string_value(v);
        if (!shard || !plain_name(shard)) {
            st = gm_fail(err, GM_EFORMAT, "%s: weight_map of tensor %.200s does not name a file of the folder", index_path, name);
            break;
        }
        json_object_set_new(shards, shard, json_true());
    }
    if (!st)
        json_object_foreach(shards, shard, v)
        {
            st = add_file(c, join_path(dir, shard), err);
            if (st) {
                gm_context(err, st, "%s", index_path);
                break;
            }
        }
    json_decref(shards);
    return st;
}

static gm_status check_index(const gm_checkpoint *c, const json_t *map, const char *index_path, gm_error *err)
{
    const char *name;
    json_t *v;
    for (int64_t i = 0; i < c->n_entries; i++) {
        const gm_tensor_entry *e = &c->entries[i];
        const char *want = json_string_value(json_object_get(map, e->name)), *in = base_name(c->files[e->file].path);
        if (!want) return gm_fail(err, GM_EFORMAT, "%s: tensor %s of %s is not in the index", index_path, e->name, in);
        if (strcmp(want, in) != 0)
            return gm_fail(err, GM_EFORMAT, "%s: tensor %s is said to be in %s, found in %s", index_path, e->name, want, in);
    }
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        if (!gm_checkpoint_find(c, name))
            return gm_fail(err, GM_EFORMAT, "%s: tensor %s is not in its shard %s", index_path, name, json_string_value(v));
    }
    return GM_OK;
}

static void find_strays(gm_checkpoint *c, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (n < 12 || strcmp(e->d_name + n - 12, ".safetensors") != 0) continue;
        bool known = false;
        for (int32_t i = 0; i < c->n_files && !known; i++) known = strcmp(base_name(c->files[i].path), e->d_name) == 0;
        if (!known) gm_str_printf(&c->strays, "%s%s", c->strays.len ? ", " : "", e->d_name);
    }
    if (d) closedir(d);
}

static gm_status open_indexed(gm_checkpoint *c, const char *dir, const char *index_path, gm_error *err)
{
    json_t *index = NULL;
    gm_json_limits limits = {.bytes_max = HEADER_MAX, .depth_max = 8};
    gm_status st = gm_json_load(&index, index_path, &limits, err);
    if (st) return st;
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        st = gm_fail(err, GM_EFORMAT, "%s: weight_map is missing or empty", index_path);
    if (!st) st = open_shards(c, dir, map, index_path, err);
    if (!st) st = sort_entries(c, err);
    if (!st) st = check_index(c, map, index_path, err);
    json_decref(index);
    return st;
}

gm_status gm_checkpoint_open(gm_checkpoint **out, const char *dir, gm_error *err)
{
    gm_checkpoint *c = gm_new(gm_checkpoint);
    char *index_path = join_path(dir, "model.safetensors.index.json");
    char *single = join_path(dir, "model.safetensors");
    gm_status st;
    if (access(index_path, F_OK) == 0) {
        st = open_indexed(c, dir, index_path, err);
    } else if (access(single, F_OK) == 0) {
        st = add_file(c, single, err);
        single = NULL;
        if (!st) st = sort_entries(c, err);
    } else {
        st = gm_fail(err, GM_ENOTFOUND, "%s holds neither model.safetensors.index.json nor model.safetensors", dir);
    }
    if (!st) find_strays(c, dir);
    gm_free(index_path);
    gm_free(single);
    if (st) gm_checkpoint_close(c);
    else *out = c;
    return st;
}

gm_status gm_checkpoint_open_file(gm_checkpoint **out, const char *path, gm_error *err)
{
    gm_checkpoint *c = gm_new(gm_checkpoint);
    gm_status st = add_file(c, gm_strdup(path), err);
    if (!st) st = sort_entries(c, err);
    if (st) gm_checkpoint_close(c);
    else *out = c;
    return st;
}

void gm_checkpoint_close(gm_checkpoint *c)
{
    if (!c) return;
    for (int32_t i = 0; i < c->n_files; i++) {
        if (c->files[i].map) munmap(c->files[i].map, c->files[i].size);
        gm_free(c->files[i].path);
    }
    gm_free(c->files);
    gm_free(c->entries);
    gm_arena_fini(&c->names);
    gm_str_fini(&c->strays);
    gm_free(c);
}

int64_t gm_checkpoint_count(const gm_checkpoint *c)
{
    return c->n_entries;
}

const gm_tensor_entry *gm_checkpoint_at(const gm_checkpoint *c, int64_t i)
{
    GM_ASSERT(i >= 0 && i < c->n_entries);
    return &c->entries[i];
}

const gm_tensor_entry *gm_checkpoint_find(const gm_checkpoint *c, const char *name)
{
    gm_tensor_entry key = {.name = name};
    if (!c->n_entries) return NULL;
    return bsearch(&key, c->entries, (size_t)c->n_entries, sizeof key, entry_order);
}

int32_t gm_checkpoint_files(const gm_checkpoint *c)
{
    return c->n_files;
}

const char *gm_checkpoint_file(const gm_checkpoint *c, int32_t file)
{
    return c->files[file].path;
}

int64_t gm_checkpoint_bytes(const gm_checkpoint *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_entries; i++) n += c->entries[i].bytes;
    return n;
}

const char *gm_checkpoint_strays(const gm_checkpoint *c)
{
    return gm_str_c(&c->strays);
}
