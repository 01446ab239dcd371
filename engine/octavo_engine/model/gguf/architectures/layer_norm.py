"""GGUF files of dense models with LayerNorm: learned positions, ALiBi or RoPE."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.config_fields import rms_epsilon
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.spec_changes import as_rows, norms_as_stored

_ALIBI_BIAS = 8
"""The largest of ALiBi's factors in MPT's published models."""


def _stablelm_fields(header: Header) -> dict[str, Any]:
    """Return StableLM's fields."""
    parallel = not header.stored("ffn_norm.weight")  # the converter writes that it is where config.json says nothing
    biased, normed = header.stored("attn_q.bias"), header.stored("attn_q_norm.weight")
    return {"use_parallel_residual": parallel, "use_qkv_bias": biased, "qk_layernorm": normed}


def _neox_fields(header: Header) -> dict[str, Any]:
    """Return GPT-NeoX's fields."""
    parallel = header.fields.boolean(header.key("use_parallel_residual"), True)
    hidden, heads = header.integer("embedding_length", 1, 1 << 20), header.integer("attention.head_count", 1, 1 << 16)
    size = max(1, hidden // heads)
    rotated = header.integer("rope.dimension_count", 1, 1 << 16, default=size)
    return {"use_parallel_residual": parallel, "rotary_pct": rotated / size}


def _falcon_fields(header: Header) -> dict[str, Any]:
    """Return Falcon's fields: the first one has one KV head, later ones several, and one norm or two in each layer."""
    kv_heads = header.integer("attention.head_count_kv", default=1)
    norms = 2 if header.stored("attn_norm_2.weight") else 1
    new = kv_heads > 1 or norms == 2
    width = header.integer("feed_forward_length")
    shape = {"num_ln_in_parallel_attn": norms, "num_kv_heads": kv_heads, "ffn_hidden_size": width}
    return {"new_decoder_architecture": new, **shape}


def _gpt2_fields(header: Header) -> dict[str, Any]:
    """Return GPT-2's fields."""
    return {"n_inner": header.integer("feed_forward_length")}


def _starcoder2_fields(header: Header) -> dict[str, Any]:
    """Return StarCoder 2's fields."""
    return {"norm_epsilon": header.number("attention.layer_norm_epsilon"), "use_bias": True}


def _nemotron_fields(header: Header) -> dict[str, Any]:
    """Return Nemotron's fields."""
    return {"norm_eps": header.number("attention.layer_norm_epsilon")}


def _starcoder_fields(header: Header) -> dict[str, Any]:
    """Return StarCoder's fields."""
    return {"n_inner": header.integer("feed_forward_length"), "multi_query": True}


def _mpt_fields(header: Header) -> dict[str, Any]:
    """Return MPT's fields; ModelLoadError without ALiBi, or with another largest bias."""
    name = "attention.max_alibi_bias"
    if (bias := header.number(name, default=0.0)) != _ALIBI_BIAS:
        raise header.fields.wrong(header.key(name), bias, f"is not supported, only {_ALIBI_BIAS}")
    return {"attn_config": header.given({"clip_qkv": "attention.clamp_kqv"})}


LAYER_NORM = (
    GGUFArchitecture(name="phi2", model_class="PhiForCausalLM"),
    GGUFArchitecture(name="starcoder2", model_class="Starcoder2ForCausalLM", read=_starcoder2_fields),
    GGUFArchitecture(name="stablelm", model_class="StableLmForCausalLM", read=_stablelm_fields),
    GGUFArchitecture(name="nemotron", model_class="NemotronForCausalLM", read=_nemotron_fields, change=norms_as_stored),
    GGUFArchitecture(name="falcon", model_class="FalconForCausalLM", read=_falcon_fields, ungroups_qkv=True),
    GGUFArchitecture(name="gpt2", model_class="GPT2LMHeadModel", read=_gpt2_fields, change=as_rows),
    GGUFArchitecture(name="bloom", model_class="BloomForCausalLM", ungroups_qkv=True),
    GGUFArchitecture(name="gptneox", model_class="GPTNeoXForCausalLM", read=_neox_fields, ungroups_qkv=True),
    GGUFArchitecture(name="starcoder", model_class="GPTBigCodeForCausalLM", read=_starcoder_fields),
    GGUFArchitecture(name="jais2", model_class="Jais2ForCausalLM"),
    GGUFArchitecture(name="orion", model_class="OrionForCausalLM", read=rms_epsilon),
    GGUFArchitecture(name="mpt", model_class="MPTForCausalLM", other_classes=("MptForCausalLM",), read=_mpt_fields),
)
