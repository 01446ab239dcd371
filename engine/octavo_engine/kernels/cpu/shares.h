/* How threads share the iterations of a loop whose weights are read once, such as one over rows.

   Each thread has a range of its own and takes it in small pieces, one after the other, so that it reads memory as one
   stream: with pieces that threads took from one range, a step of one token took a quarter longer. Another process may
   hold a thread back, and the others then do what it would have done instead of waiting for its half. */
#pragma once

/* How many of `count` iterations a thread takes at a time. */
static inline long chunk(long count, int threads) { return count / (16 * threads) + 1; }

/* One thread's range: how many of its iterations have been begun. Its own line of the cache, as all threads write. */
struct share {
    _Alignas(64) long begun;
};

/* The iterations [first, end) that a thread takes. */
struct piece_of_loop {
    long first, end;
    int tried; /* how many ranges have nothing left, its own first */
};

/* Gives thread number `thread` its next piece of `count` iterations; 0 if nothing is left. `shares` begins as zeros, `piece`
   too. */
static inline int next_piece(struct share *shares, long count, int thread, int threads, struct piece_of_loop *piece) {
    for (; piece->tried < threads; piece->tried++) {
        int range = (thread + piece->tried) % threads;
        long low = count * range / threads, high = count * (range + 1) / threads;
        long size = chunk(count, threads);
        piece->first = low + __atomic_fetch_add(&shares[range].begun, size, __ATOMIC_RELAXED);
        piece->end = piece->first + size < high ? piece->first + size : high;
        if (piece->first < high) return 1;
    }
    return 0;
}
