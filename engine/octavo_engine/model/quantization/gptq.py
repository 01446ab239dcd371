"""GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel publish it: 2, 3, 4 or 8 bits, scales by groups of input columns.

`qweight` int32 [in / codes, out] and `qzeros` int32 [groups, out / codes] hold codes in words, the first one lowest;
`scales` [groups, out]; `g_idx` [in] is each column's group. Zeros are stored less one, unless checkpoint_format says
`gptq_v2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.expressions import expressions
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.linear_method import LinearMethod, Projection, Weights
from octavo_engine.model.quantization.module_rules import Quantization, Rule, names_in, not_quantized
from octavo_engine.model.quantization.packed import (
    codes_by_columns,
    column_groups,
    scales,
    zero_bias,
    zeros_by_rows,
)
from octavo_engine.model.quantization.scheme import Scheme, unsupported

_OLD_LAYOUT, _LAYOUTS = "checkpoint_format", ("gptq", "gptq_v2")
GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024)


def _tensors(
    method: Grouped, weights: Weights, projection: Projection, *, less_one: bool
) -> Iterator[CheckpointTensor]:
    name = projection.name
    for tensor in (
        codes_by_columns(method, f"{name}.qweight", weights, projection),
        zeros_by_rows(method, f"{name}.qzeros", weights, projection, less_one=less_one),
        scales(method, f"{name}.scales", weights, projection),
    ):
        yield replace(tensor, as_columns=True)
    yield column_groups(method, f"{name}.g_idx", weights, projection)
    if (bias := zero_bias(projection)) is not None:
        yield bias


_V1, _V2 = partial(_tensors, less_one=True), partial(_tensors, less_one=False)
"""The tensors of the two values of `checkpoint_format`, `gptq` and `gptq_v2`."""


def _gptq(config: Fields) -> Quantization:
    rules = dynamic_rules(config, gptq_method, _OLD_LAYOUT, _LAYOUTS[0])
    rules.append(not_quantized(config, names_in(config, "modules_to_not_convert")))
    return Quantization(gptq_method(config), tuple(rules), head=config.boolean("lm_head", False))


def dynamic_rules(
    config: Fields, read: Callable[[Fields], LinearMethod], old_layout: str, default_layout: str
) -> list[Rule]:
    """Return the rules of GPTQModel's `dynamic`, which has other values for modules whose names begin like a pattern;
    `-:` before a pattern means that these are not quantized. `read` reads a module's values; the others are those of
    `read_layout`."""
    dynamic, rules = config.mapping("dynamic") or replace(config, values={}), list[Rule]()
    patterns = expressions(config, (name.removeprefix("-:").removeprefix("+:") for name in dynamic.values))
    for name, pattern in zip(dynamic.values, patterns, strict=True):
        if name.startswith("-:"):
            rules.append(Rule(patterns=(pattern,)))
        elif (values := dynamic.mapping(name)) is not None:
            _check_layout(config, name, values, old_layout, default_layout)
            own = {key: value for key, value in values.values.items() if key not in ("format", old_layout)}
            changed = replace(config, values={**config.values, **own})
            rules.append(Rule(method=read(changed), patterns=(pattern,)))
    return rules


def _check_layout(config: Fields, rule: str, values: Fields, old_layout: str, default_layout: str) -> None:
    """Raise UnsupportedError if the `values` of a rule name another layout: GPTQModel and vLLM take it from the
    checkpoint's configuration alone."""
    layout = read_layout(config, old_layout, default_layout)
    if (other := read_layout(values, old_layout, layout)) != layout:
        method = config.text("quant_method", default="gptq")
        raise unsupported(
            config, f"{method}: dynamic[{rule!r}] names the format {other}, and all modules must have {layout}"
        )


def gptq_method(config: Fields) -> Grouped:
    """Return the method of one module by its values in the configuration."""
    bits, group = config.integer("bits", 0, 64), config.integer("group_size", -1, 1 << 20)
    if bits not in (2, 3, 4, 8):
        raise unsupported(config, f"gptq with {bits} bits; 2, 3, 4 and 8 are supported")
    if group not in (-1, *GROUP_SIZES):
        raise unsupported(config, f"gptq with group_size {group}; {GROUP_SIZES} and -1 are supported")
    layout = read_layout(config, _OLD_LAYOUT, _LAYOUTS[0])
    if layout not in _LAYOUTS:
        raise unsupported(config, f"gptq with checkpoint_format {layout}; gptq and gptq_v2 are supported")
    if bits == 3 and layout == "gptq":
        raise unsupported(
            config,
            "gptq with 3 bits in the format gptq, where tools disagree about zeros; gptq_v2 (of AutoRound "
            "packing_format auto_round:gptqmodel) is supported",
        )
    for field in ("adapter", "lora", "rotation", "activation"):
        if config.values.get(field):
            raise unsupported(config, f"gptq with {field}")
    if (word := config.text("pack_dtype", default="int32")) != "int32":
        raise unsupported(config, f"gptq with pack_dtype {word}; int32 is supported")
    return Grouped(
        "gptq",
        max(4, bits),
        None if group == -1 else group,
        _V1 if layout == "gptq" else _V2,
        has_zeros=True,
        act_order=config.boolean("desc_act", False) and group != -1,
        fewer_bits=bits if bits < 4 else None,
    )


def read_layout(config: Fields, old_name: str, default: str) -> str:
    """Return the layout of words, which GPTQModel 7 calls `format`, and its older versions and AutoAWQ `old_name`.

    UnsupportedError if both fields are there and differ: readers disagree about which of them counts.
    """
    found = {config.text(name).lower() for name in ("format", old_name) if config.has(name)}
    if len(found) > 1:
        raise unsupported(config, f"format and {old_name} name different layouts ({' and '.join(sorted(found))})")
    return next(iter(found), default)


SCHEME = Scheme(
    name="gptq",
    readers={"gptq": _gptq},
    online=None,
    supported="gptq (2, 3, 4 and 8 bits, groups of 16 to 1024 or -1, act-order, checkpoint_format gptq and gptq_v2)",
)
