/* y = x W^T: bfloat16 in and out, sums in float32, the weights [rows, inner] as checkpoints have them.

   Up to eight tokens: each weight row is multiplied along itself ("dots"), which takes no longer than to read the
   weights. More: tokens lie in the lanes of one or two registers, and a pair of weights is broadcast to all of them
   ("lanes"), so that sums need no adding up across lanes and a tile of them fills the registers. Without an instruction
   for pairs, tokens and a tile's weights are converted to float32 before, and single weights are broadcast. With AMX all but one
   token are multiplied in tiles: weights as they lie in memory, tokens as in the lanes of one register. Up to 32 tokens
   take no longer than to read the weights. */
#include <omp.h>

#include "kernels.h"
#include "shares.h"
#include "tiles.h"
#include "vector.h"

struct linear {
    const uint16_t *x, *weight, *bias, *addend;
    uint16_t *y;
    uint32_t *packed; /* [groups][inner / NUMBERS][width]: for each word of inputs the tokens of a group */
    long tokens, inner, rows, outputs;
    enum epilogue epilogue;
};

#define DOT_ROWS LANES
#define DOT_TOKENS 8
#define FEW 1 /* tokens for which tiles are no quicker than dots */
#define DOT_SUMS 4
#define DOT_AHEAD 1024 /* weights between those that are multiplied and those that are fetched meanwhile */
#define NUMBERS (PAIRS ? 2 : 1) /* inputs in a word: bfloat16, or one float32 */
#define TILE_ROWS (REGISTERS == 32 ? 12 : 6)
#define MAX_WIDTH (2 * LANES)
#define PART_TOKENS (TILES ? 512 : PAIRS ? 256 : 128) /* tokens that are multiplied at once */
#define MANY_INPUTS 768 /* with more of them, half as many tokens are multiplied at once in tiles */
#define MAX_GROUPS (PART_TOKENS / (TILES ? LANES : MAX_WIDTH))
#define DEPTH 384 /* inputs multiplied at once where there are many tokens */

INLINE floats some(const uint16_t *from, long index, int count) {
    if (count == LANES) return load(from, index, BFLOAT16);
    uint16_t values[LANES] = {0};
    memcpy(values, from + index, 2 * count);
    return load(values, 0, BFLOAT16);
}

/* The sums of `count` outputs, which may be gated, to y. */
INLINE void give(const struct linear *a, long token, long row, int count, floats sum) {
    if (a->addend) sum += some(a->addend, token * a->outputs + row, count);
    if (a->epilogue == WIDE) {
        memcpy((float *)a->y + token * a->outputs + row, &sum, 4 * count);
        return;
    }
    if (count == LANES) {
        store(a->y, token * a->outputs + row, sum, BFLOAT16);
        return;
    }
    uint16_t values[LANES];
    store(values, 0, sum, BFLOAT16);
    memcpy(a->y + token * a->outputs + row, values, 2 * count);
}

/* From the sums of `count` outputs to y. `gate` is what SILU_MUL multiplies with. */
INLINE void finish(const struct linear *a, long token, long row, int count, floats sum, floats gate) {
    if (a->bias && a->epilogue == SILU_MUL) gate += some(a->bias, row, count);
    if (a->bias) sum += some(a->bias, row + (a->epilogue == SILU_MUL ? a->outputs : 0), count);
    if (a->epilogue == SILU_MUL) sum *= silu(gate);
    give(a, token, row, count, sum);
}

/* The sums of one output for tokens in lanes, with its bias and gate. */
INLINE floats finish_row(const struct linear *a, long row, floats sum, floats gate) {
    if (a->bias) sum += wide(a->bias[row + (a->epilogue == SILU_MUL ? a->outputs : 0)]);
    if (a->epilogue != SILU_MUL) return sum;
    return sum * silu(a->bias ? gate + wide(a->bias[row]) : gate);
}

/* Whether dots read tokens from `packed`, as float32, rather than as they are. */
INLINE int widened(int tokens) { return !PAIRS && tokens > 2; }

/* A token to `packed`: of each 2 * LANES inputs the even ones, then the odd ones. */
static void widen_token(const struct linear *a, long token) {
    for (long k = 0; k + 2 * LANES <= a->inner; k += 2 * LANES) {
        words pairs = *(const words_at *)(a->x + token * a->inner + k);
        store(a->packed, token * a->inner + k, (floats)(pairs << 16), FLOAT32);
        store(a->packed, token * a->inner + k + LANES, (floats)(pairs & 0xffff0000u), FLOAT32);
    }
}

/* sum + the products of 2 * LANES weights with a token's inputs from `k` on. */
INLINE floats dot_inputs(const struct linear *a, floats sum, words w, long token, long k, int tokens) {
    long at = token * a->inner + k;
    if (!widened(tokens)) return dot_pairs(sum, w, *(const words_at *)(a->x + at));
    sum += (floats)(w << 16) * load(a->packed, at, FLOAT32);
    return sum + (floats)(w & 0xffff0000u) * load(a->packed, at + LANES, FLOAT32);
}

/* `steps` times 2 * LANES products of one weight row with each token, each step into sums of its own. */
INLINE void dot_steps(const struct linear *a, const uint16_t *weight, long k, int steps, int tokens,
                      floats sums[DOT_TOKENS][DOT_SUMS]) {
    for (int i = 0; i < steps; i++, k += 2 * LANES) {
        words w = *(const words_at *)(weight + k);
        __builtin_prefetch(weight + k + DOT_AHEAD, 0, 3);
        UNROLL for (int t = 0; t < tokens; t++) sums[t][i] = dot_inputs(a, sums[t][i], w, t, k, tokens);
    }
}

/* One weight row with `tokens` tokens. Rows are read one after the other: memory is quickest that way. */
INLINE void dot_row(const struct linear *a, const uint16_t *weight, int tokens, float *out) {
    int steps = tokens <= 2 ? DOT_SUMS : tokens <= 4 ? 2 : 1; /* enough sums at work to hide the time one takes */
    floats sums[DOT_TOKENS][DOT_SUMS];
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < steps; i++) sums[t][i] = (floats){0};
    long k = 0, step = 2 * LANES;
    for (; k + steps * step <= a->inner; k += steps * step) dot_steps(a, weight, k, steps, tokens, sums);
    for (; k + step <= a->inner; k += step) dot_steps(a, weight, k, 1, tokens, sums);
    for (int t = 0; t < tokens; t++) {
        for (int i = 1; i < steps; i++) sums[t][0] += sums[t][i];
        out[t] = total(sums[t][0]);
        for (long rest = k; rest < a->inner; rest++) out[t] += wide(weight[rest]) * wide(a->x[t * a->inner + rest]);
    }
}

INLINE void dot_rows(const struct linear *a, long row, int count, int tokens) {
    floats sums[DOT_TOKENS] = {0}, gates[DOT_TOKENS] = {0};
    for (int half = a->epilogue == SILU_MUL ? 1 : 0; half >= 0; half--)
        for (int r = 0; r < count; r++) {
            float sum[DOT_TOKENS];
            dot_row(a, a->weight + (row + r + (half ? 0 : a->rows - a->outputs)) * a->inner, tokens, sum);
            for (int t = 0; t < tokens; t++) (half ? gates : sums)[t][r] = sum[t];
        }
    for (int t = 0; t < tokens; t++) finish(a, t, row, count, sums[t], gates[t]);
}

INLINE void dot_tile(const struct linear *a, long row, int tokens) {
    long left = a->outputs - row;
    dot_rows(a, row, left < DOT_ROWS ? left : DOT_ROWS, tokens);
}

static void dot_tile_of(const struct linear *a, long row) {
    switch (a->tokens) {
    case 1: dot_tile(a, row, 1); break;
    case 2: dot_tile(a, row, 2); break;
    case 3: dot_tile(a, row, 3); break;
    case 4: dot_tile(a, row, 4); break;
    case 5: dot_tile(a, row, 5); break;
    case 6: dot_tile(a, row, 6); break;
    case 7: dot_tile(a, row, 7); break;
    default: dot_tile(a, row, 8);
    }
}

#if PAIRS
/* The weights of a tile as `lanes` multiplies them: where they are. */
struct block {
    const uint16_t *weights;
    long stride; /* from row to row */
};

INLINE struct block block_of(const uint16_t *weight, long inner, long depth, int count, float *memory) {
    return (struct block){weight, inner};
}

INLINE words weights_at(const struct block *b, int row, long word) { return word_at(b->weights + row * b->stride + 2 * word); }
INLINE floats dot(floats sum, words a, words b) { return dot_pairs(sum, a, b); }
#else
struct block {
    const float *weights; /* [TILE_ROWS][DEPTH] */
};

INLINE struct block block_of(const uint16_t *weight, long inner, long depth, int count, float *memory) {
    for (int r = 0; r < count; r++) {
        long k = 0;
        for (; k + LANES <= depth; k += LANES) store(memory, r * DEPTH + k, load(weight, r * inner + k, BFLOAT16), FLOAT32);
        for (; k < depth; k++) memory[r * DEPTH + k] = wide(weight[r * inner + k]);
    }
    return (struct block){memory};
}

INLINE words weights_at(const struct block *b, int row, long word) { return (words)all(b->weights[row * DEPTH + word]); }
INLINE floats dot(floats sum, words a, words b) { return sum + (floats)a * (floats)b; }
#endif

/* Adds to the sums of `count` weight rows with one group of tokens, `vectors` * LANES of them, `depth` products each. */
INLINE void lanes(const struct block *b, const uint16_t *ahead, const uint32_t *x, long depth, int count, int vectors,
                  floats out[TILE_ROWS][2]) {
    floats sums[TILE_ROWS][2];
    UNROLL for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = out[r][v];
    for (long word = 0; word < depth / NUMBERS; word++, x += vectors * LANES) {
        __builtin_prefetch(ahead + count * NUMBERS * word, 0, 2); /* the next tile, as quickly as this one is used */
        words x0 = *(const words_at *)x, x1 = *(const words_at *)(x + (vectors - 1) * LANES);
        UNROLL for (int r = 0; r < count; r++) {
            words w = weights_at(b, r, word);
            sums[r][0] = dot(sums[r][0], w, x0);
            if (vectors == 2) sums[r][1] = dot(sums[r][1], w, x1);
        }
    }
    UNROLL for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) out[r][v] = sums[r][v];
}

/* The sums of `count` weight rows with all tokens. A block of the weights stays in the first level of cache while the
   groups of tokens pass by. */
INLINE void lane_sums(const struct linear *a, const uint16_t *weight, int count, int vectors,
                      floats sums[MAX_GROUPS][TILE_ROWS][2]) {
    float memory[PAIRS ? 1 : TILE_ROWS * DEPTH];
    long width = vectors * LANES, groups = (a->tokens + width - 1) / width;
    for (long g = 0; g < groups; g++)
        for (int r = 0; r < count; r++) sums[g][r][0] = sums[g][r][1] = (floats){0};
    long deepest = PAIRS && groups == 1 ? a->inner : DEPTH;
    for (long k = 0; k < a->inner; k += deepest) {
        long depth = a->inner - k < deepest ? a->inner - k : deepest;
        struct block block = block_of(weight + k, a->inner, depth, count, memory);
        for (long g = 0; g < groups; g++) {
            const uint16_t *ahead = weight + count * (g ? k : a->inner + k);
            const uint32_t *x = a->packed + (g * a->inner + k) / NUMBERS * width;
            lanes(&block, ahead, x, depth, count, vectors, sums[g]);
        }
    }
}

/* The outputs [row, row + count) of LANES tokens from `token` on: bias, gate, addend, rounding. Tokens stay in lanes;
   only the words of two outputs change places. */
INLINE void finish_lanes(const struct linear *a, long token, long row, int count, floats sums[TILE_ROWS],
                         const floats gates[TILE_ROWS]) {
    uint32_t pairs[TILE_ROWS / 2][LANES] = {0};
    long tokens = a->tokens - token < LANES ? a->tokens - token : LANES, at = token * a->outputs + row;
    if (a->addend)
        for (long t = 0; t < tokens; t++)
            UNROLL for (int i = 0; i < count; i += 2)
                memcpy(&pairs[i / 2][t], a->addend + at + t * a->outputs + i, count - i == 1 ? 2 : 4);
    UNROLL for (int r = 0; r < count; r++) {
        floats sum = finish_row(a, row + r, sums[r], gates[r]);
        if (a->addend) {
            words both = *(const words_at *)pairs[r / 2];
            sum += (floats)(r % 2 ? both & 0xffff0000u : both << 16);
        }
        sums[r] = sum;
    }
    if (a->epilogue == WIDE) {
        for (long t = 0; t < tokens; t++)
            for (int r = 0; r < count; r++) ((float *)a->y)[at + t * a->outputs + r] = ((const float *)&sums[r])[t];
        return;
    }
    UNROLL for (int i = 0; i < count; i += 2)
        *(words_at *)pairs[i / 2] = bfloat16(sums[i]) | (i + 1 < count ? bfloat16(sums[i + 1]) << 16 : (words){0});
    for (long t = 0; t < tokens; t++)
        UNROLL for (int i = 0; i < count; i += 2)
            memcpy(a->y + at + t * a->outputs + i, &pairs[i / 2][t], count - i == 1 ? 2 : 4);
}

INLINE void lane_rows(const struct linear *a, long row, int count, int vectors) {
    floats sums[MAX_GROUPS][TILE_ROWS][2], gates[MAX_GROUPS][TILE_ROWS][2];
    const uint16_t *weight = a->weight + row * a->inner;
    if (a->epilogue == SILU_MUL) lane_sums(a, weight, count, vectors, gates);
    lane_sums(a, weight + (a->rows - a->outputs) * a->inner, count, vectors, sums);
    for (long first = 0; first < a->tokens; first += LANES) {
        long g = first / LANES / vectors, v = first / LANES % vectors;
        floats one[TILE_ROWS], gate[TILE_ROWS] = {0};
        UNROLL for (int r = 0; r < count; r++) {
            one[r] = sums[g][r][v];
            if (a->epilogue == SILU_MUL) gate[r] = gates[g][r][v];
        }
        finish_lanes(a, first, row, count, one, gate);
    }
}

/* A tile and a single row with one or two registers of tokens, each as a function of its own: inlined into the loops
   that call them, they took gcc three times as long to compile. */
#define LANE_ROWS(NAME, COUNT, VECTORS) \
    static __attribute__((noinline)) void NAME(const struct linear *a, long row) { lane_rows(a, row, COUNT, VECTORS); }
LANE_ROWS(tile_by_1, TILE_ROWS, 1)
LANE_ROWS(tile_by_2, TILE_ROWS, 2)
LANE_ROWS(row_by_1, 1, 1)
LANE_ROWS(row_by_2, 1, 2)

INLINE void lane_tile(const struct linear *a, long row, int vectors) {
    if (row + TILE_ROWS <= a->outputs) vectors == 1 ? tile_by_1(a, row) : tile_by_2(a, row);
    else
        for (; row < a->outputs; row++) vectors == 1 ? row_by_1(a, row) : row_by_2(a, row);
}

#if TILES
#define BLOCK (2 * TILE_SIDE) /* rows or tokens of a square of tiles */
#define SPAN 1536             /* inputs that are multiplied at once with 256 tokens */
#define MAX_SPAN 4096
#define MAX_BLOCKS 4

typedef float square[BLOCK][BLOCK] __attribute__((aligned(64))); /* [rows][tokens] */

/* Squares of all tokens. */
INLINE long squares_of(const struct linear *a) { return (a->tokens + BLOCK - 1) / BLOCK; }

/* Adds the products of the inputs [k, end) to the sums of BLOCK weight rows and the tokens of square `i`; the sums are
   new if k is 0. Meanwhile this square's share of the next rows is fetched. */
INLINE void add_square(const struct linear *a, const uint16_t *weight, long i, long k, long end, square sums) {
    long squares = squares_of(a), lines = (BLOCK + squares - 1) / squares;
    struct factors f = {.a = (const char *)(weight + k), .a_stride = 2 * a->inner, .b_stride = 64,
                        .b = (const char *)(a->packed + i * BLOCK * (a->inner / 2) + k / 2 * TILE_SIDE),
                        .apart = 2 * TILE_SIDE * a->inner, .lines = lines,
                        .ahead = (const char *)(weight + (BLOCK + i * lines) * a->inner + k)};
    if (k) load_square(sums[0], sizeof sums[0]);
    else zero_square();
    if (a->tokens - i * BLOCK > TILE_SIDE) {
        multiply_square(f, end - k, 2);
        store_square(sums[0], sizeof sums[0], 2);
    } else {
        multiply_square(f, end - k, 1);
        store_square(sums[0], sizeof sums[0], 1);
    }
}

/* Inputs that are multiplied at once: those of all tokens stay in a core's own cache, and so do two blocks of weights. */
INLINE long span_of(const struct linear *a) {
    long span = SPAN * 256 / BLOCK / squares_of(a) / TILE_DEPTH * TILE_DEPTH;
    return span < MAX_SPAN ? span : MAX_SPAN;
}

/* Blocks of rows for which inputs are read once. */
INLINE long blocks_at_once(const struct linear *a) { return a->inner > span_of(a) ? MAX_BLOCKS : 1; }

/* The outputs of TILE_SIDE rows from `row` on and of at most as many tokens from `token` on; sums of rows are BLOCK
   apart. */
static void finish_tile(const struct linear *a, long token, long row, const float *sums, const float *gates) {
    floats sum[LANES];
    UNROLL for (int r = 0; r < LANES; r++) {
        floats gate = a->epilogue == SILU_MUL ? (floats) * (const floats_at *)(gates + r * BLOCK) : all(0);
        sum[r] = finish_row(a, row + r, *(const floats_at *)(sums + r * BLOCK), gate);
    }
    transpose(sum);
    long left = a->tokens - token, count = left < TILE_SIDE ? left : TILE_SIDE;
    for (long t = 0; t < count; t++) give(a, token + t, row, TILE_SIDE, sum[t]);
}

/* The outputs of BLOCK rows from `row` on, for all tokens. Called after all products, as tiles take long to give sums. */
INLINE void finish_block(const struct linear *a, long row, square *sums, square *gates) {
    for (long t = 0; t < a->tokens; t += TILE_SIDE)
        for (long r = 0; r < BLOCK; r += TILE_SIDE)
            finish_tile(a, t, row + r, &sums[t / BLOCK][r][t % BLOCK], &gates[t / BLOCK][r][t % BLOCK]);
}

/* The next blocks of rows from `row` on with all tokens. */
static void blocks_of_rows(const struct linear *a, long row) {
    square sums[MAX_BLOCKS][PART_TOKENS / BLOCK], gates[MAX_BLOCKS][PART_TOKENS / BLOCK];
    long step = BLOCK * a->inner, span = span_of(a), blocks = (a->outputs - row) / BLOCK;
    if (blocks > blocks_at_once(a)) blocks = blocks_at_once(a);
    const uint16_t *gate = a->weight + row * a->inner, *weight = gate + (a->rows - a->outputs) * a->inner;
    for (long k = 0; k < a->inner; k += span) {
        long end = k + span < a->inner ? k + span : a->inner;
        for (long b = 0; b < blocks; b++)
            for (long i = 0; i < squares_of(a); i++) {
                if (a->epilogue == SILU_MUL) add_square(a, gate + b * step, i, k, end, gates[b][i]);
                add_square(a, weight + b * step, i, k, end, sums[b][i]);
            }
    }
    for (long b = 0; b < blocks; b++) finish_block(a, row + b * BLOCK, sums[b], gates[b]);
}
#endif

/* Word number `word` of the inputs of all tokens; absent tokens are zeros. */
static void pack(const struct linear *a, long word, long width) {
    for (long first = 0; first < a->tokens; first += width) {
        uint32_t *to = a->packed + first * (a->inner / NUMBERS) + word * width;
        for (long t = 0; t < width; t++) {
            const uint16_t *from = a->x + (first + t) * a->inner + NUMBERS * word;
            to[t] = first + t >= a->tokens ? 0 : PAIRS ? word_of(from) : (uint32_t)*from << 16;
        }
    }
}

/* With how many tokens weights are multiplied at once. */
INLINE long part_tokens(const struct linear *a) { return TILES && a->inner > MANY_INPUTS ? PART_TOKENS / 2 : PART_TOKENS; }

/* Some tokens of all, few enough to stay in a core's own cache while every weight passes by. */
INLINE struct linear part_of(const struct linear *all, long first) {
    struct linear part = *all;
    long most = part_tokens(all);
    part.tokens = all->tokens - first < most ? all->tokens - first : most;
    part.x += first * all->inner;
    part.y += first * all->outputs * (all->epilogue == WIDE ? 2 : 1);
    if (part.addend) part.addend += first * all->outputs;
    return part;
}

#if TILES
/* TILE_SIDE tokens from `token` on and TILE_DEPTH inputs from `k` on, as B wants them; absent tokens are zeros. */
static void pack_tile(const struct linear *a, long token, long k) {
    floats words[TILE_SIDE];
    UNROLL for (long t = 0; t < TILE_SIDE; t++)
        words[t] = token + t < a->tokens ? (floats) * (const floats_at *)(a->x + (token + t) * a->inner + k) : all(0);
    transpose(words);
    floats_at *to = (floats_at *)(a->packed + token * (a->inner / 2) + k / 2 * TILE_SIDE);
    UNROLL for (int i = 0; i < TILE_SIDE; i++) to[i] = words[i];
}

/* Tokens in tiles, some of them at a time; rows that fill no block are multiplied in lanes. */
static void by_tiles(const struct linear *all, int threads) {
#pragma omp parallel num_threads(threads)
    {
        open_tiles();
        for (long first = 0; first < all->tokens; first += part_tokens(all)) {
            struct linear a = part_of(all, first);
            long groups = (a.tokens + TILE_SIDE - 1) / TILE_SIDE, steps = a.inner / TILE_DEPTH;
            long whole = a.outputs / BLOCK * BLOCK, rows = BLOCK * blocks_at_once(&a);
#pragma omp for schedule(static)
            for (long i = 0; i < groups * steps; i++) pack_tile(&a, i / steps * TILE_SIDE, i % steps * TILE_DEPTH);
#pragma omp for schedule(dynamic, chunk(whole / rows, threads))
            for (long row = 0; row < whole; row += rows) blocks_of_rows(&a, row);
#pragma omp for schedule(static)
            for (long row = whole; row < a.outputs; row++) row_by_1(&a, row);
        }
        close_tiles();
    }
}
#endif

/* Tokens in lanes, some of them at a time. */
static void many(const struct linear *all, int threads) {
#pragma omp parallel num_threads(threads)
    for (long first = 0; first < all->tokens; first += part_tokens(all)) {
        struct linear a = part_of(all, first);
        long width = a.tokens <= LANES ? LANES : MAX_WIDTH;
#pragma omp for schedule(static)
        for (long word = 0; word < a.inner / NUMBERS; word++) pack(&a, word, width);
#pragma omp for schedule(dynamic, chunk(a.outputs / TILE_ROWS, threads))
        for (long row = 0; row < a.outputs; row += TILE_ROWS)
            if (width == LANES) lane_tile(&a, row, 1);
            else lane_tile(&a, row, 2);
    }
}

/* Few tokens, each weight row along itself. */
static void few(const struct linear *a, int threads) {
    long tiles = (a->outputs + DOT_ROWS - 1) / DOT_ROWS;
    struct share shares[threads];
    memset(shares, 0, sizeof shares);
#pragma omp parallel num_threads(threads)
    {
        struct piece_of_loop piece = {0};
        if (widened(a->tokens)) {
#pragma omp for schedule(static)
            for (long t = 0; t < a->tokens; t++) widen_token(a, t);
        }
        while (next_piece(shares, tiles, omp_get_thread_num(), threads, &piece))
            for (long i = piece.first; i < piece.end; i++) dot_tile_of(a, i * DOT_ROWS);
    }
}

/* `packed` has room for round_up(min(tokens, 512), 32) * inner words; it is not used for one token. */
void linear(const uint16_t *x, const uint16_t *weight, const uint16_t *bias, const uint16_t *addend, uint16_t *y,
            uint32_t *packed, long tokens, long inner, long rows, int epilogue, int threads) {
    long outputs = rows / (epilogue == SILU_MUL ? 2 : 1);
    struct linear all = {x, weight, bias, addend, y, packed, tokens, inner, rows, outputs, epilogue};
#if TILES
    if (tokens > FEW && inner % TILE_DEPTH == 0) {
        by_tiles(&all, threads);
        return;
    }
#endif
    if (tokens > DOT_TOKENS) many(&all, threads);
    else few(&all, threads);
}
