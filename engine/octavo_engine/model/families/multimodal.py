"""Finds the language model in the config.json of a model that also takes images or sound.

Only the language model is computed, by its own family. Its fields are in `text_config` (in InternVL's own files
`llm_config`, in DeepSeek's `language_config`), in older files of Qwen2-VL and in MiniCPM-V's among the others.
Checkpoints put a prefix before its tensors' names, which depends on the version of transformers; the tensors of images
and sound are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families.multimodal_classes import WRAPPERS
from octavo_engine.model.families.multimodal_language_models import (
    BY_MODEL_TYPE,
    DEFAULTS,
    NEVER_TIED,
    TIED_BY_DEFAULT,
)
from octavo_engine.model.families.multimodal_modules import OTHER_MODULES
from octavo_engine.model.families.multimodal_own_classes import SHORT_NAMES, deepseek_class

_OUTER_FIELDS = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings", "eos_token_id")
"""Fields beside `text_config` that concern the language model; they take precedence over those in it."""
_PARTS = ("text_config", "llm_config", "language_config")
"""The objects in config.json, one of which has the language model's fields."""

STORED_NAMES = StoredNames(
    renamed=(
        ("language_model.model.blocks.", "model.layers."),  # Kimi K2.5, as transformers 5 writes it
        ("language_model.model.encoder.layers.", "model.layers."),  # Qianfan OCR, likewise
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
        ("model.text_model.", "model."),
        ("text_model.model.", "model."),
        ("text_model.lm_head.", "lm_head."),
        ("thinker.model.language_model.", "model."),  # Qwen's models that also speak
        ("thinker.model.", "model."),
        ("thinker.lm_head.", "lm_head."),
    ),
    ignored=(
        "mtp.",  # layers of multi-token prediction (Qwen3-Next)
        *(f"{part}." for part in OTHER_MODULES),
        *(f"model.{part}." for part in OTHER_MODULES),
        "query_tokens",  # of BLIP-2
        "image_newline",
        "model.image_newline",
        "model.high_res_vision_alpha",
        "view_seperator",  # of DeepSeek VL 2 and OCR, whose files spell it so
        "model.view_seperator",
    ),
)


def within_wrapper(wrapper: str, own: StoredNames) -> StoredNames:
    """Return the names of tensors in the files of a class that contains a language model.

    `own`: the names in files of the language model alone.
    """
    prefix, unread = SHORT_NAMES.get(wrapper, ("language_model.", ()))
    inner = (*((f"{prefix}{there}", here) for there, here in own.renamed), (prefix, ""))
    renamed, ignored = STORED_NAMES.renamed + inner + own.renamed, STORED_NAMES.ignored + unread + own.ignored
    return StoredNames(renamed=renamed, ignored=ignored, endings=own.endings)


def language_model(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config.json that the language model would have alone; None if `config` is not of a known wrapper.

    Its `architectures` has the language model's class, or else a text that names what is not known.
    """
    wrapper = _wrapper(config)
    if wrapper is None:
        return None
    if isinstance(
        thinker := config.get("thinker_config"), Mapping
    ):  # the part that writes text, beside one that speaks
        config = {**config, **thinker}
    parts = (config[name] for name in _PARTS if isinstance(config.get(name), Mapping))
    fields = {**DEFAULTS.get(wrapper, {}), **next(parts, config)}
    fields |= {name: config[name] for name in _OUTER_FIELDS if config.get(name) not in (None, [])}
    if wrapper in NEVER_TIED:
        fields["tie_word_embeddings"] = False
    kind = " ".join(str(fields[name]) for name in ("model_type", "version") if fields.get(name) is not None)
    architecture = WRAPPERS[wrapper] or BY_MODEL_TYPE.get(kind, "")
    if architecture == "DeepseekV2ForCausalLM":
        architecture = deepseek_class(fields)
    fields["architectures"] = [architecture or f"{wrapper} of text_config.model_type {kind}"]
    return fields


def is_tied_without_head(config: Mapping[str, Any]) -> bool:
    """Return True if a model of this config.json whose files have no head uses its embedding as the head.

    `tie_word_embeddings` in `text_config` does not matter: transformers reads the one beside it.
    """
    return _wrapper(config) in TIED_BY_DEFAULT and config.get("tie_word_embeddings") is None


def _wrapper(config: Mapping[str, Any]) -> str | None:
    """Return the architecture of `config` if it is one that contains a language model."""
    names = config.get("architectures")
    wrapper = names[0] if isinstance(names, list) and names else None
    return wrapper if isinstance(wrapper, str) and wrapper in WRAPPERS else None
