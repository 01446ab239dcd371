"""compressed-tensors' `pack-quantized` (llm-compressor's W4A16, W4A8, W8A16): 4 or 8 bits, scales by group or channel.

`weight_packed` int32 [out, in / codes], each word of consecutive columns with the first one lowest; `weight_scale`
[out, groups]; where it is asymmetric `weight_zero_point` int32 [out / codes, groups]. Signed numbers and zeros are
stored with half of their range added. `weight_g_idx` [in] is each column's group (actorder `group`).
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.gptq import GROUP_SIZES
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.linear_method import Projection, Weights
from octavo_engine.model.quantization.packed import codes_by_columns, column_groups, scales, zeros_by_rows
from octavo_engine.model.quantization.scheme import Scheme, unsupported


def _tensors(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
    name = f"{projection.name}.weight"
    yield codes_by_columns(method, f"{name}_packed", weights, projection)
    yield scales(method, f"{name}_scale", weights, projection)
    if method.has_zeros:
        yield zeros_by_rows(method, f"{name}_zero_point", weights, projection)
    yield column_groups(method, f"{name}_g_idx", weights, projection)
    yield ignored(f"{name}_shape")
    for other in ("input_scale", "input_zero_point"):
        yield ignored(f"{projection.name}.{other}")


def _group(group: Fields, weights: Fields) -> Grouped:
    """Read weights of 4 or 8 bits; activations are not quantized, whatever the group says of them (W4A8)."""
    bits, kind = weights.integer("num_bits", 0, 64), weights.text("type", default="int")
    if bits not in (4, 8) or kind != "int":
        raise unsupported(
            group, f"compressed-tensors (pack-quantized) of {bits} bits ({kind}); int 4 and 8 are supported"
        )
    order = weights.values.get("actorder")
    if order not in (None, False, "static", "weight", "group", True):
        raise unsupported(group, f"compressed-tensors (pack-quantized) with actorder {order!r}")
    size = read_group_size(weights, "pack-quantized")
    return Grouped(
        "pack-quantized",
        bits,
        size,
        _tensors,
        has_zeros=not weights.boolean("symmetric", True),
        act_order=order in ("group", True) and size is not None,
    )


def read_group_size(weights: Fields, form: str) -> int | None:
    """Return the number of columns that share a scale; None: all of a row. `form` is the format, for messages."""
    match weights.text("strategy", default="?"):
        case "channel":
            return None
        case "group":
            size = weights.integer("group_size", -1, 1 << 20)
            if size in GROUP_SIZES:
                return size
            raise unsupported(weights, f"compressed-tensors ({form}) with group_size {size}")
        case other:
            raise unsupported(weights, f"compressed-tensors ({form}) with scales by {other}")


SCHEME = Scheme(
    name="pack_quantized",
    groups={"pack-quantized": _group},
    online=None,
    supported="compressed-tensors (pack-quantized, 4 and 8 bits, by group or channel)",
)
