"""Transformers' logits of random tokens, to which ours are compared."""

from __future__ import annotations

import torch


def random_tokens(count: int, seed: int, vocab: int = 131) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def reference_logits(model, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def assert_same(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal next tokens and, within float32's rounding, equal logits."""
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.argmax(-1), reference.argmax(-1))
