/* Causal attention of chunks of prompts over the paged cache: flash attention (arXiv 2205.14135).

   A tile is ROWS rows, each a (query, head) of those that share a KV head, and each in a lane of its own, so that a
   row's largest score and its sum need no look across lanes. Keys and values are copied out of their blocks, KEYS at a
   time; a word of them (two bfloat16 or a float) is broadcast to all rows. */
#include "kernels.h"
#include "vector.h"

#define ROWS (2 * LANES)
#define KEYS 64
#define TILE (REGISTERS / 4) /* keys or dimensions whose sums are in registers at once */
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

/* Numbers in a word. */
INLINE int numbers(enum dtype dtype) { return dtype == FLOAT32 ? 1 : 2; }

INLINE floats dot(floats sum, words a, words b, enum dtype dtype) {
    return dtype == FLOAT32 ? sum + (floats)a * (floats)b : dot_pairs(sum, a, b);
}

/* Two vectors of rows times the words of TILE columns, `count` words deep: sums[r] += x[i] * y[r * across + i * along]. */
INLINE void multiply(floats sums[TILE][2], const uint32_t (*x)[ROWS], const uint32_t *y, long count, long across, long along,
                     enum dtype dtype) {
    for (long i = 0; i < count; i++) {
        words low = *(const words_at *)x[i], high = *(const words_at *)(x[i] + LANES);
        UNROLL for (int r = 0; r < TILE; r++) {
            words w = (words){0} + y[r * across + i * along];
            sums[r][0] = dot(sums[r][0], w, low, dtype);
            sums[r][1] = dot(sums[r][1], w, high, dtype);
        }
    }
}

INLINE void take_queries(const struct chunks *a, const struct chunk *c, long first, long kv, struct scratch *s,
                         enum dtype dtype) {
    long group = a->heads / a->kv_heads, size = a->head_dim * bytes_of(dtype);
    for (int r = 0; r < ROWS; r++) {
        long row = first + r < c->count * group ? first + r : first;
        const char *from = a->query + (c->query + row / group) * a->query_stride * bytes_of(dtype)
                           + (kv * group + row % group) * size;
        for (long i = 0; i < size / 4; i++) memcpy(&s->query[i][r], from + 4 * i, 4);
    }
}

INLINE long whole_tiles(long keys) { return (keys + TILE - 1) / TILE * TILE; }

/* The keys and values [first, first + count) of a sequence; what else is in their last word is zero. */
INLINE void take_keys(const struct chunks *a, long row, long kv, long first, long count, struct scratch *s,
                      enum dtype dtype) {
    long size = a->head_dim * bytes_of(dtype);
    for (long j = 0; j < whole_tiles(count); j++) {
        if (j >= count) {
            memset(s->keys[j], 0, size);
            if (dtype == FLOAT32 || j % 2 == 0) memset(s->values[j / numbers(dtype)], 0, 4 * a->head_dim);
            continue;
        }
        long token = a->table[row * a->table_width + (first + j) / a->block] * a->block + (first + j) % a->block;
        long from = (token * a->kv_heads + kv) * size;
        memcpy(s->keys[j], a->keys + from, size);
        for (long d = 0; d < a->head_dim; d += LANES) {
            if (dtype == FLOAT32) {
                memcpy(s->values[j] + d, a->values + from + 4 * d, BYTES);
                continue;
            }
            words value = widen(*(const halves_at *)(a->values + from + 2 * d));
            words_at *to = (words_at *)(s->values[j / 2] + d);
            if (j % 2) *to |= value << 16;
            else *to = value;
        }
    }
}

/* Scores of the keys from `first` on; those that a row may not see are -infinity. */
INLINE void score(const struct chunks *a, struct scratch *s, const ints position[2], long first, long count, int masked,
                  enum dtype dtype) {
    for (long j = 0; j < count; j += TILE) {
        floats sums[TILE][2] = {0};
        multiply(sums, s->query, s->keys[j], a->head_dim / numbers(dtype), MAX_DIM, 1, dtype);
        for (int r = 0; r < TILE; r++)
            for (int v = 0; v < 2; v++) {
                ints behind = position[v] - (int)(first + j + r);
                floats one = sums[r][v] * a->scale;
                if (masked) one = choose((behind >= 0) & (behind < (int)a->window), one, all(-__builtin_inff()));
                *(floats_at *)&s->scores[j + r][v * LANES] = one;
            }
    }
}

/* Scores to weights, in words; the rows' largest score and the sum of weights are kept. What sums must be multiplied with. */
INLINE floats weigh(struct scratch *s, long count, int v, floats *best, floats *weight, enum dtype dtype) {
    floats top = *best, sum = {0};
    for (long j = 0; j < count; j++) {
        floats one = *(floats_at *)&s->scores[j][v * LANES];
        top = choose(one > top, one, top);
    }
    floats from = choose(top == -__builtin_inff(), all(0), top); /* a row that has seen no key yet */
    for (long j = 0; j < count; j += 2) {
        floats even = exponential(*(floats_at *)&s->scores[j][v * LANES] - from);
        floats odd = exponential(*(floats_at *)&s->scores[j + 1][v * LANES] - from);
        sum += even + odd;
        if (dtype == FLOAT32) {
            *(floats_at *)&s->scores[j][v * LANES] = even;
            *(floats_at *)&s->scores[j + 1][v * LANES] = odd;
        } else *(words_at *)&s->scores[j / 2][v * LANES] = rounded(even) >> 16 | (rounded(odd) & 0xffff0000u);
    }
    floats before = exponential(*best - from);
    *best = top;
    *weight = *weight * before + sum;
    return before;
}

INLINE void add_values(const struct chunks *a, struct scratch *s, long count, const floats before[2], enum dtype dtype) {
    for (long d = 0; d < a->head_dim; d += TILE) {
        floats sums[TILE][2];
        UNROLL for (int r = 0; r < TILE; r++)
            for (int v = 0; v < 2; v++) sums[r][v] = *(floats_at *)&s->sums[d + r][v * LANES] * before[v];
        multiply(sums, (const uint32_t (*)[ROWS])s->scores, &s->values[0][d], count / numbers(dtype), 1, MAX_DIM, dtype);
        UNROLL for (int r = 0; r < TILE; r++)
            for (int v = 0; v < 2; v++) *(floats_at *)&s->sums[d + r][v * LANES] = sums[r][v];
    }
}

INLINE void give_rows(const struct chunks *a, const struct chunk *c, long first, long kv, struct scratch *s,
                      const floats weight[2], enum dtype dtype) {
    long group = a->heads / a->kv_heads;
    for (int v = 0; v < 2; v++)
        for (long d = 0; d < a->head_dim; d += LANES) {
            floats rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = *(floats_at *)&s->sums[d + i][v * LANES] / weight[v];
            transpose(rows);
            for (long i = 0, row = first + v * LANES; i < LANES && row < c->count * group; i++, row++)
                store(a->output, ((c->query + row / group) * a->heads + kv * group + row % group) * a->head_dim + d,
                      rows[i], dtype);
        }
}

/* The tile whose first row is `first`, counted from the first (query, head) of its chunk. */
INLINE void tile_of(const struct chunks *a, const struct chunk *c, long first, long kv, enum dtype dtype) {
    struct scratch s;
    long group = a->heads / a->kv_heads, rows = c->count * group;
    long lowest = c->position + first / group;
    long highest = c->position + ((first + ROWS < rows ? first + ROWS : rows) - 1) / group;
    ints position[2];
    for (int i = 0; i < ROWS; i++) position[i / LANES][i % LANES] = c->position + (first + i) / group;
    floats best[2] = {all(-__builtin_inff()), all(-__builtin_inff())}, weight[2] = {{0}, {0}};
    memset(s.sums, 0, a->head_dim * sizeof s.sums[0]);
    take_queries(a, c, first, kv, &s, dtype);
    long key = lowest >= a->window ? lowest - a->window + 1 : 0;
    for (; key <= highest; key += KEYS) {
        long count = highest + 1 - key < KEYS ? highest + 1 - key : KEYS;
        take_keys(a, c->row, kv, key, count, &s, dtype);
        count = whole_tiles(count);
        score(a, &s, position, key, count, key + count - 1 > lowest || highest - key >= a->window, dtype);
        floats before[2];
        for (int v = 0; v < 2; v++) before[v] = weigh(&s, count, v, &best[v], &weight[v], dtype);
        add_values(a, &s, count, before, dtype);
    }
    give_rows(a, c, first, kv, &s, weight, dtype);
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
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long index = 0; index < tiles * kv_heads; index++) {
        const struct chunk *c = all_chunks;
        long tile = index / kv_heads;
        for (; tile >= tiles_of(&a, c); c++) tile -= tiles_of(&a, c);
        if (dtype == FLOAT32) tile_of(&a, c, tile * ROWS, index % kv_heads, FLOAT32);
        else tile_of(&a, c, tile * ROWS, index % kv_heads, BFLOAT16);
    }
}
