/* Masks of guided decoding: a token whose bit is 0 gets the logit -infinity. */
#include <math.h>
#include "kernels.h"

#define BITS 32

static void mask_row(float *logits, const uint32_t *words, long vocab) {
    for (long start = 0; start < vocab; start += BITS) {
        uint32_t word = words[start / BITS];
        if (word == UINT32_MAX) continue;
        if (vocab - start >= BITS && !word)
            for (int bit = 0; bit < BITS; bit++) logits[start + bit] = -INFINITY;
        else if (vocab - start >= BITS)
            for (int bit = 0; bit < BITS; bit++)
                logits[start + bit] = (word >> bit) & 1 ? logits[start + bit] : -INFINITY;
        else
            for (int bit = 0; bit < vocab - start; bit++)
                if (!((word >> bit) & 1)) logits[start + bit] = -INFINITY;
    }
}

void apply_masks(float *logits, const uint32_t *masks, const int64_t *rows, long count, long vocab, int threads) {
    long words = (vocab + BITS - 1) / BITS;
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 1)
    for (long i = 0; i < count; i++) mask_row(logits + rows[i] * vocab, masks + i * words, vocab);
}
