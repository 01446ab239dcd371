"""Reads and checks PEFT's adapter_config.json: adapters that would be computed differently are refused.

Which layers an adapter changes is not read here: the file of its weights has exactly those, however they were chosen
(`target_modules`, `layers_to_transform`, `exclude_modules`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_engine.errors import AdapterNotFoundError, ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.model_file import read_file
from octavo_engine.model.quantization.expressions import check_expressions, compiled

CONFIG_FILE = "adapter_config.json"
_MAX_CONFIG_BYTES = 1 << 20
_LONGEST_BASE = 256
"""Characters that are kept of the base model's name, which messages show."""
_MAX_PATTERNS = 4096
"""The most patterns of a field; EVA has one for each module."""
_MOST_WAYS = 1_000_000
"""The most ways in which all patterns can match one name (expressions.py): thirty patterns with three repeats each. To
try them takes 10 ms, for which all requests wait."""
_WITHOUT_EFFECT = frozenset(
    {
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying",
        "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
        "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_core",
        "modules_to_save", "parent_library", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
        "revision", "runtime_config", "target_modules", "target_parameters", "task_type", "use_rslora",
    }
)  # fmt: skip
"""Fields that are read below, or that say only how an adapter was trained: adapters that begin with other weights than
the base model's are recognized by `init_lora_weights`, which is kept when they are converted to plain LoRA."""
_REASONS: Mapping[str, str] = {
    "use_dora": "DoRA scales the columns of the merged weight, which is not computed beside the base",
    "alora_invocation_tokens": "an activated LoRA acts only from these tokens of a prompt on",
    "layer_replication": "it makes a model of other layers",
    "lora_bias": "biases of adapters are not supported",
    "trainable_token_indices": "it changes embeddings",
}
_KEEPS_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Values of `init_lora_weights` that leave the base model's weights as they are."""
_Patterns = tuple[tuple[re.Pattern[str], float], ...]


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The ranks and scales of an adapter's products."""

    rank: int
    alpha: float
    rslora: bool = False
    """Whether products are scaled by alpha / sqrt(rank) (arXiv 2312.03732) instead of alpha / rank."""
    rank_pattern: _Patterns = ()
    """Regular expressions of module names, each with the rank of these modules instead of `rank`; the first match is
    used."""
    alpha_pattern: _Patterns = ()
    base: str = ""
    """The base model that the adapter was trained on, by the name that its training used."""
    before_019: bool = True
    """Whether PEFT's version is lower than 0.19, which changed the layout of adapters of parameters, or is not stated.
    """

    def rank_of(self, module: str) -> int:
        """Return the rank that a module's tensors should have."""
        return int(_first(self.rank_pattern, module, self.rank))

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of a module's product, which has this rank."""
        return _first(self.alpha_pattern, module, self.alpha) / (math.sqrt(rank) if self.rslora else rank)


def read_peft_config(directory: Path) -> PeftConfig:
    """Return the checked configuration; ModelLoadError names the field that is not supported, or is wrong."""
    path = directory / CONFIG_FILE
    values = _read(path)
    kind = values.get("peft_type", "LORA")
    if kind != "LORA":
        raise _wrong(path, "peft_type", kind, "is not supported: adapters are LORA")
    if values.get("bias", "none") != "none":
        raise _wrong(path, "bias", values["bias"], "is not supported: it must be none")
    if values.get("modules_to_save"):
        reason = "is not supported: an adapter may change linear layers alone, and these are saved in full"
        raise _wrong(path, "modules_to_save", values["modules_to_save"], reason)
    if (start := values.get("init_lora_weights")) not in _KEEPS_THE_BASE:
        reason = "changes the base's weights; convert it to plain LoRA (save_pretrained's "
        raise _wrong(path, "init_lora_weights", start, reason + "path_initial_model_for_weight_conversion)")
    for name, value in values.items():
        if value and name not in _WITHOUT_EFFECT and not _is_default(name, value):
            raise _wrong(path, name, value, f"is not supported: {_REASONS.get(name, 'what it changes is not known')}")
    rank, alpha = values.get("r", 8), values.get("lora_alpha", 8)
    if type(rank) is not int or rank < 1:
        raise _wrong(path, "r", rank, "is not a rank: it must be a whole number of at least 1")
    if type(rslora := values.get("use_rslora") or False) is not bool:
        raise _wrong(path, "use_rslora", rslora, "is neither true nor false")
    return PeftConfig(
        rank,
        _number(path, "lora_alpha", alpha),
        rslora,
        _patterns(path, "rank_pattern", values),
        _patterns(path, "alpha_pattern", values),
        str(values.get("base_model_name_or_path") or "")[:_LONGEST_BASE],
        _version(values.get("peft_version")) < (0, 19),
    )


def _version(text: Any) -> tuple[int, int]:
    """Return major and minor number of PEFT's version; 0.0 if it is not known."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text) if isinstance(text, str) else None
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _is_default(name: str, value: Any) -> bool:
    """Return True for an empty configuration of another training method: PEFT writes some with every adapter."""
    return name.endswith("_config") and not any(value.values() if isinstance(value, dict) else [value])


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():  # False for named pipes, too, whose opening would block
        raise AdapterNotFoundError(f"{path}: there is no such file: is {path.parent} an adapter that PEFT saved?")
    try:
        values = json.loads(read_file(path, _MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path}: holds a JSON {type(values).__name__}, not an object")
    return values


def _number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < abs(value) < 1e6:
        raise _wrong(path, name, value, "is not a number between -1e6 and 1e6, other than 0")
    return float(value)


def _patterns(path: Path, name: str, values: Mapping[str, Any]) -> _Patterns:
    """Return patterns of names with their numbers; ModelLoadError for those that could take long to match."""
    found = values.get(name) or {}
    if not isinstance(found, dict) or len(found) > _MAX_PATTERNS:
        raise _wrong(path, name, found, f"is not an object of at most {_MAX_PATTERNS} patterns")
    for pattern, value in found.items():
        if name == "rank_pattern" and (type(value) is not int or value < 1):
            raise _wrong(path, f"{name}[{pattern}]", value, "is not a rank: it must be a whole number of at least 1")
    numbers = [_number(path, f"{name}[{pattern}]", value) for pattern, value in found.items()]
    fields = Fields(f"{path}: {name}", {})
    check_expressions(fields, list(found), most_ways=_MOST_WAYS)
    patterns = (compiled(fields, pattern, _of_ends(pattern)) for pattern in found)
    return tuple(zip(patterns, numbers, strict=True))


def _of_ends(pattern: str) -> str:
    """Return a pattern as PEFT uses it: it matches a full name, or the part of a name after a dot."""
    return rf"(.*\.)?({pattern})$"


def _first(patterns: _Patterns, module: str, default: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def _wrong(path: Path, name: str, value: Any, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{path}: {name} {str(value)[:100]!r} {reason}")
