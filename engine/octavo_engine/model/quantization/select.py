"""Which quantization scheme is taken: the one that a checkpoint is in, or the one that --quantization asks for."""

from __future__ import annotations

import re
from importlib import import_module

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.registry import SCHEMES
from octavo_engine.model.quantization.scheme import Scheme, UnsupportedError, unsupported

_SCHEMES: tuple[Scheme, ...] = tuple(
    import_module(f"octavo_engine.model.quantization.{name}").SCHEME for name in SCHEMES
)

_PROJECTION = re.compile(r"(^re:(?!.*lm_head)|_proj$|self_attn$|mlp$|layers(\.\d+)?$)")
"""What names a linear layer, or what holds some, in a list of what was not quantized."""
_ROUTER = re.compile(r"^re:[^|]*\b(gate|router|shared_expert_gate)\$?$")
"""A pattern of that list that means routers alone, which are never quantized."""


def read_method(fields: Fields) -> LinearMethod | None:
    """What `quantization_config` of a config.json says; ModelLoadError if that is not computed here."""
    config = fields.mapping("quantization_config")
    if config is None:
        return None
    try:
        return _read(config)
    except UnsupportedError as error:
        supported = "; ".join(scheme.supported for scheme in _SCHEMES if scheme.supported)
        raise ModelLoadError(
            f"{error}; supported are {supported}; or take an unquantized checkpoint of the model (--quantization "
            f"{_SCHEMES[0].name} quantizes it while it is loaded), or a .gguf file"
        ) from None


def _read(config: Fields) -> LinearMethod:
    name = config.text("quant_method", default="?")
    readers = [scheme.readers[name] for scheme in _SCHEMES if name in scheme.readers]
    if not readers:
        raise unsupported(config, f"the weights are quantized ({name}), which this version of Octavo does not compute")
    for field in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules"):
        _check_left_out(config, field)
    _check_transforms(config)
    _check_output_activations(config)
    for read in readers:
        if (method := read(config)) is not None:
            return method
    raise unsupported(config, f"{name} of a kind that this version of Octavo does not compute")


def _check_left_out(config: Fields, name: str) -> None:
    """ModelLoadError if the list `name` of what was not quantized has one of our linear layers."""
    left_out = config.values.get(name) or []
    if not isinstance(left_out, list):
        raise config.wrong(name, left_out, "is no list")
    names = [item for item in left_out if isinstance(item, str) and not _ROUTER.search(item)]
    if linears := [name for name in names if _PROJECTION.search(name)]:
        raise unsupported(config, f"{linears[0]} is not quantized while other layers are")


def _check_transforms(config: Fields) -> None:
    """UnsupportedError if activations must be rotated too (compressed-tensors' QuIP and SpinQuant, `transform_config`).

    Rotations of weights (`weight_input`, `weight_output`) are already part of the stored weights. The others are
    computed in each step; without them weights load as usual and the model's answers are wrong.
    """
    transforms = config.mapping("transform_config")
    groups = transforms.mapping("config_groups") if transforms is not None else None
    if groups is None:
        return
    for name in groups.values:
        group = groups.mapping(name)
        applied = group.values.get("apply") if group is not None else None
        for item in applied if isinstance(applied, list) else [applied]:
            location = item.get("location") if isinstance(item, dict) else None
            if location not in ("weight_input", "weight_output"):
                raise unsupported(config, f"transform_config rotates activations ({name}, location {location})")


def _check_output_activations(config: Fields) -> None:
    """UnsupportedError if results of linear layers are quantized (compressed-tensors' `output_activations`).

    Such a checkpoint's weights load as usual, so that nothing else would show that its products are computed otherwise.
    """
    groups = config.mapping("config_groups")
    if groups is None:
        return
    for name in groups.values:
        group = groups.mapping(name)
        if group is not None and group.values.get("output_activations"):
            raise unsupported(config, f"results of linear layers are quantized too (output_activations of {name})")


ONLINE = {scheme.name: scheme.online for scheme in _SCHEMES if scheme.online is not None}
"""By the name of `--quantization`."""
