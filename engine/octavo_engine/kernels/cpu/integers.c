/* y = x W^T in whole numbers: codes of 4 or 8 bits, interleaved (interleave.c), times inputs of 8 bits.

   Each 32 inputs of a token share a scale, their largest is 127. Rows lie in the lanes: a word has four codes of a row,
   which are multiplied with four inputs that all lanes share, so nothing is added up across lanes. Products of 16 or 32
   columns (a grain) are summed exactly, then scaled in float32. A token's result does not depend on its company. */
#include <omp.h>

#include "kernels.h"
#include "scales.h"
#include "shares.h"
#include "vector.h"

#define GRAIN 32 /* inputs that share a scale */
#define AHEAD 4096 /* bytes of codes that are fetched before they are used */
#define VECTORS (TILE_OF_ROWS / LANES)
#define MOST_TOKENS (REGISTERS == 32 ? 16 / VECTORS : 4)
#define SOME_TOKENS (MOST_TOKENS == 16 ? 4 : 2)
#define PART_BYTES (1 << 18) /* of inputs that stay in a core's own cache while all codes pass by */

/* GRAIN inputs of a token. A grain of codes may be half of them, which have sums of their own. */
struct inputs {
    int8_t numbers[GRAIN];
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

/* What the products of four columns after four are added to, until a grain is complete. */
struct partial {
#if defined(dot_fours)
    ints sum;
#else
    words twos; /* sums of 16 bits: of codes of 4 bits at most 8 * 2 * 15 * 127, which is less than 2^15 */
    ints sum;   /* of codes of 8 bits, two of whose products fill 16 bits */
#endif
};

#if defined(dot_fours)
INLINE void add_four(struct partial *p, words codes, words x, int bits) { p->sum = dot_fours(p->sum, codes, x); }
INLINE ints in_all(struct partial p, int bits) { return p.sum; }
#else
INLINE ints ones(words twos) { return dot_twos(twos, (words){0} + 0x00010001u); }
INLINE void add_four(struct partial *p, words codes, words x, int bits) {
    if (bits == 4) {
        p->twos = add_halves(p->twos, sums_of_twos(codes, x));
        IN_REGISTER(p->twos);
    } else {
        p->sum += ones(sums_of_signed_twos(codes, x));
        IN_REGISTER(p->sum);
    }
}
INLINE ints in_all(struct partial p, int bits) { return bits == 4 ? ones(p.twos) : p.sum; }
#endif

/* The products of a word of codes with the inputs from x on. */
INLINE void add(struct partial *p, words codes, const int8_t *x, int bits) {
    if (bits == 8) {
        add_four(p, codes, word_at(x), 8);
        return;
    }
    add_four(p, codes & 0x0f0f0f0fu, word_at(x), 4);
    add_four(p, (codes >> 4) & 0x0f0f0f0fu, word_at(x + 4), 4);
}

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
}

/* A tile: rows in the lanes of VECTORS registers, which are multiplied with the same inputs. */
struct tile {
    long first; /* its first row */
    int rows;   /* how many it has */
};

/* The rows in register `v`; a whole tile has all of them. */
INLINE int count_of(struct tile r, int v, int whole) {
    int left = r.rows - v * LANES;
    return whole || left >= LANES ? LANES : left > 0 ? left : 0;
}

/* Scales of a group of columns, and what is added to its numbers. */
INLINE void scales_of(const struct product *a, struct tile r, int v, int whole, long group, floats *scale, floats *minimum) {
    const struct codes *w = a->w;
    int count = count_of(r, v, whole), all = whole ? TILE_OF_ROWS : r.rows;
    long at = r.first * w->groups + group * all + v * LANES;
    *scale = some_scales(w->scale, at, count, w->scales);
    if (w->minimum) *minimum = some_scales(w->minimum, at, count, w->scales);
    if (w->scales == SCALE_INT8) {
        long blocks = (w->inner + SUPER - 1) / SUPER, block = r.first * blocks + group * w->group / SUPER * all + v * LANES;
        *scale *= some_scales(w->super_scale, block, count, SCALE_FLOAT16);
        if (w->minimum) *minimum *= some_scales(w->super_minimum, block, count, SCALE_FLOAT16);
    }
    if (w->zero) *minimum = -some_scales(w->zero, at, count, SCALE_UINT8) * *scale;
}

/* The products of `columns` codes with inputs; `tokens` of them begin at x, each with its `half`. */
INLINE void multiply(const struct inputs *x, struct tile r, int whole, const uint8_t *codes, int columns, int half, int tokens,
                     int bits, ints sums[MOST_TOKENS][VECTORS]) {
    long step = 4 * (whole ? TILE_OF_ROWS : r.rows);
    struct partial partial[MOST_TOKENS][VECTORS];
    UNROLL for (int t = 0; t < tokens; t++)
        UNROLL for (int v = 0; v < VECTORS; v++) partial[t][v] = (struct partial){0};
    UNROLL for (int i = 0; i < columns * bits / 32; i++) {
        words code[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            const uint8_t *from = codes + i * step + 4 * v * LANES;
            code[v] = whole ? (words) * (const words_at *)from : some_words(from, count_of(r, v, whole));
        }
        UNROLL for (int t = 0; t < tokens; t++) {
            const int8_t *numbers = x[t].numbers + half * columns + i * (32 / bits);
            UNROLL for (int v = 0; v < VECTORS; v++) add(&partial[t][v], code[v], numbers, bits);
        }
    }
    UNROLL for (int t = 0; t < tokens; t++)
        UNROLL for (int v = 0; v < VECTORS; v++) sums[t][v] = in_all(partial[t][v], bits);
}

/* The sums of the rows of a tile with `tokens` tokens from `token` on, which are multiplied together. */
INLINE void sums_of(const struct product *a, struct tile r, int whole, long token, int tokens, int bits, int grain,
                    floats sums[MOST_TOKENS][VECTORS]) {
    const struct codes *w = a->w;
    long inner = w->inner, group = 0, left = w->group, size = (whole ? TILE_OF_ROWS : r.rows) * grain * bits / 8;
    const uint8_t *codes = w->codes + r.first * (inner * bits / 8);
    const struct inputs *x = a->x + token * (inner / GRAIN), *end = x + tokens * (inner / GRAIN);
    UNROLL for (int t = 0; t < tokens; t++)
        UNROLL for (int v = 0; v < VECTORS; v++) sums[t][v] = (floats){0};
    for (; x < end; x += tokens) {
        UNROLL for (int half = 0; half < GRAIN / grain; half++, codes += size) {
            ints wholes[MOST_TOKENS][VECTORS];
            for (long line = 0; line < size; line += 64) __builtin_prefetch(codes + AHEAD + line, 0, 2);
            multiply(x, r, whole, codes, grain, half, tokens, bits, wholes);
            if (a->offset)
                UNROLL for (int t = 0; t < tokens; t++)
                    UNROLL for (int v = 0; v < VECTORS; v++) wholes[t][v] += x[t].starts[half];
            UNROLL for (int v = 0; v < VECTORS; v++) {
                floats scale, minimum = {0};
                scales_of(a, r, v, whole, group, &scale, &minimum);
                UNROLL for (int t = 0; t < tokens; t++)
                    sums[t][v] += __builtin_convertvector(wholes[t][v], floats) * (x[t].scale * scale);
                if (!a->shifted) continue;
                UNROLL for (int t = 0; t < tokens; t++) sums[t][v] += minimum * x[t].sums[half];
            }
            if (!(left -= grain)) group++, left = w->group;
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

INLINE void give(const struct product *a, long row, int count, long token, floats sums, int dtype, int out) {
    long at = token * a->stride + row;
    char values[BYTES];
    if (a->bias) sums += some(a->bias, row, count, dtype);
    if (a->addend) sums += some(a->addend, at, count, dtype);
    if (count == LANES) {
        store(a->y, at, sums, out);
        return;
    }
    store(values, 0, sums, out);
    memcpy(a->y + at * bytes_of(out), values, count * bytes_of(out));
}

static void give_all(const struct product *a, struct tile r, long token, int tokens, const floats sums[MOST_TOKENS][VECTORS]) {
    for (int v = 0; v < VECTORS; v++) {
        int count = count_of(r, v, 0);
        long row = r.first + v * LANES;
        for (int t = 0; t < tokens && count; t++)
            if (a->out == BFLOAT16) give(a, row, count, token + t, sums[t][v], BFLOAT16, BFLOAT16);
            else give(a, row, count, token + t, sums[t][v], a->dtype, FLOAT32);
    }
}

INLINE void tokens_of(const struct product *a, struct tile r, int whole, long token, int tokens) {
    floats sums[MOST_TOKENS][VECTORS];
    if (a->w->bits == 4) sums_of(a, r, whole, token, tokens, 4, 32, sums);
    else if (a->grain == 32) sums_of(a, r, whole, token, tokens, 8, 32, sums);
    else sums_of(a, r, whole, token, tokens, 8, 16, sums);
    give_all(a, r, token, tokens, sums);
}

/* The outputs of a tile for the tokens [token, end). */
INLINE void rows_of(const struct product *a, struct tile r, int whole, long token, long end) {
    for (int now; token < end; token += now) {
        now = together(token, a->tokens);
        if (now == MOST_TOKENS) tokens_of(a, r, whole, token, MOST_TOKENS);
        else if (now == SOME_TOKENS) tokens_of(a, r, whole, token, SOME_TOKENS);
        else tokens_of(a, r, whole, token, 1);
    }
}

static void whole_tile(const struct product *a, long first, long token, long end) {
    rows_of(a, (struct tile){first, TILE_OF_ROWS}, 1, token, end);
}

static void last_tile(const struct product *a, long first, long token, long end) {
    rows_of(a, (struct tile){first, a->w->rows - first}, 0, token, end);
}

/* How many tokens' inputs are read once for each tile of rows. */
INLINE long part_tokens(const struct product *a) {
    long tokens = PART_BYTES / (a->w->inner / GRAIN * sizeof(struct inputs)) / MOST_TOKENS * MOST_TOKENS;
    return tokens > MOST_TOKENS ? tokens : MOST_TOKENS;
}

/* Tile number `tile` for at most `part` tokens from `token` on. */
static void tile_of_part(const struct product *a, long tile, long token, long part) {
    long first = tile * TILE_OF_ROWS, end = a->tokens - token < part ? a->tokens : token + part;
    if (first + TILE_OF_ROWS <= a->w->rows) whole_tile(a, first, token, end);
    else last_tile(a, first, token, end);
}

/* Bytes of scratch memory that `integer_linear` needs with inputs of `inner` columns. */
long integer_scratch(long tokens, long inner) { return tokens * (inner / GRAIN + 1) * sizeof(struct inputs); }

/* y [tokens, stride] gets rows of W x + bias + addend; `out` is the type of y, `dtype` that of all else. */
void integer_linear(const struct codes *w, const void *x, const void *bias, const void *addend, void *y, void *scratch,
                    long tokens, long stride, int dtype, int out, int threads) {
    long blocks = w->inner / GRAIN, tiles = (w->rows + TILE_OF_ROWS - 1) / TILE_OF_ROWS;
    struct product a = {.w = w, .bias = bias, .addend = addend, .y = y, .stride = stride, .tokens = tokens, .dtype = dtype,
                        .out = out, .shifted = w->minimum || w->zero, .x = scratch};
    a.grain = w->bits == 4 || w->group >= w->inner || w->group % 32 == 0 ? 32 : 16;
    a.offset = (int32_t)w->offset + (w->bits == 8 && !SIGNED_CODES ? 128 : 0);
    long part = part_tokens(&a), items = (tokens + part - 1) / part * tiles;
    struct share shares[threads];
    memset(shares, 0, sizeof shares);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < tokens * blocks; i++)
            if (dtype == FLOAT32) take_inputs(&a, x, i / blocks, i % blocks * GRAIN, FLOAT32);
            else take_inputs(&a, x, i / blocks, i % blocks * GRAIN, BFLOAT16);
        struct piece_of_loop piece = {0};
        while (next_piece(shares, items, omp_get_thread_num(), threads, &piece))
            for (long i = piece.first; i < piece.end; i++) tile_of_part(&a, i % tiles, i / tiles * part, part);
    }
}
