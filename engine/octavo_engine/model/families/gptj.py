"""GPT-J of EleutherAI and CodeGen of Salesforce: attention and feed-forward in parallel after one LayerNorm.

RoPE rotates the first `rotary_dim` dimensions of each head, in pairs of neighbours.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gpt2 import GPT2_ALIASES, GPT2_DEFAULTS
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, RopeSpec

_ATTENTION = "transformer.h.{layer}.attn"
_NAMES = TensorNames(
    embedding="transformer.wte",
    norm="transformer.ln_f",
    before_mixer="transformer.h.{layer}.ln_1",
    query=f"{_ATTENTION}.q_proj",
    key=f"{_ATTENTION}.k_proj",
    value=f"{_ATTENTION}.v_proj",
    output=f"{_ATTENTION}.out_proj",
    attention=_ATTENTION,
    buffers=(f"{_ATTENTION}.bias", f"{_ATTENTION}.masked_bias", f"{_ATTENTION}.causal_mask"),
    up="transformer.h.{layer}.mlp.fc_in",
    down="transformer.h.{layer}.mlp.fc_out",
)
_QKV = f"{_ATTENTION}.qkv_proj"
_CODEGEN_QKV = replace(_NAMES, query=_QKV, key=_QKV, value=_QKV, qkv_layout=QKVLayout(groups=4, order=(0, 2, 1)))
"""CodeGen's names: one tensor has the queries, values and keys of four groups of heads, one for each TPU core."""


def _read(fields: Fields, architecture: str, names: TensorNames) -> ModelSpec:
    norm, mixer = reading.layer_norm(fields, bias=True), reading.attention(fields, grouped=False, rope=None)
    rotary_dim = fields.integer("rotary_dim", 2, mixer.head_dim)
    if rotary_dim % 2:
        raise fields.wrong("rotary_dim", rotary_dim, "is odd, and rotary embeddings rotate pairs")
    if mixer.num_heads % names.qkv_layout.groups:
        raise fields.wrong("n_head", mixer.num_heads, f"is not a multiple of {names.qkv_layout.groups}")
    layer = LayerSpec(
        mixer=replace(mixer, rope=RopeSpec(10000.0, rotary_dim=rotary_dim, interleaved=True)),
        feed_forward=reading.plain_mlp(fields, "n_inner", bias=True),
        norms=LayerNorms(before_mixer=norm),
        parallel=True,
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", False), bias=True)
    return reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm, head=head, names=names)


def _family(architecture: str, model_type: str, names: TensorNames) -> Family:
    return Family(
        architecture=architecture,
        model_type=model_type,
        read=lambda fields: _read(fields, architecture, names),
        aliases=GPT2_ALIASES,
        defaults={
            **GPT2_DEFAULTS,
            "vocab_size": 50400,
            "max_position_embeddings": 2048,
            "hidden_size": 4096,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "rotary_dim": 64,
            "tie_word_embeddings": False,
        },
        nullable=frozenset({"rotary_dim"}),
    )


GPTJ = _family("GPTJForCausalLM", "gptj", _NAMES)
CODEGEN = _family("CodeGenForCausalLM", "codegen", _CODEGEN_QKV)
