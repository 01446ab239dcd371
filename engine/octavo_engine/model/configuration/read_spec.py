"""Reads a model's spec from its small files: config.json or a GGUF header, by the family that they name."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.checkpoint.names import with_base_model_names
from octavo_engine.model.checkpoint.safetensors_file import SafetensorsHeader, has_weights, read_headers
from octavo_engine.model.checkpoint.tensors import FLOATS
from octavo_engine.model.configuration.plain_weights import with_plain_weights
from octavo_engine.model.configuration.pooling import longest_text
from octavo_engine.model.configuration.tied_head import tied_if_no_head, with_stored_head
from octavo_engine.model.families import FAMILIES, Family, family_of
from octavo_engine.model.families.multimodal import is_tied_without_head, language_model, within_wrapper
from octavo_engine.model.families.multimodal_classes import WRAPPERS
from octavo_engine.model.families.multimodal_language_models import PLAIN_HEADS
from octavo_engine.model.fields import Fields
from octavo_engine.model.model_file import has_file, read_file
from octavo_engine.model.quantization.select import ONLINE, online
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import HeadSpec, ModelSpec, MoESpec

_SAFETENSORS_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_QUANTIZATION = "hf_quant_config.json"
"""The file that modelopt writes beside a config.json which does not say how weights are stored."""
_MAX_CONFIG_BYTES = 16 << 20
_LONGEST_NAME = 200
"""The most characters of an architecture's name, which is compared with all supported ones."""
_GENERATING = ("ForCausalLM", "LMHeadModel")
"""The endings of the names of classes that generate text."""
_NEAR = 0.6
"""Likeness, 0 to 1, from which the nearest architecture is likely to be related: Phi5 to Phi, not Whisper to Phi."""
_CHANGES_THE_ANSWER = (
    "alibi",
    "attention_chunk_size",
    "attention_multiplier",
    "attn_logit_softcapping",
    "clip_qkv",
    "embedding_multiplier",
    "embedding_scale",
    "final_logit_softcapping",
    "kv_lora_rank",
    "logit_scale",
    "logits_scaling",
    "num_kv_shared_layers",
    "per_layer_config",
    "qk_layernorm",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "use_bidirectional_attention",
    "use_parallel_residual",
    "use_qk_norm",
)
"""Fields that change a model's answers whatever the family. A model with one that its family does not read is refused.
"""


def read_spec(files: ModelFiles) -> ModelSpec:
    """Return the spec of the model in `files`; ModelLoadError names the file, the field and what is wrong with it."""
    if files.gguf is not None:
        from octavo_engine.model.gguf.config import gguf_config

        config, of_file = gguf_config(files.gguf)
        family = find_family(config["architectures"], files.gguf)
        return of_file(family.read(family.fields(str(files.gguf), config)))
    if files.directory is None:
        raise ModelLoadError(f"{files.name}: no files to read")
    path = files.directory / "config.json"
    config = read_json(path)
    config["architectures"] = _architectures(config)
    if "eos_token_id" in config or has_file(files.directory / "generation_config.json"):
        config["eos_token_id"] = _eos_token_ids(files.directory, config)
    headers = read_headers(files.directory) if has_weights(files.directory) else ()
    if config.get("dtype") is None and config.get("torch_dtype") is None:
        config["dtype"] = _most_common_dtype(headers)
    if config.get("quantization_config") is None and (files.directory / _QUANTIZATION).is_file():
        config["quantization_config"] = {**read_json(files.directory / _QUANTIZATION), "quant_method": "modelopt"}
    spec = _of_config(config, path)
    if is_tied_without_head(config):
        spec = tied_if_no_head(spec, headers)
    spec = with_plain_weights(with_stored_head(spec, headers), headers, files.directory)
    if headers:
        _check_experts(spec, path)
    if spec.head is not None:
        if not spec.causal:
            raise ModelLoadError(
                f"{path}: {spec.architecture} cannot generate text, since its attention is bidirectional: each token "
                "also attends to later ones"
            )
        return spec
    return _shortened(spec, longest_text(files))


def _shortened(spec: ModelSpec, longest: int | None) -> ModelSpec:
    """Return `spec` for contexts of at most `longest` tokens; its table of positions keeps its size."""
    if longest is None or longest >= spec.max_position:
        return spec
    positions = spec.positions
    if positions is not None:
        positions = replace(positions, rows=spec.max_position + positions.offset)
    return replace(spec, max_position=longest, positions=positions)


def _of_config(config: dict[str, Any], path: Path) -> ModelSpec:
    """Return the spec of a model, or of the language model in a larger one."""
    part = language_model(config)
    if part is None:
        return _without_further_heads(_read(config, path), Fields(str(path), config))
    spec = _without_further_heads(_read(part, path), Fields(str(path), part))
    head, wrapper = spec.head, config["architectures"][0]
    if head is not None and wrapper in PLAIN_HEADS:
        head = HeadSpec(head.tied)
    return replace(spec, stored_names=within_wrapper(wrapper, spec.stored_names), head=head)


def _check_experts(spec: ModelSpec, path: Path) -> None:
    """Raise ModelLoadError if one tensor holds a layer's quantized experts, which is supported for MXFP4 alone."""
    names = spec.names
    if spec.quantization is None or ("{expert}" in names.expert_gate and names.expert_gate != names.expert_up):
        return
    for index, layer in enumerate(spec.layers):
        if not any(isinstance(part, MoESpec) for part in layer.feed_forwards):
            continue
        name = names.of_layer("expert_up", index)
        method = spec.quantization.method(*spec.stored_names.stored(name))
        if method is not UNQUANTIZED:
            raise ModelLoadError(
                f"{path}: the weights are quantized ({method.name}), which this version of Octavo does not "
                "compute for experts that a checkpoint holds in one tensor; take an unquantized checkpoint of the model"
            )


def _without_further_heads(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return `spec` that does not read the layers of multi-token prediction in the files (arXiv 2412.19437).

    They follow the last layer, as many as `num_nextn_predict_layers` says, or have names of their own.
    """
    further = fields.integer("num_nextn_predict_layers", 0, 64, default=0)
    layers = (f"model.layers.{spec.num_layers + layer}." for layer in range(further))
    names = spec.stored_names
    return replace(spec, stored_names=replace(names, ignored=(*names.ignored, "mtp.", "model.mtp", *layers)))


def _read(config: dict[str, Any], path: Path) -> ModelSpec:
    family = find_family(config.get("architectures"), path, config.get("model_type"))
    fields = family.fields(str(path), config)
    spec = family.read(fields)
    _refuse_unread(fields, family)
    return replace(spec, stored_names=with_base_model_names(spec.stored_names, spec.names))


def _refuse_unread(fields: Fields, family: Family) -> None:
    """Raise ModelLoadError about a field that changes answers and that the family does not read."""
    for name in _CHANGES_THE_ANSWER:
        value = fields.values.get(name)
        if (
            value is not None
            and (value is True or value not in (0, 1))
            and name not in fields.read | family.without_effect
        ):
            raise fields.wrong(name, value, f"changes answers, and {family.architecture} is not computed with it")


def _eos_token_ids(directory: Path, config: dict[str, Any]) -> list[int]:
    """Return the end-of-sequence ids of both files: instruct models name more of them in generation_config.json."""
    ids = Fields(str(directory / "config.json"), config).integers("eos_token_id")
    generation = directory / "generation_config.json"
    if has_file(generation):
        ids += Fields(str(generation), read_json(generation)).integers("eos_token_id")
    return list(ids)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a small JSON file; ModelLoadError if it is absent, too large, broken or not an object."""
    try:
        value = json.loads(read_file(path, _MAX_CONFIG_BYTES))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: there is no such file, and the model cannot be identified without it") from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value


def _architectures(config: dict[str, Any]) -> Any:
    """Return `architectures`, or if a file has none, the one class that generates text among those of `model_type`."""
    names = config.get("architectures")
    if names:
        return names
    known = _class_of(config.get("model_type"))
    return names if known is None else [known]


def _class_of(model_type: Any) -> str | None:
    """Return the class that generates text of this `model_type`; None if there is none, or more than one.

    Names that differ only in capitals count as one, of which FAMILIES has that of transformers first: LLaMA is Llama.
    """
    classes = [name for name, each in FAMILIES.items() if each.model_type == model_type and name.endswith(_GENERATING)]
    return classes[0] if len({name.lower() for name in classes}) == 1 else None


def find_family(architectures: Any, path: Path, model_type: Any = None) -> Family:
    """Return the family of the first supported name in `architectures`.

    ModelLoadError names the nearest one, or the class of this `model_type`. A class of the model's own repository may
    compute something else, so that class is not taken for it.
    """
    names = architectures if isinstance(architectures, list) else [architectures]
    names = [name[:_LONGEST_NAME] for name in names if isinstance(name, str)]
    for name in names:
        if (family := family_of(name, model_type)) is not None:
            return family
    listed = "octavo-engine models lists the supported ones"
    if not names:
        raise ModelLoadError(
            f"{path}: architectures is missing or not a list of names, and model_type does not tell which class "
            f"computes the model; write its name into architectures; {listed}"
        )
    if names[0].endswith(_GENERATING) and (known := _class_of(model_type)) is not None:
        raise ModelLoadError(
            f"{path}: the architecture {names[0]!r} is not supported; its model_type is that of {known}: if both "
            f"compute the same, write {known} into architectures; {listed}"
        )
    nearest = max((*FAMILIES, *WRAPPERS), key=lambda name: _likeness(names[0], name))
    is_near = _likeness(names[0], nearest)[0] >= _NEAR
    near = f"the nearest supported is {nearest}" if is_near else f"the most similar supported name is {nearest}"
    raise ModelLoadError(f"{path}: the architecture {names[0]!r} is not supported; {near}; {listed}")


def _likeness(name: str, other: str) -> tuple[float, float]:
    """Compare two class names: first the parts before "For", which name the model, then the full names."""
    models = difflib.SequenceMatcher(None, name.partition("For")[0], other.partition("For")[0])
    return models.ratio(), difflib.SequenceMatcher(None, name, other).ratio()


def _most_common_dtype(headers: Sequence[SafetensorsHeader]) -> str:
    """Return the dtype of most bytes of the weights, for a config.json that does not state it.

    Before the weights are fetched it is bfloat16, in which most models are published. Memory is then computed for the
    smallest likely size, so that no model is refused that would have fitted.
    """
    if not headers:
        return "bfloat16"
    counts: Counter[str] = Counter()
    for header in headers:
        for tensor in header.tensors.values():
            if tensor.dtype in FLOATS:  # types of 8 bits are no dtype to compute in
                counts[tensor.dtype] += tensor.num_bytes
    name = counts.most_common(1)[0][0] if counts else "F32"
    return str(_SAFETENSORS_DTYPES.get(name, torch.float32))


def quantized_online(spec: ModelSpec, name: str | None) -> ModelSpec:
    """Return `spec` with the scheme of `--quantization`; for a quantized checkpoint only its own scheme is allowed.

    ConfigurationError for another scheme than the checkpoint's, for a scheme that only checkpoints have, and for
    experts that are stored in one tensor, which would stay as they are.
    """
    if name is None:
        return spec
    if spec.quantization is not None:
        if spec.quantization.name != name:
            raise ConfigurationError(
                f"--quantization {name}: the checkpoint's weights are stored in {spec.quantization.name} already, and "
                "weights are not quantized a second time; omit the flag"
            )
        return spec
    if name not in ONLINE:
        raise ConfigurationError(
            f"--quantization {name}: the checkpoint's weights are not stored in {name}, and no weights are converted "
            f"to it while they are loaded; take one of {', '.join(ONLINE)}, or a checkpoint in {name}"
        )
    if spec.has_experts and "{expert}" not in spec.names.expert_up:
        raise ConfigurationError(
            f"--quantization {name}: a checkpoint of {spec.architecture} has one tensor for all experts of a layer, "
            "and only tensors of single experts are quantized while they are loaded; omit the flag"
        )
    head = None
    if spec.head is not None:
        head = spec.names.embedding if spec.head.tied else spec.names.head
    return replace(spec, quantization=online(name, head))
