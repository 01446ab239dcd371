/* All layers of a decoder in one call, in bfloat16 with weights of 16 bits or of codes: what model/decoder.py's
   DecoderLayer does, without Python between.

   In a step of one token the calls took 2 of 12 ms. */
#include "layers.h"
#include "kernels.h"
#include "vector.h"

struct scratch {
    uint16_t *normed, *heads, *attended, *gated; /* `gated` lies where the two before it did */
    uint16_t *gate_up;                           /* only where tokens have adapters, or weights are codes */
    void *inputs;                                /* as linear and quantized_linear lay them out */
    float *partial;
};

static void adapt(const struct adapters *linear, const int32_t *slots, const uint16_t *x, uint16_t *y, long tokens,
                  int threads) {
    if (linear) add_adapters(linear, x, y, slots, tokens, BFLOAT16, threads);
}

/* y [tokens, rows] = x [tokens, inner] W^T + bias + addend. */
static void multiply(const struct weight *w, const uint16_t *x, const uint16_t *addend, uint16_t *y,
                     const struct scratch *s, long tokens, long inner, long rows, int threads) {
    if (w->codes) quantized_linear(w->codes, x, w->bias, addend, y, s->inputs, tokens, BFLOAT16, BFLOAT16, threads);
    else linear(x, w->numbers, w->bias, addend, y, s->inputs, tokens, inner, rows, PLAIN, threads);
}

/* x += attention(norm(x)) */
static void attention(const struct shape *z, const struct layer *l, const struct group *g, const struct scratch *s,
                      const struct layer_adapters *a, const int32_t *slots, uint16_t *x, const float *cos, const float *sin,
                      long tokens, int threads) {
    long query = z->heads * z->head_dim, key = z->kv_heads * z->head_dim, row = query + 2 * key;
    rms_norm(x, l->attention_norm, s->normed, tokens, z->hidden, z->eps, BFLOAT16, threads);
    multiply(&l->qkv, s->normed, 0, s->heads, s, tokens, z->hidden, row, threads);
    adapt(a->qkv, slots, s->normed, s->heads, tokens, threads);
    rotate(s->heads, cos, sin, tokens, row, z->heads + z->kv_heads, z->head_dim, BFLOAT16, threads);
    write_kv((const char *)(s->heads + query), (const char *)(s->heads + query + key), l->keys, l->values, g->slots, tokens,
             2 * row, 2 * key, threads);
    attend(s->heads, l->keys, l->values, s->attended, g->table, g->parts, g->first_part, s->partial, tokens, row,
           g->table_width, z->block, z->heads, z->kv_heads, z->head_dim, z->scale, BFLOAT16, threads);
    if (g->num_chunks)
        attend_chunks(s->heads, l->keys, l->values, s->attended, g->table, g->chunks, g->num_chunks, row, g->table_width,
                      z->block, z->heads, z->kv_heads, z->head_dim, g->window, z->scale, BFLOAT16, threads);
    multiply(&l->output, s->attended, x, x, s, tokens, query, z->hidden, threads);
    adapt(a->output, slots, s->attended, x, tokens, threads);
}

/* gated = silu(gate(normed)) * up(normed) */
static void gate(const struct shape *z, const struct layer *l, const struct scratch *s, const struct layer_adapters *a,
                 const int32_t *slots, long tokens, int threads) {
    const struct weight *w = &l->gate_up;
    if (!a->gate_up && !w->codes) {
        linear(s->normed, w->numbers, w->bias, 0, s->gated, s->inputs, tokens, z->hidden, 2 * z->inner, SILU_MUL, threads);
        return;
    }
    multiply(w, s->normed, 0, s->gate_up, s, tokens, z->hidden, 2 * z->inner, threads);
    adapt(a->gate_up, slots, s->normed, s->gate_up, tokens, threads);
    silu_mul(s->gate_up, s->gated, tokens, z->inner, BFLOAT16, threads);
}

/* x += down(silu(gate(norm(x))) * up(norm(x))) */
static void mlp(const struct shape *z, const struct layer *l, const struct scratch *s, const struct layer_adapters *a,
                const int32_t *slots, uint16_t *x, long tokens, int threads) {
    rms_norm(x, l->mlp_norm, s->normed, tokens, z->hidden, z->eps, BFLOAT16, threads);
    gate(z, l, s, a, slots, tokens, threads);
    multiply(&l->down, s->gated, x, x, s, tokens, z->inner, z->hidden, threads);
    adapt(a->down, slots, s->gated, x, tokens, threads);
}

/* x [tokens, hidden] through all layers, in place. `adapters`: of each layer, or null where no token has one; `slots`: of
   each token. `scratch`: [tokens][hidden + max(2 * (heads + kv_heads) * head_dim, inner)], and 2 * inner more with
   adapters or codes; `inputs` as linear and quantized_linear want it; `partial` as for attend. */
void decoder_layers(const struct shape *z, const struct layer *layers, const struct group *groups,
                    const struct layer_adapters *adapters, const int32_t *slots, uint16_t *x, const float *cos,
                    const float *sin, uint16_t *scratch, void *inputs, float *partial, long tokens, int threads) {
    const struct layer_adapters none = {0};
    uint16_t *heads = scratch + tokens * z->hidden;
    uint16_t *attended = heads + tokens * (z->heads + 2 * z->kv_heads) * z->head_dim;
    long wide = 2 * (z->heads + z->kv_heads) * z->head_dim;
    uint16_t *gate_up = heads + tokens * (wide > z->inner ? wide : z->inner);
    struct scratch s = {scratch, heads, attended, heads, gate_up, inputs, partial};
    for (long i = 0; i < z->layers; i++) {
        const struct layer *l = layers + i;
        const struct layer_adapters *a = adapters ? adapters + i : &none;
        attention(z, l, groups + l->group, &s, a, slots, x, cos, sin, tokens, threads);
        mlp(z, l, &s, a, slots, x, tokens, threads);
    }
}
