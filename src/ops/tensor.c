#include "ops/tensor.h"

#include <math.h>

/* Exponent e, mantissa m: m * 2^-9 when e is 0, else (8 + m) * 2^(e - 10); the top code is NaN. */
#define MAG(e, m)                                                                                            \
    ((e) == 15 && (m) == 7 ? __builtin_nanf("")                                                              \
     : (e) == 0            ? (float)(m) / 512.0f                                                             \
                           : (float)(8 + (m)) * (float)(1 << (e)) / 1024.0f)
#define ROW(s, e)                                                                                            \
    s MAG(e, 0), s MAG(e, 1), s MAG(e, 2), s MAG(e, 3), s MAG(e, 4), s MAG(e, 5), s MAG(e, 6), s MAG(e, 7)
#define HALF(s)                                                                                              \
    ROW(s, 0), ROW(s, 1), ROW(s, 2), ROW(s, 3), ROW(s, 4), ROW(s, 5), ROW(s, 6), ROW(s, 7), ROW(s, 8),       \
        ROW(s, 9), ROW(s, 10), ROW(s, 11), ROW(s, 12), ROW(s, 13), ROW(s, 14), ROW(s, 15)

const float gm_e4m3_table[256] = {HALF(+), HALF(-)};

uint8_t gm_f32_to_e4m3(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    uint8_t sign = (uint8_t)(v.u >> 24 & 0x80u);
    v.u &= 0x7FFFFFFFu;
    if (v.u > 0x7F800000u) return 0x7F;
    if (v.f >= 448.0f) return (uint8_t)(sign | 0x7E);
    if (v.f < 0.015625f) return (uint8_t)(sign | (uint8_t)lrintf(v.f * 512.0f)); /* 8 is the smallest normal */
    v.u += 0x7FFFFu + (v.u >> 20 & 1u);
    uint32_t code = (v.u >> 20) - (120u << 3);
    return (uint8_t)(sign | (code > 0x7Eu ? 0x7Eu : code));
}

float gm_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3FFu;
    union {
        uint32_t u;
        float f;
    } v;
    if (e == 0) {
        v.f = (float)m * 0x1p-24f;
        v.u |= sign;
    } else {
        v.u = sign | (e == 31 ? 255u << 23 : (e + 112) << 23) | m << 13;
    }
    return v.f;
}

uint16_t gm_f32_to_f16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    uint16_t sign = (uint16_t)(v.u >> 16 & 0x8000u);
    v.u &= 0x7FFFFFFFu;
    if (v.u > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (v.f >= 65504.0f) return (uint16_t)(sign | 0x7BFFu);
    if (v.f < 0x1p-14f) return (uint16_t)(sign | (uint16_t)lrintf(v.f * 0x1p24f)); /* subnormal, or just the smallest normal */
    v.u += 0xFFFu + (v.u >> 13 & 1u);
    uint32_t code = (v.u >> 13) - (112u << 10);
    return (uint16_t)(sign | (code > 0x7BFFu ? 0x7BFFu : code));
}
