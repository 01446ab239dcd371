"""The interface of attention backends, and the data that they work on.

Terms: T tokens in the step, S sequences, H query heads, K KV heads, D head size, B block size. A *slot* is the place of
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
    """The number of elements."""
    dtype: torch.dtype | None = None
    """None means the model's dtype."""

    def bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of the tensor in a model that computes in `dtype`."""
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
    """Layers whose caches are allocated, shared and freed together, with one block table for all of them."""

    kind: str
    """`full`, `sliding` with a `window`, or `recurrent`: layers that keep one state of a sequence instead of tokens."""
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    """The number of tokens that a query sees, its own included; None: all."""
    latent: int | None = None
    """For latent attention: values are the first `latent` elements of the keys, so only keys are kept. None: both."""
    states: tuple[StateSpec, ...] = ()
    """The tensors of one state in each layer of a recurrent group."""
    chunked: bool = False
    """Whether windows are consecutive chunks: a query sees only the earlier tokens of its own chunk of `window`."""
    rows: tuple[RowSpec, ...] = ()
    """The tensors of each layer of a group whose layers attend by themselves (attention/token_rows.py)."""
    rate: int = 1
    """The number of tokens that each of `rows` stands for; a row lies in the block of the last of them."""

    @property
    def for_backend(self) -> bool:
        """True if an attention backend keeps the group's cache and attends to it."""
        return not self.states and not self.rows

    def rows_of_block(self, block_size: int) -> int:
        """Return the most rows that end in one block."""
        return -(-block_size // self.rate)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of one state in all layers of the group, in a model that computes in `dtype`."""
        return len(self.layers) * sum(state.bytes(dtype) for state in self.states)

    def bytes_per_token(self, dtype: torch.dtype, block_size: int = 16) -> int:
        """Return the bytes of one token in all layers of the group; of rows, its share of a block's bytes."""
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
    """The dtype of the cache."""
    num_heads: int
    """The number of query heads, in the layer that has the most."""
    plain: bool = True
    """Whether every layer's AttentionVariant is `plain`."""

    @property
    def latent(self) -> bool:
        """True if any group has a latent cache, whose values are a part of its keys."""
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
        """True if the layer needs only scaled dot product attention."""
        return self.softcap is None and self.sinks is None and self.alibi is None


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values."""

    key: Tensor
    """[num_blocks, B, K, D]; values have the same shape."""
    value: Tensor
    key_scale: float = 1.0
    """The scale of an FP8 cache (torch.float8_e4m3fn), which holds key / key_scale, saturated; 1 for other dtypes."""
    value_scale: float = 1.0
    latent: int | None = None
    """If given, `value` is `key`, and values are its first `latent` elements (latent attention)."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of one forward pass: tensors on the model's device, integers int32 unless said otherwise."""

    token_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] int64, each token's position in its sequence."""
    cu_query_lens: Tensor
    """[S + 1], where each sequence's tokens begin in T."""
    context_lens: Tensor
    """[S], the tokens of each sequence after this step, the step's own included."""
    block_tables: tuple[Tensor, ...]
    """The block table of each KV group, [S, max blocks]; entries beyond the context are undefined but valid block ids
    (0)."""
    slot_mapping: tuple[Tensor, ...]
    """The slot of each token's key and value, [T] int64 for each KV group; -1 writes nothing (padding)."""
    token_indices: Tensor
    """[R] int64, the tokens of T whose hidden states give logits."""
    query_lens_host: tuple[int, ...]
    """Each sequence's query tokens, on the host, so that no device sync is needed. Inside a CUDA graph these are bounds
    for all steps that it will run: the context lengths below, and of chunks' query tokens the sum and the largest."""
    context_lens_host: tuple[int, ...]
    long_context: Tensor | None = None
    """[T] bool, whether the token belongs to a long sequence (LongRoPE); None if the model does not distinguish."""
    second_text: Tensor | None = None
    """[T] bool, whether the token belongs to the second text of a pair; None if the step has no pairs."""
    all_sampled: bool = False
    """Whether `token_indices` are known to be all tokens in their order, as in a step of decodes without a graph."""

    @property
    def num_decodes(self) -> int:
        """The number of sequences before the first that has more than one query token."""
        lens = self.query_lens_host
        return (
            next((index for index, count in enumerate(lens) if count > 1), len(lens)) if self.has_chunks else len(lens)
        )

    @property
    def has_chunks(self) -> bool:
        """True if there is a sequence with more than one query token, or in a CUDA graph room for one."""
        return max(self.query_lens_host, default=0) > 1


class AttentionBackend(Protocol):
    """Computes attention over the paged cache. It keeps nothing between steps but scratch memory."""

    name: str
    graph_safe: bool
    """Whether CUDA graphs can capture decodes: no method of a step waits for the device, and host lengths are used only
    as upper bounds."""
    mixed_graph_safe: bool
    """Whether they can capture steps with chunks of prompts, too."""

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """Allocate the cache of each layer of `group`, zeroed."""

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> Any:
        """Return the data that all layers of a group share in one step, computed once."""

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: Any) -> None:
        """Write keys and values [T, K, D], normalised and rotated, into their slots."""

    def fused_write(
        self, cache: LayerCache, heads: Tensor, rope: Rope | None, qk_norm: QKNorm | None, metadata: Any
    ) -> Tensor | None:
        """Normalise, rotate and write in one fast path; return None, with nothing done, if the backend has none.

        It normalises and rotates query and key of the fused projection [T, H + 2 K, D], writes keys and values into
        their slots, and returns the rotated queries [T, H, D]; `heads` may be overwritten.
        """

    def attend(self, query: Tensor, cache: LayerCache, metadata: Any, variant: AttentionVariant) -> Tensor:
        """Compute causal attention of queries [T, H, D] over their own sequences in the cache; return [T, H, D]."""

    def scratch_bytes(
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Return an upper bound of the bytes that `attend` needs besides arguments and result, with what it keeps.

        It is that of a group of `task`, in steps with no more tokens, sequences and tokens of a context.
        """
