"""compressed-tensors' `int-quantized` and `naive-quantized` (llm-compressor's W8A8, W4A8, W4AFP8): a number in a byte.

`weight` int8 [out, in], also of 4 bits, and `weight_scale` [out, groups]. Numbers of 8 bits by channel are kept as
they are, others as codes with scales by group.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import LinearMethod, Projection, Weights
from octavo_engine.model.quantization.pack_quantized import read_group_size
from octavo_engine.model.quantization.packed import codes_in_bytes, scales
from octavo_engine.model.quantization.scheme import Scheme, unsupported


def _tensors(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
    yield codes_in_bytes(method, f"{projection.name}.weight", weights, projection)
    yield scales(method, f"{projection.name}.weight_scale", weights, projection)
    for other in ("input_scale", "input_zero_point"):
        yield ignored(f"{projection.name}.{other}")


def _group(group: Fields, weights: Fields) -> LinearMethod:
    """Read weights of 4 or 8 bits; activations are not quantized, whatever the group says of them."""
    bits, kind = weights.integer("num_bits", 0, 64, default=8), weights.text("type", default="int")
    if bits not in (4, 8) or kind != "int":
        raise unsupported(
            group, f"compressed-tensors (int-quantized) of {bits} bits ({kind}); int 4 and 8 are supported"
        )
    if not weights.boolean("symmetric", True):
        raise unsupported(group, f"compressed-tensors of integers of {bits} bits with zero points")
    if (size := read_group_size(weights, "int-quantized")) is None and bits == 8:
        return INT8(online=False)
    return Grouped("int-quantized", bits, size, _tensors)


SCHEME = Scheme(
    name="int_quantized",
    groups={"int-quantized": _group},
    online=None,
    supported="compressed-tensors (int-quantized or naive-quantized, 4 and 8 bits, by group or channel)",
)
