"""GGUF files of Gemma's generations, as far as they are dense."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.config_fields import layer_types, refuse_causal, window_field
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.rope import rope_factors, rope_parameters
from octavo_engine.model.gguf.spec_changes import norms_as_stored

_SOFTCAP = {"final_logit_softcapping": "final_logit_softcapping"}
_LAYERS_WITH_KV = 20
"""The layers of Gemma 3n with keys and values of their own, in both published sizes."""
_NOT_ROTATED = 1e29
"""From this divisor on, a pair of Gemma 4 does not rotate; llama.cpp's converter writes 1e30."""


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
    return {**_score_scale(header, 46), **window, **layer_types(header, 2), **header.given(caps)}


def _two_ropes(header: Header) -> dict[str, Any]:
    """Return the RoPE of layers that see all tokens, and of those with a window, and the window itself."""
    full = {"rope_type": "default", **rope_parameters(header)}
    local = {"rope_theta": header.number("rope.freq_base_swa", default=10000.0), "rope_type": "default"}
    return {**window_field(header), "rope_parameters": {"full_attention": full, "sliding_attention": local}}


def _gemma3_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 3's fields."""
    fields = {**_score_scale(header, 62), **_two_ropes(header), **header.given(_SOFTCAP)}
    return {**fields, **(layer_types(header, 6) if fields["sliding_window"] else {"sliding_window_pattern": 1})}


def gemma_embedding_fields(header: Header) -> dict[str, Any]:
    """Return EmbeddingGemma's fields: a token also sees those after it, and the window counts both sides."""
    refuse_causal(header)
    return {
        **_two_ropes(header),
        **layer_types(header, 6),
        "sliding_window": header.integer("attention.sliding_window", 1, 1 << 30),
        "query_pre_attn_scalar": header.integer("attention.key_length"),
        "use_bidirectional_attention": True,
    }


def _per_layer_input(header: Header) -> dict[str, Any]:
    """Return the sizes of the embeddings that each layer reads; no key states the number of their rows."""
    embedding = header.file.tensors.get("per_layer_token_embd.weight")
    rows = {} if embedding is None else {"vocab_size_per_layer_input": embedding.shape[0]}
    return {**rows, "hidden_size_per_layer_input": header.integer("embedding_length_per_layer_input", 0)}


def _gemma3n_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 3n's fields."""
    laurel = header.file.tensors.get("blk.0.laurel_l.weight")
    scales = header.fields.values.get(header.key("activation_sparsity_scale"))
    if not isinstance(scales, list) or not all(isinstance(scale, float) for scale in scales):
        raise header.fields.wrong(header.key("activation_sparsity_scale"), scales, "is not a list of numbers")
    return {
        **_two_ropes(header),
        **layer_types(header, 5),
        **_per_layer_input(header),
        **header.given(_SOFTCAP),
        "intermediate_size": list(header.each_layer("feed_forward_length", 0)),
        "activation_sparsity_pattern": [NormalDist().cdf(scale) for scale in scales],  # -inf where all gates count
        "num_kv_shared_layers": header.integer(
            "attention.shared_kv_layers", 0, default=max(0, header.num_layers - _LAYERS_WITH_KV)
        ),
        "altup_num_inputs": header.integer("altup.num_inputs"),
        "altup_active_idx": header.integer("altup.active_idx", 0),
        "laurel_rank": 0 if laurel is None else laurel.shape[0],
    }


def _gemma4_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 4's fields: layers that see all tokens have heads of another size, and some of another number."""
    types, size = layer_types(header, 6)["layer_types"], header.integer("attention.key_length_swa")
    full = [kind == "full_attention" for kind in types]
    shared = header.integer("attention.shared_kv_layers", 0, default=0)
    fields = _two_ropes(header)
    fields["rope_parameters"]["full_attention"] |= _proportional(header)
    rotated = header.integer("rope.dimension_count_swa", default=size)
    fields["rope_parameters"]["sliding_attention"]["partial_rotary_factor"] = rotated / size
    return {
        **fields,
        **_gemma4_heads(header, full),
        **_gemma4_widths(header, shared),
        **_per_layer_input(header),
        **header.given(_SOFTCAP),
        "layer_types": types,
        "num_kv_shared_layers": shared,
        "head_dim": size,
        "global_head_dim": header.integer("attention.key_length"),
    }


def _gemma4_experts_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Gemma 4's models with experts beside the dense feed-forward."""
    return {
        **_gemma4_fields(header),
        "enable_moe_block": True,
        "num_experts": header.integer("expert_count"),
        "top_k_experts": header.integer("expert_used_count"),
        "moe_intermediate_size": header.integer("expert_feed_forward_length"),
    }


def _proportional(header: Header) -> dict[str, Any]:
    """Return how many pairs rotate: the file divides the angles of the others by a number without end."""
    factors = rope_factors(header.file, "rope_freqs.weight")
    rotated = sum(factor < _NOT_ROTATED for factor in factors)
    if any(factor != 1 for factor in factors[:rotated]) or 2 * len(factors) != header.integer("attention.key_length"):
        raise header.fields.wrong(
            "rope_freqs.weight", factors, "is not ones before the pairs of a head that do not rotate"
        )
    return {"rope_type": "proportional", "partial_rotary_factor": rotated / len(factors)}


def _gemma4_heads(header: Header, full: list[bool]) -> dict[str, Any]:
    """Return the numbers of KV heads, and whether keys are values too in layers that see all tokens."""
    name, numbers = "attention.head_count_kv", [set[int](), set[int]()]
    for sees_all, number in zip(full, header.each_layer(name, 1), strict=True):
        numbers[sees_all].add(number)
    if any(len(each) > 1 for each in numbers) or not all(numbers):
        shown = header.fields.values.get(header.key(name))
        raise header.fields.wrong(header.key(name), shown, "is not one number for each type of layer")
    value = f"blk.{full.index(True)}.attn_v.weight"
    return {
        "num_key_value_heads": numbers[False].pop(),
        "num_global_key_value_heads": numbers[True].pop(),
        "attention_k_eq_v": value not in header.file.tensors,
    }


def _gemma4_widths(header: Header, shared: int) -> dict[str, Any]:
    """Return the feed-forward's size, and whether the last `shared` layers have twice that."""
    widths = header.each_layer("feed_forward_length", 0)
    own, later = set(widths[: len(widths) - shared]), set(widths[len(widths) - shared :])
    width = widths[0]
    if own != {width} or later not in (set(), {width}, {2 * width}):
        name = header.key("feed_forward_length")
        raise header.fields.wrong(name, list(widths), f"is not one number, or twice that in the last {shared} layers")
    return {"intermediate_size": width, "use_double_wide_mlp": later == {2 * width}}


GEMMA = (
    GGUFArchitecture(name="gemma", model_class="GemmaForCausalLM", change=norms_as_stored),
    GGUFArchitecture(name="gemma2", model_class="Gemma2ForCausalLM", read=_gemma2_fields, change=norms_as_stored),
    GGUFArchitecture(name="gemma3", model_class="Gemma3ForCausalLM", read=_gemma3_fields, change=norms_as_stored),
    GGUFArchitecture(name="gemma3n", model_class="Gemma3nForCausalLM", read=_gemma3n_fields, layers_differ=True),
    GGUFArchitecture(
        name="gemma4",
        model_class="Gemma4ForCausalLM",
        other_classes=("Gemma4UnifiedForCausalLM",),
        read=_gemma4_fields,
        layers_differ=True,
    ),
    GGUFArchitecture(
        name="gemma4",
        model_class="Gemma4ForCausalLM",
        experts=True,
        read=_gemma4_experts_fields,
        layers_differ=True,
    ),
)
