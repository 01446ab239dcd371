"""Specs of heads, which compute logits of tokens or of classes from the last hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_engine.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTransformSpec:
    """A linear, an activation and a norm of the last hidden states before the head (BERT's)."""

    bias: bool
    activation: str
    norm: NormSpec | None
    """None: the linear and the activation alone."""
    size: int | None = None
    """The size of the result, which the head's weight multiplies (RemBERT); None: that of token embeddings."""


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A language model's head; logits are multiplied with `scale`, then become softcap * tanh(logit / softcap)."""

    tied: bool
    """Whether its weight is the embedding's."""
    scale: float = 1.0
    softcap: float | None = None
    bias: bool = False
    """Added to the product, before it is scaled."""
    transform: HeadTransformSpec | None = None
    unit_rows: bool = False
    """Whether each row of the weight is divided by its length while it is read (Baichuan 2); not where it is tied."""
    never: tuple[int, ...] = ()
    """Tokens that are never chosen, whose logits are the least number of their type (Chameleon's images)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierSpec:
    """A classifier: logits of classes, or one score, computed from the pooled vector of a text or a pair of texts."""

    labels: tuple[str, ...]
    """The names of the classes, one for each logit."""
    activation: Literal["softmax", "sigmoid", "identity"]
    """The function from logits to probabilities."""
    pooling: Literal["last", "cls", "mean"] = "last"
    """The hidden states that the vector is made of: the last token's, the first one's, or the mean of all."""
    bias: bool = False
    transform: HeadTransformSpec | None = None
    """A transformation of the vector before its product with the weight."""
    transforms_tokens: bool = False
    """Whether each token's hidden state is transformed, and the vector is the mean of the results (EuroBERT's `late`).
    """
