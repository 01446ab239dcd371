"""GPT-2 of OpenAI and the models that share its class: a decoder with learnt positions instead of RoPE.

Norms are LayerNorm, linears have biases and are stored as [in, out], the feed-forward has no gate, and the head has the
embedding's weight.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames, base_model_names
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec, PositionSpec

GPT2_ALIASES = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
}
GPT2_DEFAULTS = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "eos_token_id": 50256,
}
_QKV = "transformer.h.{layer}.attn.c_attn"
GPT2_NAMES = TensorNames(
    transposed=True,
    buffers=("transformer.h.{layer}.attn.bias", "transformer.h.{layer}.attn.masked_bias"),
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    before_mixer="transformer.h.{layer}.ln_1",
    before_feed_forward="transformer.h.{layer}.ln_2",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output="transformer.h.{layer}.attn.c_proj",
    attention="transformer.h.{layer}.attn",
    up="transformer.h.{layer}.mlp.c_fc",
    down="transformer.h.{layer}.mlp.c_proj",
)

GPT2_STORED_NAMES = base_model_names("transformer.", "h.", "wte.", "wpe.", "ln_f.")


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "add_cross_attention")
    norm = reading.layer_norm(fields, bias=True)
    mixer = reading.attention(fields, grouped=False, rope=None, qkv_bias=True, output_bias=True)
    if not fields.boolean("scale_attn_weights", True):
        mixer = replace(mixer, scale=1.0)
    by_depth = fields.boolean("scale_attn_by_inverse_layer_idx", False)
    layers = tuple(
        LayerSpec(
            mixer=replace(mixer, scale=mixer.scale / (index + 1)) if by_depth else mixer,
            feed_forward=reading.plain_mlp(fields, "n_inner", bias=True),
            norms=reading.norms_before(norm),
        )
        for index in range(reading.num_layers(fields))
    )
    head, positions = HeadSpec(fields.boolean("tie_word_embeddings", True)), PositionSpec()
    return reading.model(
        fields,
        GPT2.architecture,
        layers,
        norm=norm,
        head=head,
        positions=positions,
        names=GPT2_NAMES,
        stored_names=GPT2_STORED_NAMES,
    )


GPT2 = Family(
    architecture="GPT2LMHeadModel", model_type="gpt2", read=_read, aliases=GPT2_ALIASES, defaults=GPT2_DEFAULTS
)
