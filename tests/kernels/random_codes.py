"""Random codes of 4 and 8 bits, and in float64 the numbers that they stand for: the exact reference of kernels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedPart

_SUPER = 256


def random_part(
    kind: str, bits: int, rows: int, columns: int, group: int | None, device: torch.device
) -> QuantizedPart:
    """Return random codes of one kind: `zeros` as of AWQ, `minimum` as of GGUF's Q4_1, `supers` as of its Q4_K."""
    groups = 1 if group is None else -(-columns // group)
    least, most = (-128, 128) if kind == "signed" else (0, 256)
    kind_of_codes = torch.int8 if kind == "signed" else torch.uint8
    codes = torch.randint(least, most, (rows, columns * bits // 8), device=device).to(kind_of_codes)
    scale = (torch.randn(rows, groups, device=device) * 0.01).half().float()  # AutoRound's may be negative
    part = partial(QuantizedPart, codes=codes, bits=bits, columns=columns, group=group)
    middle = float(1 << (bits - 1))
    match kind:
        case "symmetric" | "order":
            order = torch.randint(0, groups, (2, columns), dtype=torch.int32, device=device)
            sections = (rows // 3, rows - rows // 3)
            return part(
                scale=scale,
                offset=middle,
                **({"column_groups": order, "sections": sections} if kind == "order" else {}),
            )
        case "zeros":
            return part(scale=scale, zero=torch.randint(0, 1 << bits, (rows, groups), device=device).to(torch.uint8))
        case "minimum":
            return part(scale=scale.bfloat16(), minimum=(-middle * scale).bfloat16())
        case "signed":
            return part(scale=scale)
    wholes = torch.randint(1, 64, (2, rows, groups), device=device).to(torch.int8)
    supers = (torch.rand(2, rows, columns // _SUPER, device=device) * 0.001).half()
    return part(scale=wholes[0], minimum=wholes[1], super_scale=supers[0], super_minimum=supers[1])


def exact_numbers(part: QuantizedPart) -> Tensor:
    """Return what the codes stand for, float64 [rows, columns]: the exact reference."""
    codes = part.codes
    if part.bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
    if part.column_groups is None:
        group = (torch.arange(part.columns, device=codes.device) // (part.group or part.columns)).expand(codes.shape)
    else:
        group = torch.cat([each.expand(n, -1) for each, n in zip(part.column_groups, part.sections, strict=True)])

    def of_columns(values: Tensor, supers: Tensor | None) -> Tensor:
        wide = values.double()
        if supers is not None:
            wide *= supers.double().repeat_interleave(wide.shape[1] // supers.shape[1], dim=1)
        return wide.gather(1, group.long())

    numbers = codes.double() - part.offset
    if part.zero is not None:
        numbers -= of_columns(part.zero, None)
    numbers *= of_columns(part.scale, part.super_scale)
    return numbers if part.minimum is None else numbers + of_columns(part.minimum, part.super_minimum)
