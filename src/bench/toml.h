/* TOML into JSON values: tables, arrays of tables, dotted keys, strings (basic, literal, and both with three
 * quotes), whole numbers, floats, booleans, arrays, inline tables, comments. Dates are refused by name. */
#ifndef GM_BENCH_TOML_H
#define GM_BENCH_TOML_H

#include "base/json.h"

/* GM_EFORMAT with the line. `what` names the source. */
gm_status gm_toml_parse(json_t **out, const char *text, size_t len, const char *what, gm_error *err);

#endif
