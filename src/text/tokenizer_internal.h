/* A tokenizer, as tokenizer_load.c builds it and tokenizer.c uses it. */
#ifndef GM_TEXT_TOKENIZER_INTERNAL_H
#define GM_TEXT_TOKENIZER_INTERNAL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/presplit.h"
#include "text/text_internal.h"

enum { GM_TOKEN_ADDED = 1, GM_TOKEN_SPECIAL = 2 };

struct gm_tokenizer {
    gm_bpe bpe; /* its token table holds the added tokens' literals too */
    gm_added_set added;
    unsigned char *flags; /* by id */
    gm_presplit *split;
    int32_t longest; /* characters */
};

/* Byte b of the vocabulary's printable alphabet as a code point (GPT-2's table), and back (-1: not in it). */
uint32_t gm_byte_to_char(unsigned char b);
int gm_char_to_byte(uint32_t c);

#endif
