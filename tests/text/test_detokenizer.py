"""Streamed text: complete characters, stop strings found across tokens, nothing lost, and nothing shown too early."""

import itertools
import random

import pytest

from octavo_engine.text.detokenizer import Detokenizer
from octavo_engine.text.tokenizer import Tokenizer
from tests.text.probes import DIGITS, PROBES


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    """The deltas of one token at a time, with the final flush as the last."""
    return [*(detokenizer.push([token]).text for token in ids), detokenizer.push([], last=True).text]


def bytewise(tokenizer: Tokenizer, text: str) -> list[int]:
    """`text` as one token for each byte, the hardest way to split it."""
    table = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
    return [table[bytes([byte])] for byte in text.encode()]


@pytest.mark.parametrize("text", PROBES + DIGITS)
def test_streamed_text_equals_the_whole(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    assert "".join(stream(Detokenizer(smollm2), ids)) == smollm2.decode(ids)


def test_random_ids_equal_decode(smollm2: Tokenizer) -> None:
    randomness = random.Random(7)
    for _ in range(50):
        ids = [randomness.randrange(smollm2.vocab_size) for _ in range(40)]
        assert "".join(stream(Detokenizer(smollm2), ids)) == smollm2.decode(ids)


def test_an_emoji_appears_with_its_last_byte(smollm2: Tokenizer) -> None:
    assert stream(Detokenizer(smollm2), bytewise(smollm2, "a🤗b")) == ["a", "", "", "", "🤗", "b", ""]


def test_broken_utf8_neither_blocks_nor_grows(smollm2: Tokenizer) -> None:
    continuation = next(i for i in range(smollm2.vocab_size) if smollm2.token_bytes(i) == b"\x80")
    deltas = stream(Detokenizer(smollm2), [continuation] * 1000)
    assert deltas[:-1] == ["\ufffd"] * 1000


def test_unfinished_character_is_flushed_at_the_end(smollm2: Tokenizer) -> None:
    deltas = stream(Detokenizer(smollm2), bytewise(smollm2, "a🤗")[:-1])
    assert deltas == ["a", "", "", "", "\ufffd"]


def run(smollm2: Tokenizer, text: str, **kwargs: object) -> tuple[str, str | None, int]:
    detokenizer = Detokenizer(smollm2, **kwargs)  # type: ignore[arg-type]
    delta = detokenizer.push(bytewise(smollm2, text), last=True)
    return delta.text, delta.stop, delta.tokens


def test_stop_string_across_tokens_is_cut_off(smollm2: Tokenizer) -> None:
    assert run(smollm2, "one two three", stop=["two"]) == ("one ", "two", 7)
    assert run(smollm2, "one two three", stop=["two"], include_stop=True) == ("one two", "two", 7)


def test_the_stop_string_complete_first_wins_and_ties_go_by_order(smollm2: Tokenizer) -> None:
    assert run(smollm2, "abcdef", stop=["bcde", "cd"])[:2] == ("ab", "cd")
    assert run(smollm2, "abcdef", stop=["bcd", "cd"])[:2] == ("a", "bcd")
    assert run(smollm2, "abcdef", stop=["cd", "bcd"])[:2] == ("ab", "cd")


def test_only_a_possible_beginning_is_held_back(smollm2: Tokenizer) -> None:
    detokenizer = Detokenizer(smollm2, stop=["END", "ENDE!"])
    deltas = stream(detokenizer, bytewise(smollm2, "xENxEEN"))
    assert deltas == ["x", "", "", "ENx", "", "E", "", "EN"]
    assert detokenizer.stopped is None


def test_a_stop_within_the_first_min_tokens_does_not_count(smollm2: Tokenizer) -> None:
    assert run(smollm2, "stop stop", stop=["stop"], min_tokens=4) == ("stop ", "stop", 9)
    assert run(smollm2, "stop", stop=["stop"], min_tokens=3)[:2] == ("stop", None)  # half of it lies before


def test_nothing_follows_a_stop(smollm2: Tokenizer) -> None:
    detokenizer = Detokenizer(smollm2, stop=["b"])
    assert detokenizer.push(bytewise(smollm2, "abc")).text == "a"
    assert detokenizer.push(bytewise(smollm2, "d"), last=True).text == ""


def test_every_cut_of_every_text_agrees_with_a_plain_search(smollm2: Tokenizer) -> None:
    """Against the definition: the first character at which any stop string is complete."""
    for letters in itertools.product("ab", repeat=7):
        text = "".join(letters)
        for stops in (["aba"], ["ab", "bab"], ["bb", "abba"]):
            ends = [(text.find(s) + len(s), i) for i, s in enumerate(stops) if s in text]
            expected = text
            if ends:
                end, order = min(ends)
                expected = text[: end - len(stops[order])]
            detokenizer = Detokenizer(smollm2, stop=stops)
            assert "".join(stream(detokenizer, bytewise_cache(smollm2, text))) == expected, (text, stops)


def bytewise_cache(tokenizer: Tokenizer, text: str, table: dict[str, int] = {}) -> list[int]:  # noqa: B006
    if not table:
        table.update(zip("ab", bytewise(tokenizer, "ab"), strict=True))
    return [table[char] for char in text]


def test_many_long_stop_strings_take_few_looks_at_each_character(smollm2: Tokenizer) -> None:
    """All beginnings of 64 strings were compared for each token: 1.6 ms, in which all streams waited."""
    looks = 0

    class Looked(str):
        def __getitem__(self, place: object) -> str:
            nonlocal looks
            looks += 1
            return super().__getitem__(place)  # type: ignore[index]

    stop = [*(Looked(f"z{number} " * 60) for number in range(63)), Looked("a" * 200 + "b")]
    detokenizer = Detokenizer(smollm2, stop=stop)
    ids = bytewise(smollm2, "a" * 400)
    looks = 0
    assert "".join(stream(detokenizer, ids)) == "a" * 400
    assert looks <= 3 * len(stop) * len(ids)
