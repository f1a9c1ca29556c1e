/* safetensors files: checked headers, tensors mapped in place.
 *
 * gm_checkpoint_open() takes a folder: model.safetensors.index.json with its shards, or one model.safetensors.
 * Everything is checked before a tensor is handed out: header length, JSON, every field of every entry, lengths
 * (dtype x shape = bytes), overlaps and gaps, the file's size, and with an index that each tensor stands in the shard
 * the index names and nowhere else. A refusal names file, tensor, found and expected. */
#ifndef GM_IO_SAFETENSORS_H
#define GM_IO_SAFETENSORS_H

#include "base/status.h"

#define GM_TENSOR_DIMS_MAX 8

typedef enum gm_st_dtype {
    GM_ST_BOOL,
    GM_ST_U8,
    GM_ST_I8,
    GM_ST_F8_E4M3,
    GM_ST_F8_E5M2,
    GM_ST_I16,
    GM_ST_U16,
    GM_ST_F16,
    GM_ST_BF16,
    GM_ST_I32,
    GM_ST_U32,
    GM_ST_F32,
    GM_ST_I64,
    GM_ST_U64,
    GM_ST_F64,
} gm_st_dtype;

const char *gm_st_dtype_name(gm_st_dtype t);
int64_t gm_st_dtype_size(gm_st_dtype t);

typedef struct gm_tensor_entry {
    const char *name;
    gm_st_dtype dtype;
    int32_t n_dims;
    int64_t shape[GM_TENSOR_DIMS_MAX];
    const void *data; /* mapped, read-only; aligned as the file has it, which may be less than the type wants */
    int64_t bytes;
    int32_t file; /* index for gm_checkpoint_file() */
} gm_tensor_entry;

typedef struct gm_checkpoint gm_checkpoint;

gm_status gm_checkpoint_open(gm_checkpoint **out, const char *dir, gm_error *err);
/* One file by its path. */
gm_status gm_checkpoint_open_file(gm_checkpoint **out, const char *path, gm_error *err);
void gm_checkpoint_close(gm_checkpoint *c);

int64_t gm_checkpoint_count(const gm_checkpoint *c);
const gm_tensor_entry *gm_checkpoint_at(const gm_checkpoint *c, int64_t i); /* sorted by name */
const gm_tensor_entry *gm_checkpoint_find(const gm_checkpoint *c, const char *name); /* NULL: absent */
int32_t gm_checkpoint_files(const gm_checkpoint *c);
const char *gm_checkpoint_file(const gm_checkpoint *c, int32_t file); /* path */
int64_t gm_checkpoint_bytes(const gm_checkpoint *c); /* of all tensors */
/* *.safetensors files of the folder that the index does not name ("a, b"; "": none). They are not read. */
const char *gm_checkpoint_strays(const gm_checkpoint *c);

/* Check the bytes of one file's header (and nothing of its data); for tests and fuzzing. file_size is that of the
 * whole file. */
gm_status gm_safetensors_check(const uint8_t *bytes, size_t len, uint64_t file_size, const char *what, gm_error *err);

#endif
