"""ModernBERT as a decoder (Ettin, arXiv 2507.11412): each token sees only itself and the tokens before it, and BERT's
transform stands before the head."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.modernbert_layers import ALIASES, DEFAULTS, head_transform, layers, norm_of
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, ModelSpec

_LAYER = "model.layers.{layer}"
_NAMES = TensorNames(
    embedding="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    before_mixer=f"{_LAYER}.attn_norm",
    attention=f"{_LAYER}.attn",
    query=f"{_LAYER}.attn.q_proj",
    key=f"{_LAYER}.attn.k_proj",
    value=f"{_LAYER}.attn.v_proj",
    output=f"{_LAYER}.attn.Wo",
    before_feed_forward=f"{_LAYER}.mlp_norm",
    gate=f"{_LAYER}.mlp.Wi",
    up=f"{_LAYER}.mlp.Wi",
    down=f"{_LAYER}.mlp.Wo",
    norm="model.final_norm",
    head="decoder",
)


def _read(fields: Fields) -> ModelSpec:
    norm, tied = norm_of(fields), fields.boolean("tie_word_embeddings", True)
    head = HeadSpec(tied, bias=fields.boolean("decoder_bias", True), transform=head_transform(fields))
    return reading.model(
        fields,
        MODERNBERT_DECODER.architecture,
        layers(fields, _window(fields), causal=True),
        norm=norm,
        embedding_norm=norm,
        head=head,
        names=_NAMES,
    )


def _window(fields: Fields) -> int:
    """Read `sliding_window`, or half of `local_attention`, which counts both sides as in ModernBERT."""
    if fields.has("sliding_window"):
        return fields.integer("sliding_window", 1, 1 << 30)
    return fields.integer("local_attention", 2, 1 << 30) // 2


MODERNBERT_DECODER = Family(
    architecture="ModernBertDecoderForCausalLM",
    model_type="modernbert-decoder",
    read=_read,
    aliases=ALIASES,
    defaults={**DEFAULTS, "eos_token_id": 50282},
)
