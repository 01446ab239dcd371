/* AVX-512 as vector.h describes it; with AVX512_BF16 and VNNI where the compiler's options say so. */
#pragma once
#include <immintrin.h>

INLINE words widen(halves x) { return (words)_mm512_cvtepu16_epi32((__m256i)x); }
INLINE halves lower(words x) { return (halves)_mm512_cvtepi32_epi16((__m512i)x); }
INLINE float total(floats x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float largest(floats x) { return _mm512_reduce_max_ps((__m512)x); }
INLINE floats larger(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE floats smaller(floats a, floats b) { return (floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE words low_in_turn(words a, words b) { return (words)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b); }
INLINE words high_in_turn(words a, words b) { return (words)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b); }

INLINE ints nearest(floats x) { return (ints)_mm512_cvtps_epi32((__m512)x); }
INLINE ints dot_twos(words a, words b) { return (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
INLINE words sums_of_twos(words a, words b) { return (words)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
INLINE words sums_of_signed_twos(words a, words b) {
    __mmask64 negative = _mm512_movepi8_mask((__m512i)a);
    __m512i signs = _mm512_mask_sub_epi8((__m512i)b, negative, _mm512_setzero_si512(), (__m512i)b);
    return (words)_mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)a), signs);
}

INLINE ints signed_bytes(const void *from) { return (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(from)); }
INLINE ints unsigned_bytes(const void *from) { return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(from)); }
INLINE floats float16s(const void *from) { return (floats)_mm512_cvtph_ps(_mm256_loadu_si256(from)); }
INLINE void store_bytes(int8_t *to, ints x) { _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x)); }

#define some_bytes some_bytes
INLINE words some_bytes(const void *from, long count) {
    return (words)_mm512_maskz_loadu_epi8(count > 0 ? (1ull << count) - 1 : 0, from);
}

#define some_words some_words
INLINE words some_words(const void *from, int count) {
    return (words)_mm512_maskz_loadu_epi32((1u << count) - 1, from);
}

#define times_two_to times_two_to
INLINE floats times_two_to(floats x, floats n, ints nothing) {
    return (floats)_mm512_maskz_scalef_ps(_mm512_testn_epi32_mask((__m512i)nothing, (__m512i)nothing), (__m512)x, (__m512)n);
}

#define inverse inverse
INLINE floats inverse(floats x) {
    floats y = (floats)_mm512_rcp14_ps((__m512)x);
    return y * (2.0f - x * y);
}

#if defined(__AVX512VNNI__)
#define dot_fours dot_fours
INLINE ints dot_fours(ints sum, words a, words b) { return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }
#endif

#if defined(__AVX512BF16__)
#define narrow narrow
INLINE halves narrow(floats x) { return (halves)_mm512_cvtneps_pbh((__m512)x); } /* numbers below 2^-126 become 0 */

#define in_pairs in_pairs
INLINE words in_pairs(floats even, floats odd) {
    static const halves order[2] = {{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23},
                                    {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (words)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
}

#define dot_pairs dot_pairs
INLINE floats dot_pairs(floats sum, words a, words b) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#endif
