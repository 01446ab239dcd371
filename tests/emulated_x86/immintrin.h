/* The AVX-512 and AVX-VNNI intrinsics that the C kernels use, computed lane by lane with what an AVX2 CPU has.

   Each does what Intel's Intrinsics Guide says of its namesake. The compiler's own header comes first, without the macros
   that would make it define these functions for instructions that the CPU lacks. */
#pragma once
#pragma push_macro("__AVX512F__")
#pragma push_macro("__AVX512BF16__")
#pragma push_macro("__AVX512VNNI__")
#pragma push_macro("__AVXVNNI__")
#undef __AVX512F__
#undef __AVX512BF16__
#undef __AVX512VNNI__
#undef __AVXVNNI__
#include_next <immintrin.h>
#pragma pop_macro("__AVX512F__")
#pragma pop_macro("__AVX512BF16__")
#pragma pop_macro("__AVX512VNNI__")
#pragma pop_macro("__AVXVNNI__")

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef union {
    __m512i whole;
    __m512 real;
    __m512bh brief;
    __m256i part[2];
    float f[16];
    int32_t i[16];
    uint32_t u[16];
    int16_t h[32];
    uint16_t w[32];
    int8_t c[64];
    uint8_t b[64];
} lanes512;

#define EMULATED static inline __attribute__((always_inline, unused))
#define OF_LANES(count, assignment) \
    ({ lanes512 to = {0}; for (int n = 0; n < (count); n++) assignment; to; })

EMULATED lanes512 of_ints(__m512i x) { return (lanes512){.whole = x}; }
EMULATED lanes512 of_reals(__m512 x) { return (lanes512){.real = x}; }
EMULATED int16_t saturated(int x) { return x > 32767 ? 32767 : x < -32768 ? -32768 : x; }

EMULATED float from_brief(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return fabsf(value) < 0x1p-126f ? 0 : value; /* these instructions take denormal numbers for 0 */
}

EMULATED uint16_t to_brief(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return bits >> 16 | 64;
    if (fabsf(x) < 0x1p-126f) return bits >> 31 << 15;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Conversions. */
EMULATED __m512i emulated_cvtepu16_epi32(__m256i x) { lanes512 a = {.part = {x}}; return OF_LANES(16, to.u[n] = a.w[n]).whole; }
EMULATED __m256i emulated_cvtepi32_epi16(__m512i x) { lanes512 a = of_ints(x); return OF_LANES(16, to.w[n] = a.u[n]).part[0]; }
EMULATED __m512i emulated_cvtps_epi32(__m512 x) {
    lanes512 a = of_reals(x), to;
    for (int n = 0; n < 2; n++) to.part[n] = _mm256_cvtps_epi32(_mm256_loadu_ps(a.f + 8 * n));
    return to.whole;
}
EMULATED __m512i emulated_cvtepi8_epi32(__m128i x) { int8_t c[16]; memcpy(c, &x, 16); return OF_LANES(16, to.i[n] = c[n]).whole; }
EMULATED __m512i emulated_cvtepu8_epi32(__m128i x) { uint8_t b[16]; memcpy(b, &x, 16); return OF_LANES(16, to.i[n] = b[n]).whole; }
EMULATED __m128i emulated_cvtepi32_epi8(__m512i x) {
    lanes512 a = of_ints(x);
    return _mm256_castsi256_si128(OF_LANES(16, to.b[n] = a.u[n]).part[0]);
}
EMULATED __m512 emulated_cvtepi32_ps(__m512i x) { lanes512 a = of_ints(x); return OF_LANES(16, to.f[n] = a.i[n]).real; }
EMULATED __m512 emulated_cvtph_ps(__m256i x) {
    lanes512 a = {.part = {x}}, to;
    for (int n = 0; n < 2; n++) _mm256_storeu_ps(to.f + 8 * n, _mm256_cvtph_ps(_mm_loadu_si128((__m128i *)(a.w + 8 * n))));
    return to.real;
}
EMULATED __m256bh emulated_cvtneps_pbh(__m512 x) {
    lanes512 a = of_reals(x);
    return (__m256bh)OF_LANES(16, to.w[n] = to_brief(a.f[n])).part[0];
}
EMULATED __m512bh emulated_cvtne2ps_pbh(__m512 high, __m512 low) {
    lanes512 a = of_reals(low), b = of_reals(high);
    return OF_LANES(16, (to.w[n] = to_brief(a.f[n]), to.w[16 + n] = to_brief(b.f[n]))).brief;
}

/* Arithmetic. */
EMULATED float emulated_reduce_add_ps(__m512 x) {
    lanes512 a = of_reals(x);
    for (int width = 8; width; width /= 2)
        for (int n = 0; n < width; n++) a.f[n] += a.f[n + width];
    return a.f[0];
}
EMULATED float emulated_reduce_max_ps(__m512 x) {
    lanes512 a = of_reals(x);
    for (int width = 8; width; width /= 2)
        for (int n = 0; n < width; n++) a.f[n] = a.f[n] > a.f[n + width] ? a.f[n] : a.f[n + width];
    return a.f[0];
}
EMULATED __m512 emulated_max_ps(__m512 x, __m512 y) {
    lanes512 a = of_reals(x), b = of_reals(y);
    return OF_LANES(16, to.f[n] = a.f[n] > b.f[n] ? a.f[n] : b.f[n]).real;
}
EMULATED __m512 emulated_min_ps(__m512 x, __m512 y) {
    lanes512 a = of_reals(x), b = of_reals(y);
    return OF_LANES(16, to.f[n] = a.f[n] < b.f[n] ? a.f[n] : b.f[n]).real;
}
EMULATED __m512i emulated_madd_epi16(__m512i x, __m512i y) {
    lanes512 a = of_ints(x), b = of_ints(y);
    return OF_LANES(16, to.i[n] = a.h[2 * n] * b.h[2 * n] + a.h[2 * n + 1] * b.h[2 * n + 1]).whole;
}
EMULATED __m512i emulated_maddubs_epi16(__m512i x, __m512i y) {
    lanes512 a = of_ints(x), b = of_ints(y);
    return OF_LANES(32, to.h[n] = saturated(a.b[2 * n] * b.c[2 * n] + a.b[2 * n + 1] * b.c[2 * n + 1])).whole;
}
EMULATED __m512i emulated_abs_epi8(__m512i x) { lanes512 a = of_ints(x); return OF_LANES(64, to.b[n] = a.c[n] < 0 ? -a.c[n] : a.c[n]).whole; }
EMULATED __m512i emulated_mask_sub_epi8(__m512i otherwise, uint64_t mask, __m512i x, __m512i y) {
    lanes512 o = of_ints(otherwise), a = of_ints(x), b = of_ints(y);
    return OF_LANES(64, to.b[n] = mask >> n & 1 ? a.b[n] - b.b[n] : o.b[n]).whole;
}
EMULATED __m512i emulated_dpbusd_epi32(__m512i sum, __m512i x, __m512i y) {
    lanes512 s = of_ints(sum), a = of_ints(x), b = of_ints(y);
    return OF_LANES(16, ({ to.i[n] = s.i[n]; for (int k = 4 * n; k < 4 * n + 4; k++) to.i[n] += a.b[k] * b.c[k]; })).whole;
}
EMULATED __m256i emulated_dpbusd_avx_epi32(__m256i sum, __m256i x, __m256i y) {
    lanes512 s = {.part = {sum}}, a = {.part = {x}}, b = {.part = {y}};
    lanes512 sums = of_ints(emulated_dpbusd_epi32(s.whole, a.whole, b.whole));
    return sums.part[0];
}
EMULATED __m512 emulated_dpbf16_ps(__m512 sum, __m512bh x, __m512bh y) {
    lanes512 s = of_reals(sum), a = {.brief = x}, b = {.brief = y};
    return OF_LANES(16, ({
        to.f[n] = fmaf(from_brief(a.w[2 * n + 1]), from_brief(b.w[2 * n + 1]), s.f[n]);
        to.f[n] = fmaf(from_brief(a.w[2 * n]), from_brief(b.w[2 * n]), to.f[n]);
    })).real;
}
EMULATED __m512 emulated_maskz_scalef_ps(uint16_t mask, __m512 x, __m512 exponent) {
    lanes512 a = of_reals(x), e = of_reals(exponent);
    return OF_LANES(16, to.f[n] = mask >> n & 1 ? ldexpf(a.f[n], floorf(fmaxf(-400, fminf(400, e.f[n])))) : 0).real;
}
EMULATED __m512 emulated_rcp14_ps(__m512 x) {
    lanes512 a = of_reals(x);
    return OF_LANES(16, ({ to.f[n] = 1 / a.f[n]; to.u[n] &= 0xfffffc00; })).real; /* 13 bits are right, as in the guide */
}

/* Order, masks, memory. */
EMULATED __m512i emulated_unpack_epi16(__m512i x, __m512i y, int high) {
    lanes512 a = of_ints(x), b = of_ints(y);
    return OF_LANES(32, ({ int from = n / 8 * 8 + 4 * high + n % 8 / 2; to.w[n] = n % 2 ? b.w[from] : a.w[from]; })).whole;
}
EMULATED __m512i emulated_permutexvar_epi16(__m512i order, __m512i x) {
    lanes512 o = of_ints(order), a = of_ints(x);
    return OF_LANES(32, to.w[n] = a.w[o.w[n] & 31]).whole;
}
EMULATED uint64_t emulated_movepi8_mask(__m512i x) {
    lanes512 a = of_ints(x);
    uint64_t mask = 0;
    for (int n = 0; n < 64; n++) mask |= (uint64_t)(a.c[n] < 0) << n;
    return mask;
}
EMULATED uint16_t emulated_testn_epi32_mask(__m512i x, __m512i y) {
    lanes512 a = of_ints(x), b = of_ints(y);
    uint16_t mask = 0;
    for (int n = 0; n < 16; n++) mask |= !(a.u[n] & b.u[n]) << n;
    return mask;
}
EMULATED __m512i emulated_mask_set1_epi32(__m512i otherwise, uint16_t mask, int x) {
    lanes512 o = of_ints(otherwise);
    return OF_LANES(16, to.i[n] = mask >> n & 1 ? x : o.i[n]).whole;
}
EMULATED __m512i emulated_loadu_si512(const void *from) { lanes512 to; memcpy(&to, from, 64); return to.whole; }
EMULATED __m512i emulated_maskz_loadu_epi8(uint64_t mask, const void *from) {
    return OF_LANES(64, to.b[n] = mask >> n & 1 ? ((const uint8_t *)from)[n] : 0).whole;
}
EMULATED __m512i emulated_maskz_loadu_epi32(uint16_t mask, const void *from) {
    return OF_LANES(16, if (mask >> n & 1) memcpy(&to.u[n], (const char *)from + 4 * n, 4)).whole;
}

#define _mm512_abs_epi8 emulated_abs_epi8
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_dpbf16_ps emulated_dpbf16_ps
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd_avx_epi32
#define _mm512_loadu_si512 emulated_loadu_si512
#define _mm512_madd_epi16 emulated_madd_epi16
#define _mm512_maddubs_epi16 emulated_maddubs_epi16
#define _mm512_mask_set1_epi32 emulated_mask_set1_epi32
#define _mm512_mask_sub_epi8 emulated_mask_sub_epi8
#define _mm512_maskz_loadu_epi32 emulated_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi8 emulated_maskz_loadu_epi8
#define _mm512_maskz_scalef_ps emulated_maskz_scalef_ps
#define _mm512_max_ps emulated_max_ps
#define _mm512_min_ps emulated_min_ps
#define _mm512_movepi8_mask emulated_movepi8_mask
#define _mm512_permutexvar_epi16 emulated_permutexvar_epi16
#define _mm512_rcp14_ps emulated_rcp14_ps
#define _mm512_reduce_add_ps emulated_reduce_add_ps
#define _mm512_reduce_max_ps emulated_reduce_max_ps
#define _mm512_set1_epi32(x) emulated_mask_set1_epi32((__m512i){0}, 0xffff, x)
#define _mm512_setzero_si512() ((__m512i){0})
#define _mm512_testn_epi32_mask emulated_testn_epi32_mask
#define _mm512_unpackhi_epi16(a, b) emulated_unpack_epi16(a, b, 1)
#define _mm512_unpacklo_epi16(a, b) emulated_unpack_epi16(a, b, 0)
