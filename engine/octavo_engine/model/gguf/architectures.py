"""The architectures of GGUF files: the model class of each, the keys of its header, and its tensors' differences.

llama.cpp's converter writes for each architecture some keys of its own, and changes some tensors: it permutes the rows
of query and key, adds 1 to norms that checkpoints store less one, splits query, key and value, and stacks experts. What
a header does not state is a constant in llama.cpp, such as which layers of Gemma 3 have a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.file import GGUFFile
from octavo_engine.model.names import QKVLayout
from octavo_engine.model.spec import AttentionSpec, ModelSpec, NormSpec

_MOST = 1 << 22
_CHANGES_THE_ANSWER = (
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_weights_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "router_logit_softcapping",
)
"""Keys that change a model's answers whatever the architecture; a file with one that is not read is refused."""


@dataclass(frozen=True, slots=True)
class Header:
    """A file's keys; those of its architecture are given without its name before them."""

    file: GGUFFile
    fields: Fields

    def key(self, name: str) -> str:
        """Return the whole name of a key."""
        return f"{self.file.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Return True if the key is there."""
        return self.fields.has(self.key(name))

    def integer(self, name: str, low: int = 1, high: int = _MOST, **default: int) -> int:
        """Return a whole number in [low, high]; ModelLoadError otherwise."""
        return self.fields.integer(self.key(name), low, high, **default)

    def number(self, name: str, **default: float) -> float:
        """Return a number; ModelLoadError otherwise."""
        return self.fields.number(self.key(name), -1e12, 1e12, **default)

    def given(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the config.json fields whose numbers the header has under other names."""
        return {ours: self.number(theirs) for ours, theirs in names.items() if self.has(theirs)}

    def refuse_unread(self) -> None:
        """Raise ModelLoadError about a key that changes answers and that was not read."""
        for name in _CHANGES_THE_ANSWER:
            key, value = self.key(name), self.fields.values.get(self.key(name))
            if value not in (None, 0, 1) and key not in self.fields.read:
                raise self.fields.wrong(
                    key, value, f"changes answers, and {self.file.architecture} is not computed with it"
                )

    def stored(self, name: str) -> bool:
        """Return True if the first layer has a tensor of this name."""
        return f"blk.0.{name}" in self.file.tensors


def _nothing(_header: Header) -> dict[str, Any]:
    return {}


def _unchanged(spec: ModelSpec) -> ModelSpec:
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFArchitecture:
    """How files of one `general.architecture`, with experts or without, are read."""

    name: str
    model_class: str
    """The name of the model's class in config.json, by which the family is found."""
    experts: bool = False
    other_classes: tuple[str, ...] = ()
    """Further model classes that are converted to the same architecture and computed in the same way."""
    read: Callable[[Header], dict[str, Any]] = _nothing
    """Fields of config.json beside those that all architectures have."""
    change: Callable[[ModelSpec], ModelSpec] = _unchanged
    """Changes the spec where GGUF files store tensors in another way than Hugging Face's checkpoints."""
    interleaves_rope: bool = False
    """Whether the rows of query and key are permuted, so that rotated pairs lie side by side."""

    def of_file(self, spec: ModelSpec) -> ModelSpec:
        """Return `spec` with the changes for GGUF files."""
        return self.change(_with_ropes(spec, interleaved=True) if self.interleaves_rope else spec)


def _with_ropes(spec: ModelSpec, **values: Any) -> ModelSpec:
    """Return `spec` with these values in each layer's RoPE."""
    layers = []
    for layer in spec.layers:
        mixer = layer.attention
        if isinstance(mixer, AttentionSpec) and mixer.rope is not None:
            layers.append(layer.with_attention(replace(mixer, rope=replace(mixer.rope, **values))))
        else:
            layers.append(layer)
    return replace(spec, layers=tuple(layers))


def _norms_as_stored(spec: ModelSpec) -> ModelSpec:
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


def _ungrouped_qkv(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with all rows of query, then of key, then of value, whatever groups the checkpoint has."""
    return replace(spec, names=replace(spec.names, qkv_layout=QKVLayout()))


def _as_rows(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with weights as [out, in], which GPT-2's checkpoints store transposed."""
    return replace(spec, names=replace(spec.names, transposed=False))


def _numbered_experts(spec: ModelSpec) -> ModelSpec:
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


def _window(header: Header) -> dict[str, Any]:
    """Return the window of layers that have one; 0 in the header stands for none."""
    window = header.integer("attention.sliding_window", 0, 1 << 30, default=0)
    return {"sliding_window": window or None}


def _experts(header: Header) -> dict[str, Any]:
    count, chosen = header.integer("expert_count"), header.integer("expert_used_count")
    sizes = {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": chosen}
    width = "expert_feed_forward_length"
    return {**sizes, "moe_intermediate_size": header.integer(width)} if header.has(width) else sizes


def _mixtral(header: Header) -> dict[str, Any]:
    return {**_experts(header), "sliding_window": None}


def _qwen2_moe(header: Header) -> dict[str, Any]:
    shared = header.integer("expert_shared_feed_forward_length")
    return {**_experts(header), "shared_expert_intermediate_size": shared, "norm_topk_prob": False}


def _qwen3_moe(header: Header) -> dict[str, Any]:
    return {**_experts(header), "norm_topk_prob": True}


def _score_scale(header: Header, layers_of_largest: int) -> dict[str, Any]:
    """Return Gemma's scale of scores: by hidden size / heads in a generation's largest model, else by the head size."""
    heads, hidden = header.integer("attention.head_count"), header.integer("embedding_length")
    largest = header.integer("block_count") == layers_of_largest
    by_head = header.integer("attention.key_length", default=hidden // heads)
    return {"query_pre_attn_scalar": hidden // heads if largest else by_head}


def _gemma2(header: Header) -> dict[str, Any]:
    caps = {f"{part}_logit_softcapping": f"{part}_logit_softcapping" for part in ("attn", "final")}
    window = {"sliding_window": header.integer("attention.sliding_window", default=4096)}
    return {**_score_scale(header, 46), **window, **header.given(caps)}


def _gemma3(header: Header) -> dict[str, Any]:
    scaling = header.fields.text(header.key("rope.scaling.type"), default="none")
    full: dict[str, Any] = {"rope_theta": header.number("rope.freq_base", default=10000.0), "rope_type": "default"}
    if scaling == "linear":
        full |= {"rope_type": scaling, "factor": header.number("rope.scaling.factor")}
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


def _phi3(header: Header) -> dict[str, Any]:
    original = header.integer("rope.scaling.original_context_length", default=header.integer("context_length"))
    return {**_window(header), "original_max_position_embeddings": original}


def _granite(header: Header) -> dict[str, Any]:
    scales = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return header.given(scales)


def _granite_moe(header: Header) -> dict[str, Any]:
    shared = header.integer("expert_shared_feed_forward_length", 0, default=0)
    return {**_granite(header), **_experts(header), "shared_intermediate_size": shared}


def _olmo(header: Header) -> dict[str, Any]:
    return header.given({"clip_qkv": "attention.clamp_kqv"})


def _olmo2(header: Header) -> dict[str, Any]:
    if header.has("attention.sliding_window"):
        name = header.key("attention.sliding_window")
        window = header.integer("attention.sliding_window")
        raise header.fields.wrong(name, window, "is OLMo 3's, whose GGUF files are not supported")
    return {}


def _stablelm(header: Header) -> dict[str, Any]:
    parallel = header.fields.boolean(header.key("use_parallel_residual"), True)
    return {"use_parallel_residual": parallel, "use_qkv_bias": header.stored("attn_q.bias")}


def _neox(header: Header) -> dict[str, Any]:
    parallel = header.fields.boolean(header.key("use_parallel_residual"), True)
    hidden, heads = header.integer("embedding_length", 1, 1 << 20), header.integer("attention.head_count", 1, 1 << 16)
    size = max(1, hidden // heads)
    rotated = header.integer("rope.dimension_count", 1, 1 << 16, default=size)
    return {"use_parallel_residual": parallel, "rotary_pct": rotated / size}


def _command_r(header: Header) -> dict[str, Any]:
    return {"logit_scale": header.number("logit_scale"), "use_qk_norm": header.stored("attn_q_norm.weight")}


def _cohere2(header: Header) -> dict[str, Any]:
    window = header.integer("attention.sliding_window")
    return {"logit_scale": header.number("logit_scale"), "sliding_window": window, "attention_bias": False}


def _falcon(header: Header) -> dict[str, Any]:
    """Return Falcon's fields: the first one has one KV head, later ones several, and one norm or two in each layer."""
    kv_heads = header.integer("attention.head_count_kv", default=1)
    norms = 2 if header.stored("attn_norm_2.weight") else 1
    new = kv_heads > 1 or norms == 2
    width = header.integer("feed_forward_length")
    shape = {"num_ln_in_parallel_attn": norms, "num_kv_heads": kv_heads, "ffn_hidden_size": width}
    return {"new_decoder_architecture": new, **shape}


def _gpt2(header: Header) -> dict[str, Any]:
    return {"n_inner": header.integer("feed_forward_length")}


def _starcoder2(header: Header) -> dict[str, Any]:
    return {"norm_epsilon": header.number("attention.layer_norm_epsilon"), "use_bias": True}


def _nemotron(header: Header) -> dict[str, Any]:
    return {"norm_eps": header.number("attention.layer_norm_epsilon")}


def _gpt_oss(header: Header) -> dict[str, Any]:
    width = header.integer("expert_feed_forward_length")
    window = header.integer("attention.sliding_window")
    return {**_experts(header), "intermediate_size": width, "sliding_window": window}


def _of_gpt_oss(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with experts as tensors of their own, and YaRN without `truncate`, which headers do not state."""
    return _numbered_experts(_with_ropes(spec, truncate=False))


ARCHITECTURES = (
    GGUFArchitecture(
        name="llama", model_class="LlamaForCausalLM", other_classes=("MistralForCausalLM",), interleaves_rope=True
    ),
    GGUFArchitecture(
        name="llama", model_class="MixtralForCausalLM", experts=True, read=_mixtral, interleaves_rope=True
    ),
    GGUFArchitecture(name="qwen2", model_class="Qwen2ForCausalLM"),
    GGUFArchitecture(name="qwen3", model_class="Qwen3ForCausalLM"),
    GGUFArchitecture(name="qwen2moe", model_class="Qwen2MoeForCausalLM", experts=True, read=_qwen2_moe),
    GGUFArchitecture(name="qwen3moe", model_class="Qwen3MoeForCausalLM", experts=True, read=_qwen3_moe),
    GGUFArchitecture(name="gemma", model_class="GemmaForCausalLM", change=_norms_as_stored),
    GGUFArchitecture(name="gemma2", model_class="Gemma2ForCausalLM", read=_gemma2, change=_norms_as_stored),
    GGUFArchitecture(name="gemma3", model_class="Gemma3ForCausalLM", read=_gemma3, change=_norms_as_stored),
    GGUFArchitecture(name="phi2", model_class="PhiForCausalLM"),
    GGUFArchitecture(name="phi3", model_class="Phi3ForCausalLM", read=_phi3),
    GGUFArchitecture(name="granite", model_class="GraniteForCausalLM", read=_granite, interleaves_rope=True),
    GGUFArchitecture(
        name="granitemoe",
        model_class="GraniteMoeSharedForCausalLM",
        other_classes=("GraniteMoeForCausalLM",),
        experts=True,
        read=_granite_moe,
        change=_numbered_experts,
        interleaves_rope=True,
    ),
    GGUFArchitecture(name="olmo", model_class="OlmoForCausalLM", read=_olmo, interleaves_rope=True),
    GGUFArchitecture(name="olmo2", model_class="Olmo2ForCausalLM", read=_olmo2),
    GGUFArchitecture(name="olmoe", model_class="OlmoeForCausalLM", experts=True, read=_experts),
    GGUFArchitecture(name="starcoder2", model_class="Starcoder2ForCausalLM", read=_starcoder2),
    GGUFArchitecture(name="stablelm", model_class="StableLmForCausalLM", read=_stablelm),
    GGUFArchitecture(name="command-r", model_class="CohereForCausalLM", read=_command_r),
    GGUFArchitecture(name="cohere2", model_class="Cohere2ForCausalLM", read=_cohere2),
    GGUFArchitecture(name="falcon", model_class="FalconForCausalLM", read=_falcon, change=_ungrouped_qkv),
    GGUFArchitecture(name="gpt2", model_class="GPT2LMHeadModel", read=_gpt2, change=_as_rows),
    GGUFArchitecture(name="bloom", model_class="BloomForCausalLM", change=_ungrouped_qkv),
    GGUFArchitecture(name="gptneox", model_class="GPTNeoXForCausalLM", read=_neox, change=_ungrouped_qkv),
    GGUFArchitecture(name="smollm3", model_class="SmolLM3ForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="arcee", model_class="ArceeForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="nemotron", model_class="NemotronForCausalLM", read=_nemotron, change=_norms_as_stored),
    GGUFArchitecture(name="seed_oss", model_class="SeedOssForCausalLM"),
    GGUFArchitecture(name="hunyuan-dense", model_class="HunYuanDenseV1ForCausalLM"),
    GGUFArchitecture(name="ernie4_5", model_class="Ernie4_5ForCausalLM"),
    GGUFArchitecture(name="gpt-oss", model_class="GptOssForCausalLM", experts=True, read=_gpt_oss, change=_of_gpt_oss),
)


def gguf_architecture(header: Header) -> GGUFArchitecture:
    """Return the architecture of a file; ModelLoadError if its files are not read."""
    experts = header.integer("expert_count", 0, 1 << 16, default=0) > 0
    of_name = [each for each in ARCHITECTURES if each.name == header.file.architecture]
    for architecture in of_name:
        if architecture.experts == experts:
            return architecture
    kind = "the GGUF architecture"
    if of_name:
        kind += " with experts" if experts else " without experts"
    supported = ", ".join(dict.fromkeys(each.name for each in ARCHITECTURES))
    name = header.file.architecture
    raise ModelLoadError(f"{header.fields.origin}: {kind} {name!r} is not supported (supported: {supported})")


def architecture_of(model_class: str) -> GGUFArchitecture | None:
    """Return the GGUF architecture of a model class; None if GGUF files of it are not read."""
    return next((each for each in ARCHITECTURES if model_class in (each.model_class, *each.other_classes)), None)
