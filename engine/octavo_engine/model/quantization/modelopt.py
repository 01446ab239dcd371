"""Reads the quantization of NVIDIA's modelopt: FP8 or NVFP4, for all linear layers or by their names.

Its configuration is flat in config.json (with `ignore`), or an object `quantization` (with `exclude_modules`) there or
in hf_quant_config.json.
"""

from __future__ import annotations

from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.fp4 import MODELOPT_NVFP4
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.selection import Quantization, Rule, names_in, not_quantized_by_wildcards
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
    if (size := config.integer("group_size", 0, 1 << 20, default=0)) not in (0, 16) and "NVFP4" in algorithm:
        raise unsupported(config, f"modelopt ({algorithm}) with group_size {size}; 16 is supported")
    return _METHODS[algorithm]


SCHEME = Scheme(
    name="modelopt",
    readers=dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed"), _read),
    online=None,
    supported="modelopt (FP8 by tensor and by channel, NVFP4, MIXED_PRECISION of these)",
)
