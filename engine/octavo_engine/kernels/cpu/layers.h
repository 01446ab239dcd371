/* The layers of a decoder as layers.py describes them. */
#pragma once
#include "kernels.h"

/* What a linear multiplies with: either numbers or codes. */
struct weight {
    const uint16_t *numbers;
    const struct quantized *codes;
    const uint16_t *bias;
};

struct layer {
    const uint16_t *attention_norm, *mlp_norm;
    struct weight qkv, output, gate_up, down;
    char *keys, *values;
    long group; /* of the KV groups */
};

struct group {
    const int64_t *slots, *first_part;
    const int32_t *table, *parts, *chunks;
    long table_width, num_chunks, window;
};

struct shape {
    long layers, hidden, inner, heads, kv_heads, head_dim, block;
    float eps, scale;
};

/* The slots of one layer's linears; of all of a step's tokens. */
struct layer_adapters {
    const struct adapters *qkv, *output, *gate_up, *down;
};

void decoder_layers(const struct shape *z, const struct layer *layers, const struct group *groups,
                    const struct layer_adapters *adapters, const int32_t *slots, uint16_t *x, const float *cos,
                    const float *sin, uint16_t *scratch, void *inputs, float *partial, long tokens, int threads);
