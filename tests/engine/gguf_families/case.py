"""transformers models of many families as GGUF files, with the keys and tensors of llama.cpp's converter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from checkpoints import SIZES, reference_model
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import quantize
from gguf_writer import permute

from octavo_engine.model.gguf.names import NAMED_LIKE

Tensors = Iterator[tuple[str, np.ndarray]]
_IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@dataclass(frozen=True)
class Case:
    """One architecture's files."""

    family: str
    """transformers' class without ForCausalLM."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the configuration that models are made with."""
    keys: Callable[[Any], dict[str, Any]] = lambda config: {}
    """Of the configuration: keys without the architecture's name; None for one that files do not have."""
    convert: Callable[[Any, str, np.ndarray], Tensors] = lambda config, name, array: iter([(name, array)])
    """One of the model's tensors as those that are stored; a name that begins with `blk.` is stored as it is."""
    vectors: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    layer_norm: bool = False
    prepare: Callable[[Any], None] = lambda model: None
    """Changes a model of a class that stands for another one."""

    def model(self) -> Any:
        """Return a random model of transformers."""
        model = reference_model(self.family, **self.changes)
        self.prepare(model)
        return model


@dataclass(frozen=True)
class TextCase(Case):
    """Files of a language model whose class of transformers reads images as well."""

    def model(self) -> Any:
        """Return the language model of a random model."""
        text = {**SIZES, "pad_token_id": 0, **self.changes}
        images = {"vision_config": _IMAGES, "image_token_id": 120}
        return _LanguageModel(reference_model(self.family, **dict.fromkeys(SIZES, ...), text_config=text, **images))


class _LanguageModel:
    """The part of a model that computes text, with its names in files of text alone."""

    def __init__(self, model: Any) -> None:
        self._model, self.config = model, model.config.text_config
        self.config.allow_global_per_layer_attribute_access = True

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors, without those for images."""
        state = {
            name.replace("model.language_model.", "model."): each for name, each in self._model.state_dict().items()
        }
        return {
            name: each
            for name, each in state.items()
            if name.startswith(("model.layers", "model.embed_tokens", "model.norm", "lm_head"))
        }

    def __call__(self, token_ids: Any) -> Any:
        """Return what the model returns for text."""
        return self._model(token_ids)


def permuted(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Rows of query and key as pairs that rotate together."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = name.split(".")[-2]
    yield name, permute(array, heads[part]) if part in heads else array


def gathered(pattern: str, count: Callable[[Any, str], int]) -> Callable[[Any, str, np.ndarray], Tensors]:
    """Tensors with a number between the two parts of a pattern, as one of the name without it."""
    found: dict[str, list[np.ndarray]] = {}

    def convert(config: Any, name: str, array: np.ndarray) -> Tensors:
        parts = re.fullmatch(pattern, name)
        if parts is None:
            yield name, array
            return
        joined = f"{parts[1]}{parts[2]}"
        found.setdefault(joined, []).append(array)
        if len(found[joined]) == count(config, joined):
            yield joined, np.stack(found.pop(joined))

    return convert


def granite(config: Any) -> dict[str, Any]:
    """Its four scales."""
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


SCALES = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 12.0,
    "beta_slow": 0.5,
}


def window(config: Any) -> dict[str, Any]:
    """The tokens that layers with a window see."""
    return {"attention.sliding_window": config.sliding_window or 0}


def pattern(config: Any) -> dict[str, Any]:
    """The tokens that layers with a window see, and which layers those are."""
    flags = [kind == "sliding_attention" for kind in config.layer_types]
    return {**window(config), "attention.sliding_window_pattern": flags}


def yarn(config: Any) -> dict[str, Any]:
    """Return the keys of a model whose context was extended with YaRN."""
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
    }


_FOUR_TIMES_AS_WIDE = ("GPT2", "GPTBigCode", "Bloom", "Falcon", "Mpt")
"""Families whose feed-forward has no size in the configuration."""


def _common(config: Any, case: Case) -> dict[str, Any]:
    heads = getattr(config, "num_attention_heads", 1)
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    four_times = case.family in _FOUR_TIMES_AS_WIDE
    width = 4 * config.hidden_size if four_times else getattr(config, "intermediate_size", 0)
    names = ("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps")
    eps = next((getattr(config, name) for name in names if hasattr(config, name)), 1e-5)
    norm = "layer_norm_epsilon" if case.layer_norm else "layer_norm_rms_epsilon"
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if case.family == "Falcon":
        kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1
    found = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", None) or 512,
        "embedding_length": config.hidden_size,
        "feed_forward_length": width,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        f"attention.{norm}": eps,
        "rope.dimension_count": int(head_dim * full.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": full.get("rope_theta", 10000.0),
    }
    return found | ({} if head_dim * heads == config.hidden_size else {"attention.key_length": head_dim})


def write(model: Any, path: Path, architecture: str, case: Case, kind: Kind = Kind.F32) -> Path:
    """`model`, which is of the case's family, as a file whose matrices are of a type."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    keys = {**_common(config, case), **case.keys(config)}
    for key, value in ((key, value) for key, value in keys.items() if value is not None):
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key if key.startswith("xielu.") else f"{architecture}.{key}", value)
    known = NAMED_LIKE.get(architecture, architecture)
    number = next(number for number, each in gguf.MODEL_ARCH_NAMES.items() if each == known)
    mapping = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key in ("lm_head.weight", "embed_out.weight") and config.tie_word_embeddings:
            continue
        for stored, array in case.convert(config, key, tensor.numpy()):
            bare = stored.removeprefix("transformer.") if case.family == "Bloom" else stored
            theirs = stored if stored.startswith("blk.") else mapping.get_name(bare, (".weight", ".bias"))
            assert theirs is not None, stored
            _add(writer, theirs, array, kind)
    for key, array in case.vectors(config).items():
        writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: Kind) -> None:
    block = gguf.GGML_QUANT_SIZES[kind][0]
    if array.ndim > 1 and kind is not Kind.F32 and array.shape[-1] % block == 0:
        writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
