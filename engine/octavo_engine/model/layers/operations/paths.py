"""The ways to compute on a CPU, and the choice by its instruction sets."""

from __future__ import annotations

from typing import Literal

import torch

from octavo_engine.kernels.cpu.features import CPUFeatures
from octavo_engine.kernels.cpu.library import DTYPES

Path = Literal["torch", "torch in float32", "kernels", "kernels and float32"]
"""The ways to compute on a CPU: by PyTorch, by our C kernels, or by one for few tokens and another for many.

On x86 our kernels are quicker for any number of tokens. On arm64 nobody measured them: each engine does."""


def choose_path(features: CPUFeatures, dtype: torch.dtype, *, has_kernels: bool) -> Path:
    """Return the quickest way to compute in `dtype` on a CPU with these features.

    `has_kernels`: the C kernels are there and fit the model.
    """
    if not has_kernels or dtype not in DTYPES:
        # PyTorch emulates products of half precision, so that it is quicker to widen weights for many tokens.
        half = dtype in {torch.bfloat16, torch.float16}
        emulates = half and features.avx2 and not features.avx512_bf16
        return "torch in float32" if emulates else "torch"
    return "kernels and float32" if dtype == torch.bfloat16 and not features.avx2 else "kernels"
