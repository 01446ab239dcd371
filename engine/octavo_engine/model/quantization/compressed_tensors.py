"""Reads the quantization of compressed-tensors (llm-compressor): groups of modules, each with a format of its own.

Targets of groups and the list `ignore` have module names, regular expressions for the beginnings of names (after
`re:`), and class names. A module's own name takes precedence over an expression, and that over its class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.expressions import expressions
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.module_rules import Quantization, Rule, names_in
from octavo_engine.model.quantization.scheme import unsupported
from octavo_engine.model.quantization.unquantized import UNQUANTIZED

_LINEAR = "Linear"
_NAIVE = "naive-quantized"
"""The format of floats and whole numbers of 8 bits whose inputs are not quantized; it has the tensors of the others."""
_EXPRESSION = "re:"
_CLASS = re.compile(r"[A-Z]\w*")

ReadGroup = Callable[[Fields, Fields], LinearMethod]
"""Reads one of `config_groups`, given the group and its `weights`; UnsupportedError if it is not supported."""


def read_compressed_tensors(config: Fields, formats: Mapping[str, ReadGroup]) -> Quantization:
    """Read the quantization that `config` describes; `formats` read a group, by the name of its format."""
    _check_sparsity(config)
    _check_transforms(config)
    cache = config.mapping("kv_cache_scheme")
    if cache is not None and not cache.boolean("symmetric", True):
        raise unsupported(config, "compressed-tensors whose kv_cache_scheme is not symmetric")
    by_target = {target: _read_group(config, group, formats) for group in _groups(config) for target in _targets(group)}
    names, patterns = _parted(config, sorted(target for target in by_target if target != _LINEAR))
    rules = [Rule(method=by_target[name], names=frozenset((name,))) for name in names]
    rules += [Rule(method=by_target[target], patterns=(pattern,)) for target, pattern in patterns.items()]
    names, patterns = _parted(config, names_in(config, "ignore"))
    ignored = Rule(names=frozenset(names), patterns=tuple(patterns.values()))
    found = Quantization(by_target.get(_LINEAR, UNQUANTIZED), (ignored, *rules), head=True)
    if not found.name:
        raise unsupported(config, "compressed-tensors without a group that has weights and targets")
    return found


def _groups(config: Fields) -> Iterator[Fields]:
    """Yield the groups of config_groups that quantize weights."""
    groups = config.mapping("config_groups")
    for name in groups.values if groups is not None else ():
        if groups is None or isinstance(groups.values[name], list):
            raise unsupported(config, f"compressed-tensors whose {name} names a preset")
        group = groups.mapping(name)
        if group is None:
            continue
        if group.values.get("output_activations"):
            raise unsupported(config, f"results of linear layers are quantized too (output_activations of {name})")
        if group.values.get("weights"):
            yield group
        elif group.values.get("input_activations"):
            raise unsupported(config, f"compressed-tensors with activations in 8 bits and weights in 16 ({name})")


def _targets(group: Fields) -> list[str]:
    targets = names_in(group, "targets")
    if others := [target for target in targets if _CLASS.fullmatch(target) and target != _LINEAR]:
        raise unsupported(group, f"compressed-tensors with targets of the class {others[0]}; only Linear is supported")
    return targets


def _read_group(config: Fields, group: Fields, formats: Mapping[str, ReadGroup]) -> LinearMethod:
    name = group.text("format", default=config.text("format", default="?"))
    weights = group.mapping("weights")
    if weights is None:
        raise group.wrong("weights", None, "is missing")
    if name == _NAIVE:
        name = f"{'float' if weights.text('type', default='int') == 'float' else 'int'}-quantized"
    if name not in formats:
        raise unsupported(group, f"compressed-tensors in the format {name}; {', '.join(formats)} are supported")
    return formats[name](group, weights)


def _parted(config: Fields, targets: list[str]) -> tuple[list[str], dict[str, re.Pattern[str]]]:
    """Return names, which take precedence, and expressions, each in their order in the file."""
    names = [target for target in targets if not target.startswith(_EXPRESSION)]
    texts = list(dict.fromkeys(target for target in targets if target.startswith(_EXPRESSION)))
    patterns = expressions(config, (text.removeprefix(_EXPRESSION) for text in texts))
    return names, dict(zip(texts, patterns, strict=True))


def _check_sparsity(config: Fields) -> None:
    """Raise UnsupportedError if weights that are zero, or some layers' experts, are not stored."""
    if config.has("moe_sparsity_config"):
        raise unsupported(config, "compressed-tensors with a moe_sparsity_config: some layers have fewer experts")
    sparsity = config.mapping("sparsity_config")
    stored = "dense" if sparsity is None else sparsity.text("format", default="dense")
    if stored != "dense":
        raise unsupported(config, f"compressed-tensors with a sparsity_config of format {stored}; dense is supported")


def _check_transforms(config: Fields) -> None:
    """Raise UnsupportedError if activations have to be rotated, too (QuIP and SpinQuant, `transform_config`).

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
