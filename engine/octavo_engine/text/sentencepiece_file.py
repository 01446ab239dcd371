"""The tokenizer of a directory that has SentencePiece's own file (tokenizer.model) and no tokenizer.json.

The file is a protobuf (sentencepiece_model.proto): pieces with scores and types, and how text is normalised. Only the
byte-pair encoding of Llama is read, whose tokenizer_config.json names LlamaTokenizer; SentencePiece's other models, and
classes that change what it does, are refused by name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from octavo_engine.text.gguf.byte_pairs import character_decoder, character_pairs
from octavo_engine.text.gguf.tokenizer import add_tokens
from octavo_engine.text.tokenizer_parts import library_errors

_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
_BYTE_PAIRS = 2
"""`model_type` of a file whose pieces are merged by their scores."""
_UNKNOWN = 2
_FIXED = {1: 8, 5: 4}
"""Bytes of a field's value by its wire type."""
_MOST_PIECES = 1 << 20
_LONGEST_PIECE = 2048
"""Bytes. All ways to cut a piece in two are tried, so a longer one would take long."""
_CONVERT = (
    "save the tokenizer with transformers to get a tokenizer.json: pip install transformers sentencepiece protobuf; "
    "python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('DIR').save_pretrained('DIR')\""
)


@dataclass(frozen=True, slots=True)
class _SentencePiece:
    """The content of a tokenizer.model."""

    pieces: list[tuple[str, float, int]]
    """The text, the score and the type of each token; the types are those of GGUF files."""
    trainer: Mapping[int, Any]
    normaliser: Mapping[int, Any]


def read_sentencepiece(content: bytes, config: Mapping[str, Any]) -> Backend:
    """Return the tokenizer in `content`, a tokenizer.model, with `config`, the object in tokenizer_config.json.

    ValueError, with what is not supported and the command that makes a tokenizer.json, if it is no plain Llama's.
    """
    if (kind := config.get("tokenizer_class")) not in _CLASSES:
        raise ValueError(
            f"there is no tokenizer.json, and tokenizer.model is read for {' and '.join(_CLASSES)} alone, not for "
            f"{str(kind)[:80]}; {_CONVERT}"
        )
    file = _parse(content)
    if problem := _unlike_llama(file, config):
        raise ValueError(f"there is no tokenizer.json, and tokenizer.model {problem}; {_CONVERT}")
    tokens = [text for text, _, _ in file.pieces]
    kinds = [kind for *_, kind in file.pieces]
    metadata = {
        "scores": [score for _, score, _ in file.pieces],
        "token_type": kinds,
        "unknown_token_id": kinds.index(_UNKNOWN) if _UNKNOWN in kinds else None,
    }
    backend = character_pairs(metadata, tokens)
    _add_spaces(backend, config)
    add_tokens(backend, tokens, metadata)
    _add_own_tokens(backend, config.get("added_tokens_decoder"))
    _surround(backend, config)
    return backend


def _add_spaces(backend: Backend, config: Mapping[str, Any]) -> None:
    """Put a space before a text, and with `legacy` before each text after a control token too."""
    prefix = _flag(config, "add_prefix_space", True)
    scheme = ("always" if _flag(config, "legacy", False) else "first") if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    backend.decoder = character_decoder(prefix=prefix)


def _unlike_llama(file: _SentencePiece, config: Mapping[str, Any]) -> str | None:
    """Return what a Llama's tokenizer does not have, in words; None if there is nothing."""
    if file.trainer.get(3, 1) != _BYTE_PAIRS:
        return "is no byte-pair encoding"
    if not file.trainer.get(35, 0):
        return "has no bytes for unknown characters (byte_fallback)"
    if file.normaliser.get(2):
        return f"normalises text ({_text(file.normaliser.get(1, b''))[:40]})"
    if file.normaliser.get(4, 1):
        return "removes spaces (remove_extra_whitespaces)"
    if not file.normaliser.get(3, 1) and _flag(config, "add_prefix_space", True):
        return "puts no space before a text, which tokenizer_config.json does not say (add_prefix_space)"
    return None


def _add_own_tokens(backend: Backend, added: Any) -> None:
    """Add the tokens of `added_tokens_decoder`, each by its id; ValueError if the library would give it another."""
    if not isinstance(added, Mapping):
        return
    try:
        entries = sorted((int(token_id), dict(entry)) for token_id, entry in added.items())
    except (TypeError, ValueError):
        raise ValueError("tokenizer_config.json is broken: added_tokens_decoder does not name tokens by id") from None
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    for token_id, entry in entries:
        content = entry.get("content")
        if not isinstance(content, str):
            raise ValueError(f"tokenizer_config.json is broken: the added token {token_id} has no text")
        values = {name: bool(entry.get(name, False)) for name in flags}
        with library_errors(f"the added token {token_id} cannot be added"):
            backend.add_tokens([AddedToken(content, special=bool(entry.get("special", False)), **values)])
        if (found := backend.token_to_id(content)) != token_id:
            raise ValueError(f"tokenizer_config.json says that {content[:80]!r} is token {token_id}, but it is {found}")


def _surround(backend: Backend, config: Mapping[str, Any]) -> None:
    """Put the tokens that begin and end a text around it: by default only the first, as Llama does."""
    single, special = ["$A"], []
    if _flag(config, "add_bos_token", True):
        special.append(_special(backend, config, "bos_token", "<s>"))
        single.insert(0, special[-1][0])
    if _flag(config, "add_eos_token", False):
        special.append(_special(backend, config, "eos_token", "</s>"))
        single.append(special[-1][0])
    if special:
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)


def _flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    return default if config.get(name) is None else config[name] is True


def _special(backend: Backend, config: Mapping[str, Any], name: str, default: str) -> tuple[str, int]:
    """Return the text and the id of a token that tokenizer_config.json names; ValueError if there is no such token."""
    value = config.get(name) or default
    text = str(value.get("content") if isinstance(value, Mapping) else value)
    if (token_id := backend.token_to_id(text)) is None:
        raise ValueError(f"tokenizer.model has no token {text[:80]!r}, the {name} of tokenizer_config.json")
    return text, token_id


def _parse(content: bytes) -> _SentencePiece:
    pieces: list[tuple[str, float, int]] = []
    specs: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    try:
        for number, value in _fields(content):
            if number == 1:
                pieces.append(_piece(dict(_fields(value))))
            elif number in specs:
                specs[number] |= dict(_fields(value))
            if len(pieces) > _MOST_PIECES:
                raise ValueError(f"it has more than {_MOST_PIECES} pieces")
    except (IndexError, TypeError, struct.error, UnicodeDecodeError):
        raise ValueError("tokenizer.model is broken: it is not a file of SentencePiece") from None
    if not pieces:
        raise ValueError("tokenizer.model is broken: it has no pieces")
    return _SentencePiece(pieces, specs[2], specs[3])


def _piece(fields: Mapping[int, Any]) -> tuple[str, float, int]:
    text = fields.get(1, b"")
    if len(text) > _LONGEST_PIECE:
        raise ValueError(f"tokenizer.model has a piece of {len(text)} bytes, and at most {_LONGEST_PIECE} are allowed")
    return _text(text), struct.unpack("<f", fields[2])[0] if 2 in fields else 0.0, fields.get(3, 1)


def _text(value: Any) -> str:
    """Return a field's text; ValueError if it is a number instead."""
    if isinstance(value, int):
        raise ValueError("tokenizer.model is broken: it has a number instead of a text")
    return str(value, "utf-8")


def _fields(content: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Yield each field of a protobuf message by its number: an integer, or the bytes of what is not one."""
    view, at = memoryview(content), 0
    while at < len(view):
        key, at = _varint(view, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield key >> 3, value
            continue
        # A wire type that is not known counts as longer than what is left.
        size, at = _varint(view, at) if kind == 2 else (_FIXED.get(kind, len(view)), at)
        if at + size > len(view):
            raise IndexError(size)
        yield key >> 3, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number at `at` in base 128, lowest digits first, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        digit = view[at]
        number, at = number | (digit & 127) << shift, at + 1
        if digit < 128:
            return number, at
    raise IndexError(at)
