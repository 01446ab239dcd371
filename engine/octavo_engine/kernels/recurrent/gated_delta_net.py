"""Gated DeltaNet (arXiv 2412.06464), the linear attention of Qwen3-Next: a state instead of keys and values.

For each token, of one head, with decay a = exp(log_decay) and strength b:

    state = a * state                           forget a little
    delta = b * (v - state^T k)                 how far the state is from giving v for k
    state = state + k delta^T                   correct it by as much as the strength says
    output = scale * state^T q

A sequence's few tokens (decode) are computed just so (`recurrent_kernel`). Many are computed in chunks of 64 (the WY
representation, section 3.3 of the paper). With g the decays summed up within the chunk, S the state before it and D the
matrix of the chunk's deltas, the recurrence says for all tokens i of the chunk

    delta_i = b_i * (v_i - exp(g_i) S^T k_i - sum over j < i of exp(g_i - g_j) (k_i . k_j) delta_j)
    (I + L) D = b * (V - exp(g) K S)            L_ij = b_i exp(g_i - g_j) (k_i . k_j) below the diagonal
    output = scale * (exp(g) Q S + P D)         P_ij = exp(g_i - g_j) (q_i . k_j) up to the diagonal
    S = exp(g_64) S + (exp(g_64 - g) K)^T D

so that (I + L)^-1 and P can be computed for all chunks at once (`chunk_kernel`), and only five small products a chunk
are left to be done one chunk after another (`scan_kernel`). The paper multiplies the inverse out to W and U; here it
is applied to b * (V - exp(g) K S) instead, which takes one product more and less than half the scratch memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.attention.attention_segments import sequence_at

RECURRENT_TOKENS = 8
"""A sequence with at most so many tokens in a step is computed token by token."""
_CHUNK = 64
_COLUMNS = 32  # of the state, for one program
_EPSILON = tl.constexpr(1e-6)


@triton.jit
def inverse_length(x, AXIS: tl.constexpr, NORMALIZE: tl.constexpr):
    """Return 1 / |x| along AXIS if x is to be l2-normalized, else 1."""
    squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=AXIS)
    return tl.rsqrt(tl.where(NORMALIZE, squares + _EPSILON, 1.0))


@triton.jit
def recurrent_kernel(
    output,  # [T, heads, VALUE_DIM]
    query,  # [T, key heads, KEY_DIM]
    key,
    value,  # [T, heads, VALUE_DIM]
    log_decay,  # [T, heads] float32
    strength,  # [T, heads]
    state,  # [rows, heads, KEY_DIM, VALUE_DIM] float32
    state_rows,
    cu_query_lens,
    context_lens,
    scale,
    query_stride,
    key_stride,
    value_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # heads that share a key head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    MOST_TOKENS: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """One program computes the few tokens of one sequence, one head, COLUMNS columns of the state."""
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    first = tl.load(cu_query_lens + sequence).to(tl.int64)
    query_len = tl.load(cu_query_lens + sequence + 1) - first
    if (query_len == 0) | (query_len > MOST_TOKENS):
        return
    known_columns = tl.where(tl.load(context_lens + sequence) > query_len, VALUE_DIM, 0)  # of the state: none at first
    features = tl.arange(0, KEY_DIM)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    key_places = head // GROUP * KEY_DIM + features
    row = tl.load(state_rows + sequence).to(tl.int64)
    places = state + ((row * HEADS + head) * KEY_DIM + features)[:, None] * VALUE_DIM + columns[None, :]
    s = tl.load(places, mask=(columns < known_columns)[None, :], other=0.0)
    for token in range(first, first + query_len):
        q = tl.load(query + token * query_stride + key_places).to(tl.float32)
        k = tl.load(key + token * key_stride + key_places).to(tl.float32)
        v = tl.load(value + token * value_stride + head * VALUE_DIM + columns).to(tl.float32)
        b = tl.load(strength + token * HEADS + head).to(tl.float32)
        q *= inverse_length(q, 0, NORMALIZE) * scale
        k *= inverse_length(k, 0, NORMALIZE)
        s *= tl.exp(tl.load(log_decay + token * HEADS + head))
        delta = b * (v - tl.sum(s * k[:, None], axis=0))
        s += k[:, None] * delta[None, :]
        result = tl.sum(s * q[:, None], axis=0)
        tl.store(output + (token * HEADS + head) * VALUE_DIM + columns, result.to(output.dtype.element_ty))
    tl.store(places, s)


@triton.jit
def unit_lower_inverse(lower, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """Return (I + lower)^-1, `lower` below the diagonal: blocks of 2, then 4, 8 ... are inverted by their halves.

    [A 0; C B]^-1 = [A^-1 0; -B^-1 C A^-1 B^-1]. In a series of powers of `lower` large numbers would have to cancel.
    """
    i = tl.arange(0, CHUNK)[:, None]
    j = tl.arange(0, CHUNK)[None, :]
    inverse = tl.where(i == j, 1.0, tl.where((i ^ j) == 1, -lower, 0.0))
    bit = 1
    while (1 << bit) < CHUNK:
        # C of all blocks: row and column differ in this bit and in none above.
        joins = tl.where(((i ^ j) >> bit) == 1, lower, 0.0)
        right = tl.dot(joins, inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, right, input_precision=PRECISION)
        bit += 1
    return inverse


@triton.jit(do_not_specialize=["num_seqs"])
def chunk_kernel(
    inverses,  # [T, heads, CHUNK]: of each token its row of (I + L)^-1
    scores,  # [T, heads, CHUNK]: of each token its row of scale * P
    factors,  # [T, heads, 2] float32: what queries (scale included) and keys are to be multiplied by
    query,
    key,
    log_decay,
    strength,
    cu_query_lens,
    num_seqs,
    scale,
    query_stride,
    key_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST_TOKENS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program computes one chunk of one sequence, one head."""
    head = tl.program_id(0)
    slot = tl.program_id(1)
    sequence = sequence_at(cu_query_lens, slot, num_seqs, CHUNK, 1)
    first_row = tl.load(cu_query_lens + sequence)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    first = (slot - (first_row - tl.load(cu_query_lens)) // CHUNK - sequence) * CHUNK
    if (first >= query_len) | (query_len <= MOST_TOKENS):
        return
    features = head // GROUP * KEY_DIM + tl.arange(0, KEY_DIM)[None, :]
    number = tl.arange(0, CHUNK)
    known = first + number < query_len
    tokens = (first_row + first + number).to(tl.int64)
    q = tl.load(query + tokens[:, None] * query_stride + features, mask=known[:, None], other=0.0)
    k = tl.load(key + tokens[:, None] * key_stride + features, mask=known[:, None], other=0.0)
    b = tl.load(strength + tokens * HEADS + head, mask=known, other=0.0).to(tl.float32)
    g = tl.cumsum(tl.load(log_decay + tokens * HEADS + head, mask=known, other=0.0))
    q_factor = inverse_length(q, 1, NORMALIZE) * scale
    k_factor = inverse_length(k, 1, NORMALIZE)
    rows = tokens * HEADS + head
    tl.store(factors + rows * 2, q_factor, mask=known)
    tl.store(factors + rows * 2 + 1, k_factor, mask=known)
    i = number[:, None]
    j = number[None, :]
    decay = tl.exp(tl.where(i >= j, g[:, None] - g[None, :], float("-inf"))) * k_factor[None, :]
    places = rows[:, None] * CHUNK + j
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * decay * q_factor[:, None]
    tl.store(scores + places, score.to(scores.dtype.element_ty), mask=known[:, None])
    likeness = tl.dot(k, tl.trans(k), input_precision=PRECISION)
    lower = tl.where(i > j, likeness * decay * (b * k_factor)[:, None], 0.0)
    inverse = unit_lower_inverse(lower, CHUNK, PRECISION)
    tl.store(inverses + places, inverse.to(inverses.dtype.element_ty), mask=known[:, None])


@triton.jit
def scan_kernel(
    output,
    query,
    key,
    value,
    log_decay,
    strength,
    inverses,  # these three of chunk_kernel
    scores,
    factors,
    state,
    state_rows,
    cu_query_lens,
    context_lens,
    query_stride,
    key_stride,
    value_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST_TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program computes all chunks of one sequence, one head, COLUMNS columns of the state."""
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    first_row = tl.load(cu_query_lens + sequence).to(tl.int64)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    if query_len <= MOST_TOKENS:
        return
    known_columns = tl.where(tl.load(context_lens + sequence) > query_len, VALUE_DIM, 0)  # of the state: none at first
    number = tl.arange(0, CHUNK)
    features = tl.arange(0, KEY_DIM)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    key_places = (head // GROUP * KEY_DIM + features)[None, :]
    row = tl.load(state_rows + sequence).to(tl.int64)
    state_places = state + ((row * HEADS + head) * KEY_DIM + features)[:, None] * VALUE_DIM + columns[None, :]
    s = tl.load(state_places, mask=(columns < known_columns)[None, :], other=0.0)
    for first in range(0, query_len, CHUNK):
        known = first + number < query_len
        real = known[:, None]
        tokens = first_row + first + number
        rows = tokens * HEADS + head
        q = tl.load(query + tokens[:, None] * query_stride + key_places, mask=real, other=0.0)
        k = tl.load(key + tokens[:, None] * key_stride + key_places, mask=real, other=0.0)
        v_places = value + tokens[:, None] * value_stride + head * VALUE_DIM + columns[None, :]
        v = tl.load(v_places, mask=real, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + rows[:, None] * CHUNK + number[None, :], mask=real, other=0.0)
        score = tl.load(scores + rows[:, None] * CHUNK + number[None, :], mask=real, other=0.0)
        b = tl.load(strength + rows, mask=known, other=0.0).to(tl.float32)
        g = tl.load(log_decay + rows, mask=known, other=0.0)
        total = tl.sum(g)
        g = tl.cumsum(g)
        q_factor = tl.load(factors + rows * 2, mask=known, other=0.0)
        k_factor = tl.load(factors + rows * 2 + 1, mask=known, other=0.0)

        before = s.to(k.dtype)
        found = tl.dot(k, before, input_precision=PRECISION) * (k_factor * tl.exp(g))[:, None]
        wrong = b[:, None] * (v - found)
        delta = tl.dot(inverse, wrong.to(k.dtype), input_precision=PRECISION)
        result = tl.dot(q, before, input_precision=PRECISION) * (q_factor * tl.exp(g))[:, None]
        result = tl.dot(score, delta.to(k.dtype), result, input_precision=PRECISION)
        late = delta * (k_factor * tl.exp(total - g))[:, None]
        s = tl.dot(tl.trans(k), late.to(k.dtype), s * tl.exp(total), input_precision=PRECISION)
        places = output + rows[:, None] * VALUE_DIM + columns[None, :]
        tl.store(places, result.to(output.dtype.element_ty), mask=real)
    tl.store(state_places, s)


def has_tiles_for(key_dim: int, value_dim: int) -> bool:
    """Return True if states of these sizes can be computed: a power of two from 16 on times a multiple of 32."""
    return key_dim >= 16 and key_dim & (key_dim - 1) == 0 and value_dim % _COLUMNS == 0


def gated_delta_net(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    strength: torch.Tensor,
    state: torch.Tensor,
    state_rows: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_query_len: int,
    scale: float,
    normalize: bool,
) -> torch.Tensor:
    """Return Gated DeltaNet of queries, keys [T, key heads, Dk] and values [T, heads, Dv]: [T, heads, Dv], their dtype.

    `heads` is a multiple of the key heads, each of which serves as many heads in a row. `log_decay` [T, heads] float32
    is not positive (-exp(A_log) * softplus(a + dt_bias) in Qwen3-Next); `strength` (beta) [T, heads] is contiguous.
    `scale` is usually Dk ** -0.5; with `normalize` queries and keys are divided by their lengths first (epsilon 1e-6).
    Dk is a power of two from 16 on, Dv a multiple of 32: ValueError else.

    `state` [rows, heads, Dk, Dv] float32, contiguous: sequence s has row state_rows[s], which no other has. It is not
    read where the context begins in this step (context_lens[s] is its query length), and always written, except for
    a sequence without tokens. `state_rows` [S], `cu_query_lens` [S + 1] and `context_lens` [S] (this step's tokens
    included) are integers on the device. Rows that belong to no sequence are undefined.

    How a sequence is computed depends on its own number of tokens alone. For more than RECURRENT_TOKENS, values are
    rounded to the dtype before products, the state too; it is carried on in float32. Scratch, if there is such
    a sequence: T * heads * (128 elements + 8 bytes).
    """
    tokens, key_heads, key_dim = key.shape
    heads, value_dim = value.shape[1:]
    if not has_tiles_for(key_dim, value_dim):
        raise ValueError(f"states of {key_dim} x {value_dim}: a power of two from 16 on times a multiple of {_COLUMNS}")
    query, key, value = (_heads_contiguous(x) for x in (query, key, value))
    output = torch.empty(tokens, heads, value_dim, dtype=value.dtype, device=value.device)
    num_seqs, blocks = state_rows.shape[0], value_dim // _COLUMNS
    gates, sequences = (log_decay, strength), (state, state_rows, cu_query_lens, context_lens)
    strides = (query.stride(0), key.stride(0), value.stride(0))
    sizes = {"HEADS": heads, "GROUP": heads // key_heads, "KEY_DIM": key_dim, "MOST_TOKENS": RECURRENT_TOKENS}
    columns = {"VALUE_DIM": value_dim, "COLUMNS": _COLUMNS}
    recurrent_kernel[blocks, heads, num_seqs](
        output, query, key, value, *gates, *sequences, scale, *strides, NORMALIZE=normalize, **columns, **sizes
    )
    if max_query_len <= RECURRENT_TOKENS:
        return output
    # tf32 is of use to the inverse alone, all else is in the dtype: its error there is that of rounding it to bfloat16.
    chunks = {"CHUNK": _CHUNK, "PRECISION": "ieee" if key.dtype == torch.float32 else "tf32"}
    inverses = torch.empty(tokens, heads, _CHUNK, dtype=key.dtype, device=key.device)
    factors = torch.empty(tokens, heads, 2, dtype=torch.float32, device=key.device)
    matrices = (inverses, torch.empty_like(inverses), factors)
    chunk_kernel[heads, tokens // _CHUNK + num_seqs](
        *(*matrices, query, key, *gates, cu_query_lens, num_seqs, scale, *strides[:2]),
        NORMALIZE=normalize,
        **chunks,
        **sizes,
    )
    scan_kernel[blocks, heads, num_seqs](
        output, query, key, value, *gates, *matrices, *sequences, *strides, num_stages=2, **chunks, **columns, **sizes
    )
    return output


def _heads_contiguous(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with each token's heads contiguous: itself if they are, as in a slice of the fused projection."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
