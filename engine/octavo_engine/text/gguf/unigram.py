"""SentencePiece's unigram model (`t5`): the vocabulary of XLM-R and the models made from it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from octavo_engine.text.gguf.metadata import PREFIX, UNUSED, Metadata, flag, numbers, octets, token_id
from octavo_engine.text.tokenizer_parts import library_errors


def unigram(metadata: Metadata, tokens: Sequence[str]) -> Backend:
    """Return the tokenizer of a unigram model.

    Spaces beside others and around the text are removed whatever `remove_extra_whitespaces` says: all models of this
    kind remove them, and the converter takes the flag from a setting of transformers that is about decoding.
    """
    scores, unknown = numbers(metadata, "scores", len(tokens)), token_id(metadata, "unknown", tokens, 2)
    if scores is None or unknown is None:
        raise ValueError(f"its metadata has no {PREFIX}scores, or names no unknown_token_id")
    count = _used(metadata, tokens)
    vocabulary = list(zip(tokens[:count], map(float, scores[:count]), strict=True))
    with library_errors("its vocabulary cannot be used"):
        backend = Backend(models.Unigram(vocabulary, unknown, byte_fallback=False))
    if (charsmap := octets(metadata, "precompiled_charsmap")) is not None:
        with library_errors(f"{PREFIX}precompiled_charsmap cannot be used"):
            backend.normalizer = normalizers.Precompiled(charsmap)
    scheme = "always" if flag(metadata, "add_space_prefix", True) else "never"
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return backend


def _used(metadata: Metadata, tokens: Sequence[str]) -> int:
    """Return how many tokens there are before the ones that only fill the embedding; their scores are no scores."""
    kinds = numbers(metadata, "token_type", len(tokens)) or [1] * len(tokens)
    return next((number for number in range(len(tokens), 0, -1) if kinds[number - 1] != UNUSED), len(tokens))
