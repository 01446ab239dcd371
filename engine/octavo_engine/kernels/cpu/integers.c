/* y = x W^T in whole numbers: codes of 4 or 8 bits, interleaved (interleave.c), times inputs of 8 bits.

   Each 32 inputs of a token share a scale, their largest is 127. Rows lie in the lanes: a word has four codes of a row,
   which are multiplied with four inputs that all lanes share, so nothing is added up across lanes. Products of 16 or 32
   columns (a grain) are summed exactly, then scaled in float32. A token's result does not depend on its company. */
#include <omp.h>

#include "kernels.h"
#include "scales.h"
#include "vector.h"

#define GRAIN 32 /* inputs that share a scale */
#define STEPS (GRAIN / 4)
#define AHEAD 4096 /* bytes of codes that are fetched before they are used */
#define MOST_TOKENS (REGISTERS == 32 ? 16 : 4)
#define SOME_TOKENS 4

/* GRAIN inputs of a token. A grain of codes may be half of them, which have sums of their own. */
struct inputs {
#if defined(dot_fours)
    int8_t numbers[GRAIN];
#else
    int8_t numbers[2 * GRAIN]; /* codes of 8 bits are multiplied in 16 bits, in which two products cannot overflow */
#endif
    float scale;
    float sums[2];
    int32_t starts[2]; /* what the codes' offset makes of the inputs */
};

struct product {
    const struct codes *w;
    const char *bias, *addend;
    char *y;
    long stride, tokens; /* stride: of outputs and addends, from token to token */
    int dtype, out;      /* of inputs, bias and addend; of outputs: the same, or float32 */
    int grain;           /* columns whose products are summed before they are scaled: 16 or 32 */
    int shifted;         /* whether something is added to each group's numbers */
    int32_t offset;      /* what is subtracted from each code */
    struct inputs *x;    /* of tokens that are multiplied together: [inner / GRAIN][tokens] */
};

/* Of all tokens the next so many are multiplied together, from `token` on. */
INLINE int together(long token, long tokens) {
    if (tokens - token >= MOST_TOKENS) return MOST_TOKENS;
    return tokens - token >= SOME_TOKENS ? SOME_TOKENS : 1;
}

/* The first of those that are multiplied together with `token`. */
INLINE long first_of(long token, long tokens) {
    long most = token / MOST_TOKENS * MOST_TOKENS, some = token / SOME_TOKENS * SOME_TOKENS;
    if (most + MOST_TOKENS <= tokens) return most;
    return some + SOME_TOKENS <= tokens ? some : token;
}

/* GRAIN inputs as whole numbers of at most 127, with the sums of both halves; gives their scale, NaN if one is not finite. */
INLINE float whole_inputs(const void *x, long at, int dtype, int8_t to[GRAIN], int32_t sums[2]) {
    floats most = {0};
    ints finite = (ints){0} - 1;
    for (int i = 0; i < GRAIN; i += LANES) {
        floats size = (floats)((words)load(x, at + i, dtype) & 0x7fffffffu);
        finite &= size < __builtin_inff();
        most = choose(size > most, size, most);
    }
    float peak = largest(most);
    if (largest(choose(finite, all(0), all(1)))) return __builtin_nanf("");
    if (peak < 1e-36f) peak = 1e-36f; /* its inverse is finite */
    floats up = all(127.0f / peak);
    for (int half = 0; half < 2; half++) {
        floats sum = {0};
        for (int i = half * GRAIN / 2; i < (half + 1) * GRAIN / 2; i += LANES) {
            ints whole = nearest(load(x, at + i, dtype) * up);
            sum += __builtin_convertvector(whole, floats);
            store_bytes(to + i, whole);
        }
        sums[half] = total(sum);
    }
    return peak / 127.0f;
}

/* The inputs [k, k + GRAIN) of one token. */
INLINE void take_inputs(const struct product *a, const void *x, long token, long k, int dtype) {
    long first = first_of(token, a->tokens), blocks = a->w->inner / GRAIN;
    struct inputs *to = a->x + first * blocks + k / GRAIN * together(first, a->tokens) + token - first;
    int8_t numbers[GRAIN] = {0};
    int32_t sums[2] = {0};
    to->scale = whole_inputs(x, token * a->w->inner + k, dtype, numbers, sums);
    for (int half = 0; half < GRAIN / a->grain; half++) {
        int32_t sum = a->grain == GRAIN ? sums[0] + sums[1] : sums[half];
        to->sums[half] = sum * to->scale;
        to->starts[half] = -a->offset * sum;
    }
    memcpy(to->numbers, numbers, sizeof numbers);
#if !defined(dot_fours)
    static const int even_first[] = {0, 2, 1, 3}; /* as codes are taken from words */
    if (a->w->bits == 8)
        for (int i = 0; i < GRAIN; i++) ((int16_t *)to->numbers)[i] = numbers[i / 4 * 4 + even_first[i % 4]];
#endif
}

/* The rows of a tile that are in the lanes. */
struct rows {
    long first;     /* of the tile */
    int all, start; /* rows of the tile; the first one in the lanes, counted within it */
    int count;      /* in the lanes */
};

/* Scales of a group of columns, and what is added to its numbers. */
INLINE void scales_of(const struct product *a, struct rows r, long group, floats *scale, floats *minimum) {
    const struct codes *w = a->w;
    long at = r.first * w->groups + group * r.all + r.start;
    *scale = some_scales(w->scale, at, r.count, w->scales);
    if (w->minimum) *minimum = some_scales(w->minimum, at, r.count, w->scales);
    if (w->scales == SCALE_INT8) {
        long blocks = (w->inner + SUPER - 1) / SUPER, block = r.first * blocks + group * w->group / SUPER * r.all + r.start;
        *scale *= some_scales(w->super_scale, block, r.count, SCALE_FLOAT16);
        if (w->minimum) *minimum *= some_scales(w->super_minimum, block, r.count, SCALE_FLOAT16);
    }
    if (w->zero) *minimum = -some_scales(w->zero, at, r.count, SCALE_UINT8) * *scale;
}

/* The codes of GRAIN columns, four of a row in each word. */
INLINE void take_codes(const uint8_t *codes, long step, int count, int bits, words to[STEPS]) {
    if (bits == 8) {
        UNROLL for (int i = 0; i < STEPS; i++) to[i] = some_words(codes + i * step, count);
        return;
    }
    UNROLL for (int i = 0; i < STEPS / 2; i++) {
        words both = some_words(codes + i * step, count);
        to[2 * i] = both & 0x0f0f0f0fu;
        to[2 * i + 1] = (both >> 4) & 0x0f0f0f0fu;
    }
}

/* start + the products of `steps` words of codes with inputs. */
INLINE ints dot(const words *codes, const int8_t *x, int steps, int bits, int32_t start) {
    ints sum = (ints){0} + start;
#if defined(dot_fours)
    UNROLL for (int i = 0; i < steps; i++) sum = dot_fours(sum, codes[i], word_at(x + 4 * i));
#else
    if (bits == 8) {
        UNROLL for (int i = 0; i < steps; i++) {
            sum += dot_twos(codes[i] & 0x00ff00ffu, word_at(x + 8 * i));
            sum += dot_twos((codes[i] >> 8) & 0x00ff00ffu, word_at(x + 8 * i + 4));
        }
        return sum;
    }
    words twos = {0}; /* at most 8 * 2 * 15 * 127, which is less than 2^15 */
    UNROLL for (int i = 0; i < steps; i++) twos = add_halves(twos, sums_of_twos(codes[i], word_at(x + 4 * i)));
    sum += dot_twos(twos, (words){0} + 0x00010001u);
#endif
    return sum;
}

/* The sums of the rows in the lanes with `tokens` tokens from `token` on, which are multiplied together. */
INLINE void sums_of(const struct product *a, struct rows r, long token, int tokens, int bits, int grain,
                    floats sums[MOST_TOKENS]) {
    const struct codes *w = a->w;
    long inner = w->inner, step = 4 * r.all, group = 0, left = w->group;
    const uint8_t *codes = w->codes + r.first * (inner * bits / 8) + 4 * r.start;
    const struct inputs *x = a->x + token * (inner / GRAIN), *end = x + tokens * (inner / GRAIN);
    int bytes = bits == 8 ? sizeof x->numbers / GRAIN : 1;
    UNROLL for (int t = 0; t < tokens; t++) sums[t] = (floats){0};
    for (; x < end; x += tokens, codes += step * (GRAIN * bits / 32)) {
        words four[STEPS];
        for (long line = 0; line < step * (GRAIN * bits / 32); line += 64) __builtin_prefetch(codes + AHEAD + line, 0, 2);
        take_codes(codes, step, r.count, bits, four);
        UNROLL for (int half = 0; half < GRAIN / grain; half++) {
            floats scale, minimum = {0};
            scales_of(a, r, group, &scale, &minimum);
            if (!(left -= grain)) group++, left = w->group;
            UNROLL for (int t = 0; t < tokens; t++) {
                ints whole = dot(four + half * grain / 4, x[t].numbers + half * grain * bytes, grain / 4, bits, x[t].starts[half]);
                sums[t] += __builtin_convertvector(whole, floats) * (x[t].scale * scale);
            }
            if (!a->shifted) continue;
            UNROLL for (int t = 0; t < tokens; t++) sums[t] += minimum * x[t].sums[half];
        }
    }
}

/* LANES numbers at `index`, of which `count` are there. */
INLINE floats some(const char *from, long index, int count, int dtype) {
    char values[BYTES] = {0};
    if (count == LANES) return load(from, index, dtype);
    memcpy(values, from + index * bytes_of(dtype), count * bytes_of(dtype));
    return load(values, 0, dtype);
}

INLINE void give(const struct product *a, struct rows r, long token, floats sums, int dtype, int out) {
    long row = r.first + r.start, at = token * a->stride + row;
    char values[BYTES];
    if (a->bias) sums += some(a->bias, row, r.count, dtype);
    if (a->addend) sums += some(a->addend, at, r.count, dtype);
    if (r.count == LANES) {
        store(a->y, at, sums, out);
        return;
    }
    store(values, 0, sums, out);
    memcpy(a->y + at * bytes_of(out), values, r.count * bytes_of(out));
}

static void give_all(const struct product *a, struct rows r, long token, int tokens, const floats sums[MOST_TOKENS]) {
    for (int t = 0; t < tokens; t++)
        if (a->out == BFLOAT16) give(a, r, token + t, sums[t], BFLOAT16, BFLOAT16);
        else give(a, r, token + t, sums[t], a->dtype, FLOAT32);
}

INLINE void tokens_of(const struct product *a, struct rows r, long token, int tokens) {
    floats sums[MOST_TOKENS];
    if (a->w->bits == 4) sums_of(a, r, token, tokens, 4, 32, sums);
    else if (a->grain == 32) sums_of(a, r, token, tokens, 8, 32, sums);
    else sums_of(a, r, token, tokens, 8, 16, sums);
    give_all(a, r, token, tokens, sums);
}

static void rows_of(const struct product *a, struct rows r) {
    int now;
    for (long token = 0; token < a->tokens; token += now) {
        now = together(token, a->tokens);
        if (now == MOST_TOKENS) tokens_of(a, r, token, MOST_TOKENS);
        else if (now == SOME_TOKENS) tokens_of(a, r, token, SOME_TOKENS);
        else tokens_of(a, r, token, 1);
    }
}

/* Bytes of scratch memory that `integer_linear` needs with inputs of `inner` columns. */
long integer_scratch(long tokens, long inner) { return tokens * (inner / GRAIN + 1) * sizeof(struct inputs); }

/* y [tokens, stride] gets rows of W x + bias + addend; `out` is the type of y, `dtype` that of all else. */
void integer_linear(const struct codes *w, const void *x, const void *bias, const void *addend, void *y, void *scratch,
                    long tokens, long stride, int dtype, int out, int threads) {
    long blocks = w->inner / GRAIN, parts = TILE_OF_ROWS / LANES, tiles = (w->rows + TILE_OF_ROWS - 1) / TILE_OF_ROWS;
    struct product a = {.w = w, .bias = bias, .addend = addend, .y = y, .stride = stride, .tokens = tokens, .dtype = dtype,
                        .out = out, .shifted = w->minimum || w->zero, .x = scratch};
    a.grain = w->bits == 4 || w->group >= w->inner || w->group % 32 == 0 ? 32 : 16;
    a.offset = (int32_t)w->offset + (w->bits == 8 && !SIGNED_CODES ? 128 : 0);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < tokens * blocks; i++)
            if (dtype == FLOAT32) take_inputs(&a, x, i / blocks, i % blocks * GRAIN, FLOAT32);
            else take_inputs(&a, x, i / blocks, i % blocks * GRAIN, BFLOAT16);
#pragma omp for schedule(dynamic, chunk(tiles * parts, threads))
        for (long i = 0; i < tiles * parts; i++) {
            struct rows r = {i / parts * TILE_OF_ROWS, TILE_OF_ROWS, i % parts * LANES, LANES};
            if (r.first + TILE_OF_ROWS <= w->rows) {
                rows_of(&a, r);
                continue;
            }
            r.all = w->rows - r.first;
            r.count = r.all - r.start < LANES ? r.all - r.start : LANES;
            if (r.count > 0) rows_of(&a, r);
        }
    }
}
