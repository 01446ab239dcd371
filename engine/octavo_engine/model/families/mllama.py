"""The language model of Llama 3.2 Vision (arXiv 2407.21783): Llama with further layers that attend to images.

For text those layers do nothing, and they are not loaded.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec

_IMAGE_TOKENS = 8
"""The rows of the embedding after the vocabulary's."""
_UNUSED = LayerSpec(mixer=None, feed_forward=None, norms=LayerNorms())


def _read(fields: Fields) -> ModelSpec:
    if fields.boolean("tie_word_embeddings", False):
        raise fields.wrong("tie_word_embeddings", True, "is not supported: the embedding has more rows than the head")
    norm, attending = reading.rms_norm(fields), set(fields.integers("cross_attention_layers"))
    layer = LayerSpec(
        mixer=reading.attention(fields), feed_forward=reading.mlp(fields), norms=reading.norms_before(norm)
    )
    layers = tuple(_UNUSED if number in attending else layer for number in range(reading.num_layers(fields)))
    return reading.model(
        fields,
        MLLAMA.architecture,
        layers,
        norm=norm,
        unread_embeddings=_IMAGE_TOKENS,
        stored_names=StoredNames(ignored=tuple(f"model.layers.{number}." for number in sorted(attending))),
    )


MLLAMA = Family(
    architecture="MllamaForCausalLM",
    model_type="mllama_text_model",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "intermediate_size": 14336,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
        "eos_token_id": 128001,
    },
    left_out=frozenset({"head_dim"}),
)
