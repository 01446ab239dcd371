/* y = x W^T: bfloat16 in and out, sums in float32, the weights [rows, inner] as checkpoints have them.

   Up to four tokens: each weight row is multiplied along itself ("dots"), which takes no longer than to read the
   weights. More: tokens lie in the lanes, 16 or 32 at once, and a pair of weights is broadcast to all of them
   ("lanes"), so that sums need no adding up across lanes and a tile of them fills the registers. */
#include "vector.h"

enum epilogue { PLAIN = 0, SILU_MUL = 1 };

struct linear {
    const uint16_t *x, *weight, *bias, *addend;
    uint16_t *y;
    uint32_t *packed; /* [groups][inner / 2][width]: for each pair of inputs the tokens of a group */
    long tokens, inner, rows, outputs;
    enum epilogue epilogue;
};

#define DOT_ROWS LANES
#define DOT_TOKENS 8
#define DOT_SUMS 4
#define TILE_ROWS 12
#define MAX_WIDTH 32

INLINE uint32_t pair(const uint16_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE floats some(const uint16_t *from, long index, int count) {
    uint16_t values[LANES] = {0};
    memcpy(values, from + index, 2 * count);
    return load(values, 0, BFLOAT16);
}

/* From the sums of `count` outputs to y. `gate` is what SILU_MUL multiplies with. */
INLINE void finish(const struct linear *a, long token, long row, int count, floats sum, floats gate) {
    if (a->bias && a->epilogue == SILU_MUL) gate += some(a->bias, row, count);
    if (a->bias) sum += some(a->bias, row + (a->epilogue == SILU_MUL ? a->outputs : 0), count);
    if (a->epilogue == SILU_MUL) sum *= silu(gate);
    if (a->addend) sum += some(a->addend, token * a->outputs + row, count);
    uint16_t values[LANES];
    store(values, 0, sum, BFLOAT16);
    memcpy(a->y + token * a->outputs + row, values, 2 * count);
}

/* `steps` times 32 products of one weight row with each token, each step into sums of its own. */
INLINE void dot_steps(const struct linear *a, const uint16_t *weight, long k, int steps, int tokens,
                      floats sums[DOT_TOKENS][DOT_SUMS]) {
    for (int i = 0; i < steps; i++, k += 2 * LANES) {
        words w = *(const words_at *)(weight + k);
        UNROLL for (int t = 0; t < tokens; t++)
            sums[t][i] = dot_pairs(sums[t][i], w, *(const words_at *)(a->x + t * a->inner + k));
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

/* The sums of `count` weight rows with one group of tokens, `vectors` * LANES of them. */
INLINE void lanes(const struct linear *a, const uint16_t *weight, const uint32_t *x, int count, int vectors,
                  floats out[2][LANES]) {
    floats sums[TILE_ROWS][2];
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = (floats){0};
    for (long k = 0; k < a->inner; k += 2, x += vectors * LANES) {
        __builtin_prefetch(weight + count * (a->inner + k)); /* the next tile, as quickly as this one is used */
        words x0 = *(const words_at *)x, x1 = *(const words_at *)(x + (vectors - 1) * LANES);
        UNROLL for (int r = 0; r < count; r++) {
            words w = (words){0} + pair(weight + r * a->inner + k);
            sums[r][0] = dot_pairs(sums[r][0], w, x0);
            if (vectors == 2) sums[r][1] = dot_pairs(sums[r][1], w, x1);
        }
    }
    for (int r = 0; r < count; r++)
        for (int v = 0; v < vectors; v++) out[v][r] = sums[r][v];
}

INLINE void lane_rows(const struct linear *a, long row, int count, int vectors) {
    floats sums[2][LANES] = {0}, gates[2][LANES] = {0};
    const uint16_t *weight = a->weight + row * a->inner;
    long width = vectors * LANES;
    for (long first = 0; first < a->tokens; first += width) {
        const uint32_t *x = a->packed + first * (a->inner / 2);
        if (a->epilogue == SILU_MUL) {
            lanes(a, weight, x, count, vectors, gates);
            lanes(a, weight + a->outputs * a->inner, x, count, vectors, sums);
        } else lanes(a, weight, x, count, vectors, sums);
        for (int v = 0; v < vectors; v++) {
            transpose(sums[v]);
            if (a->epilogue == SILU_MUL) transpose(gates[v]);
            for (int t = 0; t < LANES && first + v * LANES + t < a->tokens; t++)
                finish(a, first + v * LANES + t, row, count, sums[v][t], gates[v][t]);
        }
    }
}

INLINE void lane_tile(const struct linear *a, long row, int vectors) {
    if (row + TILE_ROWS <= a->outputs) lane_rows(a, row, TILE_ROWS, vectors);
    else
        for (; row < a->outputs; row++) lane_rows(a, row, 1, vectors);
}

static void pack(const struct linear *a, long k, long width) {
    for (long first = 0; first < a->tokens; first += width) {
        uint32_t *to = a->packed + (first * (a->inner / 2) + k * width);
        for (long t = 0; t < width; t++)
            to[t] = first + t < a->tokens ? pair(a->x + (first + t) * a->inner + 2 * k) : 0;
    }
}

/* `packed` has room for round_up(tokens, 32) * inner / 2 words; it is not used for up to 4 tokens. */
void linear(const uint16_t *x, const uint16_t *weight, const uint16_t *bias, const uint16_t *addend, uint16_t *y,
            uint32_t *packed, long tokens, long inner, long rows, int epilogue, int threads) {
    struct linear a = {x, weight, bias, addend, y, packed, tokens, inner, rows, rows / (epilogue == SILU_MUL ? 2 : 1),
                       epilogue};
    if (tokens <= DOT_TOKENS) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (long row = 0; row < a.outputs; row += DOT_ROWS) dot_tile_of(&a, row);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        long width = tokens <= LANES ? LANES : MAX_WIDTH;
#pragma omp for schedule(static)
        for (long k = 0; k < inner / 2; k++) pack(&a, k, width);
#pragma omp for schedule(static)
        for (long row = 0; row < a.outputs; row += TILE_ROWS)
            if (width == LANES) lane_tile(&a, row, 1);
            else lane_tile(&a, row, 2);
    }
}
