"""Tensor parallelism: which part of each layer a rank has (Megatron-LM, arXiv 1909.08053).

Query, key, value, gate and up are cut by rows, so that each rank has complete heads and a part of the intermediate
size; what comes after them is cut by columns, and the ranks' results are summed. The vocabulary is cut into rows.

No size has to be a multiple of the number of ranks. If ranks are fewer than KV heads, each has complete groups, a KV
head with the query heads that read it; if they are more, each KV head is on one or several ranks, which divide its
query heads. No rank has a larger part of anything than the first, so the first rank's memory is enough for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.checkpoint.tensors import Span
from octavo_engine.model.spec import (
    AttentionExpertsSpec,
    AttentionMixer,
    DifferentialAttentionSpec,
    GatedDeltaNetSpec,
    GatedRecurrenceSpec,
    KimiDeltaAttentionSpec,
    LightningAttentionSpec,
    Mamba2Spec,
    MambaHeadsSpec,
    MambaSpec,
    ModelSpec,
    QKConvSpec,
    ShortConvSpec,
    StateMixer,
)

HeadMixer = (
    AttentionMixer
    | Mamba2Spec
    | GatedDeltaNetSpec
    | KimiDeltaAttentionSpec
    | LightningAttentionSpec
    | GatedRecurrenceSpec
    | MambaHeadsSpec
    | QKConvSpec
)
"""Mixers that ranks divide by heads, or by groups of heads that share a key."""

_ROWS = 16
"""Parts of the intermediate size are multiples of so many rows where possible, since kernels are faster with aligned
rows; a quantization scheme may need larger multiples."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that rank `rank` of `size` ranks has."""

    rank: int = 0
    size: int = 1

    def kv_heads(self, attention: HeadMixer) -> range:
        """Return the KV heads of the unsharded layer that this rank has, or the groups of heads of a Mamba-2 mixer.

        Several ranks may have the same one.
        """
        heads = attention.num_kv_heads
        if self.size <= heads:
            return _part(heads, self.rank, self.size)
        head = -(-(self.rank + 1) * heads // self.size) - 1  # this rank is one of the head's `_sharers`
        return range(head, head + 1)

    def heads(self, attention: HeadMixer) -> range:
        """Return the unsharded layer's query heads on this rank: those that read its KV heads, or some of those."""
        per_kv_head, kv_heads = attention.num_heads // attention.num_kv_heads, self.kv_heads(attention)
        if self.size <= attention.num_kv_heads:
            return range(kv_heads.start * per_kv_head, kv_heads.stop * per_kv_head)
        sharers = self._sharers(attention)
        part = _part(per_kv_head, self.rank - sharers.start, len(sharers))
        first = kv_heads.start * per_kv_head
        return range(first + part.start, first + part.stop)

    def first_with_kv_heads(self, attention: HeadMixer) -> bool:
        """Return True if no rank before this one has the same KV heads."""
        return self.size <= attention.num_kv_heads or self.rank == self._sharers(attention).start

    def _sharers(self, attention: HeadMixer) -> range:
        """Return the ranks that have this rank's KV head, where ranks are more than KV heads; the first head has the
        fewest."""
        head, heads = self.kv_heads(attention).start, attention.num_kv_heads
        return range(head * self.size // heads, (head + 1) * self.size // heads)

    def intermediate(self, size: int, alignment: int = 1) -> range:
        """Return this rank's part of a feed-forward's intermediate `size`, with aligned ends if possible."""
        piece = max(alignment, _ROWS)
        if size % piece or size // piece < self.size:
            piece = 1
        part = _part(size // piece, self.rank, self.size)
        return range(part.start * piece, part.stop * piece)

    def vocabulary(self, size: int) -> range:
        """Return the tokens whose embeddings and logits are on this rank; the last ranks may have none."""
        rows = -(-size // self.size)
        return range(min(size, self.rank * rows), min(size, (self.rank + 1) * rows))

    def num_heads(self, spec: ModelSpec) -> int:
        """Return the number of this rank's query heads in the layer that has most."""
        return max((len(self.heads(mixer)) * _query_heads_each(mixer) for mixer in spec.attention_mixers), default=0)

    def kv_groups(self, spec: ModelSpec) -> tuple[KVGroupSpec, ...]:
        """Return the model's KV groups with this rank's heads."""
        return tuple(self._part_of_group(spec, group) for group in spec.kv_groups)

    def _part_of_group(self, spec: ModelSpec, group: KVGroupSpec) -> KVGroupSpec:
        """Return this rank's part of a KV group: its KV heads, or the states of its channels or heads."""
        if not group.layers or group.rows:  # all heads read the same rows
            return group
        index = group.layers[0]
        layer = spec.layers[index]
        if group.states and layer.state_mixer is not None:
            return replace(group, states=self.state_mixer(layer.state_mixer).kv_group.states)
        if layer.attention is None:
            raise ValueError(f"layer {index} keeps nothing of a sequence, but is in a KV group")
        return replace(group, num_kv_heads=len(self.kv_heads(layer.attention)) * _kv_heads_each(layer.attention))

    def state_mixer(self, mixer: StateMixer) -> StateMixer:
        """Return this rank's part of a mixer that keeps a state."""
        match mixer:
            case GatedDeltaNetSpec() | QKConvSpec():
                return replace(mixer, num_heads=len(self.heads(mixer)), num_kv_heads=len(self.kv_heads(mixer)))
            case Mamba2Spec():
                return replace(mixer, num_heads=len(self.heads(mixer)), num_groups=len(self.kv_heads(mixer)))
            case LightningAttentionSpec() | KimiDeltaAttentionSpec() | GatedRecurrenceSpec() | MambaHeadsSpec():
                return replace(mixer, num_heads=len(self.heads(mixer)))
            case ShortConvSpec() | MambaSpec():
                return replace(mixer, channels=len(self.intermediate(mixer.channels)))


UNSHARDED = Shard()
"""The full model, on one rank."""


def _part(count: int, rank: int, size: int) -> range:
    """Return the `rank`th of `size` parts of `count` units; none is larger than the first."""
    return range(-(-rank * count // size), -(-(rank + 1) * count // size))


def _query_heads_each(mixer: AttentionMixer) -> int:
    """Return how many query heads each unit has that ranks divide among themselves."""
    return mixer.top_k if isinstance(mixer, AttentionExpertsSpec) else _kv_heads_each(mixer)


def _kv_heads_each(mixer: AttentionMixer) -> int:
    """Return how many KV heads each unit has that ranks divide among themselves."""
    return 2 if isinstance(mixer, DifferentialAttentionSpec) else 1


def span(part: range, total: int, what: str = "") -> Span:
    """Return the span of `part` in a dimension of `total`."""
    return Span(part.start, len(part), total, what)


def check_size(spec: ModelSpec, ranks: int) -> None:
    """Raise ConfigurationError unless there are a query head and a part of each feed-forward for each rank.

    ModelLoadError if a layer has none at all, as of a size that a family computes from a ratio.
    """
    for count, what in _counts(spec):
        if count < 1:
            raise ModelLoadError(f"config.json gives a layer {count} {what}; it needs one at least")
        if count < ranks:
            raise ConfigurationError(
                f"--tensor-parallel-size {ranks} is more than the model's {count} {what}, of which each rank needs "
                f"one; take {count} at most"
            )


def _counts(spec: ModelSpec) -> Iterator[tuple[int, str]]:
    """Yield the units of each layer that ranks divide (such as heads), with their number."""
    yield from ((mixer.num_heads, "attention heads") for mixer in spec.attention_mixers)
    for layer in spec.layers:
        yield from ((part.intermediate_size, "rows (intermediate_size)") for part in layer.feed_forwards)
        match layer.state_mixer:
            case GatedDeltaNetSpec() | KimiDeltaAttentionSpec() | LightningAttentionSpec() as mixer:
                yield mixer.num_heads, "heads of linear attention"
            case GatedRecurrenceSpec() as mixer:
                yield mixer.num_heads, "blocks of channels"
            case QKConvSpec() as mixer:
                yield mixer.num_kv_heads, "KV heads of convolved attention"
            case Mamba2Spec() | MambaHeadsSpec() as mixer:
                yield mixer.num_heads, "Mamba heads"
            case ShortConvSpec() | MambaSpec() as mixer:
                yield mixer.channels, "channels of states"
