"""Reads the quantization of NVIDIA's modelopt: FP8 or NVFP4, for all linear layers or by their names.

Its configuration is flat in config.json (with `ignore`), or an object `quantization` (with `exclude_modules`) there or
in hf_quant_config.json.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.fp4 import MODELOPT_NVFP4
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.gptq import GROUP_SIZES
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.module_rules import Quantization, Rule, names_in, not_quantized_by_wildcards
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.unquantized import UNQUANTIZED

_METHODS: dict[str, LinearMethod] = {
    "FP8": FP8Scheme("tensor", "static"),
    "FP8_PER_CHANNEL_PER_TOKEN": FP8Scheme("channel"),
    "NVFP4": MODELOPT_NVFP4,
    "W4A16_NVFP4": MODELOPT_NVFP4,
}
"""The methods by `quant_algo`."""


def _read(config: Fields) -> Quantization:
    config = config.mapping("quantization") or config
    lists = [name for field in ("exclude_modules", "ignore") for name in names_in(config, field)]
    excluded = not_quantized_by_wildcards(config, lists)
    algorithm = config.text("quant_algo", default="?")
    kv_in_fp8 = config.text("kv_cache_quant_algo", default="FP8") == "FP8"
    if (scheme := config.mapping("kv_cache_scheme")) is not None:
        kv_in_fp8 &= scheme.integer("num_bits", 0, 64, default=8) == 8
    if algorithm != "MIXED_PRECISION":
        return Quantization(_method(config, algorithm), (excluded,), head=True, kv_in_fp8=kv_in_fp8)
    layers = config.mapping("quantized_layers")
    rules = [_rule(layers, name) for name in layers.values] if layers is not None else []
    return Quantization(UNQUANTIZED, (excluded, *rules), head=True, kv_in_fp8=kv_in_fp8)


def _rule(layers: Fields, name: str) -> Rule:
    """Return the rule of an entry of `quantized_layers`: a module, or one that contains modules."""
    layer = layers.mapping(name)
    if layer is None:
        raise layers.wrong(name, None, "is not an object")
    return Rule(method=_method(layer, layer.text("quant_algo", default="?")), parts=frozenset((name,)))


def _method(config: Fields, algorithm: str) -> LinearMethod:
    if algorithm not in _METHODS:
        raise unsupported(config, f"modelopt with quant_algo {algorithm}; {', '.join(_METHODS)} are supported")
    if "NVFP4" not in algorithm:
        return _METHODS[algorithm]
    if (size := _group_size(config)) not in GROUP_SIZES:
        raise unsupported(config, f"modelopt ({algorithm}) with group_size {size}; {GROUP_SIZES} are supported")
    return replace(MODELOPT_NVFP4, group_size=size)


def _group_size(config: Fields) -> int:
    """Return the columns that share a scale: 16, unless the configuration or all of its `config_groups` say another
    number, as ModelOpt's own NVFP4_MLP_WEIGHT_ONLY_CFG does."""
    groups = config.mapping("config_groups") or replace(config, values={})
    weights = [group.mapping("weights") for name in groups.values if (group := groups.mapping(name)) is not None]
    parts = [part for part in (config, *weights) if part is not None and part.has("group_size")]
    sizes = {part.integer("group_size", 1, 1 << 20) for part in parts} or {16}
    if len(sizes) > 1:
        raise unsupported(config, f"modelopt with more than one group_size ({sorted(sizes)})")
    return sizes.pop()


SCHEME = Scheme(
    name="modelopt",
    readers=dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed"), _read),
    online=None,
    supported="modelopt (FP8 by tensor and by channel, NVFP4, MIXED_PRECISION of these)",
)
