/* The integers of a step: its inputs, gathered from the rows of the state table as kernels/gather.py does on a GPU, the
   parts into which attention divides contexts, and the tokens that are sampled. For one token PyTorch took 65 operations
   for the first two. */
#include "kernels.h"

#define CHUNK 8           /* a sequence with at least so many tokens in a step is computed as a chunk */
#define SHORTEST_PART 128 /* tokens */
#define STEP 256          /* tokens: sizes of parts are multiples of this divided by MOST_PARTS */

/* One sequence, whose tokens of the step are [first, end): see `gather_step` in kernels/gather.py for all arguments. */
struct sequence {
    int64_t row, start, first, end;
};

static struct sequence sequence_of(const int64_t *columns, long i, long sequences) {
    const int64_t *ends = columns + 3 * sequences + i;
    return (struct sequence){columns[i], columns[sequences + i], ends[0], ends[1]};
}

/* Where the numbers of the sequence's row begin; of padding nothing is read. */
static const int32_t *row_of(const int32_t *table, const struct sequence *s, long stride) {
    return table + (s->row < 0 ? 0 : s->row) * stride;
}

static void gather_slots(const struct sequence *s, const int32_t *table, int64_t *slots, long block) {
    for (int64_t i = s->first, position = s->start; i < s->end; i++, position++)
        slots[i] = s->row < 0 ? -1 : table[position / block] * (int64_t)block + position % block;
}

static void gather_tokens(const struct sequence *s, const int32_t *tokens, int32_t *token_ids, int64_t *positions) {
    for (int64_t i = s->first, position = s->start; i < s->end; i++, position++) {
        positions[i] = s->row < 0 ? 0 : position;
        token_ids[i] = s->row < 0 ? 0 : tokens[position];
    }
}

/* What a KV group has of its own: slots, and the first `width` entries of the block tables. */
void gather_group(const int64_t *columns, const int32_t *table, int32_t *block_table, int64_t *slots, long table_stride,
                  long output_stride, long width, long block, long sequences) {
    for (long i = 0; i < sequences; i++) {
        struct sequence s = sequence_of(columns, i, sequences);
        const int32_t *from = row_of(table, &s, table_stride);
        gather_slots(&s, from, slots, block);
        for (long entry = 0; entry < width; entry++) block_table[i * output_stride + entry] = s.row < 0 ? 0 : from[entry];
    }
}

/* What all groups share. */
void gather_shared(const int64_t *columns, const int32_t *tokens, int32_t *token_ids, int64_t *positions,
                   int32_t *cu_query_lens, int32_t *context_lens, int64_t *token_indices, int64_t *state_rows,
                   int64_t *sample_positions, long token_stride, long sequences) {
    cu_query_lens[0] = 0;
    for (long i = 0; i < sequences; i++) {
        struct sequence s = sequence_of(columns, i, sequences);
        gather_tokens(&s, row_of(tokens, &s, token_stride), token_ids, positions);
        int64_t context = s.row < 0 ? 0 : s.start + s.end - s.first, place = columns[2 * sequences + i];
        context_lens[i] = context;
        cu_query_lens[i + 1] = s.end;
        if (place >= 0) {
            token_indices[place] = s.end - 1;
            state_rows[place] = s.row;
            sample_positions[place] = context;
        }
    }
}

/* Tokens to positions of rows of the state table. */
void write_tokens(const int64_t *rows, const int64_t *positions, const int64_t *tokens, int32_t *table, long stride,
                  long count) {
    for (long i = 0; i < count; i++) table[rows[i] * stride + positions[i]] = tokens[i];
}

/* The tokens in each part of the context of a query that is its sequence's only one in the step. */
static int64_t part_size(int64_t context) {
    int64_t size = (context + STEP - 1) / STEP * (STEP / MOST_PARTS);
    return size < SHORTEST_PART ? SHORTEST_PART : size;
}

/* The parts of all queries that are in no chunk, as `attend` wants them; returns their number. A query sees `window`
   tokens. One of several queries of a sequence has its context in one part. */
long attention_parts(const int32_t *cu_query_lens, const int32_t *context_lens, int32_t *parts, int64_t *first_part,
                     long window, long sequences) {
    int64_t made = 0;
    first_part[0] = 0;
    for (long i = 0; i < sequences; i++) {
        int64_t first = cu_query_lens[i], count = cu_query_lens[i + 1] - first, context = context_lens[i];
        for (int64_t query = first; query < first + count; query++) {
            int64_t end = count < CHUNK && context > 0 ? context - count + query - first + 1 : 0;
            int64_t size = count == 1 ? part_size(end) : end;
            for (int64_t begin = end > window ? end - window : 0; begin < end; begin += size, made++) {
                int64_t next = begin + size < end ? begin + size : end;
                int32_t part[] = {query, i, begin, next};
                for (int j = 0; j < 4; j++) parts[4 * made + j] = part[j];
            }
            first_part[query + 1] = made;
        }
    }
    return made;
}
