/* Encoding speed on the tiny model's own prompts: megabytes a second of one thread. usage: tokenizer_bench
 * DIR */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "text/tokenizer.h"

int main(int argc, char **argv)
{
    gm_error err = {0};
    gm_tokenizer *t = NULL;
    gm_str text = {0};
    char line[4096];
    gm_str path = {0};
    gm_str_printf(&path, "%s/prompts.jsonl", argc > 1 ? argv[1] : ".");
    FILE *f = fopen(gm_str_c(&path), "r");
    if (!f || gm_tokenizer_open(&t, argv[1], &err)) {
        fprintf(stderr, "%s: %s\n", gm_str_c(&path), err.message);
        return 1;
    }
    while (fgets(line, sizeof line, f)) gm_str_puts(&text, line);
    fclose(f);
    for (int run = 0; run < 5; run++) {
        gm_ids ids = {0};
        int64_t from = gm_now_us();
        size_t bytes = 0;
        for (int i = 0; i < 100; i++) {
            ids.n = 0;
            if (gm_tokenizer_encode(t, text.data, text.len, GM_ADDED_MATCH, &ids, &err)) return 1;
            bytes += text.len;
        }
        double us = (double)(gm_now_us() - from);
        printf("%.1f MB/s, %.2f M tokens/s\n", (double)bytes / us, (double)ids.n * 100 / us);
        gm_ids_fini(&ids);
    }
    gm_str_fini(&text);
    gm_str_fini(&path);
    gm_tokenizer_close(t);
    return 0;
}
