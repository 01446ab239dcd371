"""The architectures of GGUF files: for each the model's class, the fields in its header, and the change of its spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.config_fields import (
    cohere2_fields,
    command_r_fields,
    experts_fields,
    falcon_fields,
    gemma2_fields,
    gemma3_fields,
    gpt2_fields,
    gpt_oss_fields,
    granite_fields,
    granite_moe_fields,
    mixtral_fields,
    nemotron_fields,
    neox_fields,
    olmo2_fields,
    olmo_fields,
    phi3_fields,
    qwen2_moe_fields,
    qwen3_moe_fields,
    stablelm_fields,
    starcoder2_fields,
)
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.spec_changes import (
    as_rows,
    norms_as_stored,
    numbered_experts,
    of_gpt_oss,
    ungrouped_qkv,
    with_ropes,
)
from octavo_engine.model.spec import ModelSpec


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
    """Whether the rows of query and key are permuted, so that rotated pairs lie side by side; in layers without RoPE,
    too."""
    ungroups_qkv: bool = False
    """Whether the file has all rows of query, then of key, then of value, where the checkpoint has the heads of one KV
    head after another's."""

    def of_file(self, spec: ModelSpec) -> ModelSpec:
        """Return `spec` with the changes for GGUF files."""
        spec = with_ropes(spec, interleaved=True) if self.interleaves_rope else spec
        return self.change(ungrouped_qkv(spec) if self.ungroups_qkv else spec)


ARCHITECTURES = (
    GGUFArchitecture(
        name="llama", model_class="LlamaForCausalLM", other_classes=("MistralForCausalLM",), interleaves_rope=True
    ),
    GGUFArchitecture(
        name="llama", model_class="MixtralForCausalLM", experts=True, read=mixtral_fields, interleaves_rope=True
    ),
    GGUFArchitecture(name="qwen2", model_class="Qwen2ForCausalLM"),
    GGUFArchitecture(name="qwen3", model_class="Qwen3ForCausalLM"),
    GGUFArchitecture(name="qwen2moe", model_class="Qwen2MoeForCausalLM", experts=True, read=qwen2_moe_fields),
    GGUFArchitecture(name="qwen3moe", model_class="Qwen3MoeForCausalLM", experts=True, read=qwen3_moe_fields),
    GGUFArchitecture(name="gemma", model_class="GemmaForCausalLM", change=norms_as_stored),
    GGUFArchitecture(name="gemma2", model_class="Gemma2ForCausalLM", read=gemma2_fields, change=norms_as_stored),
    GGUFArchitecture(name="gemma3", model_class="Gemma3ForCausalLM", read=gemma3_fields, change=norms_as_stored),
    GGUFArchitecture(name="phi2", model_class="PhiForCausalLM"),
    GGUFArchitecture(name="phi3", model_class="Phi3ForCausalLM", read=phi3_fields),
    GGUFArchitecture(name="granite", model_class="GraniteForCausalLM", read=granite_fields, interleaves_rope=True),
    GGUFArchitecture(
        name="granitemoe",
        model_class="GraniteMoeSharedForCausalLM",
        other_classes=("GraniteMoeForCausalLM",),
        experts=True,
        read=granite_moe_fields,
        change=numbered_experts,
        interleaves_rope=True,
    ),
    GGUFArchitecture(name="olmo", model_class="OlmoForCausalLM", read=olmo_fields, interleaves_rope=True),
    GGUFArchitecture(name="olmo2", model_class="Olmo2ForCausalLM", read=olmo2_fields),
    GGUFArchitecture(name="olmoe", model_class="OlmoeForCausalLM", experts=True, read=experts_fields),
    GGUFArchitecture(name="starcoder2", model_class="Starcoder2ForCausalLM", read=starcoder2_fields),
    GGUFArchitecture(name="stablelm", model_class="StableLmForCausalLM", read=stablelm_fields),
    GGUFArchitecture(name="command-r", model_class="CohereForCausalLM", read=command_r_fields),
    GGUFArchitecture(name="cohere2", model_class="Cohere2ForCausalLM", read=cohere2_fields),
    GGUFArchitecture(name="falcon", model_class="FalconForCausalLM", read=falcon_fields, ungroups_qkv=True),
    GGUFArchitecture(name="gpt2", model_class="GPT2LMHeadModel", read=gpt2_fields, change=as_rows),
    GGUFArchitecture(name="bloom", model_class="BloomForCausalLM", ungroups_qkv=True),
    GGUFArchitecture(name="gptneox", model_class="GPTNeoXForCausalLM", read=neox_fields, ungroups_qkv=True),
    GGUFArchitecture(name="smollm3", model_class="SmolLM3ForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="arcee", model_class="ArceeForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="nemotron", model_class="NemotronForCausalLM", read=nemotron_fields, change=norms_as_stored),
    GGUFArchitecture(name="seed_oss", model_class="SeedOssForCausalLM"),
    GGUFArchitecture(name="hunyuan-dense", model_class="HunYuanDenseV1ForCausalLM"),
    GGUFArchitecture(name="ernie4_5", model_class="Ernie4_5ForCausalLM"),
    GGUFArchitecture(
        name="gpt-oss", model_class="GptOssForCausalLM", experts=True, read=gpt_oss_fields, change=of_gpt_oss
    ),
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
