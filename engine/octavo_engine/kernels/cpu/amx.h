/* AMX: the instructions on tiles, which tests replace where a CPU lacks them (tests/emulated_x86).

   They are written here, as GCC 12's intrinsics do not tell the compiler which memory they read. Linux lets a process use
   them that has asked for it (features.py). */
#pragma once
#include <stdint.h>

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Gives this thread eight tiles of full size, which hold nothing yet. */
static inline void open_tiles(void) {
    struct tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}

/* A thread without tiles is cheaper to interrupt. */
static inline void close_tiles(void) { __asm__ volatile("tilerelease"); }

/* `stride`: bytes from row to row. */
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
#define TILE_LOAD(tile, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((long)(stride)) : "memory")
#define TILE_STORE(tile, to, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((long)(stride)) : "memory")
#define TILE_MULTIPLY(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
