"""Converts the entries of a tokenizer's vocabulary (pieces) to the bytes that they stand for.

Each kind of tokenizer spells bytes in its own way. An answer is put together from its tokens' bytes rather than by
decoding the list of all its ids again for each token. So the time for a token does not grow with the answer, and only
the bytes of an incomplete UTF-8 character are held back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tokenizers import Tokenizer

Spelling = Callable[[str], bytes]
"""A function from a piece to the bytes that it stands for."""


def bytes_to_unicode() -> dict[int, str]:
    """Return the printable character that GPT-2 writes for each byte (from `encoder.py` of the GPT-2 release)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {byte: chr(byte) for byte in printable}
    for index, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + index)
    return table


_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in piece)
    except KeyError:  # an added token written as plain text
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if (byte := _BYTE_PIECE.fullmatch(piece)) is not None:
        return bytes.fromhex(byte[1])
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _words(piece: str) -> bytes:
    """Return the bytes of a piece that is a word, with the space before it."""
    return f" {piece}".encode()


def _word_pieces(prefix: str) -> Spelling:
    """Return the spelling in which pieces that begin with `prefix` (as BERT's `##ing`) continue a word."""

    def spelled(piece: str) -> bytes:
        return _words(piece) if not piece.startswith(prefix) else piece.removeprefix(prefix).encode()

    return spelled


def _decoder_kinds(decoder: dict[str, object] | None) -> set[str]:
    if decoder is None:
        return set()
    inner = decoder.get("decoders")
    parts = inner if isinstance(inner, list) else []
    return {str(decoder["type"])} | {kind for part in parts for kind in _decoder_kinds(part)}


def spelling_of(backend: Tokenizer) -> Spelling:
    """Return the spelling of a tokenizer's pieces; ValueError if its decoder is of an unknown type."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
    kinds = _decoder_kinds(decoder)
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece
    if decoder is not None and kinds == {"WordPiece"}:
        return _word_pieces(str(decoder["prefix"]))
    if not kinds:  # the library joins the tokens of a tokenizer without a decoder with spaces
        return _words
    raise ValueError(
        f"its decoder is of type {' + '.join(sorted(kinds))}; known are ByteLevel, ByteFallback, Metaspace, WordPiece"
    )
