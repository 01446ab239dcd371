"""LoRA adapters of one linear layer, for tokens of many adapters in one call of the C kernels (adapters.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.library import DTYPES, CPUKernels

_MOST_RANKS = 1 << 15
"""The largest sum of the ranks of a layer's projections: HIDDEN in adapters.c."""


class AdaptersStructure(ctypes.Structure):
    """`struct adapters` of kernels.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "ranks", "ends")),
        *((name, ctypes.c_long) for name in ("parts", "rank", "columns", "rows")),
    )


class CPUAdapters:
    """The adapter slots of one linear layer, whose tensors must not move, since C holds their addresses."""

    def __init__(self, kernels: CPUKernels, a: Tensor, b: Tensor, parts: Sequence[int]) -> None:
        """`a` [slots, parts * rank, columns] and `b` [slots, rank, rows], both contiguous, float32 or bfloat16.

        `parts`: the rows of each projection, one after another.
        """
        self._kernels, self.a, self.b = kernels, a, b
        slots, rank, rows = b.shape
        if len(parts) * rank > _MOST_RANKS:  # its array would have no room for one token, and it would never end
            raise ValueError(f"{len(parts)} projections of rank {rank}: the kernel has room for {_MOST_RANKS} in all")
        self.ranks = torch.zeros(slots, len(parts), dtype=torch.int32)
        """The rank of each part of what is in a slot, at most that of the slots; 0: nothing."""
        self._ends = torch.tensor(parts).cumsum(0)
        pointers = (tensor.data_ptr() for tensor in (a, b, self.ranks, self._ends))
        self.structure = AdaptersStructure(*pointers, len(parts), rank, a.shape[2], rows)

    def add_to(self, y: Tensor, x: Tensor, slots: Tensor) -> None:
        """Add B A x[t] of each token's slot to y [T, rows], for x [T, columns] and `slots` [T] int32; -1: no adapter.

        x and y are contiguous and of the type of A and B. Sums are float32, rounded once.
        """
        if not (x.is_contiguous() and y.is_contiguous()):
            raise ValueError("the inputs and results of linear layers with adapters are contiguous")
        if not len(x) == len(y) == len(slots):  # the kernel would write past the end of y
            raise ValueError(f"{len(x)} inputs and {len(y)} results for the slots of {len(slots)} tokens")
        pointers = x.data_ptr(), y.data_ptr(), slots.data_ptr()
        structure = ctypes.byref(self.structure)
        threads = torch.get_num_threads()
        self._kernels.library.add_adapters(structure, *pointers, len(slots), DTYPES[x.dtype], threads)
