/* NEON, the vectors of every arm64, as vector.h describes them; with the products of FEAT_DotProd, FEAT_I8MM and FEAT_BF16
   where the compiler's options say so. */
#pragma once
#include <arm_neon.h>

INLINE words widen(halves x) { return (words)vmovl_u16((uint16x4_t)x); }
INLINE halves lower(words x) { return (halves)vmovn_u32((uint32x4_t)x); }
INLINE float total(floats x) { return vaddvq_f32((float32x4_t)x); }
INLINE float largest(floats x) { return vmaxvq_f32((float32x4_t)x); }
INLINE floats larger(floats a, floats b) { return choose(a > b, a, b); } /* FMAX gives NaN if either number is one */
INLINE floats smaller(floats a, floats b) { return choose(a < b, a, b); }
INLINE words low_in_turn(words a, words b) { return (words)vzip1q_u16((uint16x8_t)a, (uint16x8_t)b); }
INLINE words high_in_turn(words a, words b) { return (words)vzip2q_u16((uint16x8_t)a, (uint16x8_t)b); }

INLINE ints nearest(floats x) { return (ints)vcvtnq_s32_f32((float32x4_t)x); }
INLINE ints dot_twos(words a, words b) {
    int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    return (ints)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
INLINE words sums_of_twos(words a, words b) {
    int8x16_t x = (int8x16_t)a, y = (int8x16_t)b;
    return (words)vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
}
INLINE words sums_of_signed_twos(words a, words b) { return sums_of_twos(a, b); }

INLINE ints signed_bytes(const void *from) {
    int8x8_t bytes = (int8x8_t)vdup_n_u32(word_of(from));
    return (ints)vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
INLINE ints unsigned_bytes(const void *from) {
    uint8x8_t bytes = (uint8x8_t)vdup_n_u32(word_of(from));
    return (ints)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}
INLINE floats float16s(const void *from) { return (floats)vcvt_f32_f16(vld1_f16(from)); }
INLINE void store_bytes(int8_t *to, ints x) {
    int16x4_t pairs = vmovn_s32((int32x4_t)x);
    uint32_t bytes = vget_lane_u32((uint32x2_t)vmovn_s16(vcombine_s16(pairs, pairs)), 0);
    memcpy(to, &bytes, sizeof bytes);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define dot_fours dot_fours
INLINE ints dot_fours(ints sum, words a, words b) { return (ints)vusdotq_s32((int32x4_t)sum, (uint8x16_t)a, (int8x16_t)b); }
#elif defined(__ARM_FEATURE_DOTPROD)
#define dot_fours dot_fours
#define SIGNED_CODES 1
INLINE ints dot_fours(ints sum, words a, words b) { return (ints)vdotq_s32((int32x4_t)sum, (int8x16_t)a, (int8x16_t)b); }
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define narrow narrow
INLINE halves narrow(floats x) { return (halves)vcvt_bf16_f32((float32x4_t)x); }

#define dot_pairs dot_pairs
INLINE floats dot_pairs(floats sum, words a, words b) {
    return (floats)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
#endif
