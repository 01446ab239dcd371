/* A step in which sequences go on by one token each, in one call: from the rows of the state table to logits.

   It does what runner/inputs.py, attention/cpu.py and model/decoder.py do with the same kernels, without Python between:
   where weights fill the caches, each part of Python has to be read from memory again, and they took 0.5 of 6 ms. */
#include "kernels.h"
#include "layers.h"
#include "vector.h"

#define LINE 64 /* bytes of the cache that are moved together */

/* The block tables of a KV group in the state table. */
struct block_tables {
    const int32_t *blocks;
    long stride, window;
};

struct decoder {
    const struct shape *shape;
    const struct layer *layers;
    const struct block_tables *tables;
    struct weight embedding, head;
    const uint16_t *norm;
    const int32_t *tokens; /* the state table's */
    long token_stride, groups, vocab;
};

/* What a step needs meanwhile; slots, parts and first parts are those of all groups. */
struct memory {
    int64_t *token_ids, *slots, *first_part;
    int32_t *ends, *contexts, *parts;
    uint16_t *x, *layers;
    float *partial;
    char *tile, *end;
};

static void *take(char **at, long bytes) {
    void *found = *at;
    *at += (bytes + LINE - 1) / LINE * LINE;
    return found;
}

static struct memory laid_out(const struct decoder *d, char *at, long tokens, int threads) {
    const struct shape *z = d->shape;
    long wide = 2 * (z->heads + z->kv_heads) * z->head_dim;
    struct memory m;
    m.token_ids = take(&at, tokens * sizeof *m.token_ids);
    m.slots = take(&at, d->groups * tokens * sizeof *m.slots);
    m.first_part = take(&at, d->groups * (tokens + 1) * sizeof *m.first_part);
    m.ends = take(&at, (tokens + 1) * sizeof *m.ends);
    m.contexts = take(&at, tokens * sizeof *m.contexts);
    m.parts = take(&at, d->groups * tokens * MOST_PARTS * 4 * sizeof *m.parts);
    m.x = take(&at, tokens * z->hidden * sizeof *m.x);
    m.layers = take(&at, tokens * (z->hidden + (wide > z->inner ? wide : z->inner) + 2 * z->inner) * sizeof *m.layers);
    m.partial = take(&at, tokens * MOST_PARTS * z->heads * (z->head_dim + 2) * sizeof *m.partial);
    m.tile = take(&at, d->embedding.codes ? threads * tile_scratch(d->embedding.codes) : 0);
    m.end = at;
    return m;
}

/* Bytes of memory that `decode` needs. */
long decode_scratch(const struct decoder *d, long tokens, int threads) {
    char *nowhere = (char *)LINE; /* of which nothing is read */
    return laid_out(d, nowhere, tokens, threads).end - nowhere;
}

/* Where group number `i` writes, and what its queries attend to, in the block tables of the state table itself. */
static struct group group_of(const struct decoder *d, long i, const struct memory *m, const int64_t *rows,
                             const int64_t *positions, long tokens) {
    const struct block_tables *t = d->tables + i;
    long block = d->shape->block;
    int64_t *slots = m->slots + i * tokens, *first_part = m->first_part + i * (tokens + 1);
    int32_t *parts = m->parts + i * tokens * MOST_PARTS * 4;
    for (long k = 0; k < tokens; k++)
        slots[k] = t->blocks[rows[k] * t->stride + positions[k] / block] * (int64_t)block + positions[k] % block;
    long count = attention_parts(m->ends, m->contexts, parts, first_part, t->window, tokens);
    for (long k = 0; k < count; k++) parts[4 * k + 1] = rows[parts[4 * k + 1]];
    return (struct group){.slots = slots, .first_part = first_part, .table = t->blocks, .parts = parts,
                          .table_width = t->stride, .window = t->window};
}

/* The tokens' vectors, from numbers or codes. */
static void embed(const struct decoder *d, const struct memory *m, long tokens, int threads) {
    long hidden = d->shape->hidden;
    if (d->embedding.codes)
        dequantize_rows(d->embedding.codes, m->token_ids, m->x, m->tile, tokens, BFLOAT16, threads);
    else
        for (long i = 0; i < tokens; i++)
            memcpy(m->x + i * hidden, d->embedding.numbers + m->token_ids[i] * hidden, hidden * sizeof *m->x);
}

/* logits [tokens, vocab] of the tokens at `positions` of `rows`. `memory` has `decode_scratch` bytes, `inputs` what the
   linears need. */
void decode(const struct decoder *d, const int64_t *rows, const int64_t *positions, const float *cos, const float *sin,
            void *memory, void *inputs, float *logits, long tokens, int threads) {
    struct memory m = laid_out(d, memory, tokens, threads);
    struct group groups[d->groups];
    for (long i = 0; i <= tokens; i++) m.ends[i] = i;
    for (long i = 0; i < tokens; i++) {
        m.token_ids[i] = d->tokens[rows[i] * d->token_stride + positions[i]];
        m.contexts[i] = positions[i] + 1;
    }
    for (long i = 0; i < d->groups; i++) groups[i] = group_of(d, i, &m, rows, positions, tokens);
    embed(d, &m, tokens, threads);
    decoder_layers(d->shape, d->layers, groups, 0, 0, m.x, cos, sin, m.layers, inputs, m.partial, tokens, threads);
    uint16_t *normed = m.layers;
    rms_norm(m.x, d->norm, normed, tokens, d->shape->hidden, d->shape->eps, BFLOAT16, threads);
    if (d->head.codes) quantized_linear(d->head.codes, normed, 0, 0, logits, inputs, tokens, BFLOAT16, FLOAT32, threads);
    else
        linear(normed, d->head.numbers, 0, 0, (uint16_t *)logits, inputs, tokens, d->shape->hidden, d->vocab, WIDE, threads);
}
