"""A fake proposer and a fake mask provider for tests of speculative and guided decoding steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo_engine.core.request import Request
from octavo_engine.runner.masks import Masks
from octavo_engine.structured.mask_provider import MaskRow, RowMasks

VOCABULARY = 64


def bits(allowed: Sequence[int], vocab: int = VOCABULARY) -> Tensor:
    """Return a mask of one line [ceil(vocab / 32)] that allows these tokens."""
    words = [0] * -(-vocab // 32)
    for token in set(allowed):
        words[token // 32] |= 1 << token % 32
    return torch.tensor([word - (1 << 32) if word >> 31 else word for word in words], dtype=torch.int32)


def masks_of(places: Mapping[int, Tensor]) -> Masks:
    """Return the masks of places, each of one line."""
    return Masks(list(places), torch.stack(list(places.values())))


class PretendedProposer:
    """Proposes what earlier answers say after the same beginning, every third time with a wrong token at its end."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = [list(text) for text in texts]
        self.proposed = 0

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        known = len(token_ids)
        text = next((text for text in self._texts if text[:known] == list(token_ids)), [])
        drafts = text[known : known + 3]
        self.proposed += len(drafts)
        return [*drafts[:-1], (drafts[-1] + 1) % VOCABULARY] if drafts and known % 3 == 0 else drafts

    def remove(self, request_id: str) -> None:
        """Answers are known, not requests."""


class PretendedMasks:
    """Each token's remainder by `MODULUS` must be that of its place in the answer; of every second request only."""

    MODULUS = 5

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        """Request, length of its answer, number of drafts."""

    def prepare(self) -> None:
        """Do nothing."""

    def add(self, request: Request) -> None:
        """Requests are known by their names."""

    def is_ready(self, request_id: str) -> bool:
        return True

    def remove(self, request_id: str) -> None:
        """Do nothing: no state is kept."""

    def guides(self, request_id: str) -> bool:
        return int(request_id.rsplit("-", 1)[1]) % 2 == 0

    def masks(self, rows: Sequence[MaskRow]) -> RowMasks:
        lines: list[Tensor] = []
        errors: dict[int, Exception] = {}
        for index, row in enumerate(rows):
            try:
                lines.append(self.mask(row.request_id, row.answer, row.drafts))
            except ValueError as error:
                errors[index] = error
                lines.append(torch.zeros(1 + len(row.drafts), lines[0].shape[1] if lines else 2, dtype=torch.int32))
        return RowMasks(torch.cat(lines), errors)

    def mask(self, request_id: str, answer: Sequence[int], drafts: Sequence[int]) -> Tensor:
        self.asked.append((request_id, len(answer), len(drafts)))
        return torch.stack([bits(self.allowed(place)) for place in range(len(answer), len(answer) + 1 + len(drafts))])

    @classmethod
    def allowed(cls, place: int) -> list[int]:
        return [token for token in range(VOCABULARY) if token % cls.MODULUS == place % cls.MODULUS]
