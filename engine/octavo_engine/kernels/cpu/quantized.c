/* Weights of codes of 4 or 8 bits with scales by groups of columns: as numbers, and y = x W^T.

   Interleaved codes are multiplied in whole numbers (integers.c). Others are few and small: their sizes do not fit that, or
   inputs are float32. Codes become floats in registers, groups are summed as they are and scaled once. Codes of 4 bits are
   spread by shifts of a whole register, which takes them out of order: the input is laid out in the order that this gives. */
#include <omp.h>

#include "kernels.h"
#include "scales.h"
#include "shares.h"
#include "vector.h"

#define MAX_TOKENS 8
#define CHUNK (8 * LANES) /* codes of 4 bits in a register */
#define BLOCK 4096        /* columns whose scales are in float32 at a time */
#define PARALLEL_FROM 8192

struct few {
    const struct codes *w;
    float *x;    /* [tokens][padded] in the order of the codes */
    float *sums; /* [tokens][grains]: of the inputs of each grain */
    long tokens, padded, grains;
    int grain; /* columns whose products are summed before they are scaled; 0: all of a row */
};

INLINE long up(long size, long unit) { return (size + unit - 1) / unit * unit; }

/* BYTES bytes, of which `left` are there: others are 0. */
INLINE words take(const uint8_t *from, long left) {
    if (left >= BYTES) return *(const words_at *)from;
    return some_bytes(from, left);
}

/* LANES codes of a byte each as floats, of which `left` are there; bits of `flip` are changed first. */
INLINE floats whole(const uint8_t *from, long left, int flip) {
    uint8_t bytes[LANES];
    if (left < LANES) {
        memset(bytes, 0, sizeof bytes);
        if (left > 0) memcpy(bytes, from, left);
        from = bytes;
    }
    return __builtin_convertvector(signed_bytes(from) ^ (int8_t)flip, floats);
}

/* `count` scales from `index` on; there is room for LANES more. */
INLINE void widen_scales(const void *from, long index, long count, float *to, enum scales kind) {
    for (long i = 0; i < count; i += LANES)
        *(floats_at *)(to + i) = some_scales(from, index + i, count - i < LANES ? count - i : LANES, kind);
}

/* Scales of 8 bits, one for each `grain` columns, times those of blocks of SUPER. */
INLINE void multiply_supers(float *scale, long count, long grain, const _Float16 *super) {
    long each = SUPER / grain;
    for (long i = 0; i < count; i += LANES) {
        float low = super[i / each], high = each < LANES && i + each < count ? (float)super[i / each + 1] : low;
        *(floats_at *)(scale + i) *= choose(LANE_NUMBERS < (int)each, all(low), all(high));
    }
}

/* Of `count` grains what their groups have, of which `from` has the first one's at 0; the first grain is number `place`
   of its group. */
INLINE void expand(const float *from, float *to, long count, long place, long each) {
    if (each & (each - 1) || place) {
        for (long i = 0; i < count; i++) to[i] = from[(place + i) / each];
        return;
    }
    int shift = __builtin_ctzl(each);
    for (long i = 0; i < count; i += LANES)
        *(floats_at *)(to + i) =
            __builtin_shuffle(*(const floats_at *)(from + (i >> shift)), ((int)(i & (each - 1)) + LANE_NUMBERS) >> shift);
}

/* Scales of `count` groups of a row, from number `first` on, and what is added to each group's numbers. */
INLINE void scales_of_groups(const struct codes *w, long row, long first, long count, long grain, float *scale,
                             float *minimum, int has_minimum) {
    long at = row * w->groups + first;
    widen_scales(w->scale, at, count, scale, w->scales);
    if (w->minimum) widen_scales(w->minimum, at, count, minimum, w->scales);
    if (w->scales == SCALE_INT8) {
        long super = row * ((w->inner + SUPER - 1) / SUPER) + first * grain / SUPER;
        multiply_supers(scale, count, grain, w->super_scale + super);
        if (w->minimum) multiply_supers(minimum, count, grain, w->super_minimum + super);
    }
    if (!has_minimum || w->minimum) return;
    if (w->zero)
        for (long i = 0; i < count; i++) minimum[i] = -(w->zero[at + i] + w->offset) * scale[i];
    else
        for (long i = 0; i < count; i++) minimum[i] = -w->offset * scale[i];
}

/* Scales of a row by grains, from the one of column `first` on, and what is added to each grain's numbers. Both have room
   for LANES more than `count`. */
INLINE void scales_of(const struct codes *w, long row, long first, long count, long grain, float *scale, float *minimum,
                      int has_minimum) {
    if (w->group == grain) scales_of_groups(w, row, first / grain, count, grain, scale, minimum, has_minimum);
    else {
        float scales[BLOCK / 16 + LANES], minima[BLOCK / 16 + LANES];
        long group = w->groups == 1 ? up(w->inner, grain) : w->group;
        long from = first / group, groups = (first + (count - 1) * grain) / group - from + 1;
        scales_of_groups(w, row, from, groups, w->group, scales, minima, has_minimum);
        expand(scales, scale, count, first % group / grain, group / grain);
        if (has_minimum) expand(minima, minimum, count, first % group / grain, group / grain);
    }
    *(floats_at *)(scale + count) = (floats){0};
    if (has_minimum) *(floats_at *)(minimum + count) = (floats){0};
}

/* The same, compiled once for each grain rather than for each loop that needs them. */
#define SCALES(NAME, GRAIN)                                                                                            \
    static __attribute__((noinline)) void NAME(const struct codes *w, long row, long first, long count, float *scale,  \
                                               float *minimum, int has_minimum) {                                      \
        scales_of(w, row, first, count, GRAIN, scale, minimum, has_minimum);                                           \
    }
SCALES(scales_by_32, 32)
SCALES(scales_by_16, 16)
SCALES(scales_by_row, w->inner)

INLINE void scales_by(const struct codes *w, long row, long first, long count, long grain, float *scale, float *minimum,
                      int has_minimum) {
    if (grain == 32) scales_by_32(w, row, first, count, scale, minimum, has_minimum);
    else if (grain == 16) scales_by_16(w, row, first, count, scale, minimum, has_minimum);
    else scales_by_row(w, row, 0, 1, scale, minimum, has_minimum);
}

INLINE int has_minimum(const struct codes *w) { return w->minimum || w->zero || w->offset != 0; }

/* sums += codes of 4 bits of the columns [first, end) with `tokens` tokens; scales by 32 columns. */
INLINE void dots_of_4(const struct few *a, const uint8_t *codes, const float *scale, long first, long end, long token,
                      int tokens, floats sums[MAX_TOKENS]) {
    const float *x = a->x + token * a->padded;
    for (long k = first; k < end; k += CHUNK, scale += CHUNK / 32) {
        words v = take(codes + k / 2, (end - k) / 2);
        floats group = __builtin_shuffle(*(const floats_at *)scale, LANE_NUMBERS / 4), part[MAX_TOKENS];
        UNROLL for (int t = 0; t < tokens; t++) part[t] = (floats){0};
        UNROLL for (int j = 0; j < 8; j++) {
            floats w = __builtin_convertvector((ints)(v >> (4 * j) & 15), floats);
            UNROLL for (int t = 0; t < tokens; t++)
                part[t] += w * *(const floats_at *)(x + t * a->padded + k + j * LANES);
        }
        UNROLL for (int t = 0; t < tokens; t++) sums[t] += part[t] * group;
    }
}

/* The same of codes of 8 bits; grain 0: they are not scaled. */
INLINE void dots_of_8(const struct few *a, const uint8_t *codes, const float *scale, long first, long end, long token,
                      int tokens, floats sums[MAX_TOKENS], int grain) {
    const float *x = a->x + token * a->padded;
    for (long k = first; k < end; k += LANES) {
        floats w = whole(codes + k, end - k, a->w->flip);
        if (grain) w *= scale[(k - first) / (grain ? grain : 1)];
        UNROLL for (int t = 0; t < tokens; t++) sums[t] += w * *(const floats_at *)(x + t * a->padded + k);
    }
}

/* The lanes of out[t][place] add up to one row's product with each token. */
INLINE void row_of(const struct few *a, long row, long token, int tokens, floats out[MAX_TOKENS][LANES], int place, int bits,
                   int grain) {
    const struct codes *w = a->w;
    const uint8_t *codes = w->codes + row * (w->inner * bits / 8);
    floats sums[MAX_TOKENS], extra[MAX_TOKENS];
    float scale[BLOCK / 16 + LANES], minimum[BLOCK / 16 + LANES];
    int shifted = has_minimum(w);
    for (int t = 0; t < tokens; t++) sums[t] = extra[t] = (floats){0};
    if (!grain) scales_by(w, row, 0, 1, 0, scale, minimum, shifted);
    for (long k = 0; k < w->inner; k += BLOCK) {
        long end = w->inner - k < BLOCK ? w->inner : k + BLOCK, count = grain ? (end - k + grain - 1) / grain : 1;
        if (grain) scales_by(w, row, k, count, grain, scale, minimum, shifted);
        if (bits == 4) dots_of_4(a, codes, scale, k, end, token, tokens, sums);
        else dots_of_8(a, codes, scale, k, end, token, tokens, sums, grain);
        if (!shifted || (!grain && k)) continue;
        for (long i = 0; i < count; i += LANES)
            for (int t = 0; t < tokens; t++)
                extra[t] += *(const floats_at *)(minimum + i) *
                            *(const floats_at *)(a->sums + (token + t) * a->grains + (grain ? k / grain : 0) + i);
    }
    for (int t = 0; t < tokens; t++) out[t][place] = (grain ? sums[t] : sums[t] * scale[0]) + extra[t];
}

static void rows_of(const struct few *a, long row, int count, long token, int tokens, floats out[MAX_TOKENS][LANES]) {
#define ROWS(BITS, GRAIN, TOKENS) \
    for (int r = 0; r < count; r++) row_of(a, row + r, token, TOKENS, out, r, BITS, GRAIN);
#define BY_TOKENS(BITS, GRAIN)                 \
    if (tokens == 1) ROWS(BITS, GRAIN, 1)      \
    else if (tokens == 2) ROWS(BITS, GRAIN, 2) \
    else if (tokens == 4) ROWS(BITS, GRAIN, 4) \
    else ROWS(BITS, GRAIN, MAX_TOKENS)
    if (a->w->bits == 4) { BY_TOKENS(4, 32) }
    else if (a->grain == 32) { BY_TOKENS(8, 32) }
    else if (a->grain == 16) { BY_TOKENS(8, 16) }
    else { BY_TOKENS(8, 0) }
}

INLINE float number(const void *from, long index, int dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[index] : wide(((const uint16_t *)from)[index]);
}

INLINE floats sum_of(const void *from, long count, int dtype) {
    floats sums = {0};
    long i = 0;
    for (; i + LANES <= count; i += LANES) sums += load(from, i, dtype);
    for (; i < count; i++) sums[0] += dtype == FLOAT32 ? ((const float *)from)[i] : wide(((const uint16_t *)from)[i]);
    return sums;
}

/* The input of one token in the order of the codes, zeros behind it, and its sums by grain. */
static void lay_out(const struct few *a, const char *from, long token, int dtype) {
    long inner = a->w->inner, size = bytes_of(dtype), grain = a->grain ? a->grain : inner;
    long unit = a->w->bits == 4 ? 8 : 1, places = CHUNK / unit;
    float *x = a->x + token * a->padded;
    from += token * inner * size;
    for (long k = 0; k < a->padded; k += CHUNK)
        for (long i = 0; i < CHUNK; i++)
            x[k + i % unit * places + i / unit] = k + i < inner ? number(from, k + i, dtype) : 0;
    float *sums = a->sums + token * a->grains;
    long grains = 0;
    if (has_minimum(a->w))
        for (long k = 0; k < inner; k += grain)
            sums[grains++] = total(sum_of(from + k * size, inner - k < grain ? inner - k : grain, dtype));
    memset(sums + grains, 0, (a->grains - grains) * sizeof *sums);
}

struct outputs {
    const char *bias, *addend;
    char *y;
    long stride;
    int dtype, out;
};

static void give(const struct outputs *o, long token, long row, int count, floats sums) {
    for (int r = 0; r < count; r++) {
        if (o->bias) sums[r] += number(o->bias, row + r, o->dtype);
        if (o->addend) sums[r] += number(o->addend, token * o->stride + row + r, o->dtype);
    }
    char values[BYTES];
    long size = bytes_of(o->out);
    store(values, 0, sums, o->out);
    memcpy(o->y + (token * o->stride + row) * size, values, count * size);
}

static void tile_of_rows(const struct few *a, const struct outputs *o, long row) {
    int count = a->w->rows - row < LANES ? a->w->rows - row : LANES;
    int most = REGISTERS == 32 ? MAX_TOKENS : MAX_TOKENS / 2;
    for (long token = 0; token < a->tokens;) {
        long left = a->tokens - token;
        int now = left >= most ? most : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        floats sums[MAX_TOKENS][LANES] = {0};
        rows_of(a, row, count, token, now, sums);
        for (int t = 0; t < now; t++) give(o, token + t, row, count, totals(sums[t]));
        token += now;
    }
}

/* Bytes of scratch memory that `quantized_linear` needs with inputs of `inner` columns. */
long quantized_scratch(long tokens, long inner) {
    long floats_bytes = tokens * (up(inner, CHUNK) * 4 + up(inner / 16 + 1, LANES) * 4 + LANES * 4);
    long whole_bytes = integer_scratch(tokens, inner);
    return floats_bytes > whole_bytes ? floats_bytes : whole_bytes;
}

/* One part of a weight, in floats. */
static void float_linear(const struct codes *w, const void *x, const struct outputs *o, void *scratch, long tokens,
                         int threads) {
    struct few a = {.w = w, .tokens = tokens, .padded = up(w->inner, CHUNK), .x = scratch};
    a.grain = w->bits == 4 ? 32 : w->group >= w->inner ? 0 : w->group % 32 ? 16 : 32;
    a.grains = up(a.grain ? (w->inner + a.grain - 1) / a.grain : 1, LANES);
    a.sums = (float *)((char *)scratch + tokens * a.padded * 4);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long t = 0; t < tokens; t++) lay_out(&a, x, t, o->dtype);
#pragma omp for schedule(dynamic, chunk(w->rows / LANES, threads))
        for (long r = 0; r < w->rows; r += LANES) tile_of_rows(&a, o, r);
    }
}

/* `dtype` is the type of inputs, bias and addend, `out` that of y. */
void quantized_linear(const struct quantized *weight, const void *x, const void *bias, const void *addend, void *y,
                      void *scratch, long tokens, int dtype, int out, int threads) {
    long rows = 0, row = 0, size = bytes_of(dtype);
    for (long i = 0; i < weight->count; i++) rows += weight->parts[i].rows;
    for (long i = 0; i < weight->count; row += weight->parts[i++].rows) {
        const struct codes *w = weight->parts + i;
        const char *part_bias = bias ? (const char *)bias + row * size : 0;
        const char *part_addend = addend ? (const char *)addend + row * size : 0;
        struct outputs o = {part_bias, part_addend, (char *)y + row * bytes_of(out), rows, dtype, out};
        if (w->interleaved) integer_linear(w, x, o.bias, o.addend, o.y, scratch, tokens, rows, dtype, out, threads);
        else float_linear(w, x, &o, scratch, tokens, threads);
    }
}

#if defined(__AVX512BF16__)
/* LANES codes that begin at a byte. */
INLINE floats codes_from(const uint8_t *from, int bits, __m128i flip) {
    if (bits == 8) {
        __m128i raw = _mm_xor_si128(_mm_loadu_si128((const __m128i *)from), flip);
        return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(raw));
    }
    int32_t pair[2];
    memcpy(pair, from, sizeof pair);
    words both = (words)_mm512_mask_set1_epi32(_mm512_set1_epi32(pair[0]), 0xff00, pair[1]);
    return __builtin_convertvector((ints)(both >> (words)(LANE_NUMBERS % 8 * 4) & 15), floats);
}

/* The numbers of the columns [first, end) of a row, 32 at a time, into y from there on; gives where others begin. Scales
   are by `grain` columns, 0: one for all. */
INLINE long numbers_by_32(const struct codes *w, const uint8_t *codes, long first, long end, const float *scale,
                          const float *minimum, int shifted, long grain, int bits, uint16_t *y) {
    __m128i flip = _mm_set1_epi8(w->flip);
    long k = first;
    for (; k + 2 * LANES <= end; k += 2 * LANES) {
        long low = grain ? (k - first) / grain : 0, high = grain == LANES ? low + 1 : low;
        floats a = codes_from(codes + k * bits / 8, bits, flip), b = codes_from(codes + (k + LANES) * bits / 8, bits, flip);
        a = shifted ? a * scale[low] + minimum[low] : a * scale[low];
        b = shifted ? b * scale[high] + minimum[high] : b * scale[high];
        *(words_at *)(y + k) = (words)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    }
    return k;
}

static long numbers_in_bfloat16(const struct codes *w, long row, long first, long end, const float *scale,
                                const float *minimum, int shifted, long grain, uint16_t *y) {
    const uint8_t *codes = w->codes + row * w->inner * w->bits / 8;
#define NUMBERS(GRAIN, BITS) numbers_by_32(w, codes, first, end, scale, minimum, shifted, GRAIN, BITS, y)
    if (w->bits == 4) return grain ? NUMBERS(32, 4) : NUMBERS(0, 4);
    return grain == 16 ? NUMBERS(16, 8) : grain ? NUMBERS(32, 8) : NUMBERS(0, 8);
}
#endif

/* The numbers of the rows [row, row + count) into y [count][inner], computed in float32. */
static void dequantize_span(const struct codes *w, long row, long count, void *y, int dtype) {
    long grain = w->group >= w->inner ? w->inner : w->group % 32 ? 16 : 32;
    int shifted = has_minimum(w), by_row = w->group >= w->inner;
    for (long r = 0; r < count; r++)
        for (long k = 0; k < w->inner; k += BLOCK) {
            float scale[BLOCK / 16 + LANES], minimum[BLOCK / 16 + LANES];
            long end = w->inner - k < BLOCK ? w->inner : k + BLOCK;
            scales_by(w, row + r, k, (end - k + grain - 1) / grain, by_row ? 0 : grain, scale, minimum, shifted);
            long done = k;
#if defined(__AVX512BF16__)
            if (dtype == BFLOAT16)
                done = numbers_in_bfloat16(w, row + r, k, end, scale, minimum, shifted, by_row ? 0 : grain,
                                           (uint16_t *)y + r * w->inner);
#endif
            for (long i = done; i < end; i += LANES) {
                long g = by_row ? 0 : (i - k) / grain, left = end - i;
                floats value;
                if (w->bits == 8) value = whole(w->codes + (row + r) * w->inner + i, left, w->flip);
                else {
                    uint32_t pair[2] = {0};
                    memcpy(pair, w->codes + ((row + r) * w->inner + i) / 2, (left < LANES ? left : LANES) / 2);
                    words v = (words)(LANE_NUMBERS < 8) & pair[0];
                    if (LANES == 16) v |= (words)(LANE_NUMBERS >= 8) & pair[1];
                    value = __builtin_convertvector((ints)(v >> (words)(LANE_NUMBERS % 8 * 4) & 15), floats);
                }
                value = shifted ? value * scale[g] + minimum[g] : value * scale[g];
                if (left >= LANES) store(y, r * w->inner + i, value, dtype);
                else {
                    char some[BYTES];
                    store(some, 0, value, dtype);
                    memcpy((char *)y + (r * w->inner + i) * bytes_of(dtype), some, left * bytes_of(dtype));
                }
            }
        }
}

/* All numbers of a weight into y [rows][inner]. `scratch` has `tile_scratch` bytes for each thread, if interleaved. */
void dequantize(const struct quantized *weight, void *y, void *scratch, int dtype, int threads) {
    char *to = y;
    long tile_size = tile_scratch(weight);
    for (long i = 0; i < weight->count; i++) {
        const struct codes *w = weight->parts + i;
        long bytes = w->inner * bytes_of(dtype);
#pragma omp parallel num_threads(threads) if (w->rows * w->inner >= PARALLEL_FROM)
        {
            char *memory = (char *)scratch + omp_get_thread_num() * tile_size;
#pragma omp for schedule(static)
            for (long r = 0; r < w->rows; r += TILE_OF_ROWS) {
                long count = w->rows - r < TILE_OF_ROWS ? w->rows - r : TILE_OF_ROWS;
                struct codes tile;
                if (w->interleaved) tile = rows_of_tile(w, r, count, memory);
                dequantize_span(w->interleaved ? &tile : w, w->interleaved ? 0 : r, count, to + r * bytes, dtype);
            }
        }
        to += w->rows * bytes;
    }
}

/* The numbers of `count` of a weight's rows into y [count][inner]; zeros for one that it does not have. `scratch` is as
   for `dequantize`. */
void dequantize_rows(const struct quantized *weight, const int64_t *rows, void *y, void *scratch, long count, int dtype,
                 int threads) {
    long inner = weight->parts->inner, bytes = inner * bytes_of(dtype), tile_size = tile_scratch(weight);
#pragma omp parallel num_threads(threads) if (count * inner >= PARALLEL_FROM)
    {
        char *memory = (char *)scratch + omp_get_thread_num() * tile_size;
#pragma omp for schedule(static)
        for (long i = 0; i < count; i++) {
            const struct codes *w = weight->parts, *end = w + weight->count;
            char *to = (char *)y + i * bytes;
            int64_t row = rows[i];
            while (row >= 0 && w < end && row >= w->rows) row -= w++->rows;
            if (row < 0 || w == end) memset(to, 0, bytes);
            else if (!w->interleaved) dequantize_span(w, row, 1, to, dtype);
            else {
                long first = row / TILE_OF_ROWS * TILE_OF_ROWS, left = w->rows - first;
                struct codes tile = rows_of_tile(w, first, left < TILE_OF_ROWS ? left : TILE_OF_ROWS, memory);
                dequantize_span(&tile, row - first, 1, to, dtype);
            }
        }
    }
}
