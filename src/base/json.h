/* Jansson behind a size and a depth limit. What comes back is a plain json_t: read it with Jansson's own
 * calls, release it with json_decref(). Objects keep the order of their keys. */
#ifndef GM_BASE_JSON_H
#define GM_BASE_JSON_H

#include <jansson.h>

#include "base/str.h"

typedef struct gm_json_limits {
    size_t bytes_max; /* 0: 1 GiB */
    int depth_max;    /* 0: 128; brackets open at once */
} gm_json_limits;

/* Parse text[0..len): strict UTF-8 (RFC 3629), no BOM, exactly one value, NUL allowed in strings as \u0000.
 * GM_EFORMAT with line and column otherwise; the message never echoes the input. `what` names the source. */
gm_status gm_json_parse(json_t **out, const char *text, size_t len, const char *what,
                        const gm_json_limits *limits, gm_error *err);

/* Read and parse a file; messages carry its path. */
gm_status gm_json_load(json_t **out, const char *path, const gm_json_limits *limits, gm_error *err);

/* Append a JSON string literal, quotes included; non-ASCII stays raw, bytes that are not UTF-8 become U+FFFD. */
void gm_json_put_string(gm_str *out, const char *s, size_t len);
/* Append v compactly, no blanks, non-ASCII raw, key order kept. */
void gm_json_put(gm_str *out, const json_t *v);

#endif
