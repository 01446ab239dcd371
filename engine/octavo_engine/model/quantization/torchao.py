"""torchao's weights of 4 and 8 bits, as transformers saves them in safetensors: each tensor's parts beside one another.

8 bits: `_weight_qdata` int8 [out, in], `_weight_scale` [out, groups] and zeros in `_weight_zero_point`; numbers of 4
bits may also have a byte each (`IntxWeightOnlyConfig`). `Int4WeightOnlyConfig` in the format `plain`: two
signed numbers in a byte, the first one in the lower half, [out, in / 2], times `_weight_scale` plus
`_weight_zero_point`, both [groups, out]. `Float8WeightOnlyConfig`: `_weight_qdata` e4m3 [out, in], `_weight_scale`
[out, 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, plain, write
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.expressions import expressions
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.gptq import GROUP_SIZES
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.linear_method import LinearMethod, Projection, Weights
from octavo_engine.model.quantization.module_rules import Quantization, Rule, names_in
from octavo_engine.model.quantization.packed import codes_in_bytes, group_span, scales
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.unquantized import UNQUANTIZED

_IN_8_BITS = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")
"""The names of configurations of 8 bits; activations are not quantized, even with the second."""
_FLOAT8 = FP8Scheme("channel", "none", weight_name="_weight_qdata", scale_name="_weight_scale")
_SUPPORTED = (
    f"{', '.join(_IN_8_BITS)}, IntxWeightOnlyConfig, Int4WeightOnlyConfig, Float8WeightOnlyConfig, and FqnToConfig of "
    "these"
)
_BY_NAME = ("FqnToConfig", "ModuleFqnToConfig")
"""The names of configurations with another one for each module, by its name."""
_DEFAULT, _EXPRESSION = "_default", "re:"
_SIGNS = 0x88
"""The bits that turn two signed numbers of 4 bits into codes (by exclusive or)."""


def _bytes(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
    """Yield the tensors of the format with a number in each byte: scales by row or by group, and zeros that are 0."""
    stored, name = projection.stored_rows, f"{projection.name}._weight"
    yield codes_in_bytes(method, f"{name}_qdata", weights, projection)
    yield scales(method, f"{name}_scale", weights, projection)
    groups = group_span(method, projection)
    zeros = Piece(torch.empty(0, device="cpu"), (stored.slice, groups.slice), _check_zeros)
    yield CheckpointTensor(
        name=f"{name}_zero_point", shape=(stored.total, groups.total), pieces=(zeros,), types=("I8",), optional=True
    )


def _halves(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
    """Yield the tensors of the format with two numbers in each byte."""
    rows, stored, order = projection.rows, projection.stored_rows, projection.order
    name, groups = f"{projection.name}._weight", group_span(method, projection)
    part, shape = (stored.slice, projection.columns.by(2).slice), (stored.total, projection.columns.by(2).total)
    piece = Piece(weights.weight[rows], part, _write_pairs, order)
    yield CheckpointTensor(name=f"{name}_qdata", shape=shape, pieces=(piece,), types=("U8", "I8"))
    yield replace(scales(method, f"{name}_scale", weights, projection), as_columns=True)
    minimum = cast("Tensor", weights.minimum)[rows]
    middles = plain(f"{name}_zero_point", minimum, stored, groups, order=order)
    fill = partial(_write_minima, cast("Tensor", weights.scale)[rows])
    pieces = tuple(replace(piece, fill=fill) for piece in middles.pieces)
    yield replace(middles, pieces=pieces, as_columns=True, late=True)


def _write_pairs(target: Tensor, rows: Rows, values: Tensor) -> None:
    write(target, rows, values.view(torch.uint8) ^ _SIGNS)


def _write_minima(scale: Tensor, target: Tensor, rows: Rows, values: Tensor) -> None:
    """Write the value of code 0: eight scales less than the stored number. Scales must have been written before."""
    if not bool(values.isfinite().all()):
        raise ValueError("has numbers that are not finite")
    write(target, rows, values.to(scale.device, torch.float32) - 8 * scale[rows])


def _check_zeros(target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
    if bool(values.any()):
        raise ValueError("has zeros other than 0, which are not supported")


def _torchao(config: Fields) -> Quantization:
    if config.boolean("include_input_output_embeddings", False):
        raise unsupported(config, "torchao with include_input_output_embeddings")
    kinds = config.mapping("quant_type")
    kind = kinds.mapping("default") if kinds is not None else None
    if kind is None:
        raise unsupported(config, "torchao without an object quant_type.default, which current checkpoints have")
    if kinds is not None and (others := kinds.values.keys() - {"default"}):
        raise unsupported(config, f"torchao with quant_type for {min(others)}; only default is supported")
    left_out = _left_out(config, names_in(config, "modules_to_not_convert"))
    if kind.text("_type", default="?") in _BY_NAME:
        default, rules, head = _by_name(config, kind.mapping("_data") or kind)
        return Quantization(default, (left_out, *rules), head=head)
    return Quantization(_method(kind), (left_out,))


def _left_out(config: Fields, names: list[str]) -> Rule:
    """Return the rule of modules that are not quantized: transformers compares the list with names of parameters, so
    that a module is named by the beginning of its name, or by an end with `.weight`."""
    ends = tuple(name.removesuffix(".weight") for name in names if name.endswith(".weight"))
    return Rule(ends=ends, patterns=expressions(config, [rf"(?:{name})(?:(?<=\.)|(?=\.|$))" for name in names]))


def _by_name(config: Fields, data: Fields) -> tuple[LinearMethod, list[Rule], bool]:
    """Return the default method of a configuration by names, its rules, and whether it names the head.

    A name counts before an expression of complete names, and that before `_default`; null: not quantized.
    """
    kinds = data.mapping("fqn_to_config") or data.mapping("module_fqn_to_config") or data
    methods = {name: _method_or_none(kinds, name) for name in kinds.values}
    default = methods.pop(_DEFAULT, UNQUANTIZED)
    exact = {name.removesuffix(".weight"): each for name, each in methods.items() if not name.startswith(_EXPRESSION)}
    texts = [name for name in methods if name.startswith(_EXPRESSION)]
    patterns = expressions(config, [_of_module(text) for text in texts])
    rules = [Rule(method=method, names=frozenset((name,))) for name, method in exact.items()]
    rules += [Rule(method=methods[text], patterns=(pattern,)) for text, pattern in zip(texts, patterns, strict=True)]
    return default, rules, "lm_head" in exact


def _of_module(text: str) -> str:
    """Return an expression of complete names as one of modules; it may be one of their parameters `weight`."""
    name = text.removeprefix(_EXPRESSION)
    if name.endswith(".weight"):
        name = name.removesuffix(".weight").removesuffix("\\")
    return rf"(?:{name})$"


def _method_or_none(kinds: Fields, name: str) -> LinearMethod:
    kind = kinds.mapping(name)
    return UNQUANTIZED if kind is None else _method(kind)


def _method(kind: Fields) -> LinearMethod:
    name, data = kind.text("_type", default="?"), kind.mapping("_data") or kind
    version = kind.integer("_version", 0, 1 << 20, default=2)
    if version != 2 and name != "Int8DynamicActivationInt8WeightConfig":
        raise unsupported(kind, f"torchao ({name}) of version {version}; 2 is supported")
    if name in _IN_8_BITS:
        return Grouped("torchao", 8, _group_size(data, name), _bytes)
    if name == "IntxWeightOnlyConfig":
        dtype = _named(data, "weight_dtype", "int8")
        forms = _named(data, "intx_packing_format", "UNPACKED_TO_INT8"), _named(data, "mapping_type", "SYMMETRIC")
        if dtype not in ("int4", "int8") or forms != ("UNPACKED_TO_INT8", "SYMMETRIC"):
            found = f"{dtype}, {' and '.join(forms)}"
            raise unsupported(
                kind, f"torchao ({name}) of {found}; int4 and int8, UNPACKED_TO_INT8 and SYMMETRIC are supported"
            )
        return Grouped("torchao", int(dtype[3:]), _group_size(data, name), _bytes)
    if name == "Float8WeightOnlyConfig":
        dtype = _named(data, "weight_dtype", "float8_e4m3fn")
        if dtype != "float8_e4m3fn" or _group_size(data, name) is not None:
            raise unsupported(kind, f"torchao ({name}) of {dtype}; float8_e4m3fn with scales by PerRow is supported")
        return _FLOAT8
    if name != "Int4WeightOnlyConfig":
        raise unsupported(kind, f"torchao ({name}); {_SUPPORTED} are supported")
    if (form := _named(data, "int4_packing_format", "PLAIN").upper()) != "PLAIN":
        raise unsupported(kind, f"torchao ({name}) in the format {form}; plain is supported")
    size = data.integer("group_size", 1, 1 << 20, default=128)
    return Grouped("torchao", 4, _checked(data, name, size), _halves, has_minimum=True, wide=True)


def _group_size(data: Fields, name: str) -> int | None:
    """Return the number of columns that share a scale; None: all of a row."""
    granularity = data.mapping("granularity")
    if granularity is None:
        return None
    kind, values = granularity.text("_type", default="?"), granularity.mapping("_data") or granularity
    if kind == "PerGroup":
        return _checked(data, name, values.integer("group_size", 1, 1 << 20))
    if kind == "PerRow" or (kind == "PerAxis" and values.integer("axis", -8, 8, default=0) == 0):
        return None
    raise unsupported(data, f"torchao ({name}) with scales by {kind}; PerRow and PerGroup are supported")


def _checked(data: Fields, name: str, size: int) -> int:
    if size not in GROUP_SIZES:
        raise unsupported(data, f"torchao ({name}) with group_size {size}; {GROUP_SIZES} are supported")
    return size


def _named(data: Fields, name: str, default: str) -> str:
    """Return the value of an enumeration or a type, which is an object or a string."""
    if isinstance(data.values.get(name), str):
        return data.text(name)
    value = data.mapping(name)
    return default if value is None else value.text("_data", default=default)


SCHEME = Scheme(
    name="torchao",
    readers={"torchao": _torchao},
    online=None,
    supported="torchao (Int8WeightOnlyConfig, Int4WeightOnlyConfig in the format plain, IntxWeightOnlyConfig, "
    "Float8WeightOnlyConfig by row; also FqnToConfig of these)",
)
