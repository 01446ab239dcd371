"""Vectors of positions, which are added to those of tokens: learned ones, or sines and cosines (arXiv 1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored, plain, unsharded
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import ModelSpec, PositionSpec


class PositionTable(nn.Module):
    """A row for each position up to the model's longest context, which no request exceeds; every rank has all rows."""

    weight: Tensor

    def __init__(self, spec: ModelSpec, size: int, options: LayerOptions) -> None:
        """`size` is the size of a position's vector."""
        super().__init__()
        self.spec = spec.positions or PositionSpec()
        rows = self.spec.rows or spec.max_position + self.spec.offset
        if self.spec.sinusoidal:
            table = sinusoids(rows, size, options.device, whole_range=self.spec.whole_range)
            if self.spec.zero_row is not None:
                table[self.spec.zero_row : self.spec.zero_row + 1] = 0
            self.register_buffer("weight", table.to(options.dtype), persistent=False)
        else:
            self.weight = parameter(rows, size, dtype=options.dtype, device=options.device)

    def forward(self, positions: Tensor, token_ids: Tensor) -> Tensor:
        """Return the vectors [T, hidden] of positions [T] int64 and token ids [T]."""
        if self.spec.uncounted is not None:
            positions = _counted(positions, token_ids != self.spec.uncounted, self.spec.uncounted - self.spec.offset)
        return F.embedding(positions + self.spec.offset, self.weight)

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the tensors in a checkpoint. Computed positions are replaced by stored ones, as in transformers."""
        table = plain(f"{name}.weight", self.weight, unsharded(len(self.weight)))
        yield replace(table, optional=self.spec.sinusoidal)
        if self.spec.sinusoidal:
            yield ignored(f"{name}.weights")  # of XGLM, which transformers does not read


def _counted(positions: Tensor, counts: Tensor, otherwise: int) -> Tensor:
    """Return positions [T] in prompts whose tokens count only where `counts` is true; `otherwise` for the others."""
    ends = counts.cumsum(0)
    # Positions of trial steps belong to no prompt, so `first` could be negative.
    first = (torch.arange(len(positions), device=positions.device) - positions).clamp(min=0)
    before = (ends - counts.long())[first]
    return torch.where(counts, ends - before - 1, otherwise)


def sinusoids(rows: int, size: int, device: torch.device, *, whole_range: bool) -> Tensor:
    """Return sines of falling frequencies, then their cosines, and a zero if `size` is odd: float32 [rows, size].

    Frequencies fall from 1 to 1 / 10000, as in tensor2tensor and fairseq, or stop one step before, as in the paper.
    """
    half = size // 2
    steps = torch.arange(half, dtype=torch.float32, device=device)
    frequencies = torch.exp(steps * -(math.log(10000) / (half - whole_range)))
    angles = torch.arange(rows, dtype=torch.float32, device=device)[:, None] * frequencies
    return F.pad(torch.cat((angles.sin(), angles.cos()), dim=1), (0, size % 2))
