/* The instructions of kernels/cpu/amx.h in plain C: the tiles are memory of the thread. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

static __thread union {
    float sums[16][16];
    uint16_t numbers[16][32];
    char bytes[16][64];
} emulated_tiles[8];
static __thread int emulated_tiles_are_open;

static inline void open_tiles(void) {
    memset(emulated_tiles, 0xff, sizeof emulated_tiles); /* what a tile holds before it is written must not matter: NaN */
    emulated_tiles_are_open = 1;
}
static inline void close_tiles(void) { emulated_tiles_are_open = 0; }

static inline void emulated_tile_copy(int tile, char *memory, long stride, int store) {
    if (!emulated_tiles_are_open) __builtin_trap(); /* as the CPU does */
    for (int row = 0; row < 16; row++) {
        char *held = emulated_tiles[tile].bytes[row], *other = memory + row * stride;
        memcpy(store ? other : held, store ? held : other, 64);
    }
}

static inline void emulated_tile_multiply(int c, int a, int b) {
    if (!emulated_tiles_are_open) __builtin_trap();
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++)
                for (int half = 0; half < 2; half++)
                    emulated_tiles[c].sums[m][n] += from_brief(emulated_tiles[a].numbers[m][2 * k + half]) *
                                                    from_brief(emulated_tiles[b].numbers[k][2 * n + half]);
}

#define TILE_ZERO(tile) memset(&emulated_tiles[tile], 0, sizeof emulated_tiles[tile])
#define TILE_LOAD(tile, from, stride) emulated_tile_copy(tile, (char *)(from), stride, 0)
#define TILE_STORE(tile, to, stride) emulated_tile_copy(tile, (char *)(to), stride, 1)
#define TILE_MULTIPLY(c, a, b) emulated_tile_multiply(c, a, b)
