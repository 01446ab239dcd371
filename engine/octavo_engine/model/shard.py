"""One rank's part of a model that several share layer by layer (Megatron-LM, arXiv 1909.08053).

Query, key, value, gate and up are cut by rows, so that each rank has whole heads and whole neurons; what comes after
them is cut by columns, and the ranks' results are added up. The vocabulary is cut into rows.

Nothing has to divide. Ranks that are fewer than the KV heads have whole groups, a KV head with the query heads that
read it; where ranks are more, each KV head is given to one or several of them, who share its query heads. The first
rank has as much of everything as any other: what it needs is what a device must have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_engine.errors import ConfigurationError
from octavo_engine.model.quantization import BLOCK
from octavo_engine.model.spec import ModelSpec

_NEURONS = 16
"""Neurons are dealt out so many at a time where their number allows it, as kernels like their rows aligned; those that
share scales block by block, a block at a time."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`."""

    rank: int = 0
    size: int = 1

    def kv_heads(self, spec: ModelSpec) -> range:
        """The KV heads of the whole model that this rank has; several ranks may have the same one."""
        heads = spec.num_kv_heads
        if self.size <= heads:
            return _part(heads, self.rank, self.size)
        head = -(-(self.rank + 1) * heads // self.size) - 1  # of the KV head's ranks, `_sharers`, this is one
        return range(head, head + 1)

    def heads(self, spec: ModelSpec) -> range:
        """The query heads of the whole model that this rank has: those that read its KV heads, or some of those."""
        per_kv_head, kv_heads = spec.num_heads // spec.num_kv_heads, self.kv_heads(spec)
        if self.size <= spec.num_kv_heads:
            return range(kv_heads.start * per_kv_head, kv_heads.stop * per_kv_head)
        sharers = _sharers(kv_heads.start, spec.num_kv_heads, self.size)
        part = _part(per_kv_head, self.rank - sharers.start, len(sharers))
        first = kv_heads.start * per_kv_head
        return range(first + part.start, first + part.stop)

    def neurons(self, spec: ModelSpec) -> range:
        """The neurons of each feed-forward part that this rank has."""
        count = spec.intermediate_size
        by_block = spec.quantization is not None and spec.quantization.granularity == "block"
        piece = BLOCK if by_block else _NEURONS
        if count % piece or count // piece < self.size:
            piece = 1
        part = _part(count // piece, self.rank, self.size)
        return range(part.start * piece, part.stop * piece)

    def first_token(self, spec: ModelSpec) -> int:
        """The first token of this rank's part of the whole model's vocabulary; its size if the part is empty."""
        return min(spec.vocab_size, self.rank * -(-spec.vocab_size // self.size))


def _part(count: int, rank: int, size: int) -> range:
    """The `rank`th of `size` parts of `count` things, of which none is larger than the first."""
    return range(-(-rank * count // size), -(-(rank + 1) * count // size))


def _sharers(kv_head: int, kv_heads: int, size: int) -> range:
    """The ranks that have `kv_head`, where there are more of them than `kv_heads`: the fewest have the first."""
    return range(kv_head * size // kv_heads, (kv_head + 1) * size // kv_heads)


def sharded(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """What `shard` computes of the whole `spec`; ConfigurationError if it cannot be cut so (`check_size`).

    The biases that are added to the sum of all ranks are the first one's. `vocab_size` is the number of rows, of which
    the last ranks use fewer where it does not divide.
    """
    if shard.size == 1:
        return spec
    check_size(spec, shard.size)
    first, kv_heads = shard.rank == 0, len(shard.kv_heads(spec))
    return replace(
        spec,
        num_heads=len(shard.heads(spec)),
        num_kv_heads=kv_heads,
        intermediate_size=len(shard.neurons(spec)),
        vocab_size=-(-spec.vocab_size // shard.size),
        attention_output_bias=spec.attention_output_bias and first,
        mlp_output_bias=spec.mlp_output_bias and first,
        kv_groups=tuple(replace(group, num_kv_heads=kv_heads) for group in spec.kv_groups),
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a rank's part of a tensor begins, and along which dimension it was cut; 0 and 0 of one that is not."""

    dim: int = 0
    start: int = 0


def cut_of(name: str, whole: ModelSpec, shard: Shard) -> Cut:
    """How the tensor `name` of a Hugging Face checkpoint of `whole` is cut for `shard`."""
    *_, module, kind = name.split(".")
    query, key = (heads.start * whole.head_dim for heads in (shard.heads(whole), shard.kv_heads(whole)))
    neuron = shard.neurons(whole).start
    rows = {"q_proj": query, "k_proj": key, "v_proj": key, "gate_proj": neuron, "up_proj": neuron}
    rows |= dict.fromkeys(("embed_tokens", "lm_head"), shard.first_token(whole))
    columns = {"o_proj": query, "down_proj": neuron}
    if module in columns and kind == "weight":
        return Cut(1, columns[module])
    return Cut(0, rows.get(module, 0))


def check_size(spec: ModelSpec, ranks: int) -> None:
    """ConfigurationError unless there are a query head and a neuron for each rank, and ranks can share the model."""
    if spec.moe is not None:
        raise ConfigurationError(
            f"--tensor-parallel-size {ranks}: {spec.architecture} is a mixture of experts, which several devices "
            "cannot share in this version of Octavo; take 1"
        )
    for count, what in ((spec.num_heads, "attention heads"), (spec.intermediate_size, "neurons (intermediate_size)")):
        if count < ranks:
            raise ConfigurationError(
                f"--tensor-parallel-size {ranks} is more than the model's {count} {what}, of which each rank needs "
                f"one; take {count} at most"
            )
