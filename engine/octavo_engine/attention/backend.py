"""The methods an attention backend has, and the data they work on.

Terms: T tokens in the step, S sequences, H query heads, K KV heads, D head size, B block size. A *slot* is a place for
one token in the cache: block id * B + offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo_engine.attention.alibi import ALiBi
from octavo_engine.attention.qk_norm import QKNorm
from octavo_engine.attention.rope import Rope


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One tensor of the state that a layer keeps of a sequence."""

    size: int
    """Numbers of it."""
    dtype: torch.dtype | None = None
    """None: the model's."""

    def bytes(self, dtype: torch.dtype) -> int:
        """Return the size of one such tensor in a model that computes in `dtype`."""
        return self.size * (self.dtype or dtype).itemsize


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One tensor of what a layer keeps of tokens and computes with by itself, such as compressed keys."""

    name: str
    """Its name within the layer."""
    size: int
    """Numbers of a row."""


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers whose caches are allocated, shared and freed together (one block table for all of them)."""

    kind: str
    """`full`, `sliding` with a `window`, or `recurrent`: layers that keep one state of a sequence instead of tokens."""
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens that a query sees, its own included; None: all."""
    latent: int | None = None
    """Values are the first so many numbers of the keys, which alone are kept (latent attention); None: they differ."""
    states: tuple[StateSpec, ...] = ()
    """The tensors of one state in each layer of a recurrent group."""
    chunked: bool = False
    """Whether windows are chunks, side by side: a query sees the tokens before it in its own chunk of `window`."""
    rows: tuple[RowSpec, ...] = ()
    """The tensors of each layer of a group whose layers attend by themselves (attention/token_rows.py)."""
    rate: int = 1
    """Such rows stand for so many tokens each, and lie where the last of them does."""

    @property
    def for_backend(self) -> bool:
        """True if an attention backend keeps it and attends to it."""
        return not self.states and not self.rows

    def rows_of_block(self, block_size: int) -> int:
        """The most rows that end in one block."""
        return -(-block_size // self.rate)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """One state in all layers of the group, where the model computes in `dtype`."""
        return len(self.layers) * sum(state.bytes(dtype) for state in self.states)

    def bytes_per_token(self, dtype: torch.dtype, block_size: int = 16) -> int:
        """Keys and values of one token in all layers of the group; of rows its share of a block of `block_size`."""
        if self.rows:
            numbers = len(self.layers) * sum(row.size for row in self.rows) * self.rows_of_block(block_size)
            return -(-numbers * dtype.itemsize // block_size)
        return (2 if self.latent is None else 1) * len(self.layers) * self.num_kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """The conditions that a backend is chosen for."""

    groups: tuple[KVGroupSpec, ...]
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    """The type of the cache."""
    num_heads: int
    """Query heads."""
    plain: bool = True
    """Whether every layer's AttentionVariant is `plain`."""

    @property
    def latent(self) -> bool:
        """Whether a group's cache is compressed, its values a part of its keys."""
        return any(group.latent is not None for group in self.groups)


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """The kind of attention that a layer needs; scores are query times key times `scale`."""

    scale: float
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap) (Gemma 2)."""
    sinks: Tensor | None = None
    """[H], one logit a head more in the softmax, without a value (gpt-oss)."""
    alibi: ALiBi | None = None
    """Added to the scores after the softcap (BLOOM). Not beside sinks: where positions are counted from, which backends
    choose, would change their share."""

    @property
    def plain(self) -> bool:
        """True if it is scaled dot product attention and nothing else."""
        return self.softcap is None and self.sinks is None and self.alibi is None


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values."""

    key: Tensor
    """[num_blocks, B, K, D], as the values."""
    value: Tensor
    key_scale: float = 1.0
    """The scale of a cache in FP8 (torch.float8_e4m3fn), which holds key / key_scale, saturated; otherwise 1."""
    value_scale: float = 1.0
    latent: int | None = None
    """If given, `value` is `key`, and values are its first `latent` numbers (latent attention)."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of one forward pass: tensors on the model's device, integers int32 unless said otherwise."""

    token_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] int64, the token's position in its sequence."""
    cu_query_lens: Tensor
    """[S + 1], where each sequence's tokens begin in T."""
    context_lens: Tensor
    """[S], tokens of the sequence after this step, those of the step included."""
    block_tables: tuple[Tensor, ...]
    """The block table of each KV group, [S, max blocks]; entries beyond the context are undefined but valid block ids
    (0)."""
    slot_mapping: tuple[Tensor, ...]
    """The slot that each token's key and value are written to, [T] int64 for each KV group; -1: nowhere (padding)."""
    token_indices: Tensor
    """[R] int64, indices into T whose hidden state gives logits."""
    query_lens_host: tuple[int, ...]
    """The same lengths on the host, so that no device sync is needed to know them. Inside a CUDA graph those of the
    contexts are upper bounds of all steps that the graph will run."""
    context_lens_host: tuple[int, ...]
    long_context: Tensor | None = None
    """[T] bool, whether the token is one of a long sequence; None where that makes no difference (LongRoPE)."""
    second_text: Tensor | None = None
    """[T] bool, whether the token is one of the second text of a pair; None where there is none."""


class AttentionBackend(Protocol):
    """A way to compute attention. Stateless between steps, except for scratch memory."""

    name: str
    graph_safe: bool
    """Whether a decode can be recorded: no method of a step ever waits for the device, and host lengths are used as
    upper bounds alone."""

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """The cache of each layer of `group`, zeroed."""

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> Any:
        """Return the data that all layers of a group share in one step, computed once."""

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: Any) -> None:
        """Put keys and values [T, K, D], normalised and rotated, into their slots."""

    def fused_write(
        self, cache: LayerCache, heads: Tensor, rope: Rope | None, qk_norm: QKNorm | None, metadata: Any
    ) -> Tensor | None:
        """A fast path that a backend may have for the RoPE and the norm that it knows; None for all others.

        Normalises and rotates query and key of the fused projection [T, H + 2 K, D], puts keys and values into their
        slots, and gives the rotated queries [T, H, D]; `heads` may have been overwritten. With None nothing is done.
        """

    def attend(self, query: Tensor, cache: LayerCache, metadata: Any, variant: AttentionVariant) -> Tensor:
        """Causal attention of queries [T, H, D] over each one's own sequence in the cache; [T, H, D]."""

    def scratch_bytes(
        self, group: KVGroupSpec, num_heads: int, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """An upper bound of the memory `attend` needs besides its arguments and result, what it keeps included."""
