/* What the C files have for each other and for Python; library.py says what the arguments are. */
#pragma once
#include <stdint.h>

enum epilogue { PLAIN = 0, SILU_MUL = 1, WIDE = 2 /* y is float32, not rounded */ };

void linear(const uint16_t *x, const uint16_t *weight, const uint16_t *bias, const uint16_t *addend, uint16_t *y,
            uint32_t *packed, long tokens, long inner, long rows, int epilogue, int threads);

/* How scales are stored. */
enum scales { SCALE_FLOAT32 = 0, SCALE_BFLOAT16 = 1, SCALE_FLOAT16 = 2, SCALE_INT8 = 3, SCALE_UINT8 = 4 };

#define SUPER 256       /* columns that share the scale of their scales */
#define TILE_OF_ROWS 16 /* rows that are interleaved */
#define MOST_PARTS 16   /* of the context of one query */

/* Rows of a weight as whole numbers: (code - zero - offset) * scale + minimum, where `group` columns of a row share scale,
   zero and minimum. */
struct codes {
    const uint8_t *codes;        /* [rows][inner * bits / 8]; of 4 bits the first one is in the lower half of a byte */
    const void *scale, *minimum; /* [rows][groups]; minimum may be null */
    const uint8_t *zero;         /* [rows][groups] or null */
    const _Float16 *super_scale, *super_minimum; /* [rows][inner / 256]: what int8 scales and minima are multiplied with */
    long rows, inner, groups, group; /* group: a multiple of 16 (of 32, if codes have 4 bits), or a row */
    float offset;
    int bits, flip, scales; /* flip: of codes of 8 bits, the bits that make them signed ones, 0 or 128 */
    int interleaved;        /* whether all arrays are in the order of interleave.c */
};

/* A weight of `count` parts, whose rows follow one another. */
struct quantized {
    const struct codes *parts;
    long count;
};

long quantized_scratch(long tokens, long inner);

void quantized_linear(const struct quantized *weight, const void *x, const void *bias, const void *addend, void *y,
                      void *scratch, long tokens, int dtype, int out, int threads);

long integer_scratch(long tokens, long inner);

void integer_linear(const struct codes *w, const void *x, const void *bias, const void *addend, void *y, void *scratch,
                    long tokens, long stride, int dtype, int out, int threads);

long tile_scratch(const struct quantized *weight);

void interleave(const struct quantized *weight, void *scratch, int back, int threads);

struct codes rows_of_tile(const struct codes *w, long first, long rows, char *memory);

void dequantize(const struct quantized *weight, void *y, void *scratch, int dtype, int threads);

void dequantize_rows(const struct quantized *weight, const int64_t *rows, void *y, void *scratch, long count, int dtype,
                 int threads);

void rms_norm(const void *x, const void *weight, void *y, long tokens, long size, float eps, int dtype, int threads);

void rotate(void *x, const float *cos, const float *sin, long tokens, long stride, long heads, long head_dim, int dtype,
            int threads);

void write_kv(const char *key, const char *value, char *keys, char *values, const int64_t *slots, long tokens, long stride,
              long row, int threads);

void attend(const void *query, const void *keys, const void *values, void *output, const int32_t *table,
            const int32_t *parts, const int64_t *first_part, float *partial, long queries, long query_stride,
            long table_width, long block, long heads, long kv_heads, long head_dim, float scale, int dtype, int threads);

void attend_chunks(const void *query, const void *keys, const void *values, void *output, const int32_t *table,
                   const int32_t *chunks, long count, long query_stride, long table_width, long block, long heads,
                   long kv_heads, long head_dim, long window, float scale, int dtype, int threads);

void silu_mul(const void *x, void *y, long tokens, long size, int dtype, int threads);

void likeliest_tokens(const float *logits, int64_t *tokens, uint8_t *finite, long rows, long vocab, int threads);

void draw_tokens(const float *logits, const float *thresholds, const float *temperatures, const int64_t *seeds,
                 const int64_t *positions, int64_t *tokens, long rows, long vocab, int threads);

void top_p_thresholds(const float *logits, const float *peaks, const float *temperatures, const float *top_ps,
                      float *thresholds, long rows, long vocab, int threads);

void apply_masks(float *logits, const uint32_t *masks, const int64_t *rows, long count, long vocab, int threads);

void gather_group(const int64_t *columns, const int32_t *table, int32_t *block_table, int64_t *slots, long table_stride,
                  long output_stride, long width, long block, long sequences);

void gather_shared(const int64_t *columns, const int32_t *tokens, int32_t *token_ids, int64_t *positions,
                   int32_t *cu_query_lens, int32_t *context_lens, int64_t *token_indices, int64_t *state_rows,
                   int64_t *sample_positions, long token_stride, long sequences);

void write_tokens(const int64_t *rows, const int64_t *positions, const int64_t *tokens, int32_t *table, long stride,
                  long count);

long attention_parts(const int32_t *cu_query_lens, const int32_t *context_lens, int32_t *parts, int64_t *first_part,
                     long window, long sequences);

/* What is in the slots of one linear layer: A [slots][parts * rank][columns], B^T [slots][rank][rows], the rank of each
   part of each slot (0: nothing), and where the rows of each part end. */
struct adapters {
    const void *a, *b;
    const int32_t *ranks;
    const int64_t *ends;
    long parts, rank, columns, rows;
};

void add_adapters(const struct adapters *l, const void *x, void *y, const int32_t *slots, long tokens, int dtype,
                  int threads);
