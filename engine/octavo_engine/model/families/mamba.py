"""Mamba (arXiv 2312.00752), Falcon Mamba and Mamba-2 (arXiv 2405.21060): a mixer in each layer, and nothing else.

The mixer keeps a state in place of keys and values; there is no attention and no feed-forward.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.state_space import (
    NO_LENGTH,
    STATE_SPACE_ALIASES,
    STATE_SPACE_DEFAULTS,
    mamba,
    mamba2,
)
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, Mamba2Spec, MambaSpec, ModelSpec, NormSpec

_NAMES = TensorNames(
    embedding="backbone.embeddings",
    before_mixer="backbone.layers.{layer}.norm",
    mamba="backbone.layers.{layer}.mixer",
    norm="backbone.norm_f",
)

_STORED_NAMES = StoredNames(renamed=(("backbone.embedding.", "backbone.embeddings."),))
"""The embedding's name in the first published checkpoints."""


def _model(fields: Fields, architecture: str, mixer: MambaSpec | Mamba2Spec) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layer = LayerSpec(mixer=mixer, feed_forward=None, norms=LayerNorms(before_mixer=norm))
    layers = reading.repeated(fields, layer)
    return reading.model(fields, architecture, layers, norm=norm, names=_NAMES, stored_names=_STORED_NAMES)


def _channels(fields: Fields) -> int | None:
    return reading.intermediate_size(fields) if fields.has("intermediate_size") else None


def _read_falcon(fields: Fields) -> ModelSpec:
    norm = NormSpec(fields.number("mixer_rms_eps", 0, 1), weight=False)
    return _model(fields, FALCON_MAMBA.architecture, mamba(fields, norm, _channels(fields)))


_DEFAULTS = {
    **STATE_SPACE_DEFAULTS,
    **NO_LENGTH,
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "vocab_size": 50280,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "mamba_d_state": 16,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
MAMBA: Family = Family(
    architecture="MambaForCausalLM",
    model_type="mamba",
    read=lambda fields: _model(fields, MAMBA.architecture, mamba(fields, None, _channels(fields))),
    defaults=_DEFAULTS,
    aliases=STATE_SPACE_ALIASES,
)
FALCON_MAMBA: Family = Family(
    architecture="FalconMambaForCausalLM",
    model_type="falcon_mamba",
    read=_read_falcon,
    defaults={**_DEFAULTS, "mixer_rms_eps": 1e-6},
    aliases=STATE_SPACE_ALIASES,
)
MAMBA2: Family = Family(
    architecture="Mamba2ForCausalLM",
    model_type="mamba2",
    read=lambda fields: _model(fields, MAMBA2.architecture, mamba2(fields)),
    defaults={
        **_DEFAULTS,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "vocab_size": 32768,
        "mamba_d_head": 64,
        "mamba_n_groups": 8,
        "mamba_d_state": 128,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
    aliases={**STATE_SPACE_ALIASES, "num_heads": "mamba_n_heads", "head_dim": "mamba_d_head"},
)
