"""One rank's part of a model that several share layer by layer (Megatron-LM, arXiv 1909.08053).

Query, key, value, gate and up are cut by rows, so that each rank has whole heads and whole neurons; what comes after
them is cut by columns, and the ranks' results are added up. The vocabulary is cut into rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_engine.errors import ConfigurationError
from octavo_engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`."""

    rank: int = 0
    size: int = 1

    def first_kv_head(self, spec: ModelSpec) -> int:
        """Which of the whole model's KV heads this rank's first one is. Several ranks may have the same."""
        return self.rank * spec.num_kv_heads // self.size

    def first_token(self, spec: ModelSpec) -> int:
        """The first token of this rank's part of the whole model's vocabulary; its size if the part is empty."""
        return min(spec.vocab_size, self.rank * -(-spec.vocab_size // self.size))


def sharded(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """What `shard` computes of the whole `spec`; ConfigurationError if it cannot be cut so.

    The biases that are added to the sum of all ranks are the first one's. `vocab_size` is the number of rows, of which
    the last ranks use fewer where it does not divide.
    """
    if shard.size == 1:
        return spec
    check_divides(spec, shard.size)
    first, kv_heads = shard.rank == 0, max(1, spec.num_kv_heads // shard.size)
    return replace(
        spec,
        num_heads=spec.num_heads // shard.size,
        num_kv_heads=kv_heads,
        intermediate_size=spec.intermediate_size // shard.size,
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
    part = sharded(whole, shard)
    query, neuron = (shard.rank * count for count in (part.num_heads * part.head_dim, part.intermediate_size))
    key = shard.first_kv_head(whole) * whole.head_dim
    rows = {"q_proj": query, "k_proj": key, "v_proj": key, "gate_proj": neuron, "up_proj": neuron}
    rows |= dict.fromkeys(("embed_tokens", "lm_head"), shard.first_token(whole))
    columns = {"o_proj": query, "down_proj": neuron}
    if module in columns and kind == "weight":
        return Cut(1, columns[module])
    return Cut(0, rows.get(module, 0))


def check_divides(spec: ModelSpec, ranks: int) -> None:
    """ConfigurationError unless heads and neurons can be dealt out evenly, each query head beside its KV head."""
    for count, what in ((spec.num_heads, "attention heads"), (spec.intermediate_size, "neurons (intermediate_size)")):
        if count % ranks:
            raise ConfigurationError(
                f"--tensor-parallel-size {ranks} does not divide the model's {count} {what}; take a size that does"
            )
    if spec.num_kv_heads % ranks and ranks % spec.num_kv_heads:
        raise ConfigurationError(
            f"--tensor-parallel-size {ranks} neither divides the model's {spec.num_kv_heads} KV heads nor is a "
            f"multiple of them; take a size that is"
        )
