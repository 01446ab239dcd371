"""Mistral (arXiv 2310.06825): Llama with a sliding window in every layer.

Later versions have none: their `sliding_window` is null.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, window=reading.window(fields)),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, MISTRAL.architecture, reading.repeated(fields, layer), norm=norm)


MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
    nullable=frozenset({"sliding_window"}),
)
