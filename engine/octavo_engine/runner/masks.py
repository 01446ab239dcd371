"""The masks of guided decoding, which name the tokens that a row may sample."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor

from octavo_engine.core.step import StepPlan

Masks = Mapping[int, Tensor]
"""Masks by index of a step's sampling row: bits [1 + drafts, ceil(vocab / 32)], int32 on the host, as llguidance and
XGrammar write them. The lowest bit of the first word is token 0; a token whose bit is 0 is not sampled. Line 0 is for
the row's next token, line i for the token after its first i drafts."""
NO_MASKS: Masks = MappingProxyType({})


def by_place(masks: Masks, plan: StepPlan) -> dict[int, Tensor]:
    """Return the lines of `masks` by the index of a plan's sampled place; a row's drafts are places behind its own."""
    places: dict[int, Tensor] = {}
    for index, bits in masks.items():
        first = index + sum(len(drafts) for row, drafts in plan.drafts.items() if row < index)
        places |= {first + number: line for number, line in enumerate(bits)}
    return places
