"""EleutherAI's GPT-NeoX and Pythia (arXiv 2204.06745): both parts of a layer read one stream, by norms of their own."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import QKVLayout, TensorNames
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "gpt_neox.layers.{layer}"
_QKV = f"{_LAYER}.attention.query_key_value"


def _names(heads: int) -> TensorNames:
    return TensorNames(
        qkv_layout=QKVLayout(groups=heads),
        buffers=(f"{_LAYER}.attention.bias", f"{_LAYER}.attention.masked_bias"),
        embedding="gpt_neox.embed_in",
        norm="gpt_neox.final_layer_norm",
        head="embed_out",
        before_mixer=f"{_LAYER}.input_layernorm",
        before_feed_forward=f"{_LAYER}.post_attention_layernorm",
        query=_QKV,
        key=_QKV,
        value=_QKV,
        output=f"{_LAYER}.attention.dense",
        attention=f"{_LAYER}.attention",
        up=f"{_LAYER}.mlp.dense_h_to_4h",
        down=f"{_LAYER}.mlp.dense_4h_to_h",
    )


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.layer_norm(fields, bias=True), fields.boolean("attention_bias", True)
    mixer = reading.attention(fields, grouped=False, partial_rotary=True, qkv_bias=bias, output_bias=bias)
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=reading.plain_mlp(fields, bias=True),
        norms=reading.norms_before(norm),
        parallel=fields.boolean("use_parallel_residual", True),
    )
    layers, names = reading.repeated(fields, layer), _names(mixer.num_heads)
    return reading.model(fields, GPT_NEOX.architecture, layers, norm=norm, names=names)


GPT_NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    read=_read,
    aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    defaults={
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "use_parallel_residual": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
