"""The spec of a model: embedding, layers, final norm and head."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.model.checkpoint.names import LLAMA_NAMES, SAME_NAMES, StoredNames, TensorNames
from octavo_engine.model.quantization.module_rules import Quantization
from octavo_engine.model.spec.attention import AttentionSpec, LatentAttentionSpec
from octavo_engine.model.spec.compressed_attention import CompressedAttentionSpec
from octavo_engine.model.spec.feed_forward import MoESpec
from octavo_engine.model.spec.head import ClassifierSpec, HeadSpec
from octavo_engine.model.spec.layer import LayerSpec
from octavo_engine.model.spec.mixer import AttentionMixer, StateMixer
from octavo_engine.model.spec.norms import NormSpec
from octavo_engine.model.spec.rope import RopeSpec


@dataclass(frozen=True, slots=True)
class PositionSpec:
    """Absolute positions: a vector for each position, which is added to the token's embedding."""

    offset: int = 0
    """Position p has row p + offset of the table."""
    rows: int | None = None
    """The rows of the table; None: one for each position of the longest context, after `offset`."""
    sinusoidal: bool = False
    """Whether rows are computed, sines before cosines (arXiv 1706.03762), instead of stored."""
    whole_range: bool = True
    """Whether the lowest frequency of computed positions is 1 / 10000 as in fairseq, or the one above it (CTRL)."""
    zero_row: int | None = None
    """The row of padding among computed positions, which is zero (fairseq)."""
    uncounted: int | None = None
    """A token id that is not counted as a position and has the row of its own number (RoBERTa's padding). Only for
    encoders, whose steps have whole prompts."""
    after_norm: bool = False
    """Whether positions are added after the norm of the first layer's input (Blenderbot Small)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything that decoder, loader, KV cache and plan need to know of a model besides its weights."""

    architecture: str
    """The model class, as config.json names it, for messages."""
    hidden_size: int
    vocab_size: int
    max_position: int
    """Longest context in tokens that the model was made for."""
    dtype: torch.dtype
    """The checkpoint's own type: what `--dtype auto` means."""
    eos_token_ids: tuple[int, ...]
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None
    """The norm after the last layer."""
    head: HeadSpec | None
    """None: the model does not generate; its results are hidden states."""
    classifier: ClassifierSpec | None = None
    """The classification head of a model without `head`; None: it gives embeddings."""
    embedding_scale: float = 1.0
    unread_embeddings: int = 0
    """The rows of the stored embedding after the vocabulary's, which have no logits and are not read (Mllama)."""
    affine_embeddings: bool = False
    """Whether embeddings have a learnt bias and factor for each of their numbers (Zaya)."""
    embedding_size: int | None = None
    """The size of token embeddings if it is not `hidden_size`: they are projected to that size, and the last hidden
    states back, without biases."""
    embedding_norm: NormSpec | None = None
    """The norm of the first layer's input."""
    projected_last: bool = False
    """Whether vectors of positions and token types are as large as token embeddings, and the norm comes before the
    projection, which has a bias (ALBERT, ELECTRA)."""
    positions: PositionSpec | None = None
    """None: only attention depends on positions (RoPE, ALiBi)."""
    token_types: int = 0
    """The rows of the table of token types, which tell the first text of a pair from the second; 0: there is none."""
    task_kinds: int = 0
    """The rows of the table of kinds of tasks, of which every token gets the first (ERNIE); 0: there is none."""
    vector_size: int | None = None
    """The size of a text's vector, if it is a projection of hidden states (EmbeddingGemma 2); None: `hidden_size`."""
    names: TensorNames = LLAMA_NAMES
    stored_names: StoredNames = SAME_NAMES
    """The tensors' names in the files, which may hold a larger model of which this is a part."""
    quantization: Quantization | None = None
    """The storage of linear layers' weights; None: the dtype of the products."""

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def has_experts(self) -> bool:
        """True if any feed-forward is a mixture of experts."""
        return any(isinstance(part, MoESpec) for layer in self.layers for part in layer.feed_forwards)

    @property
    def attention_mixers(self) -> tuple[AttentionMixer, ...]:
        """The attention mixers of all layers that have one."""
        found = (layer.attention for layer in self.layers)
        return tuple(mixer for mixer in found if mixer is not None)

    @property
    def causal(self) -> bool:
        """True if the result for a token does not depend on later tokens."""
        return all(not isinstance(mixer, AttentionSpec) or mixer.causal for mixer in self.attention_mixers)

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different RoPEs of all layers."""
        found = dict.fromkeys(mixer.rope for mixer in self.attention_mixers)
        return tuple(rope for rope in found if rope is not None)

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """The groups of layers whose blocks are allocated and freed together: full attention, then windows and states.

        Where no layer caches anything there is one group without layers, whose blocks take no memory, so that the
        scheduler can count the tokens of prompts as in any other model.
        """
        groups: dict[KVGroupSpec, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for mixer in (layer.attention, layer.state_mixer):
                for group in _groups_of(mixer):
                    groups.setdefault(group, []).append(index)
        if not groups:
            return (KVGroupSpec("full", (), 0, 0),)
        ordered = sorted(groups.items(), key=lambda group: (bool(group[0].states), group[0].window is not None))
        return tuple(replace(group, layers=tuple(layers)) for group, layers in ordered)

    @property
    def long_rope(self) -> RopeSpec | None:
        """The RoPE with other frequencies for long sequences; None: there is none."""
        return next((rope for rope in self.ropes if rope.kind == "longrope"), None)


def _groups_of(mixer: AttentionMixer | StateMixer | None) -> tuple[KVGroupSpec, ...]:
    """Return the KV groups that a mixer's layer is in."""
    if isinstance(mixer, CompressedAttentionSpec | LatentAttentionSpec):
        return mixer.kv_groups
    group = None if mixer is None else mixer.kv_group
    return () if group is None else (group,)
