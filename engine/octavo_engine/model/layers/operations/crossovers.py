"""Crossovers: the numbers of tokens up to which one way to multiply is quicker than another."""

from __future__ import annotations

from dataclasses import dataclass, fields

from octavo_engine.kernels.cpu.features import CPUFeatures

_INTERLEAVED_IN_TILES = 128
"""With AMX, the most tokens for which interleaved codes are multiplied as whole numbers: the linears of SmolLM2 took 19
instead of 42 ms for 32 tokens, 64 and 62 for 128, 115 and 73 for 256."""


@dataclass(frozen=True, slots=True)
class Crossovers:
    """The most tokens for which the first of two ways is the quicker; None: for any number.

    The defaults are those of one CPU with AVX-512 without AMX. An engine on one rank takes those that it measures
    (`measured_crossovers`).
    """

    codes: int | None = 8
    """Codes are multiplied as floats; those for more tokens are dequantized first."""
    interleaved: int | None = None
    """Interleaved codes are multiplied as whole numbers; those for more tokens are dequantized first."""
    narrow: int | None = 8
    """PyTorch multiplies in the weight's own dtype; for more tokens in float32."""
    kernels: int = 64
    """Our kernels multiply in bfloat16; for more tokens PyTorch in float32. The memory plan counts on the latter, so
    there is always a number."""

    @classmethod
    def usual(cls, features: CPUFeatures) -> Crossovers:
        """Return those that are taken without a measurement on a CPU with these features."""
        return cls(interleaved=_INTERLEAVED_IN_TILES) if features.amx else cls()

    def multiplies_codes(self, tokens: int, *, interleaved: bool) -> bool:
        """Return True if codes are multiplied as they are, False if they are dequantized first."""
        most = self.interleaved if interleaved else self.codes
        return most is None or tokens <= most

    def __str__(self) -> str:
        """Return e.g. `codes <= 8, interleaved any, narrow <= 8, kernels <= 64`."""
        most = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name} any" if count is None else f"{name} <= {count}" for name, count in most)
