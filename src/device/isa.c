#include "device/device.h"

#include <string.h>

static const char *const NAMES[] = {"reference", "avx2", "avx512"};

gm_isa gm_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (avx2 && avx512) return GM_ISA_AVX512;
    if (avx2) return GM_ISA_AVX2;
#endif
    return GM_ISA_REF;
}

const char *gm_isa_name(gm_isa isa)
{
    GM_ASSERT(isa >= GM_ISA_REF && isa <= GM_ISA_AVX512);
    return NAMES[isa];
}

gm_status gm_isa_parse(gm_isa *out, const char *text, gm_error *err)
{
    if (strcmp(text, "auto") == 0) {
        *out = gm_isa_detect();
        return GM_OK;
    }
    for (gm_isa isa = GM_ISA_REF; isa <= GM_ISA_AVX512; isa++) {
        if (strcmp(text, NAMES[isa]) != 0) continue;
        if (isa > gm_isa_detect())
            return gm_fail(err, GM_ENOTSUP, "instruction set \"%s\": this machine has %s at most", text,
                           NAMES[gm_isa_detect()]);
        *out = isa;
        return GM_OK;
    }
    return gm_fail(err, GM_EARG, "unknown instruction set \"%s\" (auto, reference, avx2, avx512)", text);
}
