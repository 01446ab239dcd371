"""The reference: Hugging Face transformers in float32, asked what it would have said at every place of an answer.

Feeding a prompt with Octavo's greedy answer to the reference once gives its choice after every prefix of that answer.
If all choices are the answer's own tokens, the reference's greedy answer is the same, token for token, by induction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from octavo_engine.llm import Completion


@dataclass(frozen=True)
class Comparison:
    """How far an answer is from the reference's."""

    tokens: list[int]
    """The reference's choice after each prefix of the answer."""
    largest_logprob_difference: float


def compare(model: Any, completion: Completion) -> Comparison:
    """The reference's opinion of an answer whose log probabilities were asked for."""
    prompt, answer = completion.prompt_token_ids, completion.token_ids
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, dim=-1)
    ours = torch.tensor([entry.logprob for entry in completion.logprobs])
    theirs = expected.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
    return Comparison(expected.argmax(-1).tolist(), float((ours - theirs).abs().max()))


def assert_same(model: Any, completions: Sequence[Completion]) -> None:
    """Every answer is the reference's greedy answer, and its log probabilities agree to 1e-3."""
    for index, completion in enumerate(completions):
        assert completion.error is None
        found = compare(model, completion)
        assert found.tokens == completion.token_ids, f"answer {index} is not the reference's"
        assert found.largest_logprob_difference < 1e-3
