"""All layers of a decoder by one call of the C kernels (layers.c), bfloat16."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.adapters import AdaptersStructure, CPUAdapters
from octavo_engine.kernels.cpu.library import NO_WINDOW, AttentionStep, CPUKernels, packed_words

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer, bfloat16 and contiguous; linears are [out, in]."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """What adapters add to the linears of one layer; None: nothing."""

    qkv: CPUAdapters | None
    output: CPUAdapters | None
    gate_up: CPUAdapters | None
    down: CPUAdapters | None


class _Layer(ctypes.Structure):
    _fields_ = (*((name, _POINTER) for name in (*LayerWeights.__slots__, "keys", "values")), ("group", _LONG))


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
    """Layers whose tensors stay where they are."""

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
        """Of the Llama kind, with SiLU; all layers of one shape.

        `caches`: each layer's keys and values [num_blocks, B, K, D]; `group_of_layer`: each one's KV group;
        `adapters`: each one's slots, or nothing where none are served; `eps` of all norms; attention scores are query
        times key times `scale`.
        """
        self._kernels = kernels
        self._kept = tuple(layers), tuple(caches), tuple(adapters)
        self._adapters = (_LayerAdapters * len(adapters))(*map(_adapters, adapters))
        self._layers = (_Layer * len(layers))(
            *(
                _Layer(*map(_pointer, (*(getattr(layer, name) for name in LayerWeights.__slots__), *cache)), group)
                for layer, cache, group in zip(layers, caches, group_of_layer, strict=True)
            )
        )
        first = layers[0]
        _, block, kv_heads, head_dim = caches[0][0].shape
        hidden, inner = first.down.shape
        heads = first.output.shape[1] // head_dim
        self._shape = _Shape(len(layers), hidden, inner, heads, kv_heads, head_dim, block, eps, scale)
        self._scratch_width = hidden + max(2 * (heads + kv_heads) * head_dim, inner)
        self._gate_up_width = 2 * inner
        self._widest = max(hidden, heads * head_dim, inner)
        self._partial_width = heads * (head_dim + 2)

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, groups: Sequence[AttentionStep], slots: Tensor | None = None
    ) -> Tensor:
        """x [T, hidden] through all layers, in place; angles float32 [T, 1, D / 2], attention for each KV group.

        `slots` [T] int32: each token's adapter, -1 for none; None: no token has one.
        """
        tokens = x.shape[0]
        parts = max(group.parts.shape[0] for group in groups)
        scratch = x.new_empty(tokens * (self._scratch_width + (0 if slots is None else self._gate_up_width)))
        packed = x.new_empty(packed_words(tokens, self._widest), dtype=torch.int32)
        partial = x.new_empty(parts * self._partial_width, dtype=torch.float32)
        self._kernels.library.decoder_layers(
            ctypes.byref(self._shape),
            self._layers,
            (_Group * len(groups))(*map(_group, groups)),
            None if slots is None else self._adapters,
            _pointer(slots),
            x.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            scratch.data_ptr(),
            packed.data_ptr(),
            partial.data_ptr(),
            tokens,
            torch.get_num_threads(),
        )
        return x


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _group(step: AttentionStep) -> _Group:
    tensors = step.slots, step.first_part, step.table, step.parts, step.chunks
    pointers = (tensor.data_ptr() for tensor in tensors)
    return _Group(*pointers, step.table.stride(0), step.chunks.shape[0], step.window or NO_WINDOW)


def _adapters(layer: LayerAdapters) -> _LayerAdapters:
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    return _LayerAdapters(*(None if each is None else ctypes.pointer(each.structure) for each in linears))
