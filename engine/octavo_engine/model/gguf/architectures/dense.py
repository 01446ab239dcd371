"""GGUF files of dense models with RMSNorm, and of Cohere's."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.config_fields import granite_fields, window_field
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.spec_changes import norms_as_stored


def _score_scale(header: Header, layers_of_largest: int) -> dict[str, Any]:
    """Return Gemma's scale of scores: by hidden size / heads in a generation's largest model, else by the head size."""
    heads, hidden = header.integer("attention.head_count"), header.integer("embedding_length")
    largest = header.integer("block_count") == layers_of_largest
    by_head = header.integer("attention.key_length", default=hidden // heads)
    return {"query_pre_attn_scalar": hidden // heads if largest else by_head}


def _gemma2_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 2's fields."""
    caps = {f"{part}_logit_softcapping": f"{part}_logit_softcapping" for part in ("attn", "final")}
    window = {"sliding_window": header.integer("attention.sliding_window", default=4096)}
    return {**_score_scale(header, 46), **window, **header.given(caps)}


def _gemma3_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 3's fields."""
    scaling, factor = header.rope_scaling()
    full: dict[str, Any] = {"rope_theta": header.number("rope.freq_base", default=10000.0), "rope_type": "default"}
    if scaling == "linear":
        full |= {"rope_type": scaling, "factor": factor}
    local = {"rope_theta": header.number("rope.freq_base_swa", default=10000.0), "rope_type": "default"}
    window = header.integer("attention.sliding_window", 0, 1 << 30, default=0)
    pattern = header.integer("attention.sliding_window_pattern", default=6) if window else 1
    return {
        **_score_scale(header, 62),
        **header.given({"final_logit_softcapping": "final_logit_softcapping"}),
        "sliding_window": window or None,
        "sliding_window_pattern": pattern,
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }


def _phi3_fields(header: Header) -> dict[str, Any]:
    """Return Phi-3's fields."""
    original = header.integer("rope.scaling.original_context_length", default=header.integer("context_length"))
    return {**window_field(header), "original_max_position_embeddings": original}


def _olmo_fields(header: Header) -> dict[str, Any]:
    """Return OLMo's fields."""
    return header.given({"clip_qkv": "attention.clamp_kqv"})


def _olmo2_fields(header: Header) -> dict[str, Any]:
    """Return OLMo 2's fields; ModelLoadError for a file of OLMo 3, which has a window."""
    if header.has("attention.sliding_window"):
        name = header.key("attention.sliding_window")
        window = header.integer("attention.sliding_window")
        raise header.fields.wrong(name, window, "is OLMo 3's, whose GGUF files are not supported")
    return {}


def _command_r_fields(header: Header) -> dict[str, Any]:
    """Return Command R's fields."""
    return {"logit_scale": header.number("logit_scale"), "use_qk_norm": header.stored("attn_q_norm.weight")}


def _cohere2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Command R7B and later ones."""
    window = header.integer("attention.sliding_window")
    return {"logit_scale": header.number("logit_scale"), "sliding_window": window, "attention_bias": False}


DENSE = (
    GGUFArchitecture(
        name="llama", model_class="LlamaForCausalLM", other_classes=("MistralForCausalLM",), interleaves_rope=True
    ),
    GGUFArchitecture(name="qwen2", model_class="Qwen2ForCausalLM"),
    GGUFArchitecture(name="qwen3", model_class="Qwen3ForCausalLM"),
    GGUFArchitecture(name="gemma", model_class="GemmaForCausalLM", change=norms_as_stored),
    GGUFArchitecture(name="gemma2", model_class="Gemma2ForCausalLM", read=_gemma2_fields, change=norms_as_stored),
    GGUFArchitecture(name="gemma3", model_class="Gemma3ForCausalLM", read=_gemma3_fields, change=norms_as_stored),
    GGUFArchitecture(name="phi3", model_class="Phi3ForCausalLM", read=_phi3_fields),
    GGUFArchitecture(name="granite", model_class="GraniteForCausalLM", read=granite_fields, interleaves_rope=True),
    GGUFArchitecture(name="olmo", model_class="OlmoForCausalLM", read=_olmo_fields, interleaves_rope=True),
    GGUFArchitecture(name="olmo2", model_class="Olmo2ForCausalLM", read=_olmo2_fields),
    GGUFArchitecture(name="command-r", model_class="CohereForCausalLM", read=_command_r_fields),
    GGUFArchitecture(name="cohere2", model_class="Cohere2ForCausalLM", read=_cohere2_fields),
    GGUFArchitecture(name="smollm3", model_class="SmolLM3ForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="arcee", model_class="ArceeForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="seed_oss", model_class="SeedOssForCausalLM"),
    GGUFArchitecture(name="hunyuan-dense", model_class="HunYuanDenseV1ForCausalLM"),
    GGUFArchitecture(name="ernie4_5", model_class="Ernie4_5ForCausalLM"),
)
