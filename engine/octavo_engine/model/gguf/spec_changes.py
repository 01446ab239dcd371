"""How GGUF files store tensors differently from Hugging Face's checkpoints, as changes of a model's spec.

llama.cpp's converter permutes the rows of query and key, adds 1 to norms that checkpoints store less one, changes the
order of query, key and value in a joined tensor, and stacks experts.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.spec import AttentionSpec, ModelSpec, NormSpec


def with_ropes(spec: ModelSpec, **values: Any) -> ModelSpec:
    """Return `spec` with these values in each layer's RoPE."""
    layers = []
    for layer in spec.layers:
        mixer = layer.attention
        if isinstance(mixer, AttentionSpec) and mixer.rope is not None:
            layers.append(layer.with_attention(replace(mixer, rope=replace(mixer.rope, **values))))
        else:
            layers.append(layer)
    return replace(spec, layers=tuple(layers))


def norms_as_stored(spec: ModelSpec) -> ModelSpec:
    """Return `spec` whose norms multiply with their stored weights, to which the converter has added 1."""
    return replace(spec, norm=_without_offset(spec.norm), layers=_without_offset(spec.layers))


def _without_offset(part: Any) -> Any:
    if isinstance(part, NormSpec):
        return replace(part, weight_offset=0.0)
    if isinstance(part, tuple):
        return tuple(map(_without_offset, part))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    return replace(part, **{field.name: _without_offset(getattr(part, field.name)) for field in fields(part)})


def ungrouped_qkv(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with all rows of query, then of key, then of value, whatever groups the checkpoint has."""
    return replace(spec, names=replace(spec.names, qkv_layout=QKVLayout()))


def llama_names(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with Llama's names: query, key and value apart, which the checkpoint has in one tensor."""
    return replace(spec, names=TensorNames())


def split_latent_up(spec: ModelSpec) -> ModelSpec:
    """Return `spec` whose projection of latents is two tensors: of keys, transposed, and of values."""
    return replace(spec, names=replace(spec.names, splits_latent_up=True))


def ungrouped_delta_net(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with Qwen3-Next's projection of query, key, value and gate in two tensors, without groups."""
    mixer, layout = "model.layers.{layer}.linear_attn", replace(spec.names.delta_layout, order=(4, 5))
    names = replace(
        spec.names,
        delta_query=f"{mixer}.in_proj_qkv",
        delta_key=f"{mixer}.in_proj_qkv",
        delta_value=f"{mixer}.in_proj_qkv",
        delta_gate=f"{mixer}.in_proj_z",
        delta_layout=layout,
    )
    return replace(spec, names=names)


def as_rows(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with weights as [out, in], which GPT-2's checkpoints store transposed."""
    return replace(spec, names=replace(spec.names, transposed=False))


def numbered_experts(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with gate, up and down of each expert as tensors of their own, unlike in the checkpoint."""
    moe = "model.layers.{layer}.mlp"
    expert, shared = f"{moe}.experts.{{expert}}", f"{moe}.shared_expert"
    names = replace(
        spec.names,
        expert_gate=f"{expert}.gate_proj",
        expert_up=f"{expert}.up_proj",
        expert_down=f"{expert}.down_proj",
        shared_gate=f"{shared}.gate_proj",
        shared_up=f"{shared}.up_proj",
        shared_down=f"{shared}.down_proj",
    )
    return replace(spec, names=names)


def of_gpt_oss(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with experts as tensors of their own, and YaRN without `truncate`, which headers do not state."""
    return numbered_experts(with_ropes(spec, truncate=False))
