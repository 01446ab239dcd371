/* Attention over the paged cache, keys and values read where they lie.

   Each query has its own context, cut into parts that are computed independently with a running softmax and then joined
   (arXiv 2205.14135; flash decoding). How a context is cut depends on nothing but its length. Caches are
   [num_blocks, block, kv_heads, head_dim]; block is a multiple of LANES, head_dim 32, 64, 96 or 128. */
#include "vector.h"

#define MAX_HEADS 3 /* that are computed together because they share keys and values */
#define MAX_VECTORS 8

struct part {
    int32_t query, row, start, end; /* of the context of query `query`, whose blocks are in `row` of the table */
};

struct attention {
    const void *query, *keys, *values;
    void *output;
    const int32_t *table;
    const struct part *parts;
    float *partial; /* [parts][heads][head_dim + 2]: weighted values, their largest score, their weight */
    long count, query_stride, table_width, block, heads, kv_heads, head_dim;
    float scale;
    enum dtype dtype;
};

INLINE long bytes_of(enum dtype dtype) { return dtype == FLOAT32 ? 4 : 2; }

/* Scores of one query head and LANES tokens; `step` is the distance of tokens in the cache. */
INLINE floats scores_of(const char *query, const char *keys, long step, int vectors, enum dtype dtype) {
    floats sums[LANES];
    UNROLL for (int j = 0; j < LANES; j++) {
        const char *key = keys + j * step;
        sums[j] = (floats){0};
        if (dtype == FLOAT32)
            for (int v = 0; v < vectors; v++)
                sums[j] += load(query, v * LANES, FLOAT32) * load(key, v * LANES, FLOAT32);
        else
            for (int v = 0; v < vectors / 2; v++)
                sums[j] = dot_pairs(sums[j], *(const words_at *)(query + v * 64), *(const words_at *)(key + v * 64));
    }
    return totals(sums);
}

/* One tile of LANES tokens, of which those in [low, high) count, for `heads` query heads that share a KV head.

   Meanwhile the tile `ahead` bytes further is fetched, a little with each token: blocks lie anywhere, so that the
   processor cannot guess which is next, and all at once would hold up the loads of this one. To the second level of
   cache: misses of the first are few at a time, and this saves 3 ms of 10 in a step of 32 sequences. */
INLINE void tile(const struct attention *a, const char *query, const char *keys, const char *values, long ahead, long low,
                 long high, int heads, int vectors, enum dtype dtype, float *state) {
    long step = a->kv_heads * a->head_dim * bytes_of(dtype), row = a->head_dim + 2;
    ints inside = (LANE_NUMBERS >= (int)low) & (LANE_NUMBERS < (int)high);
    float weights[MAX_HEADS][LANES];
    floats sums[MAX_HEADS][MAX_VECTORS];
    UNROLL for (int h = 0; h < heads; h++) {
        float *best = state + h * row + a->head_dim, *weight = best + 1;
        floats scores = scores_of(query + h * a->head_dim * bytes_of(dtype), keys, step, vectors, dtype) * a->scale;
        scores = choose(inside, scores, all(-__builtin_inff()));
        float top = largest(scores);
        top = top > *best ? top : *best;
        floats now = choose(inside, exponential(scores - top), all(0));
        float before = exponential(all(*best - top))[0];
        *weight = *weight * before + total(now);
        *best = top;
        *(floats_at *)weights[h] = now;
        UNROLL for (int v = 0; v < vectors; v++) sums[h][v] = load(state, h * row + v * LANES, FLOAT32) * before;
    }
    for (long j = low; j < high; j++) {
        for (long line = 0; line < vectors * LANES * bytes_of(dtype); line += 64) {
            __builtin_prefetch(keys + ahead + j * step + line, 0, 2);
            __builtin_prefetch(values + ahead + j * step + line, 0, 2);
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            floats value = load(values + j * step, v * LANES, dtype);
            UNROLL for (int h = 0; h < heads; h++) sums[h][v] += value * weights[h][j];
        }
    }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int v = 0; v < vectors; v++) store(state, h * row + v * LANES, sums[h][v], FLOAT32);
}

INLINE void tile_of(const struct attention *a, const char *query, const char *keys, const char *values, long ahead,
                    long low, long high, int heads, float *state, enum dtype dtype) {
#define CASE(H, D) case 1000 * H + D: tile(a, query, keys, values, ahead, low, high, H, D / LANES, dtype, state); return;
    switch (1000 * heads + a->head_dim) {
        CASE(1, 32) CASE(1, 64) CASE(2, 64) CASE(3, 64) CASE(1, 96) CASE(1, 128) CASE(2, 128) CASE(3, 128)
    }
}

/* How many of the `left` heads that share a KV head are computed together. */
INLINE long together(const struct attention *a, long left) {
    if (a->head_dim != 64 && a->head_dim != 128) return 1;
    return left == 4 ? 2 : left < MAX_HEADS ? left : MAX_HEADS;
}

/* Where in a cache, in heads, the token at `position` of a sequence is. */
INLINE long token_at(const struct attention *a, long row, long position) {
    long block = a->table[row * a->table_width + position / a->block];
    return (block * a->block + position % a->block) * a->kv_heads;
}

INLINE void part_of(const struct attention *a, long index, enum dtype dtype) {
    const struct part *part = &a->parts[index];
    long group = a->heads / a->kv_heads, row = a->head_dim + 2, bytes = bytes_of(dtype);
    float *state = a->partial + index * a->heads * row;
    for (long h = 0; h < a->heads; h++) {
        memset(state + h * row, 0, a->head_dim * sizeof *state);
        state[h * row + a->head_dim] = -__builtin_inff();
        state[h * row + a->head_dim + 1] = 0;
    }
    for (long first = part->start & -LANES; first < part->end; first += LANES) {
        long low = part->start > first ? part->start - first : 0;
        long high = part->end - first < LANES ? part->end - first : LANES;
        long token = token_at(a, part->row, first);
        long next = first + LANES < part->end ? token_at(a, part->row, first + LANES)
                    : index + 1 < a->count    ? token_at(a, part[1].row, part[1].start & -LANES)
                                              : token;
        long ahead = (next - token) * a->head_dim * bytes;
        for (long kv = 0; kv < a->kv_heads; kv++) {
            long cache = (token + kv) * a->head_dim * bytes;
            for (long h = kv * group, count; h < (kv + 1) * group; h += count) {
                count = together(a, (kv + 1) * group - h);
                const char *query = (const char *)a->query + (part->query * a->query_stride + h * a->head_dim) * bytes;
                tile_of(a, query, (const char *)a->keys + cache, (const char *)a->values + cache, ahead, low, high,
                        count, state + h * row, dtype);
            }
        }
    }
}

/* Weighted values of the parts [first, last) into the output of their query. */
INLINE void join(const struct attention *a, long query, long first, long last, enum dtype dtype) {
    long row = a->head_dim + 2;
    for (long h = 0; h < a->heads; h++) {
        const float *state = a->partial + (first * a->heads + h) * row;
        float top = -__builtin_inff(), weight = 0;
        for (long p = 0; p < last - first; p++) {
            float best = state[p * a->heads * row + a->head_dim];
            top = best > top ? best : top;
        }
        floats sums[MAX_VECTORS];
        for (int v = 0; v < a->head_dim / LANES; v++) sums[v] = (floats){0};
        for (long p = 0; p < last - first; p++) {
            const float *one = state + p * a->heads * row;
            float share = exponential(all(one[a->head_dim] - top))[0];
            weight += one[a->head_dim + 1] * share;
            for (int v = 0; v < a->head_dim / LANES; v++) sums[v] += load(one, v * LANES, FLOAT32) * share;
        }
        for (int v = 0; v < a->head_dim / LANES; v++)
            store(a->output, (query * a->heads + h) * a->head_dim + v * LANES, last > first ? sums[v] / weight : all(0),
                  dtype);
    }
}

/* `first_part` [queries + 1]: where each query's parts begin; a query without any gives zeros. */
void attend(const void *query, const void *keys, const void *values, void *output, const int32_t *table,
            const int32_t *parts, const int64_t *first_part, float *partial, long queries, long query_stride,
            long table_width, long block, long heads, long kv_heads, long head_dim, float scale, int dtype, int threads) {
    struct attention a = {query, keys, values, output, table, (const struct part *)parts, partial, first_part[queries], query_stride,
                          table_width, block, heads, kv_heads, head_dim, scale, dtype};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long index = 0; index < a.count; index++)
            if (dtype == FLOAT32) part_of(&a, index, FLOAT32);
            else part_of(&a, index, BFLOAT16);
#pragma omp for schedule(static)
        for (long q = 0; q < queries; q++)
            if (dtype == FLOAT32) join(&a, q, first_part[q], first_part[q + 1], FLOAT32);
            else join(&a, q, first_part[q], first_part[q + 1], BFLOAT16);
    }
}

/* Keys and values [tokens, row], rows `stride` bytes apart, into the slots of the caches; slot -1: nowhere. */
void write_kv(const char *key, const char *value, char *keys, char *values, const int64_t *slots, long tokens, long stride,
              long row) {
    for (long t = 0; t < tokens; t++)
        if (slots[t] >= 0) {
            memcpy(keys + slots[t] * row, key + t * stride, row);
            memcpy(values + slots[t] * row, value + t * stride, row);
        }
}
