"""nanochat of Andrej Karpathy: Llama with norms that have no weights, and a feed-forward without a gate.

Embeddings are normalised before the first layer, QK norm follows RoPE, whose angles are negative, and logits are
softcapped. The activation is squared ReLU.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec, QKNormSpec

_NAMES = TensorNames(up="model.layers.{layer}.mlp.fc1", down="model.layers.{layer}.mlp.fc2")


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields, weight=False), fields.boolean("attention_bias", False)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm, after_rope=True))
    layer = LayerSpec(
        mixer=reading.with_rope(mixer, backwards=True),
        feed_forward=reading.mlp(fields, gated=False),
        norms=reading.norms_before(norm),
    )
    return reading.model(
        fields,
        NANOCHAT.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_norm=norm,
        head=HeadSpec(
            fields.boolean("tie_word_embeddings", False), softcap=reading.softcap(fields, "final_logit_softcapping")
        ),
        names=_NAMES,
    )


NANOCHAT = Family(
    architecture="NanoChatForCausalLM",
    model_type="nanochat",
    read=_read,
    defaults={
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "final_logit_softcapping": 15.0,
        "eos_token_id": 1,
    },
    nullable=frozenset({"final_logit_softcapping"}),
)
