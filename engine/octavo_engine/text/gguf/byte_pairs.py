"""Byte-pair encoding: of bytes (GPT-2's and its successors'), and of characters (SentencePiece's)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from octavo_engine.text.gguf.metadata import PREFIX, Metadata, by_id, flag, merges, numbers, text, token_id
from octavo_engine.text.gguf.pre_tokenizers import CHARACTERS, COMPOSED, IGNORE_MERGES, pre_tokenizer
from octavo_engine.text.tokenizer_parts import library_errors

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def byte_level(metadata: Metadata, tokens: Sequence[str]) -> Backend:
    """Return the tokenizer of a vocabulary of bytes (`gpt2`), or of one of characters that has a name of these."""
    name = text(metadata, "pre", None) or "default"
    if name in CHARACTERS:
        return characters(metadata, tokens)
    backend = _bpe(vocab=by_id(tokens), merges=merges(metadata), ignore_merges=name in IGNORE_MERGES)
    if name in COMPOSED or metadata.get("architecture") == "gptneox":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizer(name)
    return backend


def characters(metadata: Metadata, tokens: Sequence[str]) -> Backend:
    """Return Gemma 4's tokenizer: SentencePiece's vocabulary with merges in their order, and no space before a text."""
    return _with_spaces(character_pairs(metadata, tokens), prefix=False)


def sentencepiece(metadata: Metadata, tokens: Sequence[str]) -> Backend:
    """Return SentencePiece's byte-pair encoding (`llama`), which puts a space before each text between control tokens.

    So do Llama 2, Phi 3 and Mistral's mistral-common, which tokenize each message alone. A text after a control token
    that begins with a space gets no second one: the chat template of Mistral 7B v0.3 writes it ("[INST] hi"), as its
    tokenizer.json puts a space before the first text alone, which the file does not tell.
    """
    return _with_spaces(character_pairs(metadata, tokens), prefix=flag(metadata, "add_space_prefix", True))


def _with_spaces(backend: Backend, *, prefix: bool) -> Backend:
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    if prefix:
        # The normalizer has left no " ": the first step puts one before the first text, whatever that begins with. The
        # second step escapes it, and puts one before each other text that does not begin with one.
        first, others = ((" ", "first"), (_SPACE, "always"))
        steps = [pre_tokenizers.Metaspace(mark, prepend_scheme=where, split=False) for mark, where in (first, others)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = character_decoder(prefix=prefix)
    return backend


def character_decoder(*, prefix: bool) -> decoders.Decoder:
    """Return the decoder of a vocabulary of characters, which removes the space before a text if there is one."""
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefix else steps)


def character_pairs(metadata: Metadata, tokens: Sequence[str]) -> Backend:
    """Return the model of a vocabulary of characters with a token for each byte; it has no normalizer and decoder.

    Of `metadata` it reads the keys as GGUF files have them.
    """
    if "merges" in metadata:
        pairs = merges(metadata)
    else:
        pairs = _merges_from_scores(by_id(tokens), tokens, numbers(metadata, "scores", len(tokens)))
    unknown = token_id(metadata, "unknown", tokens)
    return _bpe(
        vocab=by_id(tokens),
        merges=pairs,
        fuse_unk=True,
        byte_fallback=True,
        unk_token=tokens[unknown] if unknown is not None else None,
    )


def _bpe(**parts: Any) -> Backend:
    with library_errors("its vocabulary and merges do not match"):
        return Backend(models.BPE(**parts))


def _merges_from_scores(
    vocabulary: dict[str, int], tokens: Sequence[str], scores: list[float] | None
) -> list[tuple[str, str]]:
    """Return the merges, best first: SentencePiece always merges the pair whose token has the best score."""
    if scores is None:
        raise ValueError(f"its metadata has neither {PREFIX}merges nor {PREFIX}scores for each token")
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = sorted(
            ((left, right) for left, right in cuts if left in vocabulary and right in vocabulary),
            key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]),
        )
        found.extend((float(score), len(left), len(right), left, right) for left, right in pairs)
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in found]
