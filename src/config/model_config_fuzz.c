/* Any bytes as config.json: accepted or refused, and what was accepted must give a finite footprint. */
#include "config/footprint.h"
#include "config/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static gm_model_config c;
    gm_error err = {0};
    json_t *v = NULL;
    gm_json_limits limits = {.bytes_max = 1 << 20, .depth_max = 64};
    if (gm_json_parse(&v, (const char *)data, size, "config.json", &limits, &err)) return 0;
    if (gm_model_config_parse(&c, v, "config.json", &err) == GM_OK) {
        gm_footprint f = gm_footprint_compute(&c, &(gm_footprint_params){GM_KV_FP8, GM_KV_FP8, true});
        GM_ASSERT(f.page_tokens >= 64 && f.page_tokens % c.index_pool == 0);
        GM_ASSERT(f.page_bytes >= 0 && f.slot_bytes >= 0 && f.params_active > 0);
    }
    json_decref(v);
    return 0;
}
