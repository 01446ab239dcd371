"""The C kernels as functions of tensors. Callers must keep to the documented shapes: only cheap checks are made.

Tensors are on the CPU, float32 or bfloat16, the last dimension contiguous. Each function uses as many threads as torch
does; those are the same threads, as both use the one OpenMP library that torch brings.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.build import BuildError, built_library
from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.gather_outputs import GatherOutputs

log = logging.getLogger(__name__)

LANES = 16
"""The number of which some sizes must be multiples, as their descriptions say."""
HEAD_DIMS = (32, 64, 96, 128)
"""Head sizes that `attend` is compiled for."""
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_FEW = 1
"""The most tokens for which `linear` needs no scratch memory (linear.c)."""
_GROUP = 32
_PART_TOKENS = 512
"""The most tokens that `linear` computes at once (linear.c)."""
NO_WINDOW = 2**31 - 1
"""A window that no sequence fills."""
MOST_PARTS = 16
"""The most parts into which `attention_parts` divides a context (kernels.h)."""
_PLAIN, _SILU_MUL, _WIDE = 0, 1, 2

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "linear": (*[_POINTER] * 6, *[_LONG] * 3, _INT, _INT),
    "rms_norm": (*[_POINTER] * 3, *[_LONG] * 2, _FLOAT, _INT, _INT),
    "rotate": (*[_POINTER] * 3, *[_LONG] * 4, _INT, _INT),
    "silu_mul": (*[_POINTER] * 2, *[_LONG] * 2, _INT, _INT),
    "write_kv": (*[_POINTER] * 5, *[_LONG] * 3, _INT),
    "attend": (*[_POINTER] * 8, *[_LONG] * 7, _FLOAT, _INT, _INT),
    "attend_chunks": (*[_POINTER] * 6, *[_LONG] * 8, _FLOAT, _INT, _INT),
    "add_adapters": (*[_POINTER] * 4, _LONG, _INT, _INT),
    "quantized_linear": (*[_POINTER] * 6, _LONG, _INT, _INT, _INT),
    "interleave": (*[_POINTER] * 2, _INT, _INT),
    "dequantize": (*[_POINTER] * 3, _INT, _INT),
    "dequantize_rows": (*[_POINTER] * 4, _LONG, _INT, _INT),
    "likeliest_tokens": (*[_POINTER] * 3, *[_LONG] * 2, _INT),
    "draw_tokens": (*[_POINTER] * 6, *[_LONG] * 2, _INT),
    "top_p_thresholds": (*[_POINTER] * 5, *[_LONG] * 2, _INT),
    "apply_masks": (*[_POINTER] * 3, *[_LONG] * 2, _INT),
    "decoder_layers": (*[_POINTER] * 11, _LONG, _INT),
    "decode": (*[_POINTER] * 8, _LONG, _INT),
    "decode_scratch": (_POINTER, _LONG, _INT),
    "gather_group": (*[_POINTER] * 4, *[_LONG] * 5),
    "gather_shared": (*[_POINTER] * 9, *[_LONG] * 2),
    "write_tokens": (*[_POINTER] * 4, *[_LONG] * 2),
    "attention_parts": (*[_POINTER] * 4, *[_LONG] * 2),
}


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """The attention of a step, equal for all layers of a KV group: each query attends to parts or is in a chunk."""

    slots: Tensor
    """[T] int64, where keys and values are written; -1: nowhere."""
    table: Tensor
    """[S, blocks] int32."""
    parts: Tensor
    """[P, 4] int32: query, sequence, first token, end."""
    first_part: Tensor
    """[T + 1] int64; queries of chunks have no parts."""
    chunks: Tensor
    """[C, 4] int32: first query, sequence, its position, queries."""
    window: int | None


def packed_words(tokens: int, inner: int) -> int:
    """Return the scratch memory of `linear` for an input [tokens, inner], in words of 32 bits (linear.c)."""
    return 0 if tokens <= _FEW else -(-min(tokens, _PART_TOKENS) // _GROUP) * _GROUP * inner


@functools.cache
def cpu_kernels() -> CPUKernels | None:
    """Return the kernels for this machine; None, and a log line says why, if they cannot be compiled."""
    try:
        path = built_library()
        kernels = load(path)
    except (BuildError, OSError) as error:
        log.warning("the C kernels cannot be used on this CPU; using PyTorch instead, which is slower: %s", error)
        return None
    log.info("CPU kernels: %s", path.name)
    return kernels


def load(path: Path) -> CPUKernels:
    """Return the kernels compiled to `path`; OSError if it cannot be loaded."""
    library = ctypes.CDLL(str(path))
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.quantized_scratch.argtypes, library.quantized_scratch.restype = (_LONG, _LONG), _LONG
    library.tile_scratch.argtypes, library.tile_scratch.restype = (_POINTER,), _LONG
    library.attention_parts.restype = library.decode_scratch.restype = _LONG
    return CPUKernels(library)


@dataclass(frozen=True, slots=True)
class CPUKernels:
    """The functions of the C files beside this one. Calls release the interpreter's lock."""

    library: ctypes.CDLL

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None, *, silu: bool = False
    ) -> Tensor:
        """Return x [T, in] weight [out, in]^T + bias + addend [T, out], all bfloat16; `in` is even.

        With `silu` the weight is that of a gate and what it gates, [2 * out, in], and the result silu(gate) * other.
        Sums are float32 and rounded once, at the very end.
        """
        output = x.new_empty(x.shape[0], weight.shape[0] // 2 if silu else weight.shape[0])
        self._linear(x, weight, bias, addend, output, _SILU_MUL if silu else _PLAIN)
        return output

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x [T, in] weight [out, in]^T of bfloat16 numbers, unrounded: float32 [T, out]."""
        output = x.new_empty(x.shape[0], weight.shape[0], dtype=torch.float32)
        self._linear(x, weight, None, None, output, _WIDE)
        return output

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None, output: Tensor, epilogue: int
    ) -> None:
        tokens, inner = x.shape
        if not tokens:  # the C code reads at least one
            return
        x = x.contiguous()  # the C code steps over tokens by `inner`; a mixer may give a slice
        packed = x.new_empty(packed_words(tokens, inner), dtype=torch.int32)
        self.library.linear(
            x.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None if addend is None else addend.data_ptr(),
            output.data_ptr(),
            packed.data_ptr(),
            tokens,
            inner,
            weight.shape[0],
            epilogue,
            torch.get_num_threads(),
        )

    def quantized_linear(
        self,
        x: Tensor,
        weight: QuantizedWeight,
        bias: Tensor | None = None,
        addend: Tensor | None = None,
        *,
        out: torch.dtype | None = None,
    ) -> Tensor:
        """Return x [T, in] weight [out, in]^T + bias + addend [T, out], all of one type.

        The weight is `known_to_kernels`. Sums are float32 and rounded once, to `out` if given, else to x's type.
        Products are exact; with an interleaved weight inputs are rounded before to whole numbers of 8 bits, 32 of which
        share a scale.
        """
        tokens, out = len(x), out or x.dtype
        output = x.new_empty(tokens, weight.rows, dtype=out)
        if not tokens:  # the C code reads at least one
            return output
        x = x.contiguous()  # as in `_linear`
        scratch = x.new_empty(self.library.quantized_scratch(tokens, weight.columns), dtype=torch.uint8)
        self.library.quantized_linear(
            ctypes.byref(weight.structure),
            x.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None if addend is None else addend.data_ptr(),
            output.data_ptr(),
            scratch.data_ptr(),
            tokens,
            DTYPES[x.dtype],
            DTYPES[out],
            torch.get_num_threads(),
        )
        return output

    def interleave(self, weight: QuantizedWeight, *, back: bool = False) -> None:
        """Interleave the codes and scales of a weight that `can_be_interleaved`; `back`: restore their first order.

        Nothing is done if they are already in it.
        """
        if weight.interleaved == back:
            scratch = self._tiles(weight)
            self.library.interleave(ctypes.byref(weight.structure), scratch.data_ptr(), back, torch.get_num_threads())
            weight.interleaved = not back

    def dequantize(self, weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
        """Return a quantized weight's numbers [out, in] in `dtype`, computed in float32."""
        output = torch.empty(weight.rows, weight.columns, dtype=dtype, device="cpu")
        scratch = self._tiles(weight) if weight.interleaved else output.new_empty(0)
        pointers = ctypes.byref(weight.structure), output.data_ptr(), scratch.data_ptr()
        self.library.dequantize(*pointers, DTYPES[dtype], torch.get_num_threads())
        return output

    def dequantize_rows(self, weight: QuantizedWeight, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the numbers [N, in] of a quantized weight's `rows` [N], int64; zeros for rows that it lacks."""
        rows = rows.contiguous()
        output = torch.empty(len(rows), weight.columns, dtype=dtype, device="cpu")
        scratch = self._tiles(weight) if weight.interleaved else output.new_empty(0)
        pointers = ctypes.byref(weight.structure), rows.data_ptr(), output.data_ptr(), scratch.data_ptr()
        self.library.dequantize_rows(*pointers, len(rows), DTYPES[dtype], torch.get_num_threads())
        return output

    def _tiles(self, weight: QuantizedWeight) -> Tensor:
        """Return scratch memory for a tile of the weight in each thread; torch's RuntimeError where there is none."""
        size = self.library.tile_scratch(ctypes.byref(weight.structure)) * torch.get_num_threads()
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x [T, size] / rms(x) * weight [size], contiguous; size a multiple of LANES."""
        output = torch.empty_like(x)
        tokens, size = x.shape
        pointers = x.data_ptr(), weight.data_ptr(), output.data_ptr()
        self.library.rms_norm(*pointers, tokens, size, eps, DTYPES[x.dtype], torch.get_num_threads())
        return output

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotate the heads of x [T, heads, D] in place by the angles of cos and sin, float32 [T, D / 2].

        A token's heads are contiguous, tokens any distance apart; D is a multiple of 2 * LANES.
        """
        tokens, heads, head_dim = x.shape
        pointers = x.data_ptr(), cos.data_ptr(), sin.data_ptr()
        sizes = tokens, x.stride(0), heads, head_dim
        self.library.rotate(*pointers, *sizes, DTYPES[x.dtype], torch.get_num_threads())

    def silu_mul(self, x: Tensor) -> Tensor:
        """Return silu(a) * b of x [T, 2 * size] = [a b], contiguous; size a multiple of LANES."""
        tokens, size = x.shape[0], x.shape[1] // 2
        output = x.new_empty(tokens, size)
        self.library.silu_mul(x.data_ptr(), output.data_ptr(), tokens, size, DTYPES[x.dtype], torch.get_num_threads())
        return output

    def likeliest_tokens(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first index of the largest logit, int64, and whether that logit is finite, bool, [R] each.

        `logits` [R, vocab] are float32 and contiguous. NaN is larger than all numbers, as for PyTorch.
        """
        rows = len(logits)
        tokens = torch.empty(rows, dtype=torch.int64, device="cpu")
        finite = torch.empty(rows, dtype=torch.bool, device="cpu")
        pointers = logits.data_ptr(), tokens.data_ptr(), finite.data_ptr()
        self.library.likeliest_tokens(*pointers, *logits.shape, torch.get_num_threads())
        return tokens, finite

    def draw_tokens(
        self,
        logits: Tensor,
        likeliest: Tensor,
        thresholds: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Sample a token [R], int64, for each row of `logits` [R, vocab] by the Gumbel-max trick; all contiguous.

        Temperatures [R] are greater than 0. Of each row only logits from its threshold [R] on are drawn. Random numbers
        depend on seed [R], position [R] and token alone, and are those of kernels/sampling.py. `likeliest` [R] are the
        indices of the largest logits; a row whose largest logit is not finite keeps it.
        """
        tokens = likeliest.clone()
        tensors = logits, thresholds, temperatures, seeds, positions, tokens
        pointers = [tensor.data_ptr() for tensor in tensors]
        self.library.draw_tokens(*pointers, *logits.shape, torch.get_num_threads())
        return tokens

    def top_p_thresholds(
        self, logits: Tensor, peaks: Tensor, thresholds: Tensor, temperatures: Tensor, top_ps: Tensor
    ) -> Tensor:
        """Return the smallest logit [R] of the smallest set of likeliest tokens that has `top_ps` [R] of the mass.

        Of each row of `logits` [R, vocab], those from its threshold [R] on have mass; its largest is in `peaks` [R]. A
        row that is not finite, or whose top-p is 1, keeps its threshold. All are float32 and contiguous.
        """
        found = thresholds.clone()
        pointers = [tensor.data_ptr() for tensor in (logits, peaks, temperatures, top_ps, found)]
        self.library.top_p_thresholds(*pointers, *logits.shape, torch.get_num_threads())
        return found

    def apply_masks(self, logits: Tensor, masks: Tensor, rows: Tensor) -> None:
        """Set logits to -inf whose bit in their row's mask is 0: `masks` [M, ceil(vocab / 32)], int32.

        The lowest bit of a word comes first. `logits` [R, vocab], float32, and `rows` [M], int64, are contiguous; mask
        number i is that of row `rows[i]`.
        """
        pointers = logits.data_ptr(), masks.data_ptr(), rows.data_ptr()
        self.library.apply_masks(*pointers, len(rows), logits.shape[1], torch.get_num_threads())

    def gather_step(
        self,
        columns: Tensor,
        tokens: Tensor,
        block_tables: Sequence[Tensor],
        out: GatherOutputs,
        *,
        width: int,
        block_size: int,
    ) -> None:
        """Fill `out` from a state table as `gather_step` of kernels/gather.py does, which describes the arguments."""
        sequences = (len(columns) - 1) // 4
        shared = (out.token_ids, out.positions, out.cu_query_lens, out.context_lens)
        sampled = (out.token_indices, out.state_rows, out.sample_positions)
        pointers = [tensor.data_ptr() for tensor in (columns, tokens, *shared, *sampled)]
        self.library.gather_shared(*pointers, tokens.stride(0), sequences)
        for tensors in zip(block_tables, out.block_tables, out.slot_mapping, strict=True):
            pointers = [tensor.data_ptr() for tensor in (columns, *tensors)]
            strides = tensors[0].stride(0), tensors[1].stride(0)
            self.library.gather_group(*pointers, *strides, width, block_size, sequences)

    def write_tokens(self, rows: Tensor, positions: Tensor, tokens: Tensor, table: Tensor) -> None:
        """Write `tokens` [R] at `positions` [R] of `rows` [R] of `table` [rows, positions] int32; the others are int64.

        All are contiguous; rows and positions are not checked.
        """
        pointers = [tensor.data_ptr() for tensor in (rows, positions, tokens, table)]
        self.library.write_tokens(*pointers, table.shape[1], len(rows))

    def attention_parts(
        self, cu_query_lens: Tensor, context_lens: Tensor, tokens: int, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Divide the contexts of all queries that are in no chunk into parts; return `parts` and `first_part`.

        They are those of `AttentionStep`, and `cu_query_lens` [S + 1] and `context_lens` [S] those of `StepInputs`, for
        `tokens` queries in all. Each sees `window` tokens; None: all.
        """
        sequences = len(context_lens)
        parts = torch.empty(tokens + (MOST_PARTS - 1) * min(sequences, tokens), 4, dtype=torch.int32, device="cpu")
        first_part = torch.empty(tokens + 1, dtype=torch.int64, device="cpu")
        pointers = [tensor.data_ptr() for tensor in (cu_query_lens, context_lens, parts, first_part)]
        count = self.library.attention_parts(*pointers, window or NO_WINDOW, sequences)
        return parts[:count], first_part

    def write_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        """Copy keys and values [T, K, D] to `slots` [T] int64 of caches [num_blocks, B, K, D]; slot -1 is skipped.

        A token's heads are contiguous, tokens of both the same distance apart.
        """
        size = key.element_size()
        self.library.write_kv(
            key.data_ptr(),
            value.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            slots.data_ptr(),
            key.shape[0],
            key.stride(0) * size,
            key.shape[1] * key.shape[2] * size,
            torch.get_num_threads(),
        )

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        table: Tensor,
        parts: Tensor,
        first_part: Tensor,
        scale: float,
    ) -> Tensor:
        """Return the attention of queries [T, H, D] to their parts of the cache; zeros for a query without parts.

        `parts` [P, 4] int32 are (query, row of the block table, first token, end), those of a query one after another
        from `first_part` [T + 1] int64 on; `table` [S, blocks] int32. D is one of HEAD_DIMS, the block size a multiple
        of LANES, a query's heads are contiguous.
        """
        queries, heads, head_dim = query.shape
        _, block_size, kv_heads, _ = key_cache.shape
        output = query.new_empty(query.shape)
        partial = query.new_empty(parts.shape[0], heads, head_dim + 2, dtype=torch.float32)
        tensors = query, key_cache, value_cache, output, table, parts, first_part, partial
        self.library.attend(
            *[tensor.data_ptr() for tensor in tensors],
            queries,
            query.stride(0),
            table.stride(0),
            block_size,
            heads,
            kv_heads,
            head_dim,
            scale,
            DTYPES[query.dtype],
            torch.get_num_threads(),
        )
        return output

    def attend_chunks(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        output: Tensor,
        table: Tensor,
        chunks: Tensor,
        window: int | None,
        scale: float,
    ) -> None:
        """Write the causal attention of the queries [T, H, D] of `chunks` to `output` [T, H, D], contiguous.

        `chunks` [C, 4] int32 are (first query, row of the block table, its position in the sequence, queries); a query
        sees `window` tokens, its own among them. Other sizes are as for `attend`.
        """
        _, block_size, kv_heads, head_dim = key_cache.shape
        tensors = query, key_cache, value_cache, output, table, chunks
        self.library.attend_chunks(
            *[tensor.data_ptr() for tensor in tensors],
            chunks.shape[0],
            query.stride(0),
            table.stride(0),
            block_size,
            query.shape[1],
            kv_heads,
            head_dim,
            window or NO_WINDOW,
            scale,
            DTYPES[query.dtype],
            torch.get_num_threads(),
        )
