/* Request JSON to parsed request: the first byte chooses the route and the server's settings. */
#include <string.h>

#include "server/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    gm_api_rules rules = {.vocab_size = 2560,
                          .model_len = 4096,
                          .max_logprobs = data[0] & 4 ? -1 : 20,
                          .has_tokenizer = !(data[0] & 8),
                          .auto_tools = !(data[0] & 16),
                          .force_usage = data[0] & 32,
                          .stream_interval = 1,
                          .defaults = GM_API_DEFAULTS};
    gm_api_request r;
    gm_api_error e = {0};
    if (gm_api_parse(&r, (gm_api_kind)(data[0] & 3), (const char *)data + 1, size - 1, &rules, &e)) {
        gm_str s = {0};
        GM_ASSERT(e.status >= 400 && e.type);
        gm_api_error_put(&e, &s);
        GM_ASSERT(s.len < 8192);
        json_t *back = NULL;
        GM_ASSERT(!gm_json_parse(&back, s.data, s.len, "error", NULL, NULL));
        json_decref(back);
        gm_str_fini(&s);
        return 0;
    }
    GM_ASSERT(r.n >= 1 && r.temperature >= 0 && r.n_stops <= GM_API_STOPS_MAX);
    gm_api_request_fini(&r);
    return 0;
}
