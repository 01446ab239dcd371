"""AWQ (arXiv 2306.00978) as AutoAWQ publishes it: 4 bits with zeros, scales by groups of columns, `gemm` order.

`qweight` int32 [in, out / 8], `qzeros` int32 [groups, out / 8] and `scales` [groups, out]; the eight codes of a
word are of consecutive outputs in the order 0, 2, 4, 6, 1, 3, 5, 7. Symmetric checkpoints
(`zero_point` false, by AutoRound) have `qzeros` as well, all 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.gptq import GROUP_SIZES, dynamic_rules, read_layout
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.linear_method import Projection, Weights
from octavo_engine.model.quantization.module_rules import Quantization, names_in, not_quantized
from octavo_engine.model.quantization.packed import codes_by_rows, scales, zero_bias, zeros_by_rows
from octavo_engine.model.quantization.scheme import Scheme, unsupported

_OLD_LAYOUT, _LAYOUT = "version", "gemm"
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of the code of each of eight consecutive outputs."""


def _tensors(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
    name = projection.name
    for tensor in (
        codes_by_rows(method, f"{name}.qweight", weights, projection, _PLACES),
        zeros_by_rows(method, f"{name}.qzeros", weights, projection, _PLACES),
        scales(method, f"{name}.scales", weights, projection),
    ):
        yield replace(tensor, as_columns=True)
    if (bias := zero_bias(projection)) is not None:
        yield bias


def _awq(config: Fields) -> Quantization:
    rules = dynamic_rules(config, awq_method, _OLD_LAYOUT, _LAYOUT)
    rules.append(not_quantized(config, names_in(config, "modules_to_not_convert")))
    return Quantization(awq_method(config), tuple(rules), head=config.boolean("lm_head", False))


def awq_method(config: Fields) -> Grouped:
    """Return the method of one module by its values in the configuration."""
    bits = config.integer("bits" if config.has("bits") else "w_bit", 0, 64)
    group = config.integer("group_size" if config.has("group_size") else "q_group_size", -1, 1 << 20, default=128)
    order = read_layout(config, _OLD_LAYOUT, _LAYOUT)
    if bits != 4:
        raise unsupported(config, f"awq with {bits} bits; 4 bits are supported")
    if group not in (-1, *GROUP_SIZES):
        raise unsupported(config, f"awq with group_size {group}; {GROUP_SIZES} and -1 are supported")
    if order != _LAYOUT:
        raise unsupported(config, f"awq in the order {order}; gemm is supported")
    return Grouped("awq", bits, None if group == -1 else group, _tensors, has_zeros=True)


SCHEME = Scheme(
    name="awq",
    readers={"awq": _awq},
    online=None,
    supported="awq (4 bits, gemm order, groups of 16 to 1024 or -1)",
)
