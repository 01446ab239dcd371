"""Experts as checkpoints hold them: transposed, gate and up row by row in turn, or in MXFP4.

MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of 4 bits (e2m1) share a power of two (e8m0). A checkpoint has two
numbers in each byte of `_blocks`, the first one in the lower half, and a byte for each 32 of them in `_scales`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo_engine.model.layers.moe import MoE

_BLOCK = 32
_HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = (*_HALVES, *(-value for value in _HALVES))
_E8M0 = (*(2.0 ** (code - 127) for code in range(255)), math.nan)


def expert_tensors(prefix: str, mlp: MoE, *, mxfp4: bool) -> dict[str, Tensor]:
    """For each tensor of a checkpoint the numbers that it fills, a view in which the dimensions stand as stored."""
    count, inner = mlp.gate_up.shape[0], mlp.gate_up.shape[1] // 2
    gate_up = mlp.gate_up.view(count, 2, inner, -1).transpose(1, 2)  # [E, intermediate, 2, hidden]
    targets = {
        f"{prefix}.gate_up_proj_bias": mlp.gate_up_bias.view(count, 2, inner).transpose(1, 2),
        f"{prefix}.down_proj_bias": mlp.down_bias,
    }
    for name, target in ((f"{prefix}.gate_up_proj", gate_up), (f"{prefix}.down_proj", mlp.down)):
        if mxfp4:
            targets |= {f"{name}_blocks": target, f"{name}_scales": target}
        else:
            targets[name] = target.movedim(-1, 1)
    return targets


def is_expert(name: str) -> bool:
    return ".mlp.experts." in name


def is_exponent(name: str) -> bool:
    """Whether it is what numbers in MXFP4 that are there already are multiplied with."""
    return is_expert(name) and name.endswith("_scales")


def is_mxfp4(name: str) -> bool:
    return is_expert(name) and name.endswith(("_blocks", "_scales"))


def stored_shape(name: str, target: Tensor) -> tuple[int, ...]:
    """The shape in the checkpoint of a tensor that `expert_tensors` names."""
    if is_mxfp4(name):
        count, *rows, columns = target.shape
        return (count, math.prod(rows), columns // _BLOCK, *((_BLOCK // 2,) if name.endswith("_blocks") else ()))
    if ".gate_up_proj" in name:
        return (*target.shape[:-2], target.shape[-2] * target.shape[-1])
    return tuple(target.shape)


def read_expert(name: str, values: Tensor, target: Tensor) -> None:
    """Fill `target` with what the checkpoint has, expert by expert. Numbers in MXFP4 first, then `_scales`."""
    if not is_mxfp4(name):
        target.copy_(values.view(target.shape))
        return
    numbers = torch.tensor(_E2M1, dtype=target.dtype, device=target.device)
    pairs = torch.stack((numbers.repeat(16), numbers.repeat_interleave(16)), dim=1)  # by byte: lower half, upper half
    powers = torch.tensor(_E8M0, device=target.device)
    for mine, stored in zip(target, values, strict=True):
        codes = stored.to(target.device).int()
        if name.endswith("_blocks"):
            mine.copy_(pairs[codes].view(mine.shape))
        else:
            mine.unflatten(-1, (-1, _BLOCK)).mul_(powers[codes].view(*mine.shape[:-1], -1, 1))
