/* Scales as tensors store them. */
#pragma once
#include "kernels.h"
#include "vector.h"

/* `count` scales from number `index` on as floats, in the first lanes. */
INLINE floats some_scales(const void *from, long index, int count, enum scales kind) {
    long size = kind == SCALE_FLOAT32 ? 4 : kind == SCALE_INT8 || kind == SCALE_UINT8 ? 1 : 2;
    const char *at = (const char *)from + index * size;
    words values;
    if (count < LANES) {
        values = some_bytes(at, count * size);
        at = (const char *)&values;
    }
    if (kind == SCALE_FLOAT32) return load(at, 0, FLOAT32);
    if (kind == SCALE_BFLOAT16) return load(at, 0, BFLOAT16);
    if (kind == SCALE_FLOAT16) return float16s(at);
    return __builtin_convertvector(kind == SCALE_UINT8 ? unsigned_bytes(at) : signed_bytes(at), floats);
}
