"""The prompts that a benchmark sends: random words of a fixed length or of ShareGPT's lengths, or prompts of a file."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo_client.errors import UsageError

_WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part"
)
"""Short, frequent words: one token each, with the space before it, in nearly every vocabulary."""
_SHAREGPT_MEANS = 161.31, 337.99
"""The mean numbers of tokens of ShareGPT's first questions and answers: the vLLM paper (SOSP 2023), figure 11."""
_SHAREGPT_SIGMA = 1.0
"""The standard deviation of the lengths' logarithm: our assumption, as the paper gives only means and a histogram."""
_LEAST = 4
"""The shortest prompt and answer, as in vLLM's benchmark of ShareGPT."""
_TOKENS_PER_WORD = 4 / 3
"""Tokens a word of English text. The client has no tokenizer: a file's answers are measured by their words."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a benchmark: its text, and how many tokens are asked for."""

    text: str
    output_len: int


class Workload(Protocol):
    """A source of prompts. `str` of it is its description."""

    def prompts(self, count: int, seed: int, /) -> list[Prompt]:
        """Return `count` prompts; a seed always gives the same lengths, and of a file the same order."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Prompts of `words` words, and answers of `output_len` tokens."""

    words: int
    output_len: int

    def __str__(self) -> str:
        return f"{self.words} words in, {self.output_len} tokens out"

    def prompts(self, count: int, _seed: int, /) -> list[Prompt]:
        """Return prompts none of which shares its beginning with another, nor with one of an earlier run."""
        return [Prompt(random_words(self.words), self.output_len) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class ShareGPTLike:
    """Random words, with lengths as those of ShareGPT's first turns; lengths above the limits are drawn again."""

    max_input: int
    max_output: int

    def __str__(self) -> str:
        return f"ShareGPT-like lengths, at most {self.max_input} words in and {self.max_output} tokens out"

    def prompts(self, count: int, seed: int, /) -> list[Prompt]:
        """Return prompts and lengths of answers that are drawn independently."""
        randomness = random.Random(str(seed))
        return [Prompt(*self._draw(randomness)) for _ in range(count)]

    def _draw(self, randomness: random.Random) -> tuple[str, int]:
        prompt, answer = (
            _draw_length(randomness, mean, most)
            for mean, most in zip(_SHAREGPT_MEANS, (self.max_input, self.max_output), strict=True)
        )
        return random_words(prompt), answer


@dataclass(frozen=True, slots=True)
class Dataset:
    """The prompts of a file, in a random order. If there are too few, they are used again from the start."""

    path: Path
    entries: tuple[Prompt, ...]

    def __str__(self) -> str:
        return f"{len(self.entries)} prompts of {self.path.name}"

    def prompts(self, count: int, seed: int, /) -> list[Prompt]:
        """Return prompts in the order that the seed gives."""
        shuffled = random.Random(str(seed)).sample(self.entries, len(self.entries))
        return [shuffled[index % len(shuffled)] for index in range(count)]


def random_words(count: int) -> str:
    """Return `count` words that no seed determines.

    Otherwise a second run against one server would find its prompts in the server's prefix cache.
    """
    return " ".join(random.SystemRandom().choices(_WORDS.split(), k=count))


def _draw_length(randomness: random.Random, mean: float, most: int) -> int:
    median = mean * math.exp(-(_SHAREGPT_SIGMA**2) / 2)
    while True:
        length = round(median * math.exp(_SHAREGPT_SIGMA * randomness.gauss(0, 1)))
        if _LEAST <= length <= most:
            return length


def read_dataset(path: Path, max_input: int, max_output: int) -> Dataset:
    """Read ShareGPT's JSON (a list of conversations), or JSON lines with `prompt` and `output_len`.

    Of a conversation the first question is the prompt, and the first answer's length is asked for. As in vLLM's
    benchmark, what is shorter than 4 or longer than the limits is left out. UsageError if the file cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--dataset {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    entries = [
        entry
        for entry in _entries(path, text)
        if _LEAST <= len(entry.text.split()) <= max_input and _LEAST <= entry.output_len <= max_output
    ]
    if not entries:
        raise UsageError(
            f"--dataset {path}: has no prompt of {_LEAST} to {max_input} words with an answer of {_LEAST} to "
            f"{max_output} tokens; give ShareGPT's JSON, or lines such as {_EXAMPLE}"
        )
    return Dataset(path, tuple(entries))


_EXAMPLE = '{"prompt": "…", "output_len": 64}'


def _entries(path: Path, text: str) -> Iterator[Prompt]:
    if text.lstrip().startswith("["):
        for number, entry in enumerate(_parsed(path, text, "the file"), 1):
            yield from _first_turn(path, number, entry)
        return
    for number, line in enumerate(text.split("\n"), 1):  # `splitlines` cuts at U+2028 too, which JSON may contain
        if not line.strip():
            continue
        entry = _parsed(path, line, f"line {number}")
        match entry:
            case {"prompt": str(prompt), "output_len": int(length)} if not isinstance(length, bool):
                yield Prompt(prompt, length)
            case _:
                raise UsageError(f"--dataset {path}: line {number} is not of the form {_EXAMPLE}")


def _parsed(path: Path, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--dataset {path}: {where} is not JSON: {error}") from None


def _first_turn(path: Path, number: int, entry: Any) -> Iterator[Prompt]:
    """Yield the first question and answer of a conversation; nothing if it has fewer than two turns."""
    match entry:
        case {"conversations": [{"value": str(question)}, {"value": str(answer)}, *_]}:
            yield Prompt(question, round(len(answer.split()) * _TOKENS_PER_WORD))
        case {"conversations": list()}:
            return
        case _:
            raise UsageError(f"--dataset {path}: entry {number} is not a conversation of ShareGPT's form")
