"""Computes the length of the longest text, in characters, that one token can stand for, if there is such a limit.

WordPiece makes one `[UNK]` of any long word, and most pre-tokenizers drop whitespace, so that a text of any length can
have a single token. Byte-level BPE keeps every byte: the length of a text shows how many tokens it has at least.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from tokenizers import Tokenizer

from octavo_engine.text.token_bytes import bytes_to_unicode

_DIVIDING = frozenset({"ByteLevel", "Split", "Digits", "Punctuation"})
"""Pre-tokenizers that only divide a text, unless their behavior is `Removed`."""
_BYTES = frozenset(char for byte, char in bytes_to_unicode().items() if byte not in (0xC0, 0xC1, *range(0xF5, 0x100)))
"""The characters by which byte-level vocabularies spell the bytes that occur in UTF-8."""


def most_characters(backend: Tokenizer, vocabulary: Collection[str]) -> int | None:
    """Return the most characters that one token can stand for; None if a token can stand for any number of them.

    With a normalizer other than NFC there is no limit. NFC composes a character of n bytes from at most n + 1 others,
    and that character counts as 2n, since the vocabulary spells each byte beyond ASCII with two bytes.
    """
    pre_tokenizers, normalizers = list(_parts(backend.pre_tokenizer)), list(_parts(backend.normalizer))
    keeps_all = all(part["type"] in _DIVIDING and part.get("behavior") != "Removed" for part in pre_tokenizers)
    if not keeps_all or all(part["type"] != "ByteLevel" for part in pre_tokenizers):
        return None
    if any(part["type"] != "NFC" for part in normalizers):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None  # such a token takes the whitespace beside it
    if type(backend.model).__name__ != "BPE" or not _BYTES.issubset(vocabulary):
        return None  # a byte without a token is dropped, or many of them become one unknown token
    return max(len(piece.encode()) for piece in vocabulary)


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, as its JSON describes them."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()))


def _flat(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inner = part.get("pretokenizers", part.get("normalizers"))
    if part["type"] != "Sequence" or not isinstance(inner, list):
        yield part
        return
    for each in inner:
        yield from _flat(each)
