/* For the tests of this folder: settings from words written down in place. */
#ifndef GM_BENCH_BENCH_TEST_UTIL_H
#define GM_BENCH_BENCH_TEST_UTIL_H

#include "base/mem.h"
#include "base/opts.h"

static inline gm_status settings_of(gm_settings *s, int n, const char *const *words, gm_error *err)
{
    char *argv[32];
    GM_ASSERT(n <= 32);
    for (int i = 0; i < n; i++) argv[i] = gm_strdup(words[i]);
    gm_status st = gm_settings_parse(s, GM_OPT_BENCH, n, argv, err);
    for (int i = 0; i < n; i++) gm_free(argv[i]);
    return st;
}
#define WORDS(...)                                                                                           \
    (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)), (const char *const[])                       \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

#endif
