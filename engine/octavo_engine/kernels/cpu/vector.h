/* A register of floats, 16 with AVX-512 and 8 with AVX2, in GCC's vector extension where that says it, else by intrinsics. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#else
#define LANES 8
#define REGISTERS 16
#endif
#define BYTES (4 * LANES)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* so that arrays of vectors stay in registers and shuffles are constants */

typedef float floats __attribute__((vector_size(BYTES)));
typedef uint32_t words __attribute__((vector_size(BYTES)));
typedef int32_t ints __attribute__((vector_size(BYTES)));
typedef uint16_t halves __attribute__((vector_size(BYTES / 2)));
typedef floats floats_at __attribute__((aligned(4), may_alias));
typedef words words_at __attribute__((aligned(2), may_alias));
typedef halves halves_at __attribute__((aligned(2), may_alias));

/* What a tensor holds; the numbers are those of library.py. */
enum dtype { FLOAT32 = 0, BFLOAT16 = 1 };

INLINE long bytes_of(enum dtype dtype) { return dtype == FLOAT32 ? 4 : 2; }

INLINE floats all(float x) { return x - (floats){0}; }

INLINE float wide(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* a where the mask is set, else b. */
INLINE floats choose(ints mask, floats a, floats b) {
    return (floats)(((words)mask & (words)a) | (~(words)mask & (words)b));
}

/* What GCC 12 alone would do in parts of a register: 16 bits to 32 and back, where only the lower 16 may be set; sums and
   maxima of all lanes, in a fixed order; of each lane the larger or smaller number, b if one is NaN; the 16-bit numbers of
   both in turn, from the lower and upper halves of each 128 bits. */
#if defined(__AVX512F__)
INLINE words widen(halves x) { return (words)_mm512_cvtepu16_epi32((__m256i)x); }
INLINE halves lower(words x) { return (halves)_mm512_cvtepi32_epi16((__m512i)x); }
INLINE float total(floats x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float largest(floats x) { return _mm512_reduce_max_ps((__m512)x); }
INLINE floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE words low_in_turn(words a, words b) { return (words)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b); }
INLINE words high_in_turn(words a, words b) { return (words)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b); }
#else
INLINE words widen(halves x) { return (words)_mm256_cvtepu16_epi32((__m128i)x); }
INLINE halves lower(words x) {
    __m256i packed = _mm256_packus_epi32((__m256i)x, (__m256i)x); /* within each 128 bits */
    return (halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
INLINE float total(floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return two[0] + two[1];
}
INLINE float largest(floats x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return two[0] > two[1] ? two[0] : two[1];
}
INLINE floats larger(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE words low_in_turn(words a, words b) { return (words)_mm256_unpacklo_epi16((__m256i)a, (__m256i)b); }
INLINE words high_in_turn(words a, words b) { return (words)_mm256_unpackhi_epi16((__m256i)a, (__m256i)b); }
#endif

INLINE floats load(const void *from, long index, enum dtype dtype) {
    if (dtype == FLOAT32) return *(const floats_at *)((const float *)from + index);
    return (floats)(widen(*(const halves_at *)((const uint16_t *)from + index)) << 16);
}

/* A float whose upper half is the nearest bfloat16, ties to even; not for NaN. */
INLINE words rounded(floats x) {
    words bits = (words)x;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

/* bfloat16 in the lower half of each word; a NaN stays one. */
INLINE words bfloat16(floats x) {
    return (words)choose(x == x, (floats)(rounded(x) >> 16), (floats)((words){0} + 0x7fc0));
}

/* The nearest bfloat16 of both in turn, `even` in the lower half of each word; not for NaN. */
INLINE words in_pairs(floats even, floats odd) {
#if defined(__AVX512BF16__)
    static const halves order[2] = {{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23},
                                    {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (words)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
#else
    return rounded(even) >> 16 | (rounded(odd) & 0xffff0000u);
#endif
}

INLINE void store(void *to, long index, floats x, enum dtype dtype) {
    if (dtype == FLOAT32) {
        *(floats_at *)((float *)to + index) = x;
        return;
    }
#if defined(__AVX512BF16__)
    *(halves_at *)((uint16_t *)to + index) = (halves)_mm512_cvtneps_pbh((__m512)x); /* numbers below 2^-126 become 0 */
#else
    *(halves_at *)((uint16_t *)to + index) = lower(bfloat16(x));
#endif
}

#if LANES == 16
#define LANE_NUMBERS ((ints){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#else
#define LANE_NUMBERS ((ints){0, 1, 2, 3, 4, 5, 6, 7})
#endif

/* Two rows change places in half of the lanes: the upper `size` of a's go where the lower of b's were. */
INLINE void exchange(floats *a, floats *b, int size) {
    ints upper = (LANE_NUMBERS & size) != 0; /* -1 in these lanes */
    floats low = __builtin_shuffle(*a, *b, LANE_NUMBERS + (upper & (LANES - size)));
    *b = __builtin_shuffle(*a, *b, LANE_NUMBERS + ((~upper & size) | (upper & LANES)));
    *a = low;
}

/* rows[i][j] becomes rows[j][i]. */
INLINE void transpose(floats rows[LANES]) {
    UNROLL for (int size = 1; size < LANES; size *= 2)
        UNROLL for (int i = 0; i < LANES; i++)
            if (!(i & size)) exchange(&rows[i], &rows[i + size], size);
}

/* Lane i holds the sum of rows[i], which are overwritten. */
INLINE floats totals(floats rows[LANES]) {
    UNROLL for (int size = LANES / 2; size; size /= 2)
        UNROLL for (int i = 0; i < size; i++) {
            exchange(&rows[i], &rows[i + size], size);
            rows[i] += rows[i + size];
        }
    return rows[0];
}

/* sum + the products of pairs of bfloat16, two in each lane. */
INLINE floats dot_pairs(floats sum, words a, words b) {
#if defined(__AVX512BF16__)
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += (floats)(a << 16) * (floats)(b << 16);
    return sum + (floats)(a & 0xffff0000u) * (floats)(b & 0xffff0000u);
#endif
}

/* Four bytes at an address in all lanes. */
INLINE words word_at(const void *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return (words){0} + word;
}

/* Whole numbers of each lane: the nearest ones of floats, ties to even; a sum and the products of four unsigned bytes with
   signed ones; products of two numbers of 16 bits; the same of bytes, of which there are two in a lane; sums of those. */
#if defined(__AVX512F__)
INLINE ints nearest(floats x) { return (ints)_mm512_cvtps_epi32((__m512)x); }
INLINE ints dot_twos(words a, words b) { return (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
INLINE words sums_of_twos(words a, words b) { return (words)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
INLINE words add_halves(words a, words b) { return (words)_mm512_add_epi16((__m512i)a, (__m512i)b); }
#else
INLINE ints nearest(floats x) { return (ints)_mm256_cvtps_epi32((__m256)x); }
INLINE ints dot_twos(words a, words b) { return (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
INLINE words sums_of_twos(words a, words b) { return (words)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
INLINE words add_halves(words a, words b) { return (words)_mm256_add_epi16((__m256i)a, (__m256i)b); }
#endif
/* Numbers of 8 bits of those of 32, which fit. */
INLINE void store_bytes(int8_t *to, ints x) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x));
#else
    __m256i pairs = _mm256_packs_epi32((__m256i)x, (__m256i)x), bytes = _mm256_packs_epi16(pairs, pairs);
    int32_t halves[2] = {_mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4)};
    memcpy(to, halves, sizeof halves);
#endif
}

#if defined(__AVX512VNNI__)
INLINE ints dot_fours(ints sum, words a, words b) { return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }
#elif defined(__AVXVNNI__)
INLINE ints dot_fours(ints sum, words a, words b) {
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
}
#endif

/* x times 2 to the n, where the result is neither too large nor too small; 0 where `nothing` is set. */
INLINE floats times_two_to(floats x, floats n, ints nothing) {
#if defined(__AVX512F__)
    return (floats)_mm512_maskz_scalef_ps(_mm512_testn_epi32_mask((__m512i)nothing, (__m512i)nothing), (__m512)x, (__m512)n);
#else
    ints exponent = __builtin_convertvector(n, ints);
    return choose(nothing, all(0), x * (floats)((exponent + 127) << 23));
#endif
}

/* e to the x, 0 below e^-87 and at most e^88; NaN stays. The polynomial is that of Cephes' expf. */
INLINE floats exponential(floats x) {
    ints nothing = x < -87.0f;
    x = smaller(all(88.0f), x);
    floats shifted = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: the integer is in the low bits */
    floats n = shifted - 12582912.0f;
    floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return times_two_to(p, n, nothing);
}

/* 1 / x, of positive numbers; with AVX-512 it may differ in the last bit. */
INLINE floats inverse(floats x) {
#if defined(__AVX512F__)
    floats y = (floats)_mm512_rcp14_ps((__m512)x);
    return y * (2.0f - x * y);
#else
    return 1.0f / x;
#endif
}

INLINE floats silu(floats x) { return x * inverse(1.0f + exponential(-x)); }
