"""What differs between the encoders whose config.json encoder.py reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec


def no_projection(fields: Fields) -> int | None:  # noqa: ARG001
    """Return None: token embeddings have the hidden size."""
    return None


def embedding_size(fields: Fields) -> int:
    """Read the size of token embeddings."""
    return fields.integer("embedding_size", 1, 1 << 20)


def other_embedding_size(fields: Fields) -> int | None:
    """Read the size of token embeddings; None if it is the hidden size, and no projection follows."""
    size = embedding_size(fields)
    return None if size == reading.hidden_size(fields) else size


def task_kinds(fields: Fields) -> int:
    """Return the rows of the table of kinds of tasks; 0 unless `use_task_id` is true (ERNIE 3.0)."""
    return fields.integer("task_type_vocab_size", 1, 1 << 16, 3) if fields.boolean("use_task_id", False) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderKind:
    """The parts in which one kind of encoder differs from the others that encoder.py reads."""

    prefixes: tuple[str, ...]
    """Prefixes of the encoder's tensor names where it is a part of a model with a head."""
    names: TensorNames
    parts: Callable[[Fields], tuple[AttentionSpec, MLPSpec]]
    """The attention and the feed-forward of every layer."""
    first_position: Callable[[Fields], int] | None = lambda _: 0
    """The row of the first token's position; None: there is no table of positions."""
    embedding_size: Callable[[Fields], int | None] = no_projection
    """The size of token embeddings where a projection with a bias follows their norm; None: the hidden size."""
    shared_layers: bool = False
    """Whether all layers have the weights of the first."""
    head: tuple[str, str] = ("pooler.dense", "classifier")
    """The two linears of the classification head: the one before the activation, and the one that gives logits."""
    activation: str = "tanh"
    """The activation between these two linears."""
