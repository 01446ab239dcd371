/* AVX2 as vector.h describes it; with AVX-VNNI where the compiler's options say so. */
#pragma once
#include <immintrin.h>

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

INLINE ints nearest(floats x) { return (ints)_mm256_cvtps_epi32((__m256)x); }
INLINE ints dot_twos(words a, words b) { return (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
INLINE words sums_of_twos(words a, words b) { return (words)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
INLINE words sums_of_signed_twos(words a, words b) {
    return (words)_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)a), _mm256_sign_epi8((__m256i)b, (__m256i)a));
}

INLINE ints signed_bytes(const void *from) { return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)); }
INLINE ints unsigned_bytes(const void *from) { return (ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(from)); }
INLINE floats float16s(const void *from) { return (floats)_mm256_cvtph_ps(_mm_loadu_si128(from)); }
INLINE void store_bytes(int8_t *to, ints x) {
    __m256i pairs = _mm256_packs_epi32((__m256i)x, (__m256i)x), bytes = _mm256_packs_epi16(pairs, pairs);
    int32_t halves[2] = {_mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4)};
    memcpy(to, halves, sizeof halves);
}

#define some_words some_words
INLINE words some_words(const void *from, int count) {
    return (words)_mm256_maskload_epi32(from, (__m256i)(LANE_NUMBERS < count));
}

#if defined(__AVXVNNI__)
#define dot_fours dot_fours
INLINE ints dot_fours(ints sum, words a, words b) {
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
}
#endif
