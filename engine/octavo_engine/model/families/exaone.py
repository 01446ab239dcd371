"""EXAONE 3 and 3.5 of LG (arXiv 2408.03541, 2412.04862): Llama under GPT-2's names of fields and tensors."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "transformer.h.{layer}"
_ATTENTION = f"{_LAYER}.attn.attention"
_NAMES = TensorNames(
    embedding="transformer.wte",
    norm="transformer.ln_f",
    before_mixer=f"{_LAYER}.ln_1",
    before_feed_forward=f"{_LAYER}.ln_2",
    query=f"{_ATTENTION}.q_proj",
    key=f"{_ATTENTION}.k_proj",
    value=f"{_ATTENTION}.v_proj",
    output=f"{_ATTENTION}.out_proj",
    attention=_ATTENTION,
    gate=f"{_LAYER}.mlp.c_fc_0",
    up=f"{_LAYER}.mlp.c_fc_1",
    down=f"{_LAYER}.mlp.c_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, EXAONE.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


EXAONE = Family(
    architecture="ExaoneForCausalLM",
    model_type="exaone",
    read=_read,
    aliases={
        "num_layers": "num_hidden_layers",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
)
