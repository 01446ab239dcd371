"""Computes a step of decodes in one call of the C kernels: from the rows of the state table to logits (decode.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.layers import CPULayers, LinearWeights, WeightStructure, weight_structure
from octavo_engine.kernels.cpu.library import NO_WINDOW, CPUKernels

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


@dataclass(frozen=True, slots=True)
class DecoderEnds:
    """What a decoder computes before and after its layers: its embedding, the last norm and the head."""

    embedding: LinearWeights
    """[vocabulary, hidden], without a bias."""
    norm: Tensor
    """[hidden] bfloat16; its epsilon is that of the layers' norms."""
    head: LinearWeights
    """[vocabulary, hidden], without a bias."""


@dataclass(frozen=True, slots=True)
class StateTensors:
    """The tensors of the state table that a step reads, which must not move."""

    tokens: Tensor
    """[rows, positions] int32"""
    block_tables: Sequence[Tensor]
    """Of each KV group, [rows, blocks] int32."""
    windows: Sequence[int | None]
    """The tokens that a query of each KV group sees; None: all."""


class _BlockTables(ctypes.Structure):
    _fields_ = (("blocks", _POINTER), ("stride", _LONG), ("window", _LONG))


class _Decoder(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("shape", "layers", "tables")),
        *((name, WeightStructure) for name in ("embedding", "head")),
        *((name, _POINTER) for name in ("norm", "tokens")),
        *((name, _LONG) for name in ("token_stride", "groups", "vocab")),
    )


class CPUDecodes:
    """Steps of decodes alone of one decoder and state table, whose tensors must not move."""

    def __init__(self, kernels: CPUKernels, layers: CPULayers, ends: DecoderEnds, state: StateTensors) -> None:
        tables = (
            _BlockTables(table.data_ptr(), table.stride(0), window or NO_WINDOW)
            for table, window in zip(state.block_tables, state.windows, strict=True)
        )
        self._tables = (_BlockTables * len(state.block_tables))(*tables)
        self._kernels, self._layers, self._kept = kernels, layers, (ends, state)
        self._vocab = ends.head.shape[0]
        self._decoder = _Decoder(
            ctypes.addressof(layers.shape),
            ctypes.addressof(layers.structures),
            ctypes.addressof(self._tables),
            weight_structure(ends.embedding),
            weight_structure(ends.head),
            ends.norm.data_ptr(),
            state.tokens.data_ptr(),
            state.tokens.stride(0),
            len(state.block_tables),
            self._vocab,
        )

    def __call__(self, rows: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None) -> Tensor:
        """Return the logits [T, vocabulary], float32, of the tokens at `positions` [T] of `rows` [T], both int64.

        Angles are float32 [T, 1, D / 2] and contiguous, as is `out`, into which the logits are written if it is given.
        """
        tokens, threads, library = len(rows), torch.get_num_threads(), self._kernels.library
        logits = torch.empty(tokens, self._vocab, dtype=torch.float32, device="cpu") if out is None else out
        decoder = ctypes.byref(self._decoder)
        scratch = torch.empty(library.decode_scratch(decoder, tokens, threads), dtype=torch.uint8, device="cpu")
        of_head = library.quantized_scratch(tokens, self._kept[0].head.shape[1])
        inputs = torch.empty(max(of_head, self._layers.input_bytes(tokens)), dtype=torch.uint8, device="cpu")
        tensors = rows, positions, cos, sin, scratch, inputs, logits
        library.decode(decoder, *[tensor.data_ptr() for tensor in tensors], tokens, threads)
        return logits
