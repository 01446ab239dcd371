"""Google's Gemma 2 (arXiv 2408.00118): norms before and after each part, softcaps, a window in every second layer."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import TensorNames
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, MLPSpec, ModelSpec, NormSpec

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _read(fields: Fields) -> ModelSpec:
    norm, bias = (
        NormSpec(fields.number("rms_norm_eps", 0, 1), weight_offset=1.0),
        fields.boolean("attention_bias", False),
    )
    if fields.boolean("use_bidirectional_attention", False):
        raise fields.wrong("use_bidirectional_attention", True, "is not supported")
    scale, softcap = fields.number("query_pre_attn_scalar", 1, 1e6) ** -0.5, _softcap(fields, "attn_logit_softcapping")
    feed_forward = MLPSpec(
        intermediate_size=reading.intermediate_size(fields), activation=reading.activation(fields, "hidden_activation")
    )
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields, qkv_bias=bias, output_bias=bias, scale=scale, softcap=softcap, window=window
            ),
            feed_forward=feed_forward,
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
        )
        for window in reading.windows(fields, default=lambda layer: layer % 2 == 0)
    )
    return reading.model(
        fields,
        GEMMA2.architecture,
        layers,
        norm=norm,
        embedding_scale=reading.hidden_size(fields) ** 0.5,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True), softcap=_softcap(fields, "final_logit_softcapping")),
        names=_NAMES,
    )


def _softcap(fields: Fields, name: str) -> float | None:
    return fields.number(name, 1e-3, 1e6) if fields.has(name) else None


GEMMA2 = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    read=_read,
    defaults={
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    },
    nullable=frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
)
