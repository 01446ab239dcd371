"""MXFP8 (OCP Microscaling Formats 1.0): e4m3 numbers, of which 32 columns of a row share a power of two (e8m0).

The weights of compressed-tensors' `mxfp8-quantized`; activations are not quantized.
"""

from __future__ import annotations

from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.scheme import Scheme, unsupported

_BLOCK = 32
MXFP8 = FP8Scheme("block", "none", block=(1, _BLOCK), scales_in_powers=True, name="mxfp8")


def _group(group: Fields, weights: Fields) -> FP8Scheme:
    bits, kind = weights.integer("num_bits", 0, 64), weights.text("type", default="?")
    size = weights.integer("group_size", -1, 1 << 20, default=_BLOCK)
    if (bits, kind, size) != (8, "float", _BLOCK) or not weights.boolean("symmetric", True):
        found = f"compressed-tensors (mxfp8) of {bits} bits ({kind}) in groups of {size}"
        raise unsupported(group, f"{found}; symmetric float 8 in groups of {_BLOCK} is supported")
    return MXFP8


SCHEME = Scheme(
    name="mxfp8",
    groups={"mxfp8-quantized": _group},
    online=None,
    supported="compressed-tensors (mxfp8-quantized)",
)
