/* What lies between matrix multiplications, each in one pass over its tokens. Widths are multiples of LANES. */
#include "kernels.h"
#include "vector.h"

#define PARALLEL_FROM 16384 /* elements; less is done before a second thread has begun */

/* y = (x / rms(x) in x's type) * weight (arXiv 1910.07467, rounded as Hugging Face's Llama does). */
INLINE void norm_row(const void *x, const void *weight, void *y, long size, float eps, enum dtype dtype) {
    floats squares = {0};
    for (long i = 0; i < size; i += LANES) {
        floats value = load(x, i, dtype);
        squares += value * value;
    }
    float scale = 1.0f / __builtin_sqrtf(total(squares) / size + eps);
    for (long i = 0; i < size; i += LANES) {
        store(y, i, load(x, i, dtype) * scale, dtype);
        store(y, i, load(y, i, dtype) * load(weight, i, dtype), dtype);
    }
}

void rms_norm(const void *x, const void *weight, void *y, long tokens, long size, float eps, int dtype, int threads) {
    long bytes = bytes_of(dtype);
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * size >= PARALLEL_FROM)
    for (long t = 0; t < tokens; t++) {
        const char *from = (const char *)x + t * size * bytes;
        char *to = (char *)y + t * size * bytes;
        if (dtype == FLOAT32) norm_row(from, weight, to, size, eps, FLOAT32);
        else norm_row(from, weight, to, size, eps, BFLOAT16);
    }
}

/* Rotates the pairs (i, i + D/2) of each head, in place (arXiv 2104.09864); cos and sin are [tokens, D/2]. */
INLINE void rotate_heads(void *x, long first, const float *cos, const float *sin, long heads, long half, enum dtype dtype) {
    for (long h = 0; h < heads; h++, first += 2 * half)
        for (long i = 0; i < half; i += LANES) {
            floats a = load(x, first + i, dtype), b = load(x, first + half + i, dtype);
            floats c = load(cos, i, FLOAT32), s = load(sin, i, FLOAT32);
            store(x, first + i, a * c - b * s, dtype);
            store(x, first + half + i, b * c + a * s, dtype);
        }
}

void rotate(void *x, const float *cos, const float *sin, long tokens, long stride, long heads, long head_dim, int dtype,
            int threads) {
    long half = head_dim / 2;
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * heads * head_dim >= PARALLEL_FROM)
    for (long t = 0; t < tokens; t++)
        if (dtype == FLOAT32) rotate_heads(x, t * stride, cos + t * half, sin + t * half, heads, half, FLOAT32);
        else rotate_heads(x, t * stride, cos + t * half, sin + t * half, heads, half, BFLOAT16);
}

/* y [tokens, size] = silu(gate) * up, both in one row of x [tokens, 2 * size]. */
void silu_mul(const void *x, void *y, long tokens, long size, int dtype, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * size >= PARALLEL_FROM)
    for (long t = 0; t < tokens; t++)
        for (long i = 0; i < size; i += LANES) {
            floats gate = load(x, 2 * t * size + i, dtype), up = load(x, (2 * t + 1) * size + i, dtype);
            store(y, t * size + i, silu(gate) * up, dtype);
        }
}
