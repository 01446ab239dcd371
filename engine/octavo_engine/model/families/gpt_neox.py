"""GPT-NeoX and Pythia of EleutherAI (arXiv 2204.06745): attention and feed-forward in parallel, and partial RoPE.

Both read the residual stream, each through a LayerNorm of its own; `use_parallel_residual: false` computes one after
the other. By default a quarter of each head rotates. One tensor has query, key and value, head by head.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def gpt_neox_names(model: str, heads: int) -> TensorNames:
    """Return the tensor names of a decoder with this prefix, whose heads have query, key and value side by side."""
    layer = f"{model}.layers.{{layer}}"
    qkv = f"{layer}.attention.query_key_value"
    return TensorNames(
        modules=(("lm_head", "embed_out"),),
        qkv_layout=QKVLayout(groups=heads),
        buffers=(f"{layer}.attention.bias", f"{layer}.attention.masked_bias"),
        embedding=f"{model}.embed_in",
        norm=f"{model}.final_layer_norm",
        head="embed_out",
        before_mixer=f"{layer}.input_layernorm",
        before_feed_forward=f"{layer}.post_attention_layernorm",
        query=qkv,
        key=qkv,
        value=qkv,
        output=f"{layer}.attention.dense",
        attention=f"{layer}.attention",
        up=f"{layer}.mlp.dense_h_to_4h",
        down=f"{layer}.mlp.dense_4h_to_h",
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
    layers, names = reading.repeated(fields, layer), gpt_neox_names("gpt_neox", mixer.num_heads)
    return reading.model(fields, GPT_NEOX.architecture, layers, norm=norm, names=names)


GPT_NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    read=_read,
    aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    left_out=frozenset({"partial_rotary_factor", "rope_theta"}),  # transformers reads them under their own names
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
