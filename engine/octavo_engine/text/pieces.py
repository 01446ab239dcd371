"""The bytes of each token, for each way in which tokenizers spell them.

Answers are put together from bytes rather than by decoding ever longer lists of ids: a token costs the same at the end
of an answer as at its beginning, and what is held back is exactly an unfinished UTF-8 character.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import Tokenizer

Spelling = Callable[[str], bytes]


def bytes_to_unicode() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte (from `encoder.py` of the GPT-2 release)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {byte: chr(byte) for byte in printable}
    for index, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + index)
    return table


_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in piece)
    except KeyError:  # an added token written as plain text
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _words(piece: str) -> bytes:
    return f" {piece}".encode()


def _word_pieces(prefix: str) -> Spelling:
    """Pieces that begin with `prefix` go on with a word (BERT's `##ing`)."""

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
    """Return how the vocabulary's pieces are spelled; raises ValueError for an unknown type of decoder."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
    kinds = _decoder_kinds(decoder)
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece
    if decoder is not None and kinds == {"WordPiece"}:
        return _word_pieces(str(decoder["prefix"]))
    if not kinds:  # such tokenizers are decoded with a space between tokens
        return _words
    raise ValueError(
        f"its decoder is of type {' + '.join(sorted(kinds))}; known are ByteLevel, ByteFallback, Metaspace, WordPiece"
    )
