/* Attention over the paged cache, keys and values read where they lie.

   Each query has its own context, cut into parts that are computed independently with a running softmax and then joined
   (arXiv 2205.14135; flash decoding). How a context is cut depends on nothing but its length. Caches are
   [num_blocks, block, kv_heads, head_dim]; block is a multiple of 16, head_dim 32, 64, 96 or 128. */
#include "kernels.h"
#include "shares.h"
#include "vector.h"

#define MAX_HEADS 3 /* that are computed together because they share keys and values */
#define MAX_VECTORS (128 / LANES)
#define PIECE 128 /* tokens whose scores are known before one is weighed */

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

/* Asks for one token of one head. Blocks lie anywhere, so that the processor cannot guess which is next. The calls are
   spread over computation: it waits for more requests at once than it has buffers for (10 to 16). */
INLINE void fetch(const char *token, int vectors, enum dtype dtype) {
    for (long line = 0; line < vectors * LANES * bytes_of(dtype); line += 64) __builtin_prefetch(token + line, 0, 2);
}

/* Scores of one query head and LANES tokens of bfloat16, multiplied in pairs; `step` is the distance of tokens in the
   cache. Meanwhile LANES tokens from `ahead` on are fetched, if it is not 0. */
INLINE floats scores_of(const char *query, const char *keys, long step, int vectors, const char *ahead) {
    floats sums[LANES];
    UNROLL for (int j = 0; j < LANES; j++) {
        const char *key = keys + j * step;
        if (ahead) fetch(ahead + j * step, vectors, BFLOAT16);
        sums[j] = (floats){0};
        for (int v = 0; v < vectors / 2; v++)
            sums[j] = dot_pairs(sums[j], *(const words_at *)(query + v * BYTES), *(const words_at *)(key + v * BYTES));
    }
    return totals(sums);
}

/* The same of all query heads that share the keys, which are converted to float32 once, as the heads were before. */
INLINE void float_scores(const float *query, const char *keys, long step, int heads, int vectors, const char *ahead,
                         enum dtype dtype, floats scores[MAX_HEADS]) {
    floats sums[MAX_HEADS][LANES];
    UNROLL for (int j = 0; j < LANES; j++) {
        fetch(ahead + j * step, vectors, dtype);
        UNROLL for (int h = 0; h < heads; h++) sums[h][j] = (floats){0};
        UNROLL for (int v = 0; v < vectors; v++) {
            floats key = load(keys + j * step, v * LANES, dtype);
            UNROLL for (int h = 0; h < heads; h++) sums[h][j] += load(query, (h * vectors + v) * LANES, FLOAT32) * key;
        }
    }
    UNROLL for (int h = 0; h < heads; h++) scores[h] = totals(sums[h]);
}

/* Some tokens of a context: where in a cache, in heads, every LANES of them begin, and which count, from the first. */
struct piece {
    long at[PIECE / LANES], low, high;
};

INLINE struct piece piece_of(const struct attention *a, const struct part *part, long first) {
    struct piece piece = {.low = part->start > first ? part->start - first : 0,
                          .high = part->end - first < PIECE ? part->end - first : PIECE};
    for (long t = 0; t * LANES < piece.high; t++) {
        long token = first + t * LANES;
        long block = a->table[part->row * a->table_width + token / a->block];
        piece.at[t] = (block * a->block + token % a->block) * a->kv_heads;
    }
    return piece;
}

/* What `pass` works on: one KV head of a piece, and of the heads that share it the first few. */
struct pass {
    const struct piece *piece, *next; /* the next pass's, whose keys are fetched meanwhile */
    const char *query, *keys, *values, *next_keys;
    long head, step; /* bytes of a head, and from token to token */
};

/* Scores to weights with one look for the largest; the state's are brought to the same measure. */
INLINE float weigh(float *scores, long count, float *best, float *weight, enum dtype dtype) {
    floats top = all(*best), sum = {0};
    for (long j = 0; j < count; j += LANES) {
        floats one = *(floats_at *)(scores + j);
        top = choose(one > top, one, top);
    }
    float most = largest(top), before = exponential(all(*best - most))[0];
    for (long j = 0; j < count; j += LANES) {
        floats one = exponential(*(floats_at *)(scores + j) - most);
        sum += one;
        store(scores, j, one, dtype); /* bfloat16 overtakes nothing: it is shorter than what was read */
    }
    *best = most;
    *weight = *weight * before + total(sum);
    return before;
}

/* sums[h][0..count) += the weights of two tokens times `count` vectors of their values; of one token, if they are multiplied
   in float32. Values of both are paired by interleaving halves of each 128 bits, which `in_order` undoes. */
INLINE void add_values(floats sums[MAX_HEADS][MAX_VECTORS], float weights[MAX_HEADS][PIECE], const char *values, long step,
                       long j, int first, int second, int heads, int count, enum dtype dtype) {
    if (multiplied(dtype) == FLOAT32) {
        UNROLL for (int v = 0; v < count; v++) {
            floats value = load(values, v * LANES, dtype);
            UNROLL for (int h = 0; h < heads; h++) sums[h][v] += value * weights[h][j];
        }
        return;
    }
    UNROLL for (int v = 0; v < count; v += 2) {
        words even = first ? (words) * (const words_at *)(values + v * BYTES / 2) : (words){0};
        words odd = second ? (words) * (const words_at *)(values + step + v * BYTES / 2) : (words){0};
        words low = low_in_turn(even, odd), high = high_in_turn(even, odd);
        UNROLL for (int h = 0; h < heads; h++) {
            uint32_t pair;
            memcpy(&pair, (const uint16_t *)weights[h] + j, sizeof pair);
            sums[h][v] = dot_pairs(sums[h][v], (words){0} + pair, low);
            sums[h][v + 1] = dot_pairs(sums[h][v + 1], (words){0} + pair, high);
        }
    }
}

/* The scores of a piece's tokens, times the scale; -infinity for those that do not count. */
INLINE void score(const struct attention *a, const struct pass *p, int heads, int vectors, enum dtype dtype,
                  float scores[MAX_HEADS][PIECE]) {
    const struct piece *piece = p->piece;
    float wide[MAX_HEADS * 128];
    const float *query = dtype == FLOAT32 ? (const float *)p->query : wide;
    if (multiplied(dtype) != dtype)
        UNROLL for (int v = 0; v < heads * vectors; v++) store(wide, v * LANES, load(p->query, v * LANES, dtype), FLOAT32);
    for (long t = 0; t * LANES < piece->high; t++) {
        const char *keys = p->keys + piece->at[t] * p->head, *values = p->values + piece->at[t] * p->head;
        ints inside = (LANE_NUMBERS >= (int)(piece->low - t * LANES)) & (LANE_NUMBERS < (int)(piece->high - t * LANES));
        floats found[MAX_HEADS];
        if (multiplied(dtype) == FLOAT32) float_scores(query, keys, p->step, heads, vectors, values, dtype, found);
        else
            UNROLL for (int h = 0; h < heads; h++)
                found[h] = scores_of(p->query + h * p->head, keys, p->step, vectors, h ? 0 : values);
        UNROLL for (int h = 0; h < heads; h++)
            *(floats_at *)&scores[h][t * LANES] = choose(inside, found[h] * a->scale, all(-__builtin_inff()));
    }
}

/* state[v..v + count) of each head, `row` numbers apart, times `before`, += the weighted values of a piece. Meanwhile the
   first `fetched` vectors of the next pass's keys are fetched. */
INLINE void add_piece(const struct pass *p, float weights[MAX_HEADS][PIECE], const float *before, float *state, long row,
                      int v, int count, int heads, int fetched, enum dtype dtype) {
    const struct piece *piece = p->piece;
    long low = piece->low, high = piece->high, first = v * LANES;
    floats sums[MAX_HEADS][MAX_VECTORS];
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int i = 0; i < count; i++) sums[h][i] = load(state, h * row + first + i * LANES, FLOAT32) * before[h];
    int together = numbers(multiplied(dtype));
    for (long t = 0; t * LANES < high; t++) {
        const char *values = p->values + piece->at[t] * p->head - t * LANES * p->step + first * bytes_of(dtype);
        const char *ahead = p->next_keys + p->next->at[t] * p->head - t * LANES * p->step;
        int fetches = fetched && t * LANES < p->next->high;
        long j = low > t * LANES ? low & -together : t * LANES, end = high < (t + 1) * LANES ? high : (t + 1) * LANES;
        for (; j < end; j += together) {
            for (int i = 0; fetches && i < together; i++) fetch(ahead + (j + i) * p->step, fetched, dtype);
            add_values(sums, weights, values + j * p->step, p->step, j, j >= low, j + 1 < end, heads, count, dtype);
        }
    }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int i = 0; i < count; i++) store(state, h * row + first + i * LANES, sums[h][i], FLOAT32);
}

INLINE void pass(const struct attention *a, const struct pass *p, int heads, int vectors, enum dtype dtype, float *state) {
    long row = a->head_dim + 2;
    float weights[MAX_HEADS][PIECE], before[MAX_HEADS];
    score(a, p, heads, vectors, dtype, weights);
    UNROLL for (int h = 0; h < heads; h++) {
        float *best = state + h * row + a->head_dim;
        before[h] = weigh(weights[h], p->piece->high, best, best + 1, multiplied(dtype));
    }
    int count = vectors; /* those whose sums are in registers beside some others */
    while (heads * count > REGISTERS - 4) count /= 2;
    UNROLL for (int v = 0; v < vectors; v += count)
        add_piece(p, weights, before, state, row, v, count, heads, v ? 0 : vectors, dtype);
}

/* A pass for each number of heads and each size, as a function of its own: inlined into one loop, they took gcc more than
   twice as long to compile. */
#define PASS(H, D)                                                                                                       \
    static __attribute__((noinline)) void pass_##H##_##D(const struct attention *a, const struct pass *p, float *state) { \
        if (a->dtype == FLOAT32) pass(a, p, H, D / LANES, FLOAT32, state);                                               \
        else pass(a, p, H, D / LANES, BFLOAT16, state);                                                                  \
    }
PASS(1, 32)
PASS(1, 64)
PASS(2, 64)
PASS(3, 64)
PASS(1, 96)
PASS(1, 128)
PASS(2, 128)
PASS(3, 128)

INLINE void pass_of(const struct attention *a, const struct pass *p, int heads, float *state) {
#define CASE(H, D) case 1000 * H + D: pass_##H##_##D(a, p, state); return;
    switch (1000 * heads + a->head_dim) {
        CASE(1, 32) CASE(1, 64) CASE(2, 64) CASE(3, 64) CASE(1, 96) CASE(1, 128) CASE(2, 128) CASE(3, 128)
    }
}

/* How many of the `left` heads that share a KV head are computed together. */
INLINE long together(const struct attention *a, long left) {
    if (a->head_dim != 64 && a->head_dim != 128) return 1;
    return left == 4 ? 2 : left < MAX_HEADS ? left : MAX_HEADS;
}

INLINE void part_of(const struct attention *a, long index, enum dtype dtype) {
    const struct part *part = &a->parts[index];
    long group = a->heads / a->kv_heads, row = a->head_dim + 2, head = a->head_dim * bytes_of(dtype);
    float *state = a->partial + index * a->heads * row;
    for (long h = 0; h < a->heads; h++) {
        memset(state + h * row, 0, a->head_dim * sizeof *state);
        state[h * row + a->head_dim] = -__builtin_inff();
        state[h * row + a->head_dim + 1] = 0;
    }
    const char *query = (const char *)a->query + part->query * a->query_stride * bytes_of(dtype);
    long first = part->start & -LANES;
    for (struct piece piece = piece_of(a, part, first), next; first < part->end; piece = next) {
        first += PIECE;
        next = first < part->end      ? piece_of(a, part, first)
               : index + 1 < a->count ? piece_of(a, part + 1, part[1].start & -LANES)
                                      : piece;
        for (long kv = 0; kv < a->kv_heads; kv++) {
            int last = kv + 1 == a->kv_heads;
            struct pass p = {&piece, last ? &next : &piece, query, (const char *)a->keys + kv * head,
                             (const char *)a->values + kv * head, (const char *)a->keys + (last ? 0 : kv + 1) * head,
                             head, a->kv_heads * head};
            for (long h = kv * group, count; h < (kv + 1) * group; h += count) {
                count = together(a, (kv + 1) * group - h);
                p.query = query + h * head;
                pass_of(a, &p, count, state + h * row);
            }
        }
    }
}

/* The values of two vectors that `add_values` left interleaved. */
INLINE void in_order(floats *low, floats *high) {
#define FROM(n) ((n) / 8 * 4 + (n) % 4 + ((n) & 4) / 4 * LANES)
    floats one = __builtin_shuffle(*low, *high, FROM(LANE_NUMBERS));
    *high = __builtin_shuffle(*low, *high, FROM(LANE_NUMBERS + LANES));
    *low = one;
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
        if (multiplied(dtype) == BFLOAT16)
            for (int v = 0; v < a->head_dim / LANES; v += 2) in_order(&sums[v], &sums[v + 1]);
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
#pragma omp for schedule(dynamic, chunk(a.count, threads))
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
              long row, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * row >= 65536)
    for (long t = 0; t < tokens; t++)
        if (slots[t] >= 0) {
            memcpy(keys + slots[t] * row, key + t * stride, row);
            memcpy(values + slots[t] * row, value + t * stride, row);
        }
}
