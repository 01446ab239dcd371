/* A register of floats: 16 with AVX-512, 8 with AVX2, 4 with NEON. What it does is written in GCC's vector extension; for
   what that cannot say each instruction set has a file. (AMX is in tiles.h.) */
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#define LANE_NUMBERS ((ints){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#elif defined(__AVX2__)
#define LANES 8
#define REGISTERS 16
#define LANE_NUMBERS ((ints){0, 1, 2, 3, 4, 5, 6, 7})
#else
#define LANES 4
#define REGISTERS 32
#define LANE_NUMBERS ((ints){0, 1, 2, 3})
#endif
#define BYTES (4 * LANES)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* so that arrays of vectors stay in registers and shuffles are constants */

/* A vector that is computed now: GCC would rather keep all summands in memory and add them up at the end. */
#if defined(__x86_64__)
#define IN_REGISTER(vector) __asm__("" : "+v"(vector))
#else
#define IN_REGISTER(vector) __asm__("" : "+w"(vector))
#endif

typedef float floats __attribute__((vector_size(BYTES)));
typedef uint32_t words __attribute__((vector_size(BYTES)));
typedef int32_t ints __attribute__((vector_size(BYTES)));
typedef uint16_t halves __attribute__((vector_size(BYTES / 2)));
typedef uint16_t twos __attribute__((vector_size(BYTES)));
/* Vectors at any address: a row of codes of 4 bits may begin at an odd one. */
typedef floats floats_at __attribute__((aligned(1), may_alias));
typedef words words_at __attribute__((aligned(1), may_alias));
typedef halves halves_at __attribute__((aligned(1), may_alias));

/* What a tensor holds; the numbers are those of library.py. */
enum dtype { FLOAT32 = 0, BFLOAT16 = 1 };

INLINE long bytes_of(enum dtype dtype) { return dtype == FLOAT32 ? 4 : 2; }

/* Numbers in a word. */
INLINE int numbers(enum dtype dtype) { return dtype == FLOAT32 ? 1 : 2; }

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

INLINE uint32_t word_of(const void *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Each of these files defines:
   - widen, lower: 16 bits to 32 and back, where only the lower 16 may be set;
   - total, largest: the sum and the maximum of all lanes, in a fixed order;
   - larger, smaller: of each lane the larger or smaller number, b if one is NaN;
   - low_in_turn, high_in_turn: the 16-bit numbers of both in turn, from the lower or upper halves of each 128 bits;
   - nearest: whole numbers of floats, ties to even;
   - dot_twos: sums of two products of 16 bits; sums_of_twos: the same of codes of at most 15 with signed bytes, in 16 bits;
     sums_of_signed_twos: of signed bytes with others that are at least -127;
   - signed_bytes, unsigned_bytes, float16s: LANES of those at an address, widened; store_bytes: ints that fit, as bytes.

   Where an instruction exists for it, a file also defines one of those below that have an #ifndef, and
   - dot_fours: a sum and the products of four codes with signed bytes. Codes are unsigned ones, but signed if SIGNED_CODES,
     as they are without this instruction. */
#if defined(__AVX512F__)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#else
#include "neon.h"
#endif
#if !defined(dot_fours)
#define SIGNED_CODES 1
#elif !defined(SIGNED_CODES)
#define SIGNED_CODES 0
#endif

/* `count` bytes at an address, at most BYTES; others are 0. */
#ifndef some_bytes
INLINE words some_bytes(const void *from, long count) {
    uint8_t bytes[BYTES] = {0};
    if (count > 0) memcpy(bytes, from, count);
    return *(const words_at *)bytes;
}
#endif

/* The same of words. */
#ifndef some_words
INLINE words some_words(const void *from, int count) { return some_bytes(from, 4 * count); }
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
#ifndef in_pairs
INLINE words in_pairs(floats even, floats odd) { return rounded(even) >> 16 | (rounded(odd) & 0xffff0000u); }
#endif

/* The nearest bfloat16; a NaN stays one. */
#ifndef narrow
INLINE halves narrow(floats x) { return lower(bfloat16(x)); }
#endif

INLINE void store(void *to, long index, floats x, enum dtype dtype) {
    if (dtype == FLOAT32) *(floats_at *)((float *)to + index) = x;
    else *(halves_at *)((uint16_t *)to + index) = narrow(x);
}

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

/* sum + the products of pairs of bfloat16, two in each lane. PAIRS: whether one instruction does it. Where none does, much
   that is multiplied with the same numbers is better converted to float32 once. */
#ifdef dot_pairs
#define PAIRS 1
#else
#define PAIRS 0
INLINE floats dot_pairs(floats sum, words a, words b) {
    sum += (floats)(a << 16) * (floats)(b << 16);
    return sum + (floats)(a & 0xffff0000u) * (floats)(b & 0xffff0000u);
}
#endif

/* The type in which numbers of `dtype` are multiplied where it is converted beforehand without PAIRS. */
INLINE enum dtype multiplied(enum dtype dtype) { return PAIRS ? dtype : FLOAT32; }

/* Four bytes at an address in all lanes. */
INLINE words word_at(const void *from) { return (words){0} + word_of(from); }

/* Sums of numbers of 16 bits, two in each lane. */
INLINE words add_halves(words a, words b) { return (words)((twos)a + (twos)b); }

/* x times 2 to the n, where the result is neither too large nor too small; 0 where `nothing` is set. */
#ifndef times_two_to
INLINE floats times_two_to(floats x, floats n, ints nothing) {
    ints exponent = __builtin_convertvector(n, ints);
    return choose(nothing, all(0), x * (floats)((exponent + 127) << 23));
}
#endif

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
#ifndef inverse
INLINE floats inverse(floats x) { return 1.0f / x; }
#endif

INLINE floats silu(floats x) { return x * inverse(1.0f + exponential(-x)); }
