"""The attention backend `torch` in plain PyTorch: the exact reference, and the fallback for CPUs without our C kernels.

Blocks are gathered into contiguous keys and values, then PyTorch's scaled dot product attention (its CPU kernel is
flash attention, arXiv 2205.14135) does the rest. The heads that share a KV head are stacked as if they were queries,
so that keys and values are read once. Decoding sequences are computed together, in buckets of similar length; prefills
are computed one by one, in tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.qk_norm import QKNorm
from octavo_engine.attention.rope import Rope

_QUERY_TILE = 512
"""The most query tokens of a prefill that are computed at once, which bounds the mask's size."""
_FLOAT32_BYTES = 4
_BUCKET_TOKENS = 1 << 16
"""The most context tokens of decodes that are gathered at once, unless a single sequence has more."""


@dataclass(frozen=True, slots=True)
class DecodeBucket:
    """N sequences with one query token each and similar contexts."""

    rows: Tensor
    """[N] int64, the indices of their query tokens in T."""
    blocks: Tensor
    """[N * M] int64, M block ids of each sequence; those beyond the context are its own first block."""
    mask: Tensor
    """[N, 1, 1, M * B] bool, True where the token is seen."""


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """Consecutive query tokens of one sequence, and the blocks that hold all tokens that they see."""

    first_row: int
    num_rows: int
    blocks: Tensor
    """[M] int64."""
    query_offset: int
    """The position of the first query token, counted from the first gathered token."""
    mask: Tensor | None
    """[Q, L] bool, True where a query sees a gathered token; None for a plain causal mask."""


@dataclass(frozen=True, slots=True)
class TorchMetadata:
    """One step of one KV group."""

    slots: Tensor
    """[W] int64, where keys and values go."""
    slot_rows: Tensor | None
    """[W] int64, the tokens of T that are written; None: all."""
    new_blocks: Tensor
    """Blocks whose first slot is written in this step."""
    decodes: tuple[DecodeBucket, ...]
    prefills: tuple[PrefillTile, ...]


def why_not(device: torch.device, task: AttentionTask | None) -> None:
    """Return None: this backend can always be used."""


class TorchAttention:
    """Backend `torch`. Caches are [num_blocks, B, K, D]."""

    name = "torch"
    graph_safe = False
    mixed_graph_safe = False

    def __init__(self, chunked: frozenset[int] = frozenset()) -> None:
        """`chunked` are the indices of the KV groups whose windows are chunks."""
        self._chunked = chunked

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        """Allocate the cache of each layer of `group`, zeroed."""
        return allocate_blocks(group, num_blocks, block_size, dtype, device)

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> TorchMetadata:
        """Sort the step's sequences into decode buckets and prefill tiles."""
        slots = inputs.slot_mapping[group]
        written = slots >= 0
        whole = bool(written.all())
        slots = slots if whole else slots[written]
        first_of_block = slots[slots % block_size == 0]
        lens = list(zip(inputs.query_lens_host, inputs.context_lens_host, strict=True))
        starts = [0, *accumulate(inputs.query_lens_host)]
        decoding = [s for s, (query_len, context) in enumerate(lens) if query_len == 1 and context > 0]
        table = inputs.block_tables[group].long()
        plan = _Plan(table, lens, starts, block_size, window, group in self._chunked)
        return TorchMetadata(
            slots=slots,
            slot_rows=None if whole else written.nonzero().flatten(),
            new_blocks=first_of_block // block_size,
            decodes=tuple(plan.bucket(sequences) for sequences in plan.by_length(decoding)),
            prefills=tuple(tile for s, (query_len, _) in enumerate(lens) if query_len > 1 for tile in plan.tiles(s)),
        )

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: TorchMetadata) -> None:
        """Write keys and values [T, K, D] into their slots."""
        if metadata.slot_rows is not None:
            key, value = key[metadata.slot_rows], value[metadata.slot_rows]
        written = [(cache.key, to_cache(key, cache.key.dtype, cache.key_scale))]
        if cache.latent is None:
            written.append((cache.value, to_cache(value, cache.value.dtype, cache.value_scale)))
        for cached, values in written:
            blocks, new = _bytes_if_fp8(cached), _bytes_if_fp8(values)
            # An earlier owner's numbers must not be read: even a masked NaN makes the result NaN.
            if len(metadata.new_blocks):
                blocks.index_fill_(0, metadata.new_blocks, 0)
            blocks.flatten(0, 1).index_copy_(0, metadata.slots, new)

    def fused_write(
        self,
        cache: LayerCache,
        heads: Tensor,
        rope: Rope | None,
        qk_norm: QKNorm | None,
        metadata: TorchMetadata,
    ) -> Tensor | None:
        """Return None: this backend has no fast path."""
        return None

    def attend(self, query: Tensor, cache: LayerCache, metadata: TorchMetadata, variant: AttentionVariant) -> Tensor:
        """Compute causal attention of queries [T, H, D] over their own sequences in the cache; return [T, H, D]."""
        size = cache.latent or query.shape[2]
        output = query.new_zeros(*query.shape[:2], size)
        for bucket in metadata.decodes:
            output[bucket.rows] = _decode(query[bucket.rows], cache, bucket, variant)[..., :size]
        for tile in metadata.prefills:
            rows = slice(tile.first_row, tile.first_row + tile.num_rows)
            output[rows] = _attend_tile(query[rows], cache, tile, variant)[..., :size]
        return output

    def scratch_bytes(
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Return the bytes of gathered keys and values, of masks, and of the queries and results of one call.

        What is gathered from an FP8 cache becomes float32 before it gets the queries' dtype. Scores are in memory only
        where they are not `plain`.
        """
        size, numbers = task.dtype.itemsize, group.num_kv_heads * group.head_dim
        context, tile = max_context + 128, min(_QUERY_TILE, max_tokens)  # contexts are whole blocks
        decode = min(max_seqs * context, max(_BUCKET_TOKENS, context))
        through_float32 = 0 if task.kv_dtype == task.dtype else task.kv_dtype.itemsize + _FLOAT32_BYTES * (size < 4)
        gathered = numbers * ((1 if group.latent else 2) * size + through_float32) * decode
        masks = 5 * max(decode, tile * context) + max_seqs * 2 * context
        queries = max(3 * max_seqs, 2 * tile) * task.num_heads * group.head_dim * size
        if task.plain:
            return gathered + masks + queries
        scores = _FLOAT32_BYTES * context * (2 * numbers + 3 * max(task.num_heads, tile))
        return gathered + masks + queries + scores


def allocate_blocks(
    group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> dict[int, LayerCache]:
    """Allocate zeroed keys and values [num_blocks, B, K, D] for each layer of `group`."""
    shape = (num_blocks, block_size, group.num_kv_heads, group.head_dim)
    caches = {}
    for layer in group.layers:
        key = torch.zeros(shape, dtype=dtype, device=device)
        value = torch.zeros_like(key) if group.latent is None else key
        caches[layer] = LayerCache(key, value, latent=group.latent)
    return caches


@dataclass(frozen=True, slots=True)
class _Plan:
    """Data that `prepare` collects while it sorts a step's sequences."""

    table: Tensor
    lens: list[tuple[int, int]]
    starts: list[int]
    block_size: int
    window: int | None
    chunked: bool

    def first_block(self, position: int) -> int:
        """Return the first block that a query at `position` of its sequence sees."""
        if self.window is None:
            return 0
        first = position // self.window * self.window if self.chunked else position - self.window + 1
        return max(0, first) // self.block_size

    def num_blocks(self, sequence: int) -> int:
        """Return the number of blocks that a decoding sequence reads."""
        context = self.lens[sequence][1]
        return -(-context // self.block_size) - self.first_block(context - 1)

    def by_length(self, sequences: list[int]) -> list[list[int]]:
        """Sort sequences into buckets, each within the size limit and none longer than twice its shortest sequence."""
        buckets: list[list[int]] = []
        for sequence in sorted(sequences, key=self.num_blocks):
            blocks = self.num_blocks(sequence)
            bucket = buckets[-1] if buckets else []
            fits = bool(bucket) and blocks <= 2 * self.num_blocks(bucket[0])
            if fits and blocks * (len(bucket) + 1) * self.block_size <= _BUCKET_TOKENS:
                bucket.append(sequence)
            else:
                buckets.append([sequence])
        return buckets

    def bucket(self, sequences: list[int]) -> DecodeBucket:
        device = self.table.device
        contexts = torch.tensor([self.lens[s][1] for s in sequences], device=device)
        firsts = torch.tensor([self.first_block(self.lens[s][1] - 1) for s in sequences], device=device)
        width = max(self.num_blocks(s) for s in sequences)
        columns = firsts[:, None] + torch.arange(width, device=device)
        inside = columns * self.block_size < contexts[:, None]
        # Entries beyond the context are the sequence's own first block, which is masked there: no other sequence's.
        columns = torch.where(inside, columns, firsts[:, None])
        blocks = self.table[torch.tensor(sequences, device=device)].gather(1, columns)
        positions = firsts[:, None] * self.block_size + torch.arange(width * self.block_size, device=device)
        seen = positions < contexts[:, None]
        if self.window is not None:
            last = contexts[:, None] - 1
            seen &= positions >= (last // self.window * self.window if self.chunked else last + 1 - self.window)
        rows = torch.tensor([self.starts[s] for s in sequences], device=device)
        return DecodeBucket(rows, blocks.flatten(), seen[:, None, None, :])

    def tiles(self, sequence: int) -> list[PrefillTile]:
        query_len, context = self.lens[sequence]
        tiles = []
        for offset in range(0, query_len, _QUERY_TILE):
            size = min(_QUERY_TILE, query_len - offset)
            position = context - query_len + offset
            first, last = self.first_block(position), -(-(position + size) // self.block_size)
            start = first * self.block_size
            tiles.append(
                PrefillTile(
                    first_row=self.starts[sequence] + offset,
                    num_rows=size,
                    blocks=self.table[sequence, first:last],
                    query_offset=position - start,
                    mask=None if position == start and self.window is None else self._mask(start, position, size),
                )
            )
        return tiles

    def _mask(self, start: int, position: int, size: int) -> Tensor:
        """Return which tokens from `start` on each of the `size` queries from `position` on sees, bool [size, L]."""
        queries = torch.arange(position, position + size, device=self.table.device)[:, None]
        tokens = torch.arange(start, position + size, device=self.table.device)[None]
        seen = tokens <= queries
        if self.window is None:
            return seen
        return seen & (tokens >= (queries // self.window * self.window if self.chunked else queries + 1 - self.window))


def to_cache(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Convert `x` to a cache's `dtype`: for FP8 scaled and saturated, as a cast alone may give NaN."""
    if dtype != torch.float8_e4m3fn:
        return x
    return (x.float() / scale).clamp_(-448.0, 448.0).to(dtype)


def _bytes_if_fp8(x: Tensor) -> Tensor:
    """Return `x`, or for FP8, which PyTorch cannot write by index, a view of its bytes."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def _gather(blocks: Tensor, indices: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Gather blocks as [len(indices), B, K, D] in `dtype`; copies of whole blocks run at memory speed."""
    found = blocks.flatten(1).index_select(0, indices).view(-1, *blocks.shape[1:])
    return found if found.dtype == dtype else found.float().mul_(scale).to(dtype)


def _gather_both(cache: LayerCache, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gather the keys and values of some blocks; of a latent cache the keys twice.

    The first numbers of what is attended to are the result then. PyTorch's flash attention needs keys and values of one
    size; with other sizes it computes all scores at once, which takes three to ten times as long and far more memory.
    """
    if cache.latent is not None:
        key = _gather(cache.key, blocks, dtype, cache.key_scale)
        return key, key
    return _gather(cache.key, blocks, dtype, cache.key_scale), _gather(cache.value, blocks, dtype, cache.value_scale)


def _decode(query: Tensor, cache: LayerCache, bucket: DecodeBucket, variant: AttentionVariant) -> Tensor:
    """Attend one query token [N, H, D] for each sequence of the bucket."""
    count, heads, head_dim = query.shape
    kv_heads = cache.key.shape[2]
    key, value = (
        blocks.reshape(count, -1, kv_heads, blocks.shape[-1]).transpose(1, 2)
        for blocks in _gather_both(cache, bucket.blocks, query.dtype)
    )
    stacked = query.view(count, kv_heads, heads // kv_heads, head_dim)
    sinks = None if variant.sinks is None else variant.sinks.view(kv_heads, -1)
    if _is_flash(variant, query):
        output = _flash(stacked, key, value, bucket.mask, variant.scale, sinks)
    else:
        sinks = None if sinks is None else sinks[..., None]
        bias = None if variant.alibi is None else variant.alibi.bias(key.shape[2]).view(kv_heads, heads // kv_heads, -1)
        sequences = zip(stacked, key, value, bucket.mask, strict=True)
        output = torch.stack([_attend_exactly(q, k, v, mask, variant, sinks, bias) for q, k, v, mask in sequences])
    return output.reshape(count, heads, -1)


def _attend_tile(query: Tensor, cache: LayerCache, tile: PrefillTile, variant: AttentionVariant) -> Tensor:
    """Attend the query tokens [Q, H, D] of one tile."""
    count, heads, kv_heads = *query.shape[:2], cache.key.shape[2]
    length = tile.query_offset + count
    key, value = (
        blocks.flatten(0, 1)[:length].transpose(0, 1) for blocks in _gather_both(cache, tile.blocks, query.dtype)
    )
    mask = tile.mask
    if not _is_flash(variant, query):
        mask = _causal(length, query.device) if mask is None else mask
        output = query.new_empty(count, heads, value.shape[-1])
        biases = None if variant.alibi is None else variant.alibi.bias(length)
        for head in range(heads):
            sinks = None if variant.sinks is None else variant.sinks[head].view(1, 1)
            k, v = key[head * kv_heads // heads], value[head * kv_heads // heads]
            bias = None if biases is None else biases[head]
            output[:, head] = _attend_exactly(query[:, head], k, v, mask, variant, sinks, bias)
        return output
    sinks = None if variant.sinks is None else variant.sinks[:, None]
    return _flash(query.transpose(0, 1)[None], key[None], value[None], mask, variant.scale, sinks)[0].transpose(0, 1)


def _is_flash(variant: AttentionVariant, query: Tensor) -> bool:
    """Return True if PyTorch's flash attention computes the variant: with sinks only that of CPUs does."""
    return variant.plain or (query.device.type == "cpu" and variant.softcap is None and variant.alibi is None)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, sinks: Tensor | None
) -> Tensor:
    """Attend queries [N, H, Q, D] to [N, K, L, D] where `mask` [..., Q, L] is True; None: causally, with Q = L.

    A sink, of `sinks` [H, Q or 1], adds exp(sink) to the sum that a query's weights are divided by.
    """
    if sinks is None:
        grouped = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    # The function above is a call of this one here, and does not return the logarithm of that sum.
    hidden = None if mask is None else torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, mask is None, attn_mask=hidden, scale=scale
    )
    return cast("Tensor", output * (logsumexp - sinks).sigmoid().unsqueeze(-1).to(output.dtype))


def _attend_exactly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    variant: AttentionVariant,
    sinks: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Attend queries [..., Q, D] to [..., L, D] where `mask` [..., Q, L] is True, in float32; sinks [..., Q or 1, 1].

    `bias` [..., Q or 1, L] is added to the scores.
    """
    scores = (query.float() @ key.float().transpose(-1, -2)).mul_(variant.scale)
    if variant.softcap is not None:
        scores.div_(variant.softcap).tanh_().mul_(variant.softcap)
    if bias is not None:
        scores.add_(bias)
    scores.masked_fill_(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(query.dtype)


def _causal(length: int, device: torch.device) -> Tensor:
    """Return a causal mask [L, L], bool, True where a query sees a token."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()
