#include "device/device.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const NAMES[] = {"reference", "avx2", "avx512"};

#if defined(__x86_64__)
/* Feature bits straight from the processor: compilers differ in the names they know. */
typedef struct features {
    uint32_t leaf1_c, leaf7_b, leaf7_c, leaf7_1_a;
    uint64_t xcr0; /* register files that the system saves */
} features;

static features read_features(void)
{
    features f = {0};
    uint32_t a, b, c, d, lo, hi;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    f.leaf1_c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f.leaf7_b = b;
        f.leaf7_c = c;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.leaf7_1_a = a;
    }
    if (f.leaf1_c >> 27 & 1u) { /* OSXSAVE: XGETBV may be used */
        __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
        f.xcr0 = (uint64_t)hi << 32 | lo;
    }
    return f;
}

gm_isa gm_isa_detect(void)
{
    enum {
        FMA = 1 << 12, F16C = 1 << 29,                                         /* leaf 1, ecx */
        AVX2 = 1 << 5, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30, /* leaf 7, ebx */
        AVX512VNNI = 1 << 11,                                                  /* leaf 7, ecx */
        AVX512BF16 = 1 << 5,                                                   /* leaf 7.1, eax */
        YMM = 0x6, ZMM = 0xE6,                                                 /* xcr0 */
    };
    const uint32_t avx512vl = 1u << 31;
    features f = read_features();
    const uint32_t wide = AVX512F | AVX512DQ | AVX512BW | avx512vl;
    bool avx2 = (f.leaf1_c & (FMA | F16C)) == (FMA | F16C) && f.leaf7_b & AVX2 && (f.xcr0 & YMM) == YMM;
    bool avx512 = (f.leaf7_b & wide) == wide && f.leaf7_c & AVX512VNNI && f.leaf7_1_a & AVX512BF16 && (f.xcr0 & ZMM) == ZMM;
    if (avx2 && avx512) return GM_ISA_AVX512;
    return avx2 ? GM_ISA_AVX2 : GM_ISA_REF;
}
#else
gm_isa gm_isa_detect(void)
{
    return GM_ISA_REF;
}
#endif

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
