"""Sorts the columns of weights with act-order by their groups, once they are loaded.

GPTQ quantizes columns in the order of their activations' size, so that a group's columns lie anywhere in a row. Stored
one group after another they are plain groups of consecutive columns for every kernel, as long as the columns of the
input are taken in the same order (vLLM's Marlin does that too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from octavo_engine.kernels.cpu.quantized import QuantizedWeight, in_pieces, pack, unpack
from octavo_engine.model.quantization.linear_method import Weights


@torch.no_grad()
def sort_columns(weights: Weights, knows_codes: Callable[[QuantizedWeight, torch.dtype], bool]) -> None:
    """Sort the columns of a weight with act-order; its `column_groups` then begin with the order of the input's.

    Its linear method, which dequantizes what was loaded, can no longer be used for it. So nothing changes unless the
    device `knows_codes` in plain groups of this size; nor where projections have different orders, or where sorted
    columns are not complete groups, such as those of a rank that has only some of the columns.
    """
    groups, quantized = weights.column_groups, weights.quantized
    if groups is None or quantized is None:
        return
    (part,) = quantized.parts
    order = groups[0].argsort(stable=True)
    plain = torch.arange(part.columns, device=groups.device) // (part.group or part.columns)
    if not bool((groups[:, order] == plain).all()):
        return
    ordered = QuantizedWeight([replace(part, column_groups=None, sections=())], column_order=groups[0])
    if not knows_codes(ordered, weights.dtype):
        return
    for rows in in_pieces(len(part.codes), part.columns):
        codes = part.codes[rows]
        codes.copy_(pack(unpack(codes, part.bits)[:, order], part.bits))
    groups[0] = order
    weights.quantized = ordered
