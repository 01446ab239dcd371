"""Computes all layers of a decoder in one call of the C kernels (layers.c), in bfloat16; weights may be codes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.adapters import AdaptersStructure, CPUAdapters
from octavo_engine.kernels.cpu.library import NO_WINDOW, AttentionStep, CPUKernels, packed_words
from octavo_engine.kernels.cpu.quantized import QuantizedStructure, QuantizedWeight

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """The weight [out, in] and bias of a linear: bfloat16 and contiguous, or codes that the kernels know."""

    weight: Tensor | QuantizedWeight
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        weight = self.weight
        return (weight.rows, weight.columns) if isinstance(weight, QuantizedWeight) else (len(weight), weight.shape[1])


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer; norms are bfloat16."""

    attention_norm: Tensor
    mlp_norm: Tensor
    qkv: LinearWeights
    output: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights

    @property
    def quantized(self) -> list[QuantizedWeight]:
        """Return the weights of its linears that are stored as codes."""
        weights = (each.weight for each in (self.qkv, self.output, self.gate_up, self.down))
        return [weight for weight in weights if isinstance(weight, QuantizedWeight)]


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """The adapters of one layer's linears; None: none."""

    qkv: CPUAdapters | None
    output: CPUAdapters | None
    gate_up: CPUAdapters | None
    down: CPUAdapters | None


class WeightStructure(ctypes.Structure):
    """A weight's description as an argument of C functions."""

    _fields_ = (("numbers", _POINTER), ("codes", ctypes.POINTER(QuantizedStructure)), ("bias", _POINTER))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm")),
        *((name, WeightStructure) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _POINTER) for name in ("keys", "values")),
        ("group", _LONG),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("slots", "first_part", "table", "parts", "chunks")),
        *((name, _LONG) for name in ("table_width", "num_chunks", "window")),
    )


class _LayerAdapters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.POINTER(AdaptersStructure)) for name in LayerAdapters.__slots__)


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, _LONG) for name in ("layers", "hidden", "inner", "heads", "kv_heads", "head_dim", "block")),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
    )


class CPULayers:
    """The layers of a decoder, whose tensors must not move, since C holds their addresses."""

    def __init__(
        self,
        kernels: CPUKernels,
        layers: Sequence[LayerWeights],
        caches: Sequence[tuple[Tensor, Tensor]],
        group_of_layer: Sequence[int],
        adapters: Sequence[LayerAdapters] = (),
        *,
        eps: float,
        scale: float,
    ) -> None:
        """Describe layers of the Llama kind, with SiLU and all of one shape, to the kernels.

        `caches`: each layer's keys and values [num_blocks, B, K, D]; `group_of_layer`: each one's KV group; `adapters`:
        each one's slots, or nothing where none are served; `eps` of all norms; attention scores are query times key
        times `scale`.
        """
        self._kernels = kernels
        self._kept = tuple(layers), tuple(caches), tuple(adapters)
        self._adapters = (_LayerAdapters * len(adapters))(*map(_adapters, adapters))
        self.structures = (_Layer * len(layers))(
            *(_layer(layer, cache, group) for layer, cache, group in zip(layers, caches, group_of_layer, strict=True))
        )
        first = layers[0]
        _, block, kv_heads, head_dim = caches[0][0].shape
        hidden, inner = first.down.shape
        heads = first.output.shape[1] // head_dim
        quantized = [weight for layer in layers for weight in layer.quantized]
        self.quantized = bool(quantized)
        """Whether any weight is codes."""
        self.interleaved = all(weight.interleaved for weight in quantized)
        """Whether all of these codes are interleaved."""
        self.shape = _Shape(len(layers), hidden, inner, heads, kv_heads, head_dim, block, eps, scale)
        self._scratch_width = hidden + max(2 * (heads + kv_heads) * head_dim, inner)
        self._gate_up_width = 2 * inner
        self._widest = max(hidden, heads * head_dim, inner)
        self._partial_width = heads * (head_dim + 2)

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        groups: Sequence[AttentionStep],
        slots: Tensor | None = None,
    ) -> Tensor:
        """Compute all layers on x [T, hidden] in place; angles are float32 [T, 1, D / 2], attention is by KV group.

        `slots` [T] int32: each token's adapter, -1 for none; None: no token has one.
        """
        tokens = x.shape[0]
        parts = max(group.parts.shape[0] for group in groups)
        apart = self.quantized or slots is not None
        scratch = x.new_empty(tokens * (self._scratch_width + (self._gate_up_width if apart else 0)))
        inputs = x.new_empty(self.input_bytes(tokens), dtype=torch.uint8)
        partial = x.new_empty(parts * self._partial_width, dtype=torch.float32)
        self._kernels.library.decoder_layers(
            ctypes.byref(self.shape),
            self.structures,
            (_Group * len(groups))(*map(_group, groups)),
            None if slots is None else self._adapters,
            _pointer(slots),
            x.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            scratch.data_ptr(),
            inputs.data_ptr(),
            partial.data_ptr(),
            tokens,
            torch.get_num_threads(),
        )
        return x

    def input_bytes(self, tokens: int) -> int:
        """Return the bytes of scratch memory in which each of the linears can lay out its input."""
        plain = packed_words(tokens, self._widest) * _WORD_BYTES
        if not self.quantized:
            return plain
        quantized: int = self._kernels.library.quantized_scratch(tokens, self._widest)
        return max(plain, quantized)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def weight_structure(linear: LinearWeights) -> WeightStructure:
    weight, bias = linear.weight, _pointer(linear.bias)
    if isinstance(weight, QuantizedWeight):
        return WeightStructure(None, ctypes.pointer(weight.structure), bias)
    return WeightStructure(_pointer(weight), None, bias)


def _layer(layer: LayerWeights, cache: tuple[Tensor, Tensor], group: int) -> _Layer:
    norms = map(_pointer, (layer.attention_norm, layer.mlp_norm))
    linears = map(weight_structure, (layer.qkv, layer.output, layer.gate_up, layer.down))
    return _Layer(*norms, *linears, *map(_pointer, cache), group)


def _group(step: AttentionStep) -> _Group:
    tensors = step.slots, step.first_part, step.table, step.parts, step.chunks
    pointers = (tensor.data_ptr() for tensor in tensors)
    return _Group(*pointers, step.table.stride(0), step.chunks.shape[0], step.window or NO_WINDOW)


def _adapters(layer: LayerAdapters) -> _LayerAdapters:
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    return _LayerAdapters(*(None if each is None else ctypes.pointer(each.structure) for each in linears))
