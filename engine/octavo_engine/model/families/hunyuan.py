"""Dense HunYuan of Tencent: Llama with QK norm, which is applied after RoPE."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec

HUNYUAN_NAMES = TensorNames(
    query_norm="model.layers.{layer}.self_attn.query_layernorm",
    key_norm="model.layers.{layer}.self_attn.key_layernorm",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    qk_norm = QKNormSpec(norm, after_rope=True)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, HUNYUAN.architecture, reading.repeated(fields, layer), norm=norm, names=HUNYUAN_NAMES)


HUNYUAN = Family(
    architecture="HunYuanDenseV1ForCausalLM",
    model_type="hunyuan_v1_dense",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
    without_effect=frozenset({"use_qk_norm"}),
)
