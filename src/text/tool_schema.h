/* From the text of a tool argument to JSON, guided by the JSON schema of its parameter. */
#ifndef GM_TEXT_TOOL_SCHEMA_H
#define GM_TEXT_TOOL_SCHEMA_H

#include "base/json.h"

enum {
    GM_TYPE_NULL = 1,
    GM_TYPE_INTEGER = 2,
    GM_TYPE_NUMBER = 4,
    GM_TYPE_BOOLEAN = 8,
    GM_TYPE_OBJECT = 16,
    GM_TYPE_ARRAY = 32,
    GM_TYPE_STRING = 64,
};

/* The types that a schema names (type, enum, const, anyOf, oneOf, allOf, nullable, $ref inside root). A
 * string where it names none, or is NULL. */
unsigned gm_schema_types(const json_t *schema, const json_t *root);
/* The schema of an object's key; NULL: not described. */
const json_t *gm_schema_property(const json_t *schema, const json_t *root, const char *key, size_t len);
/* Append text[0..len) as a JSON value of the first type that it fits, in the order of the list above. What
 * fits none is taken as JSON if it is JSON, else as a string. Strings inside objects and arrays are typed the
 * same way where their schema does not allow a string. */
void gm_schema_put_value(gm_str *out, const char *text, size_t len, const json_t *schema, const json_t *root);

#endif
