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
    """The reference's opinion of an answer whose log probabilities were asked for, the likeliest 20 included."""
    prompt, answer = completion.prompt_token_ids, completion.token_ids
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, dim=-1)
    tokens = torch.tensor([[entry.token_id, *(token for token, _ in entry.top)] for entry in completion.logprobs])
    ours = torch.tensor([[entry.logprob, *(value for _, value in entry.top)] for entry in completion.logprobs])
    return Comparison(expected.argmax(-1).tolist(), float((ours - expected.gather(1, tokens)).abs().max()))


def assert_same(model: Any, completions: Sequence[Completion]) -> None:
    """Every answer has 64 tokens, the reference's greedy ones, and its log probabilities agree to 1e-3."""
    for index, completion in enumerate(completions):
        assert completion.error is None
        assert len(completion.token_ids) == len(completion.logprobs) == 64
        found = compare(model, completion)
        assert found.tokens == completion.token_ids, f"answer {index} is not the reference's"
        assert found.largest_logprob_difference < 1e-3
