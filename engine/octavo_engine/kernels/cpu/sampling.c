/* Finds the likeliest tokens, and draws tokens by the Gumbel-max trick, with the numbers of kernels/sampling.py: the
   largest logit / temperature + noise. Top-p becomes a threshold, which is found without sorting the vocabulary. */
#include <math.h>
#include <stdlib.h>
#include "kernels.h"
#include "vector.h"

#define BLOCK 256 /* tokens that are looked at together, and skipped together */
#define GOLDEN 0x9E3779B97F4A7C15u

/* SplitMix64's output for a state (Steele, Lea, Flood 2014). */
INLINE uint64_t mix64(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

/* A number in (0, 1] of 31 bits. */
INLINE float uniform(int32_t bits) { return ((float)bits + 0.5f) * 0x1p-31f; }

/* -log(-log(1 - u)); near 0 a series, as 1 - u would lose the digits of u. */
static float gumbel(float u) {
    float series = u * (1.0f + u * (1.0f / 2 + u * (1.0f / 3 + u * (1.0f / 4))));
    return -logf(u < 0.02f ? series : -logf(1.0f - fminf(u, 1.0f - 0x1p-24f)));
}

/* At least gumbel(u), without a logarithm: it is at most -log(u), and u at least 2^exponent. */
INLINE float most_noise(float u) {
    int32_t word;
    memcpy(&word, &u, sizeof word);
    return (float)(127 - (word >> 23)) * 0.6931472f + 1e-4f;
}

/* The largest logit of a block; NaN if one of them is NaN. */
INLINE float block_peak(const float *logits, long count) {
    floats most = all(-INFINITY);
    ints nans = {0};
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        floats values = load(logits, i, FLOAT32);
        most = larger(values, most);
        nans |= values != values;
    }
    float peak = largest(most);
    int nan = total((floats)(nans & (ints)all(1))) > 0;
    for (; i < count; i++) nan |= isnan(logits[i]), peak = fmaxf(peak, logits[i]);
    return nan ? NAN : peak;
}

/* The token of one row. `likeliest` is where the largest logit is; a row whose logits are not finite gets it. Random
   numbers take most of the time, so a block gets none if no token of it could win, as where a mask forbids them all. */
static int64_t draw_row(const float *logits, float threshold, float temperature, uint64_t stream, int64_t likeliest,
                        long vocab) {
    float peak = logits[likeliest];
    float best = gumbel(uniform(mix64(stream + (uint64_t)(likeliest + 1) * GOLDEN) >> 33));
    int64_t token = likeliest;
    for (long start = 0; start < vocab; start += BLOCK) {
        float scores[BLOCK], numbers[BLOCK];
        int count = vocab - start < BLOCK ? vocab - start : BLOCK, reach = 0;
        float most = block_peak(logits + start, count);
        if (!(most >= threshold && (most - peak) / temperature + most_noise(uniform(0)) >= best)) continue;
        for (int i = 0; i < count; i++)
            numbers[i] = uniform((int32_t)(mix64(stream + (uint64_t)(start + i + 1) * GOLDEN) >> 33));
        for (int i = 0; i < count; i++) {
            float logit = logits[start + i];
            scores[i] = logit >= threshold ? (logit - peak) / temperature : -INFINITY;
            reach += scores[i] + most_noise(numbers[i]) >= best;
        }
        if (!reach) continue;
        for (int i = 0; i < count; i++) {
            if (scores[i] + most_noise(numbers[i]) < best) continue;
            float score = scores[i] + gumbel(numbers[i]);
            if (score > best || (score == best && start + i < token)) best = score, token = start + i;
        }
    }
    return token;
}

void draw_tokens(const float *logits, const float *thresholds, const float *temperatures, const int64_t *seeds,
                 const int64_t *positions, int64_t *tokens, long rows, long vocab, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1)
    for (long row = 0; row < rows; row++) {
        uint64_t state = (uint64_t)seeds[row] * GOLDEN + (uint64_t)(positions[row] + 1) * 0xD1B54A32D192ED03u;
        tokens[row] = draw_row(logits + row * vocab, thresholds[row], temperatures[row], mix64(state), tokens[row], vocab);
    }
}

/* The first index of `wanted`, which is there, from `start` on; of the first NaN if it is NaN. */
static int64_t index_of(const float *logits, float wanted, long start) {
    while (isnan(wanted) ? !isnan(logits[start]) : logits[start] != wanted) start++;
    return start;
}

/* The index of a row's largest logit, the first of several; of its first NaN if it has one. */
static int64_t likeliest_of(const float *logits, long vocab) {
    float best = -INFINITY;
    long first = 0; /* where the block of `best` starts */
    for (long start = 0; start < vocab; start += BLOCK) {
        float peak = block_peak(logits + start, vocab - start < BLOCK ? vocab - start : BLOCK);
        if (isnan(peak)) return index_of(logits, NAN, start);
        if (peak > best) best = peak, first = start;
    }
    return index_of(logits, best, first);
}

/* `finite`: whether a row's largest logit is. */
void likeliest_tokens(const float *logits, int64_t *tokens, uint8_t *finite, long rows, long vocab, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1)
    for (long row = 0; row < rows; row++) {
        tokens[row] = likeliest_of(logits + row * vocab, vocab);
        finite[row] = isfinite(logits[row * vocab + tokens[row]]) != 0;
    }
}

#define BUCKETS 1024
#define BUCKET_OF 32.0f /* buckets for a factor of e */

/* Tokens and their mass by how far their logits / temperature lie below the largest. */
struct buckets {
    double masses[BUCKETS];
    long counts[BUCKETS];
};

/* The weight of a logit; 0 below the threshold. */
INLINE floats weigh(floats logit, float threshold, float peak, float temperature) {
    return choose(logit >= threshold, exponential((logit - peak) / temperature), all(0));
}

INLINE int bucket_of(float logit, float peak, float temperature) {
    return (int)fminf((peak - logit) / temperature * BUCKET_OF, BUCKETS - 1);
}

INLINE void add_token(struct buckets *b, float logit, float weight, float peak, float temperature) {
    if (weight == 0) return;
    int bucket = bucket_of(logit, peak, temperature);
    b->masses[bucket] += weight;
    b->counts[bucket]++;
}

static void fill(struct buckets *b, const float *logits, float threshold, float peak, float temperature, long vocab) {
    memset(b, 0, sizeof *b);
    long i = 0;
    for (; i + LANES <= vocab; i += LANES) {
        floats values = load(logits, i, FLOAT32), weights = weigh(values, threshold, peak, temperature);
        for (int lane = 0; lane < LANES; lane++) add_token(b, values[lane], weights[lane], peak, temperature);
    }
    for (; i < vocab; i++) add_token(b, logits[i], weigh(all(logits[i]), threshold, peak, temperature)[0], peak, temperature);
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The logit at which the mass of those above it, `before` that of the buckets above, first reaches the target. */
static float threshold_in(int bucket, long count, double before, double target, const float *logits, float threshold,
                          float peak, float temperature, long vocab) {
    float *members = malloc(count * sizeof *members);
    if (!members) return threshold; /* more is kept than asked for */
    long found = 0;
    for (long i = 0; i < vocab && found < count; i++) {
        if (!(logits[i] >= threshold) || bucket_of(logits[i], peak, temperature) != bucket) continue;
        if (weigh(all(logits[i]), threshold, peak, temperature)[0] > 0) members[found++] = logits[i];
    }
    qsort(members, found, sizeof *members, descending);
    for (long i = 0; i < found && before < target; i++) {
        threshold = members[i];
        before += weigh(all(threshold), threshold, peak, temperature)[0];
    }
    free(members);
    return threshold;
}

static float top_p_threshold(const float *logits, float threshold, float peak, float temperature, float top_p, long vocab) {
    struct buckets b;
    double total = 0, before = 0;
    fill(&b, logits, threshold, peak, temperature, vocab);
    for (int i = 0; i < BUCKETS; i++) total += b.masses[i];
    double target = total * top_p;
    int bucket = 0;
    while (bucket < BUCKETS - 1 && before + b.masses[bucket] < target) before += b.masses[bucket++];
    return threshold_in(bucket, b.counts[bucket], before, target, logits, threshold, peak, temperature, vocab);
}

void top_p_thresholds(const float *logits, const float *peaks, const float *temperatures, const float *top_ps,
                      float *thresholds, long rows, long vocab, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1)
    for (long row = 0; row < rows; row++)
        if (top_ps[row] < 1 && isfinite(peaks[row]))
            thresholds[row] = top_p_threshold(logits + row * vocab, thresholds[row], peaks[row], temperatures[row],
                                              top_ps[row], vocab);
}
