"""The language model of Meta's Chameleon (arXiv 2405.09818): Llama with LayerNorm of each query and key head, which has
weights and biases of its own. Images are tokens of the vocabulary, which transformers never chooses."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, NormSpec, QKNormSpec

_IMAGE_TOKENS = "IMGIMG"
"""The beginning of the names of tokens that are parts of images."""
_NORMS_AFTER = TensorNames(
    after_mixer="model.layers.{layer}.input_layernorm",
    after_feed_forward="model.layers.{layer}.post_attention_layernorm",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mlp_bias, qk_norm = fields.boolean("mlp_bias", False), NormSpec(1e-5, "layer", bias=True)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(qk_norm, own_weights=True))
    after = fields.boolean("swin_norm", False)
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=LayerNorms(after_mixer=norm, after_feed_forward=norm) if after else reading.norms_before(norm),
    )
    spec = reading.model(fields, CHAMELEON.architecture, reading.repeated(fields, layer), norm=norm)
    head = HeadSpec(fields.boolean("tie_word_embeddings", False), never=_image_tokens(fields, spec.vocab_size))
    names = _NORMS_AFTER if after else spec.names
    return replace(spec, head=head, names=names, stored_names=StoredNames(ignored=("model.vqmodel.",)))


def _image_tokens(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of the tokens that are parts of images, in `vocabulary_map`."""
    vocabulary = fields.mapping("vocabulary_map")
    if vocabulary is None:
        return ()
    names = (name for name in vocabulary.values if name.startswith(_IMAGE_TOKENS))
    return tuple(sorted(vocabulary.integer(name, 0, vocab_size - 1) for name in names))


CHAMELEON = Family(
    architecture="ChameleonForConditionalGeneration",
    model_type="chameleon",
    read=_read,
    defaults={
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
    left_out=frozenset({"head_dim"}),
)
