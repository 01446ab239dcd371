"""InternLM 2 and 2.5 of Shanghai AI Laboratory (arXiv 2403.17297): Llama with query, key and value in one tensor.

Its rows are groups of heads: the query heads that share a key, that key, and its value.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "model.layers.{layer}"
_QKV = f"{_LAYER}.attention.wqkv"


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("bias", False)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias)
    names = TensorNames(
        qkv_layout=QKVLayout(groups=mixer.num_kv_heads),
        embedding="model.tok_embeddings",
        head="output",
        before_mixer=f"{_LAYER}.attention_norm",
        before_feed_forward=f"{_LAYER}.ffn_norm",
        query=_QKV,
        key=_QKV,
        value=_QKV,
        output=f"{_LAYER}.attention.wo",
        attention=f"{_LAYER}.attention",
        gate=f"{_LAYER}.feed_forward.w1",
        up=f"{_LAYER}.feed_forward.w3",
        down=f"{_LAYER}.feed_forward.w2",
    )
    layer = LayerSpec(mixer=mixer, feed_forward=reading.mlp(fields), norms=reading.norms_before(norm))
    return reading.model(fields, INTERNLM2.architecture, reading.repeated(fields, layer), norm=norm, names=names)


INTERNLM2 = Family(
    architecture="InternLM2ForCausalLM",
    model_type="internlm2",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "bias": True,
        "eos_token_id": 2,
    },
)
