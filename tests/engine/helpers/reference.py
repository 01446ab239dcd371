"""The reference of parity tests: Hugging Face transformers in float32, asked for its choice after every prefix.

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
    """The difference between an answer and the reference's."""

    tokens: list[int]
    """The reference's choice after each prefix of the answer."""
    largest_logprob_difference: float


def logits_of_answers(model: Any, completions: Sequence[Completion]) -> list[torch.Tensor]:
    """The reference's logits [tokens, vocab] before each token of each answer, by one forward pass over all of them.

    Shorter sequences end in padding, which no token before it sees.
    """
    texts = [[*completion.prompt_token_ids, *completion.token_ids] for completion in completions]
    width = max(len(text) for text in texts)
    with torch.inference_mode():
        logits = model(torch.tensor([text + [0] * (width - len(text)) for text in texts])).logits.float()
    starts = [len(completion.prompt_token_ids) - 1 for completion in completions]
    return [row[start : len(text) - 1] for row, text, start in zip(logits, texts, starts, strict=True)]


def compare(logits: torch.Tensor, completion: Completion) -> Comparison:
    """The reference's opinion of an answer whose log probabilities were asked for, the likeliest 20 included."""
    expected = torch.log_softmax(logits, dim=-1)
    tokens = torch.tensor([[entry.token_id, *(token for token, _ in entry.top)] for entry in completion.logprobs])
    ours = torch.tensor([[entry.logprob, *(value for _, value in entry.top)] for entry in completion.logprobs])
    return Comparison(expected.argmax(-1).tolist(), float((ours - expected.gather(1, tokens)).abs().max()))


def assert_same(model: Any, completions: Sequence[Completion], tokens: int = 64) -> None:
    """Every answer has so many tokens, the reference's greedy ones, and its log probabilities agree to 1e-3."""
    for completion in completions:
        assert completion.error is None
        assert len(completion.token_ids) == len(completion.logprobs) == tokens
    each = logits_of_answers(model, completions)
    for index, (completion, logits) in enumerate(zip(completions, each, strict=True)):
        found = compare(logits, completion)
        assert found.tokens == completion.token_ids, f"answer {index} is not the reference's"
        assert found.largest_logprob_difference < 1e-3


def assert_prompts(model: Any, completions: Sequence[Completion], top: int) -> None:
    """Every token of every prompt but the first has its log probability, its rank, and the likeliest ones beside it."""
    for completion in completions:
        assert completion.error is None
        prompt = completion.prompt_token_ids
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1)
        assert [entry.token_id for entry in completion.prompt_logprobs] == prompt[1:]
        for entry, row in zip(completion.prompt_logprobs, expected, strict=True):
            assert abs(entry.logprob - row[entry.token_id]) < 1e-3
            assert abs(entry.rank - 1 - int((row > row[entry.token_id]).sum())) <= 1  # of two that are nearly equal
            likeliest = torch.tensor([value for _, value in entry.top])
            assert (likeliest - row.topk(top).values).abs().max() < 1e-3
