/* SHA-256 (FIPS 180-4) of a byte string, as 64 hexadecimal digits. */
#ifndef GM_TEXT_SHA256_H
#define GM_TEXT_SHA256_H

#include <stddef.h>

void gm_sha256_hex(char hex[65], const void *data, size_t len);

#endif
