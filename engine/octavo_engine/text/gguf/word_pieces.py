"""BERT's WordPiece. A GGUF file has a space, written ▁, before tokens that begin a word, and no ## before others."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from octavo_engine.text.gguf.metadata import CONTROL, UNKNOWN, Metadata, flag, of_kinds, token_id
from octavo_engine.text.tokenizer_parts import library_errors

_SPACE, _CONTINUES = "\N{LOWER ONE EIGHTH BLOCK}", "##"


def word_pieces(metadata: Metadata, tokens: Sequence[str]) -> Backend:
    """Return the tokenizer of a BERT; `tokens` are as `with_hashes` gives them."""
    unknown = token_id(metadata, "unknown", tokens, 100)
    if unknown is None:
        raise ValueError("its metadata names no token that stands for unknown words (unknown_token_id)")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    with library_errors("its vocabulary cannot be used"):
        backend = Backend(models.WordPiece(vocabulary, unk_token=tokens[unknown], continuing_subword_prefix=_CONTINUES))
    lowercase = flag(metadata, "normalizer.lowercase", not _has_capitals(metadata, tokens))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=flag(metadata, "normalizer.strip_accents", lowercase)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUES)
    return backend


def with_hashes(metadata: Metadata, tokens: Sequence[str]) -> list[str]:
    """Return the tokens as BERT's own vocabulary has them, with ## before those that continue a word."""
    special = set(of_kinds(metadata, tokens, CONTROL, UNKNOWN))
    return [token if token in special else _with_hashes(token) for token in tokens]


def _with_hashes(token: str) -> str:
    return token[1:] if token.startswith(_SPACE) and token != _SPACE else _CONTINUES + token


def _has_capitals(metadata: Metadata, tokens: Sequence[str]) -> bool:
    """Return True if a word of the vocabulary has a capital, which a tokenizer that lowercases could never find."""
    special = set(of_kinds(metadata, tokens, CONTROL, UNKNOWN))
    return any(token != token.lower() for token in tokens if token not in special and not token.startswith("["))
