/* All layers of a decoder in one call, bfloat16: what model/decoder.py's DecoderLayer does, without Python between.

   In a step of one token the calls took 2 of 12 ms. The structures are those of layers.py. */
#include "kernels.h"
#include "vector.h"

struct layer {
    const uint16_t *attention_norm, *qkv, *qkv_bias, *output, *output_bias;
    const uint16_t *mlp_norm, *gate_up, *gate_up_bias, *down, *down_bias;
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

struct scratch {
    uint16_t *normed, *heads, *attended, *gated; /* `gated` lies where the two before it did */
    uint16_t *gate_up;                           /* only where tokens have adapters */
    uint32_t *packed;
    float *partial;
};

/* The slots of one layer's linears; of all of a step's tokens. */
struct layer_adapters {
    const struct adapters *qkv, *output, *gate_up, *down;
};

static void adapt(const struct adapters *linear, const int32_t *slots, const uint16_t *x, uint16_t *y, long tokens,
                  int threads) {
    if (linear) add_adapters(linear, x, y, slots, tokens, BFLOAT16, threads);
}

/* x += attention(norm(x)) */
static void attention(const struct shape *z, const struct layer *l, const struct group *g, const struct scratch *s,
                      const struct layer_adapters *a, const int32_t *slots, uint16_t *x, const float *cos, const float *sin,
                      long tokens, int threads) {
    long query = z->heads * z->head_dim, key = z->kv_heads * z->head_dim, row = query + 2 * key;
    rms_norm(x, l->attention_norm, s->normed, tokens, z->hidden, z->eps, BFLOAT16, threads);
    linear(s->normed, l->qkv, l->qkv_bias, 0, s->heads, s->packed, tokens, z->hidden, row, PLAIN, threads);
    adapt(a->qkv, slots, s->normed, s->heads, tokens, threads);
    rotate(s->heads, cos, sin, tokens, row, z->heads + z->kv_heads, z->head_dim, BFLOAT16, threads);
    write_kv((const char *)(s->heads + query), (const char *)(s->heads + query + key), l->keys, l->values, g->slots, tokens,
             2 * row, 2 * key);
    attend(s->heads, l->keys, l->values, s->attended, g->table, g->parts, g->first_part, s->partial, tokens, row,
           g->table_width, z->block, z->heads, z->kv_heads, z->head_dim, z->scale, BFLOAT16, threads);
    if (g->num_chunks)
        attend_chunks(s->heads, l->keys, l->values, s->attended, g->table, g->chunks, g->num_chunks, row, g->table_width,
                      z->block, z->heads, z->kv_heads, z->head_dim, g->window, z->scale, BFLOAT16, threads);
    linear(s->attended, l->output, l->output_bias, x, x, s->packed, tokens, query, z->hidden, PLAIN, threads);
    adapt(a->output, slots, s->attended, x, tokens, threads);
}

/* gated = silu(gate(normed)) * up(normed) */
static void gate(const struct shape *z, const struct layer *l, const struct scratch *s, const struct layer_adapters *a,
                 const int32_t *slots, long tokens, int threads) {
    if (!a->gate_up) {
        linear(s->normed, l->gate_up, l->gate_up_bias, 0, s->gated, s->packed, tokens, z->hidden, 2 * z->inner, SILU_MUL,
               threads);
        return;
    }
    linear(s->normed, l->gate_up, l->gate_up_bias, 0, s->gate_up, s->packed, tokens, z->hidden, 2 * z->inner, PLAIN, threads);
    adapt(a->gate_up, slots, s->normed, s->gate_up, tokens, threads);
    silu_mul(s->gate_up, s->gated, tokens, z->inner, BFLOAT16, threads);
}

/* x += down(silu(gate(norm(x))) * up(norm(x))) */
static void mlp(const struct shape *z, const struct layer *l, const struct scratch *s, const struct layer_adapters *a,
                const int32_t *slots, uint16_t *x, long tokens, int threads) {
    rms_norm(x, l->mlp_norm, s->normed, tokens, z->hidden, z->eps, BFLOAT16, threads);
    gate(z, l, s, a, slots, tokens, threads);
    linear(s->gated, l->down, l->down_bias, x, x, s->packed, tokens, z->inner, z->hidden, PLAIN, threads);
    adapt(a->down, slots, s->gated, x, tokens, threads);
}

/* x [tokens, hidden] through all layers, in place. `adapters`: of each layer, or null where no token has one; `slots`: of
   each token. `scratch`: [tokens][hidden + max(2 * (heads + kv_heads) * head_dim, inner)], and 2 * inner more with
   adapters; `packed` and `partial` as for linear and attend. */
void decoder_layers(const struct shape *z, const struct layer *layers, const struct group *groups,
                    const struct layer_adapters *adapters, const int32_t *slots, uint16_t *x, const float *cos,
                    const float *sin, uint16_t *scratch, uint32_t *packed, float *partial, long tokens, int threads) {
    const struct layer_adapters none = {0};
    uint16_t *heads = scratch + tokens * z->hidden;
    uint16_t *attended = heads + tokens * (z->heads + 2 * z->kv_heads) * z->head_dim;
    long wide = 2 * (z->heads + z->kv_heads) * z->head_dim;
    uint16_t *gate_up = heads + tokens * (wide > z->inner ? wide : z->inner);
    struct scratch s = {scratch, heads, attended, heads, gate_up, packed, partial};
    for (long i = 0; i < z->layers; i++) {
        const struct layer *l = layers + i;
        const struct layer_adapters *a = adapters ? adapters + i : &none;
        attention(z, l, groups + l->group, &s, a, slots, x, cos, sin, tokens, threads);
        mlp(z, l, &s, a, slots, x, tokens, threads);
    }
}
