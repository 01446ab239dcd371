"""Prompt lookup compared with a plain search, on texts of few different tokens, and of tokens with similar bytes."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from octavo_engine.speculative import ngram
from octavo_engine.speculative.ngram import NGramProposer
from octavo_engine.speculative.settings import SpeculativeSettings


def searched(text: Sequence[int], settings: SpeculativeSettings) -> list[int]:
    """Search by the definition: the longest n-gram first, its last occurrence first."""
    for length in range(settings.lookup_max, settings.lookup_min - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if list(text[start : start + length]) == list(text[-length:]):
                return list(text[start + length : start + length + settings.num_speculative_tokens])
    return []


@pytest.mark.parametrize(
    "tokens", [range(3), range(50), (1, 256, 65536, 16777216, 0, 257)], ids=["few", "many", "alike"]
)
def test_drafts_are_those_of_a_plain_search(tokens: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_MOST_TRIES", 1000)
    rng = random.Random(len(tokens))
    guessed = 0
    for lookup_min, lookup_max, count in ((1, 1, 1), (1, 4, 3), (2, 3, 5), (5, 5, 2)):
        settings = SpeculativeSettings(count, lookup_min, lookup_max)
        proposer = NGramProposer(settings)
        text = rng.choices(tokens, k=rng.randint(1, 9))
        for _ in range(80):
            drafts = list(proposer.propose("a", text))
            assert drafts == searched(text, settings)
            guessed += bool(drafts)
            text = [*text, *rng.choices(tokens, k=rng.randint(1, 4))]
    assert guessed > 20


def test_each_request_has_a_text_of_its_own_until_it_ends() -> None:
    proposer = NGramProposer(SpeculativeSettings(2, 2, 2))
    assert proposer.propose("a", [1, 2, 3, 1, 2]) == [3, 1]
    assert not proposer.propose("b", [4, 1, 2])
    proposer.remove("a")
    proposer.remove("never proposed for")
    assert list(proposer._texts) == ["b"]
    assert not proposer.propose("a", [5, 1, 2]), "another request of the same name"


class CountingBytes(bytearray):
    searches = 0

    def rfind(self, *asked: Any) -> int:
        self.searches += 1
        return super().rfind(*asked)


def test_a_text_made_to_have_no_match_is_given_up_on() -> None:
    """The wanted bytes are found at every token of the text, but in none of them at its beginning."""
    text = CountingBytes(array("i", [65536] * 1000 + [256] * 2).tobytes())
    assert ngram._end_of_match(text, 8) == -1
    assert text.searches == ngram._MOST_TRIES
