"""The supported families and their features, read from the spec of a small model of each family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.configuration.read_spec import quantized_online
from octavo_engine.model.families import FAMILIES, Family
from octavo_engine.model.families.multimodal_classes import WRAPPERS
from octavo_engine.model.gguf.architectures import architecture_of
from octavo_engine.model.quantization.registry import ONLINE_SCHEMES
from octavo_engine.model.spec import ModelSpec

_SMALL = {
    "vocab_size": 1 << 20,
    "hidden_size": 256,
    "embedding_size": 256,
    "classifier_pooling": "mean",
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_heads": 16,
    "max_position_embeddings": 512,
    "base_seqlen": 512,
    "rope_theta": 10000.0,
    "sliding_window": 64,
    "max_window_layers": 4,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_kv_shared_layers": 0,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "rotary_dim": 16,
    "indexer_budget": 256,
    "indexer_compress_ratio": 4,
    "attention_types": [[["global", "local"], 4]],
    "attn_type_list": [0, 1] * 4,
    "postnorm": True,
    "multi_query_attention": True,
    "prefix_lm": False,
    "block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}}] * 8,
}
"""Fields of a small model that are enough for every family; families have defaults for fields of their own."""


@dataclass(frozen=True, slots=True)
class SupportedModel:
    """The features that are supported for one family. Tensor parallelism is supported for all."""

    architecture: str
    """The class's name in config.json."""
    model_type: str
    feed_forward: str
    """`dense` or `experts`."""
    windows: bool
    """Whether its layers may have sliding windows, outside of which the KV cache is freed."""
    quantization: tuple[str, ...]
    """The values of --quantization that it may be loaded with."""
    gives: str
    """`text` (and embeddings, from the last token's hidden state), `embeddings` alone, or `classes`."""
    gguf: bool
    """Whether its GGUF files are read."""


def supported_models() -> Iterator[SupportedModel]:
    """Yield one for each family, by architecture, then the multimodal models, whose language model alone runs."""
    for name in sorted(FAMILIES):
        yield _describe(FAMILIES[name])
    for name in sorted(WRAPPERS):
        text = _describe(FAMILIES[WRAPPERS[name] or "LlamaForCausalLM"])
        yield replace(text, architecture=name, model_type="text_config", gguf=False)


def small_spec(family: Family) -> ModelSpec:
    """Return the spec of a small model of the family, with windows if it may have any."""
    small = {**_SMALL, "hidden_act": family.defaults.get("hidden_act", "silu")}
    if "is_decoder" in family.defaults:  # BERT's class for text has it false, which is refused
        small["is_decoder"] = True
    if family.defaults.get("qk_rope_head_dim") == 0:  # latent attention without RoPE alone (GLM-5.3)
        small["qk_rope_head_dim"] = 0
    try:
        return family.read(family.fields(family.architecture, {**small, "use_sliding_window": True}))
    except ModelLoadError:  # families without windows refuse that
        return family.read(family.fields(family.architecture, small))


def _describe(family: Family) -> SupportedModel:
    spec = small_spec(family)
    return SupportedModel(
        family.architecture,
        family.model_type,
        "experts" if spec.has_experts else "dense",
        any(getattr(mixer, "window", None) is not None for mixer in spec.attention_mixers),
        tuple(name for name in ONLINE_SCHEMES if _quantizes(spec, name)),
        "text" if spec.head is not None else "embeddings" if spec.classifier is None else "classes",
        architecture_of(family.architecture) is not None,
    )


def _quantizes(spec: ModelSpec, name: str) -> bool:
    try:
        quantized_online(replace(spec, quantization=None), name)
    except ConfigurationError:
        return False
    return True
