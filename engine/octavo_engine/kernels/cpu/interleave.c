/* Another order of a weight's codes and scales in the same memory, in which vectors read them without shuffles.

   The rows of a tile lie between one another: four bytes of codes of each, then the next four; the first scale of each,
   then the second one. (The last tile has what rows are left.) Eight codes of 4 bits are in such an order that the lower
   halves of the four bytes are the first four codes, and codes of 8 bits become those that `dot_fours` multiplies. */
#include <omp.h>

#include "kernels.h"
#include "vector.h"

#define MOST_ARRAYS 6

/* One of the arrays that a weight consists of: `count` numbers of `size` bytes in each row. */
struct array {
    char *at;
    long count, size;
};

/* Gives how many there are. The first one are the codes, as words. */
static int arrays_of(const struct codes *w, struct array to[MOST_ARRAYS]) {
    static const long sizes[] = {4, 2, 2, 1, 1};
    long blocks = (w->inner + SUPER - 1) / SUPER, size = sizes[w->scales];
    int count = 0;
    to[count++] = (struct array){(char *)w->codes, w->inner * w->bits / 32, 4};
    to[count++] = (struct array){(char *)w->scale, w->groups, size};
    if (w->minimum) to[count++] = (struct array){(char *)w->minimum, w->groups, size};
    if (w->zero) to[count++] = (struct array){(char *)w->zero, w->groups, 1};
    if (w->super_scale) to[count++] = (struct array){(char *)w->super_scale, blocks, 2};
    if (w->super_minimum) to[count++] = (struct array){(char *)w->super_minimum, blocks, 2};
    return count;
}

INLINE void turn_by(const char *from, char *to, long rows, long count, long size) {
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < count; i++) memcpy(to + (i * rows + r) * size, from + (r * count + i) * size, size);
}

/* Numbers [rows][count] to [count][rows]. */
static void turn(const char *from, char *to, long rows, long count, long size) {
    if (size == 4) turn_by(from, to, rows, count, 4);
    else if (size == 2) turn_by(from, to, rows, count, 2);
    else turn_by(from, to, rows, count, 1);
}

/* Four codes of 4 bits as the lower halves of four bytes, and back. */
INLINE uint32_t spread(uint32_t codes) {
    codes = (codes | codes << 8) & 0x00ff00ffu;
    return (codes | codes << 4) & 0x0f0f0f0fu;
}
INLINE uint32_t gather(uint32_t bytes) {
    bytes = (bytes | bytes >> 4) & 0x00ff00ffu;
    return (bytes | bytes >> 8) & 0x0000ffffu;
}

/* Words of codes, there or back. */
static void recode(const struct codes *w, uint32_t *words, long count, int back) {
    for (long i = 0; i < count; i++) {
        uint32_t word = words[i];
        if (w->bits == 8) words[i] = (w->flip != 0) != SIGNED_CODES ? word : word ^ 0x80808080u;
        else if (back) words[i] = gather(word & 0x0f0f0f0fu) | gather(word >> 4 & 0x0f0f0f0fu) << 16;
        else words[i] = spread(word & 0xffffu) | spread(word >> 16) << 4;
    }
}

/* Bytes of scratch memory that a thread needs for one tile of any part of a weight. */
long tile_scratch(const struct quantized *weight) {
    struct array arrays[MOST_ARRAYS];
    long most = 0;
    for (long p = 0; p < weight->count; p++) {
        long bytes = 0;
        for (int i = arrays_of(weight->parts + p, arrays) - 1; i >= 0; i--) bytes += TILE_OF_ROWS * arrays[i].count * arrays[i].size;
        if (bytes > most) most = bytes;
    }
    return (most + 63) / 64 * 64;
}

/* The arrays of the rows [first, first + rows), a tile, into `memory`: interleaved, or `back` to rows. */
static void turn_tile(const struct codes *w, long first, long rows, char *memory, int back) {
    struct array arrays[MOST_ARRAYS];
    int count = arrays_of(w, arrays);
    for (int i = 0; i < count; i++) {
        struct array a = arrays[i];
        const char *from = a.at + first * a.count * a.size;
        if (back) turn(from, memory, a.count, rows, a.size);
        else turn(from, memory, rows, a.count, a.size);
        if (!i) recode(w, (uint32_t *)memory, rows * a.count, back);
        memory += rows * a.count * a.size;
    }
}

/* The rows [first, first + rows) of an interleaved weight, a tile, as a weight that is not: in `memory`. */
struct codes rows_of_tile(const struct codes *w, long first, long rows, char *memory) {
    struct array arrays[MOST_ARRAYS];
    struct codes found = *w;
    turn_tile(w, first, rows, memory, 1);
    const void **at[MOST_ARRAYS] = {(const void **)&found.codes, &found.scale};
    int count = 2;
    if (w->minimum) at[count++] = &found.minimum;
    if (w->zero) at[count++] = (const void **)&found.zero;
    if (w->super_scale) at[count++] = (const void **)&found.super_scale;
    if (w->super_minimum) at[count++] = (const void **)&found.super_minimum;
    arrays_of(w, arrays);
    for (int i = 0; i < count; memory += rows * arrays[i].count * arrays[i].size, i++) *at[i] = memory;
    found.rows = rows;
    return found;
}

/* All rows of a weight, or `back` to where they were. `scratch` has `tile_scratch` bytes for each thread. */
void interleave(const struct quantized *weight, void *scratch, int back, int threads) {
    long tile = tile_scratch(weight);
    for (long i = 0; i < weight->count; i++) {
        const struct codes *w = weight->parts + i;
        struct array arrays[MOST_ARRAYS];
        int count = arrays_of(w, arrays);
#pragma omp parallel num_threads(threads)
        {
            char *copy = (char *)scratch + omp_get_thread_num() * tile;
#pragma omp for schedule(static)
            for (long first = 0; first < w->rows; first += TILE_OF_ROWS) {
                long rows = w->rows - first < TILE_OF_ROWS ? w->rows - first : TILE_OF_ROWS;
                turn_tile(w, first, rows, copy, back);
                const char *from = copy;
                for (int j = 0; j < count; from += rows * arrays[j].count * arrays[j].size, j++)
                    memcpy(arrays[j].at + first * arrays[j].count * arrays[j].size, from, rows * arrays[j].count * arrays[j].size);
            }
        }
    }
}
