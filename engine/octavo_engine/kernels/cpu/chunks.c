/* Causal attention of chunks of prompts over the paged cache: flash attention (arXiv 2205.14135).

   A tile is ROWS rows, each a (query, head) of those that share a KV head, and each in a lane of its own, so that a
   row's largest score and its sum need no look across lanes. Keys and values are copied out of their blocks, KEYS at a
   time; a word of them (two bfloat16 or a float) is broadcast to all rows. Without an instruction for pairs of bfloat16 they
   are converted to float32 in these copies. */
#include "kernels.h"
#include "tiles.h"
#include "vector.h"

#define TILE (REGISTERS / 4) /* keys or dimensions whose sums are in registers at once */
#if TILES
#define UNIT TILE_DEPTH
#define KEYS 128
#define ROWS 128 /* for which keys and values are copied once */
#else
#define UNIT TILE /* keys that are multiplied at least */
#define KEYS 64
#define ROWS 32
#endif
#define VECTORS (ROWS / LANES)
#define RUN 16 /* keys that are next to one another in a block */
#define MAX_DIM 128

struct chunk {
    int32_t query, row, position, count; /* its first query, its row of the block table, that query's position, queries */
};

struct chunks {
    const char *query, *keys, *values;
    char *output;
    const int32_t *table;
    long query_stride, table_width, block, heads, kv_heads, head_dim, window;
    float scale;
};

struct scratch {
    uint32_t query[MAX_DIM][ROWS];       /* [words of a head][ROWS] */
    uint32_t keys[KEYS][MAX_DIM];        /* [KEYS][words of a head] */
    uint32_t values[KEYS][MAX_DIM];      /* [words of KEYS][head_dim] */
    float scores[KEYS][ROWS];            /* then, as words of KEYS, their weights */
    float sums[MAX_DIM][ROWS];
} __attribute__((aligned(64)));

INLINE floats dot(floats sum, words a, words b, enum dtype dtype) {
    return dtype == FLOAT32 ? sum + (floats)a * (floats)b : dot_pairs(sum, a, b);
}

/* Two vectors of rows times the words of TILE columns, `count` words deep: sums[r] += x[i] * y[r * across + i * along]. */
INLINE void multiply(floats sums[TILE][2], const uint32_t *x, const uint32_t *y, long count, long across, long along,
                     enum dtype dtype) {
    for (long i = 0; i < count; i++) {
        words low = *(const words_at *)(x + i * ROWS), high = *(const words_at *)(x + i * ROWS + LANES);
        UNROLL for (int r = 0; r < TILE; r++) {
            words w = (words){0} + y[r * across + i * along];
            sums[r][0] = dot(sums[r][0], w, low, dtype);
            sums[r][1] = dot(sums[r][1], w, high, dtype);
        }
    }
}

/* `vectors` vectors of rows from `first` on; a row that is not there is the first one again. */
INLINE void take_queries(const struct chunks *a, const struct chunk *c, long first, long kv, int vectors,
                         struct scratch *s, enum dtype dtype) {
    long group = a->heads / a->kv_heads, size = a->head_dim * bytes_of(dtype);
    long count = a->head_dim / numbers(multiplied(dtype));
    for (int v = 0; v < vectors; v++) {
        const char *from[LANES];
        for (int i = 0; i < LANES; i++) {
            long row = first + v * LANES + i < c->count * group ? first + v * LANES + i : first;
            const char *token = a->query + (c->query + row / group) * a->query_stride * bytes_of(dtype);
            from[i] = token + (kv * group + row % group) * size;
        }
        for (long word = 0; word < count; word += LANES) {
            floats rows[LANES]; /* or pairs of bfloat16 */
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = load(from[i], word, PAIRS ? FLOAT32 : dtype);
            transpose(rows);
            UNROLL for (int i = 0; i < LANES; i++) *(floats_at *)&s->query[word + i][v * LANES] = rows[i];
        }
    }
}

INLINE long whole_tiles(long keys) { return (keys + UNIT - 1) / UNIT * UNIT; }

/* One key and value into place `j`; where there is none, zeros. */
INLINE void take_key(const char *key, const char *value, long j, long head_dim, struct scratch *s, enum dtype dtype) {
    for (long d = 0; d < head_dim; d += LANES)
        if (multiplied(dtype) == FLOAT32) {
            *(floats_at *)(s->keys[j] + d) = key ? load(key, d, dtype) : all(0);
            *(floats_at *)(s->values[j] + d) = value ? load(value, d, dtype) : all(0);
        } else {
            halves none = {0}, one = key ? (halves) * (const halves_at *)(key + 2 * d) : none;
            *(halves_at *)((uint16_t *)s->keys[j] + d) = one;
            words wide = widen(value ? (halves) * (const halves_at *)(value + 2 * d) : none);
            words_at *to = (words_at *)(s->values[j / 2] + d);
            *to = j % 2 ? (words)*to | wide << 16 : wide;
        }
}

/* The keys and values [first, first + count) of a sequence, and zeros behind them. `first` is a multiple of RUN. */
INLINE void take_keys(const struct chunks *a, long row, long kv, long first, long count, struct scratch *s,
                      enum dtype dtype) {
    long size = a->head_dim * bytes_of(dtype), step = a->kv_heads * size;
    for (long run = 0; run < count; run += RUN) {
        long token = a->table[row * a->table_width + (first + run) / a->block] * a->block + (first + run) % a->block;
        const char *key = a->keys + token * step + kv * size, *value = a->values + token * step + kv * size;
        long end = run + RUN < count ? run + RUN : count;
        for (long j = run; j < end; j++, key += step, value += step) take_key(key, value, j, a->head_dim, s, dtype);
    }
    for (long j = count; j < whole_tiles(count); j++) take_key(0, 0, j, a->head_dim, s, dtype);
}

/* The scores of one key with a vector of rows, -infinity for those that may not see it. */
INLINE floats seen(const struct chunks *a, floats score, ints position, long key) {
    ints behind = position - (int)key;
    return choose((behind >= 0) & (behind < (int)a->window), score, all(-__builtin_inff()));
}

/* Scores of the keys from `first` on with `vectors` vectors of rows; not multiplied with the scale yet. */
INLINE void score(const struct chunks *a, struct scratch *s, const ints position[VECTORS], long first, long count,
                  int vectors, int masked, enum dtype dtype) {
    for (long j = 0; j < count; j += TILE)
        for (int v = 0; v < vectors; v += 2) {
            floats sums[TILE][2] = {0};
            multiply(sums, s->query[0] + v * LANES, s->keys[j], a->head_dim / numbers(dtype), MAX_DIM, 1, dtype);
            for (int r = 0; r < TILE; r++)
                for (int i = 0; i < 2; i++) {
                    floats one = masked ? seen(a, sums[r][i], position[v + i], first + j + r) : sums[r][i];
                    *(floats_at *)&s->scores[j + r][(v + i) * LANES] = one;
                }
        }
}

/* Scores times `scale`, which is positive, to weights, in words; keeps the rows' largest score and the sum of weights.
   Returns the factor of the earlier sums. */
INLINE floats weigh(struct scratch *s, long count, int v, float scale, floats *best, floats *weight, enum dtype dtype) {
    floats tops[4] = {*best, *best, *best, *best}, sum = {0}; /* several, as each waits for the one before */
    for (long j = 0; j < count; j += 4)
        UNROLL for (int i = 0; i < 4; i++) tops[i] = larger(*(floats_at *)&s->scores[j + i][v * LANES] * scale, tops[i]);
    floats top = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
    floats from = choose(top == -__builtin_inff(), all(0), top); /* a row that has seen no key yet */
    for (long j = 0; j < count; j += 2) {
        floats even = exponential(*(floats_at *)&s->scores[j][v * LANES] * scale - from);
        floats odd = exponential(*(floats_at *)&s->scores[j + 1][v * LANES] * scale - from);
        sum += even + odd;
        if (dtype == FLOAT32) {
            *(floats_at *)&s->scores[j][v * LANES] = even;
            *(floats_at *)&s->scores[j + 1][v * LANES] = odd;
        } else *(words_at *)&s->scores[j / 2][v * LANES] = in_pairs(even, odd);
    }
    floats before = exponential(*best - from);
    *best = top;
    *weight = *weight * before + sum;
    return before;
}

INLINE void add_values(const struct chunks *a, struct scratch *s, long count, const floats before[VECTORS], int vectors,
                       enum dtype dtype) {
    for (long d = 0; d < a->head_dim; d += TILE)
        for (int v = 0; v < vectors; v += 2) {
            floats sums[TILE][2];
            UNROLL for (int r = 0; r < TILE; r++)
                for (int i = 0; i < 2; i++) sums[r][i] = *(floats_at *)&s->sums[d + r][(v + i) * LANES] * before[v + i];
            const uint32_t *weights = (const uint32_t *)s->scores[0] + v * LANES;
            multiply(sums, weights, &s->values[0][d], count / numbers(dtype), 1, MAX_DIM, dtype);
            UNROLL for (int r = 0; r < TILE; r++)
                for (int i = 0; i < 2; i++) *(floats_at *)&s->sums[d + r][(v + i) * LANES] = sums[r][i];
        }
}

#if TILES
/* As `score`, for bfloat16. */
INLINE void score_by_tiles(const struct chunks *a, struct scratch *s, const ints position[VECTORS], long first, long count,
                           int vectors, int masked) {
    struct factors f = {.a_stride = sizeof s->keys[0], .b_stride = sizeof s->query[0], .apart = 64};
    for (long j = 0; j < count; j += 2 * TILE_SIDE)
        for (long r = 0; r < vectors * LANES; r += 2 * TILE_SIDE) {
            f.a = (const char *)s->keys[j];
            f.b = (const char *)(s->query[0] + r);
            zero_square();
            multiply_square(f, a->head_dim, 2);
            store_square(s->scores[j] + r, sizeof s->scores[0], 2);
        }
    for (long j = 0; masked && j < count; j++)
        for (int v = 0; v < vectors; v++) {
            floats_at *score = (floats_at *)&s->scores[j][v * LANES];
            *score = seen(a, *score, position[v], first + j);
        }
}

/* Values of bfloat16 as tiles read them: [head_dim][words of KEYS]. */
static void turn_values(const struct chunks *a, const struct scratch *s, long count, uint32_t turned[MAX_DIM][KEYS / 2]) {
    for (long j = 0; j < count / 2; j += LANES)
        for (long d = 0; d < a->head_dim; d += LANES) {
            floats block[LANES];
            UNROLL for (int i = 0; i < LANES; i++) block[i] = *(const floats_at *)(s->values[j + i] + d);
            transpose(block);
            UNROLL for (int i = 0; i < LANES; i++) *(floats_at *)(turned[d + i] + j) = block[i];
        }
}

/* As `add_values`, for bfloat16. */
INLINE void add_values_by_tiles(const struct chunks *a, struct scratch *s, long count, const floats before[VECTORS],
                                int vectors) {
    uint32_t turned[MAX_DIM][KEYS / 2] __attribute__((aligned(64)));
    turn_values(a, s, count, turned);
    for (int v = 0; v < vectors; v++) {
        if (!largest(choose(before[v] != 1.0f, all(1), all(0)))) continue; /* no row has seen a larger score */
        for (long d = 0; d < a->head_dim; d++) *(floats_at *)&s->sums[d][v * LANES] *= before[v];
    }
    struct factors f = {.a_stride = sizeof turned[0], .b_stride = sizeof s->scores[0], .apart = 64};
    for (long d = 0; d < a->head_dim; d += 2 * TILE_SIDE)
        for (long r = 0; r < vectors * LANES; r += 2 * TILE_SIDE) {
            f.a = (const char *)turned[d];
            f.b = (const char *)(s->scores[0] + r);
            load_square(s->sums[d] + r, sizeof s->sums[0]);
            multiply_square(f, count, 2);
            store_square(s->sums[d] + r, sizeof s->sums[0], 2);
        }
}
#else
INLINE void score_by_tiles(const struct chunks *a, struct scratch *s, const ints position[VECTORS], long first, long count,
                           int vectors, int masked) {}
INLINE void add_values_by_tiles(const struct chunks *a, struct scratch *s, long count, const floats before[VECTORS],
                                int vectors) {}
#endif

/* Of each row the largest score so far, and the sum of weights. */
struct running {
    floats best[VECTORS], weight[VECTORS];
};

INLINE void give_rows(const struct chunks *a, const struct chunk *c, long first, long kv, struct scratch *s,
                      const floats weight[VECTORS], int vectors, enum dtype dtype) {
    long group = a->heads / a->kv_heads;
    for (int v = 0; v < vectors; v++)
        for (long d = 0; d < a->head_dim; d += LANES) {
            floats rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = *(floats_at *)&s->sums[d + i][v * LANES] / weight[v];
            transpose(rows);
            for (long i = 0, row = first + v * LANES; i < LANES && row < c->count * group; i++, row++)
                store(a->output, ((c->query + row / group) * a->heads + kv * group + row % group) * a->head_dim + d,
                      rows[i], dtype);
        }
}

/* What the rows of a tile see of the keys from `first` on, added to their sums. */
INLINE void add_keys(const struct chunks *a, struct scratch *s, const ints position[VECTORS], long first, long count,
                     int vectors, int masked, struct running *now, enum dtype dtype) {
    floats before[VECTORS];
    int by_tiles = TILES && dtype == BFLOAT16;
    if (by_tiles) score_by_tiles(a, s, position, first, count, vectors, masked);
    else score(a, s, position, first, count, vectors, masked, dtype);
    for (int v = 0; v < vectors; v++) before[v] = weigh(s, count, v, a->scale, &now->best[v], &now->weight[v], dtype);
    if (by_tiles) add_values_by_tiles(a, s, count, before, vectors);
    else add_values(a, s, count, before, vectors, dtype);
}

/* The tile whose first row is `first`, counted from the first (query, head) of its chunk. */
INLINE void tile_of(const struct chunks *a, const struct chunk *c, long first, long kv, enum dtype dtype) {
    struct scratch s;
    long group = a->heads / a->kv_heads, rows = c->count * group - first < ROWS ? c->count * group - first : ROWS;
    int vectors = (rows + 2 * LANES - 1) / (2 * LANES) * 2; /* in pairs */
    long lowest = c->position + first / group, highest = c->position + (first + rows - 1) / group;
    ints position[VECTORS];
    for (int i = 0; i < ROWS; i++) position[i / LANES][i % LANES] = c->position + (first + i) / group;
    struct running now;
    for (int v = 0; v < VECTORS; v++) now.best[v] = all(-__builtin_inff()), now.weight[v] = all(0);
    memset(s.sums, 0, a->head_dim * sizeof s.sums[0]);
    take_queries(a, c, first, kv, vectors, &s, dtype);
    long key = lowest >= a->window ? (lowest - a->window + 1) / RUN * RUN : 0;
    for (; key <= highest; key += KEYS) {
        long count = highest + 1 - key < KEYS ? highest + 1 - key : KEYS;
        take_keys(a, c->row, kv, key, count, &s, dtype);
        count = whole_tiles(count);
        add_keys(a, &s, position, key, count, vectors, key + count - 1 > lowest || highest - key >= a->window, &now,
                 multiplied(dtype));
    }
    give_rows(a, c, first, kv, &s, now.weight, vectors, dtype);
}

INLINE long tiles_of(const struct chunks *a, const struct chunk *c) {
    return (c->count * (a->heads / a->kv_heads) + ROWS - 1) / ROWS;
}

/* The output of all queries of the chunks; `window`: how many keys a query sees, its own among them. */
void attend_chunks(const void *query, const void *keys, const void *values, void *output, const int32_t *table,
                   const int32_t *chunks, long count, long query_stride, long table_width, long block, long heads,
                   long kv_heads, long head_dim, long window, float scale, int dtype, int threads) {
    struct chunks a = {query, keys, values, output, table, query_stride, table_width, block, heads, kv_heads, head_dim,
                       window, scale};
    const struct chunk *all_chunks = (const struct chunk *)chunks;
    long tiles = 0;
    for (long i = 0; i < count; i++) tiles += tiles_of(&a, all_chunks + i);
#pragma omp parallel num_threads(threads)
    {
        open_tiles();
#pragma omp for schedule(dynamic)
        for (long index = 0; index < tiles * kv_heads; index++) {
            const struct chunk *c = all_chunks;
            long tile = index / kv_heads;
            for (; tile >= tiles_of(&a, c); c++) tile -= tiles_of(&a, c);
            if (dtype == FLOAT32) tile_of(&a, c, tile * ROWS, index % kv_heads, FLOAT32);
            else tile_of(&a, c, tile * ROWS, index % kv_heads, BFLOAT16);
        }
        close_tiles();
    }
}
