"""Reads the config.json of BART (arXiv 1910.13461) and of models of its shape as decoders alone (bart_families.py).

As in transformers' `ForCausalLM` classes there is no encoder, so attention to its results is left out, and its tensors
are not read. What differs is where norms stand and what positions are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.fairseq import EPS, fairseq_layers, fairseq_names
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, ModelSpec, NormSpec, PositionSpec

_DECODER = "model.decoder"
_CROSS = f"{_DECODER}.layers.{{layer}}.encoder_attn"
_SHIFTED = PositionSpec(offset=2)
_UNREAD = ("q_proj", "k_proj", "v_proj", "out_proj")


@dataclass(frozen=True, slots=True)
class BartShape:
    """Where norms stand, and what positions are."""

    norms_first: bool = False
    """Whether norms come before attention and feed-forward, and one comes after the last layer."""
    norm_of_input: Literal["sum", "tokens"] | None = "sum"
    """The norm of the sum of tokens' and positions' vectors, or of tokens' alone; None: there is none."""
    positions: PositionSpec = _SHIFTED
    last_norm: str = "layer_norm"
    """The name of the norm after the last layer, within the decoder."""
    head: str = "lm_head"


def _names(shape: BartShape) -> TensorNames:
    linears = (f"{_CROSS}.{linear}.{part}" for linear in _UNREAD for part in ("weight", "bias"))
    norms = (f"{_CROSS}_layer_norm.{part}" for part in ("weight", "bias"))
    names = fairseq_names(_DECODER, norm=f"{_DECODER}.{shape.last_norm}", head=shape.head)
    return replace(names, embedding_norm=f"{_DECODER}.layernorm_embedding", buffers=(*linears, *norms))


def read_bart(architecture: str, shape: BartShape, fields: Fields) -> ModelSpec:
    """Return the spec of the decoder; ModelLoadError if config.json is of a model with an encoder."""
    reading.refuse_if_true(fields, "is_encoder_decoder")
    if not fields.boolean("use_learned_position_embeddings", True):
        raise fields.wrong("use_learned_position_embeddings", False, "is not supported")
    norm = NormSpec(EPS, "layer", bias=True)
    after = LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True)
    norms = reading.norms_before(norm) if shape.norms_first else after
    normalised = shape.norm_of_input is not None and fields.boolean("layernorm_embedding", True)
    scaled = fields.boolean("scale_embedding", False) and shape.norm_of_input != "tokens"
    return reading.model(
        fields,
        architecture,
        fairseq_layers(fields, "decoder_ffn_dim", norms, bias=fields.boolean("use_bias", True), feed_forward_bias=True),
        norm=norm if shape.norms_first else None,
        embedding_norm=norm if normalised else None,
        embedding_scale=reading.hidden_size(fields) ** 0.5 if scaled else 1.0,
        positions=replace(shape.positions, after_norm=shape.norm_of_input == "tokens"),
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        names=_names(shape),
    )
