/* AMX: products of tiles of bfloat16, summed in float32. A tile is a register of 16 rows of 64 bytes.

   With C [16][16] float32, A [16][32] and B [16][16 pairs] bfloat16 the instruction TDPBF16PS computes
   C[m][n] += A[m][2k] * B[k][n].first + A[m][2k + 1] * B[k][n].second, for k from 0 to 15. So A is rows of a matrix as
   it lies in memory, and B has the pairs of 16 vectors next to one another. */
#pragma once
#if !defined(__AMX_BF16__)
#define TILES 0
static inline void open_tiles(void) {}
static inline void close_tiles(void) {}
#else
#define TILES 1
#include "amx.h"

#define TILE_SIDE 16  /* rows of A, columns of B */
#define TILE_DEPTH 32 /* columns of A, rows of B */

/* A square of sums: two tiles of rows by `columns` (1 or 2) tiles of columns, in the tiles 0 to 3. */
static inline void zero_square(void) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

static inline void load_square(const float *from, long stride) {
    TILE_LOAD(0, from, stride);
    TILE_LOAD(1, (const char *)from + TILE_SIDE * stride, stride);
    TILE_LOAD(2, from + TILE_SIDE, stride);
    TILE_LOAD(3, (const char *)(from + TILE_SIDE) + TILE_SIDE * stride, stride);
}

static inline __attribute__((always_inline)) void store_square(float *to, long stride, int columns) {
    TILE_STORE(0, to, stride);
    TILE_STORE(1, (char *)to + TILE_SIDE * stride, stride);
    if (columns == 1) return;
    TILE_STORE(2, to + TILE_SIDE, stride);
    TILE_STORE(3, (char *)(to + TILE_SIDE) + TILE_SIDE * stride, stride);
}

/* Where the factors of a square are: two tiles of rows of A, one below the other, and two tiles of columns of B, `apart`
   bytes from one another. Strides are bytes from row to row; while they are multiplied, `lines` rows of another A, from
   `ahead` on, are fetched. */
struct factors {
    const char *a, *b, *ahead;
    long a_stride, b_stride, apart, lines;
};

/* Adds A's columns [0, depth) times B's rows to the square. The rows ahead are fetched one after the other, which memory is
   quickest at. */
static inline __attribute__((always_inline)) void multiply_square(struct factors f, long depth, int columns) {
    for (long left = depth, at = 0; left > 0; left -= TILE_DEPTH, f.a += 64, f.b += TILE_SIDE * f.b_stride) {
        TILE_LOAD(4, f.a, f.a_stride);
        TILE_LOAD(5, f.a + TILE_SIDE * f.a_stride, f.a_stride);
        TILE_LOAD(6, f.b, f.b_stride);
        TILE_MULTIPLY(0, 4, 6);
        TILE_MULTIPLY(1, 5, 6);
        if (columns == 2) {
            TILE_LOAD(7, f.b + f.apart, f.b_stride);
            TILE_MULTIPLY(2, 4, 7);
            TILE_MULTIPLY(3, 5, 7);
        }
        for (long line = 0; line < f.lines; line++) {
            __builtin_prefetch(f.ahead + at, 0, 2);
            at += 64;
            if (at == 2 * depth) at = 0, f.ahead += f.a_stride;
        }
    }
}
#endif
