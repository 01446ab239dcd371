"""The short causal convolution before a linear attention layer: each channel sees its own last few inputs.

output[t, c] = silu(bias[c] + sum over i of weight[c, i] * x[t - (WIDTH - 1) + i, c]), or without the silu. The last
WIDTH - 1 inputs of each sequence are kept as its state, which a later step finds in the place of earlier tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.attention.attention_segments import sequence_at

_BLOCK = 128


@triton.jit(do_not_specialize=["num_seqs"])
def causal_conv_kernel(
    output,  # [T, CHANNELS]
    x,  # [T, CHANNELS]
    weight,  # [CHANNELS, WIDTH]
    bias,  # [CHANNELS] or None
    state,  # [rows, WIDTH - 1, CHANNELS]
    state_rows,  # [S]
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    num_seqs,
    x_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    SILU: tl.constexpr,
):
    """One program computes TILE_TOKENS tokens of one sequence, BLOCK channels."""
    tile = tl.program_id(1)
    sequence = sequence_at(cu_query_lens, tile, num_seqs, TILE_TOKENS, 1)
    first_row = tl.load(cu_query_lens + sequence)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    first = (tile - (first_row - tl.load(cu_query_lens)) // TILE_TOKENS - sequence) * TILE_TOKENS
    if first >= query_len:
        return
    past_len = tl.load(context_lens + sequence) - query_len
    past = state + tl.load(state_rows + sequence).to(tl.int64) * (WIDTH - 1) * CHANNELS
    tokens = first + tl.arange(0, TILE_TOKENS)
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = (channels < CHANNELS)[None, :]
    inside = (tokens < query_len)[:, None] & known
    rows = (first_row + tokens).to(tl.int64)[:, None]

    sums = tl.zeros([TILE_TOKENS, BLOCK], dtype=tl.float32)
    if bias is not None:
        sums += tl.load(bias + channels, mask=channels < CHANNELS, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(WIDTH):
        back = WIDTH - 1 - tap
        seen = (tokens - back)[:, None]
        new = tl.load(x + (rows - back) * x_stride + channels[None, :], mask=inside & (seen >= 0), other=0.0)
        places = past + (seen + WIDTH - 1) * CHANNELS + channels[None, :]
        old = tl.load(places, mask=inside & (seen < 0) & (seen >= -past_len), other=0.0)
        factor = tl.load(weight + channels * WIDTH + tap, mask=channels < CHANNELS, other=0.0).to(tl.float32)
        sums += (new.to(tl.float32) + old.to(tl.float32)) * factor[None, :]
    result = sums * tl.sigmoid(sums) if SILU else sums
    tl.store(output + rows * CHANNELS + channels[None, :], result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def conv_state_kernel(
    state,  # [rows, WIDTH - 1, CHANNELS]
    x,  # [T, CHANNELS]
    state_rows,  # [S]
    cu_query_lens,  # [S + 1]
    context_lens,  # [S]
    x_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program keeps the last WIDTH - 1 inputs of one sequence, of BLOCK channels.

    Places are filled from the oldest on, so that an old input is moved before its own place is written.
    """
    sequence = tl.program_id(1)
    first_row = tl.load(cu_query_lens + sequence).to(tl.int64)
    query_len = tl.load(cu_query_lens + sequence + 1) - first_row
    if query_len == 0:
        return
    past_len = tl.load(context_lens + sequence) - query_len
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = state + tl.load(state_rows + sequence).to(tl.int64) * (WIDTH - 1) * CHANNELS + channels
    for place in tl.static_range(WIDTH - 1):
        token = query_len - (WIDTH - 1) + place  # negative: before this step
        is_new = channels < tl.where(token >= 0, CHANNELS, 0)
        is_old = channels < tl.where((token < 0) & (token >= -past_len), CHANNELS, 0)
        new = tl.load(x + (first_row + token) * x_stride + channels, mask=is_new, other=0.0)
        old = tl.load(kept + (place + query_len) * CHANNELS, mask=is_old, other=0.0)
        tl.store(kept + place * CHANNELS, new + old.to(new.dtype), mask=channels < CHANNELS)


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    state_rows: torch.Tensor,
    cu_query_lens: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_query_len: int,
    silu: bool,
) -> torch.Tensor:
    """Return the causal convolution of `x` [T, C], rows contiguous, and its silu if asked for, as [T, C] in x's dtype.

    `weight` [C, WIDTH] and `bias` [C] are contiguous. `state` [rows, WIDTH - 1, C], contiguous and of x's dtype, holds
    the last inputs of each sequence, the newest last; sequence s has row state_rows[s] of it, which no other has. It is
    not read where the context begins in this step (context_lens[s] is its query length), and always written, except for
    a sequence without tokens. `state_rows` [S], `cu_query_lens` [S + 1] and `context_lens` [S] (this step's tokens
    included) are integers on the device. Rows that belong to no sequence are undefined.
    """
    tokens, channels = x.shape
    num_seqs, width = state_rows.shape[0], weight.shape[1]
    output = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
    tile_tokens = 1 if max_query_len == 1 else 16
    blocks = triton.cdiv(channels, _BLOCK)
    sizes = {"CHANNELS": channels, "WIDTH": width, "BLOCK": _BLOCK}
    sequences = (state_rows, cu_query_lens, context_lens)
    causal_conv_kernel[blocks, tokens // tile_tokens + num_seqs](
        output, x, weight, bias, state, *sequences, num_seqs, x.stride(0), TILE_TOKENS=tile_tokens, SILU=silu, **sizes
    )
    # After all have read the old states: a sequence's tokens are many programs.
    conv_state_kernel[blocks, num_seqs](state, x, *sequences, x.stride(0), **sizes)
    return output
