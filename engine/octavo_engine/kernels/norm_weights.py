"""The weights of a norm, and the plain way to compute it. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class NormWeights:
    """Root mean square (arXiv 1910.07467) or layer normalisation (arXiv 1607.06450) of the last dimension, N."""

    weight: Tensor
    """[N]; or [heads, N] where each head has weights of its own."""
    eps: float
    kind: NormKind = "rms"
    bias: Tensor | None = None
    """The bias, in the weight's shape."""
    weight_offset: float = 0.0
    """Added to the weight (Gemma stores the weight less one)."""

    @property
    def is_plain_rms(self) -> bool:
        """Return True if the norm is x / rms(x) * weight [N] and nothing else, which our kernels compute."""
        return self.kind == "rms" and self.bias is None and self.weight_offset == 0 and self.weight.dim() == 1

    def apply(self, x: Tensor) -> Tensor:
        """Return x [..., N] normalised, in its dtype, rounded where Hugging Face transformers rounds.

        A plain root mean square is cast before it is multiplied (Llama); all others are cast last (Gemma, Cohere).
        """
        wide = x.float()
        if self.is_plain_rms:
            return self.weight * (wide * self._inverse_rms(wide)).to(x.dtype)
        if self.kind == "layer":
            wide = wide - wide.mean(-1, keepdim=True)
        normalised = wide * self._inverse_rms(wide) * (self.weight.float() + self.weight_offset)
        return (normalised if self.bias is None else normalised + self.bias.float()).to(x.dtype)

    def _inverse_rms(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
