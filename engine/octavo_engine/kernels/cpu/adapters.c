/* What LoRA adapters add to one linear layer (arXiv 2106.09685): y[t] += B A x[t] with the A and B of each token's slot.

   Tokens of many adapters pass in one call. B lies transposed, so that the rows of y are the lanes of registers. */
#include "kernels.h"
#include "vector.h"

#define DOTS 8 /* rows of A that are multiplied at once, so that x is read once for them */

INLINE float element(const void *from, long index, enum dtype dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[index] : wide(((const uint16_t *)from)[index]);
}

INLINE const void *at(const void *from, long index, enum dtype dtype) { return (const char *)from + index * bytes_of(dtype); }

/* sums += the products of `count` rows of A with x from k on; as many as are multiplied at once. */
INLINE long step_dots(const void *a, const void *x, long k, floats sums[DOTS], long columns, int count, enum dtype dtype) {
    if (dtype == FLOAT32) {
        floats input = load(x, k, dtype);
        UNROLL for (int r = 0; r < count; r++) sums[r] += input * load(a, r * columns + k, dtype);
        return LANES;
    }
    const uint16_t *rows = a, *input = x;
    words pairs = *(const words_at *)(input + k);
    UNROLL for (int r = 0; r < count; r++)
        sums[r] = dot_pairs(sums[r], pairs, *(const words_at *)(rows + r * columns + k));
    return 2 * LANES;
}

/* hidden[0..count) = rows of A [count, columns] times x. */
INLINE void dots(const void *a, const void *x, float *hidden, long columns, int count, enum dtype dtype) {
    floats sums[DOTS] = {0};
    long k = 0, step = dtype == FLOAT32 ? LANES : 2 * LANES;
    while (k + step <= columns) k += step_dots(a, x, k, sums, columns, count, dtype);
    for (int r = 0; r < count; r++) {
        hidden[r] = total(sums[r]);
        for (long rest = k; rest < columns; rest++) hidden[r] += element(x, rest, dtype) * element(a, r * columns + rest, dtype);
    }
}

/* hidden [rank] of one part for one token. */
INLINE void shrink(const void *a, const void *x, float *hidden, long columns, long rank, enum dtype dtype) {
    long r = 0;
    for (; r + DOTS <= rank; r += DOTS) dots(at(a, r * columns, dtype), x, hidden + r, columns, DOTS, dtype);
    for (; r < rank; r++) dots(at(a, r * columns, dtype), x, hidden + r, columns, 1, dtype);
}

/* y[row..end) += hidden [rank] times the columns [row..end) of B^T [rank, rows]. */
INLINE void expand(const void *b, const float *hidden, void *y, long row, long end, long rows, long rank, enum dtype dtype) {
    for (; row + LANES <= end; row += LANES) {
        floats sum = load(y, row, dtype);
        for (long r = 0; r < rank; r++) sum += hidden[r] * load(b, r * rows + row, dtype);
        store(y, row, sum, dtype);
    }
    for (; row < end; row++) {
        float sum = element(y, row, dtype);
        for (long r = 0; r < rank; r++) sum += hidden[r] * element(b, r * rows + row, dtype);
        if (dtype == FLOAT32) ((float *)y)[row] = sum;
        else ((uint16_t *)y)[row] = (uint16_t)bfloat16(all(sum))[0];
    }
}

/* One part of one token. */
INLINE void add_part(const struct adapters *l, const void *x, void *y, long slot, long part, float *hidden, enum dtype dtype) {
    long rank = l->ranks[slot * l->parts + part], start = part ? l->ends[part - 1] : 0;
    if (!rank) return;
    shrink(at(l->a, (slot * l->parts + part) * l->rank * l->columns, dtype), x, hidden, l->columns, rank, dtype);
    expand(at(l->b, slot * l->rank * l->rows, dtype), hidden, y, start, l->ends[part], l->rows, rank, dtype);
}

void add_adapters(const struct adapters *l, const void *x, void *y, const int32_t *slots, long tokens, int dtype,
                  int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < tokens * l->parts; i++) {
        long token = i / l->parts, part = i % l->parts;
        if (slots[token] < 0) continue;
        float hidden[MAX_RANK];
        const void *from = at(x, token * l->columns, dtype);
        void *to = (void *)at(y, token * l->rows, dtype);
        if (dtype == FLOAT32) add_part(l, from, to, slots[token], part, hidden, FLOAT32);
        else add_part(l, from, to, slots[token], part, hidden, BFLOAT16);
    }
}
