/* What LoRA adapters add to one linear layer (arXiv 2106.09685): y[t] += B A x[t] with the A and B of each token's slot.

   Tokens of many adapters pass in one call. Those of one slot are computed together, so that its weights are read once for
   them. B lies transposed, so that the rows of y are the lanes of registers. */
#include "kernels.h"
#include "vector.h"

#define TOGETHER 4                /* tokens of one slot that are computed together: 4, 2 or 1 */
#define DOTS 4                    /* rows of A that are multiplied at once */
#define RANKS 8                   /* rows of A in a piece of work of one thread */
#define VECTORS (REGISTERS / 8)   /* registers of rows of y that are summed at once, for each token */
#define ROWS 128                  /* rows of y in a piece of work of one thread */
#define MOST 64                   /* tokens in a pass */
#define HIDDEN (1 << 15)          /* numbers between A and B in a pass */

/* Tokens that have the same slot. */
struct run {
    int32_t tokens[TOGETHER], count, slot, place; /* place: of the first one's numbers in `hidden` */
};

/* Some tokens of a step on their way through one layer. `hidden` [tokens][parts * rank] is A x. */
struct pass {
    const struct adapters *l;
    const void *x;
    void *y;
    float *hidden;
    long width, num_runs; /* width: parts * rank */
    struct run runs[MOST];
};

INLINE float element(const void *from, long index, enum dtype dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[index] : wide(((const uint16_t *)from)[index]);
}

INLINE char *at(const void *from, long index, enum dtype dtype) { return (char *)from + index * bytes_of(dtype); }

/* sums += the products of `count` rows of A with tokens' x from k on; as many as are multiplied at once. */
INLINE long step_dots(const void *a, const void *x[TOGETHER], long k, floats sums[TOGETHER][DOTS], long columns, int count,
                      int tokens, enum dtype dtype) {
    UNROLL for (int r = 0; r < count; r++) {
        const char *row = at(a, r * columns + k, dtype);
        UNROLL for (int t = 0; t < tokens; t++) {
            const char *input = at(x[t], k, dtype);
            if (dtype == FLOAT32) sums[t][r] += load(input, 0, dtype) * load(row, 0, dtype);
            else sums[t][r] = dot_pairs(sums[t][r], *(const words_at *)input, *(const words_at *)row);
        }
    }
    return dtype == FLOAT32 ? LANES : 2 * LANES;
}

/* hidden[t][0..count) = rows of A [count, columns] times x[t]. The rows at `ahead` are fetched meanwhile. */
INLINE void dots(const void *a, const void *x[TOGETHER], float *hidden, long width, long columns, int count, int tokens,
                 const char *ahead, enum dtype dtype) {
    floats sums[TOGETHER][DOTS] = {0};
    long k = 0, step = dtype == FLOAT32 ? LANES : 2 * LANES;
    while (k + step <= columns) {
        UNROLL for (int r = 0; r < count; r++) __builtin_prefetch(at(ahead, r * columns + k, dtype), 0, 2);
        k += step_dots(a, x, k, sums, columns, count, tokens, dtype);
    }
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < count; r++) {
            float sum = total(sums[t][r]);
            for (long rest = k; rest < columns; rest++) sum += element(x[t], rest, dtype) * element(a, r * columns + rest, dtype);
            hidden[t * width + r] = sum;
        }
}

/* Some rows of A of one part of a run's slot. */
struct some_ranks {
    const struct run *run;
    long part, first, end;
    const char *a;
};

INLINE struct some_ranks ranks_of(const struct pass *p, long index, enum dtype dtype) {
    const struct adapters *l = p->l;
    long pieces = (l->rank + RANKS - 1) / RANKS, first = index % pieces * RANKS, part = index / pieces % l->parts;
    const struct run *run = p->runs + index / pieces / l->parts;
    long rank = l->ranks[run->slot * l->parts + part], end = first + RANKS < rank ? first + RANKS : rank;
    return (struct some_ranks){run, part, first, end,
                               at(l->a, ((run->slot * l->parts + part) * l->rank + first) * l->columns, dtype)};
}

INLINE void shrink(const struct pass *p, long index, long next, int tokens, enum dtype dtype) {
    struct some_ranks some = ranks_of(p, index, dtype);
    const char *ahead = ranks_of(p, next, dtype).a;
    long columns = p->l->columns;
    const void *x[TOGETHER];
    for (int t = 0; t < tokens; t++) x[t] = at(p->x, some.run->tokens[t] * columns, dtype);
    float *hidden = p->hidden + some.run->place * p->width + some.part * p->l->rank;
    for (long r = some.first; r < some.end;) {
        const char *a = at(some.a, (r - some.first) * columns, dtype), *later = ahead + (a - some.a);
        if (r + DOTS <= some.end) {
            dots(a, x, hidden + r, p->width, columns, DOTS, tokens, later, dtype);
            r += DOTS;
        } else dots(a, x, hidden + r++, p->width, columns, 1, tokens, later, dtype);
    }
}

/* Some rows of y in one part, for a run. */
struct some_rows {
    const struct run *run;
    long part, first, end;
};

INLINE long pieces_of(const struct adapters *l, long part) {
    return (l->ends[part] - (part ? l->ends[part - 1] : 0) + ROWS - 1) / ROWS;
}

INLINE long pieces_in_all(const struct adapters *l) {
    long count = 0;
    for (long part = 0; part < l->parts; part++) count += pieces_of(l, part);
    return count;
}

INLINE struct some_rows rows_of(const struct pass *p, long index, long pieces) {
    const struct adapters *l = p->l;
    long piece = index % pieces, part = 0;
    for (; piece >= pieces_of(l, part); part++) piece -= pieces_of(l, part);
    long first = (part ? l->ends[part - 1] : 0) + piece * ROWS, end = first + ROWS;
    return (struct some_rows){p->runs + index / pieces, part, first, end < l->ends[part] ? end : l->ends[part]};
}

/* y[t][row..row + vectors * LANES) += hidden[t] [rank] times the columns of B^T [rank, rows] from `b` on. */
INLINE void add_rows(const char *b, const float *hidden, long width, char *y[TOGETHER], long row, long rows, long rank,
                     const char *ahead, int vectors, int tokens, enum dtype dtype) {
    floats sums[TOGETHER][VECTORS];
    UNROLL for (int t = 0; t < tokens; t++)
        UNROLL for (int v = 0; v < vectors; v++) sums[t][v] = load(y[t], row + v * LANES, dtype);
    for (long r = 0; r < rank; r++) {
        floats weights[VECTORS];
        for (long line = 0; line < vectors * LANES * bytes_of(dtype); line += 64)
            __builtin_prefetch(at(ahead, r * rows, dtype) + line, 0, 2);
        UNROLL for (int v = 0; v < vectors; v++) weights[v] = load(b, r * rows + v * LANES, dtype);
        UNROLL for (int t = 0; t < tokens; t++)
            UNROLL for (int v = 0; v < vectors; v++) sums[t][v] += hidden[t * width + r] * weights[v];
    }
    UNROLL for (int t = 0; t < tokens; t++)
        UNROLL for (int v = 0; v < vectors; v++) store(y[t], row + v * LANES, sums[t][v], dtype);
}

INLINE void add_row(const char *b, const float *hidden, char *y, long row, long rows, long rank, enum dtype dtype) {
    float sum = element(y, row, dtype);
    for (long r = 0; r < rank; r++) sum += hidden[r] * element(b, r * rows, dtype);
    if (dtype == FLOAT32) ((float *)y)[row] = sum;
    else ((uint16_t *)y)[row] = (uint16_t)bfloat16(all(sum))[0];
}

INLINE void expand(const struct pass *p, long index, long next, long pieces, int tokens, enum dtype dtype) {
    const struct adapters *l = p->l;
    struct some_rows some = rows_of(p, index, pieces), later = rows_of(p, next, pieces);
    long rank = l->ranks[some.run->slot * l->parts + some.part], row = some.first;
    if (!rank) return;
    const float *hidden = p->hidden + some.run->place * p->width + some.part * l->rank;
    const char *b = at(l->b, some.run->slot * l->rank * l->rows, dtype);
    const char *ahead = at(l->b, later.run->slot * l->rank * l->rows + later.first - some.first, dtype);
    char *y[TOGETHER];
    for (int t = 0; t < tokens; t++) y[t] = at(p->y, some.run->tokens[t] * l->rows, dtype);
    for (; row + VECTORS * LANES <= some.end; row += VECTORS * LANES)
        add_rows(at(b, row, dtype), hidden, p->width, y, row, l->rows, rank, at(ahead, row, dtype), VECTORS, tokens, dtype);
    for (; row + LANES <= some.end; row += LANES)
        add_rows(at(b, row, dtype), hidden, p->width, y, row, l->rows, rank, at(ahead, row, dtype), 1, tokens, dtype);
    for (; row < some.end; row++)
        for (int t = 0; t < tokens; t++) add_row(at(b, row, dtype), hidden + t * p->width, y[t], row, l->rows, rank, dtype);
}

/* A piece of work of either half, for as many tokens as its run has. */
INLINE void work(const struct pass *p, long index, long next, long pieces, int tokens, int half, enum dtype dtype) {
    if (half) expand(p, index, next, pieces, tokens, dtype);
    else shrink(p, index, next, tokens, dtype);
}

INLINE void work_of(const struct pass *p, long index, long next, long pieces, int half, enum dtype dtype) {
    int count = p->runs[index / pieces].count;
    if (count == 1) work(p, index, next, pieces, 1, half, dtype);
    else if (count == 2) work(p, index, next, pieces, 2, half, dtype);
    else work(p, index, next, pieces, TOGETHER, half, dtype);
}

/* The tokens [first, end) that have an adapter, by their slots. */
static void make_runs(struct pass *p, const int32_t *slots, long first, long end) {
    int32_t order[MOST];
    long count = 0;
    for (long token = first; token < end; token++) {
        if (slots[token] < 0) continue;
        long place = count++;
        for (; place && slots[order[place - 1]] > slots[token]; place--) order[place] = order[place - 1];
        order[place] = token;
    }
    p->num_runs = 0;
    for (long i = 0, same; i < count; i += same) {
        for (same = 1; same < TOGETHER && i + same < count && slots[order[i + same]] == slots[order[i]]; same++);
        same = same == 3 ? 2 : same;
        struct run *run = p->runs + p->num_runs++;
        *run = (struct run){.count = same, .slot = slots[order[i]], .place = i};
        memcpy(run->tokens, order + i, same * sizeof *order);
    }
}

INLINE void add_pass(const struct pass *p, long ranks, long pieces, enum dtype dtype, int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < p->num_runs * ranks; i++)
            work_of(p, i, i + 1 < p->num_runs * ranks ? i + 1 : i, ranks, 0, dtype);
#pragma omp for schedule(static)
        for (long i = 0; i < p->num_runs * pieces; i++)
            work_of(p, i, i + 1 < p->num_runs * pieces ? i + 1 : i, pieces, 1, dtype);
    }
}

void add_adapters(const struct adapters *l, const void *x, void *y, const int32_t *slots, long tokens, int dtype,
                  int threads) {
    float hidden[HIDDEN];
    struct pass p = {l, x, y, hidden, l->parts * l->rank};
    long ranks = l->parts * ((l->rank + RANKS - 1) / RANKS), pieces = pieces_in_all(l);
    long most = HIDDEN / p.width < MOST ? HIDDEN / p.width : MOST;
    for (long first = 0; first < tokens; first += most) {
        make_runs(&p, slots, first, first + most < tokens ? first + most : tokens);
        if (dtype == FLOAT32) add_pass(&p, ranks, pieces, FLOAT32, threads);
        else add_pass(&p, ranks, pieces, BFLOAT16, threads);
    }
}
