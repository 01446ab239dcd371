"""The tokenizer that a GGUF file's metadata describes, rebuilt with the `tokenizers` library.

A GGUF file has no tokenizer.json: it names llama.cpp's tokenizer (`gpt2`: byte-level BPE, `llama`: SentencePiece BPE),
the way it cuts text into words (`tokenizer.ggml.pre`), the vocabulary and the merges. Sources: llama.cpp's
`llama-vocab.cpp` for the names and their meaning, transformers' `gguf_tokenizer_mapping.py` for the same parts in the
`tokenizers` library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from octavo_engine.model.gguf.file import read_gguf
from octavo_engine.text.parts import TokenizerParts, library_errors

_CONTROL, _USER_DEFINED = 3, 4
_PREFIX = "tokenizer.ggml."
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_TAIL}"
_QWEN2 = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_CASED}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIXES}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIXES}?"
    rf"|\p{{N}}{{1,3}}{_CASED}"
)
_CJK = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _PUNCTUATED)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")
_SEED = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35 = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SPLITS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe", "lfm2"), _LLAMA3),
    **dict.fromkeys(("chatglm-bpe", "glm4"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"), _QWEN2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "deepseek-coder": _DEEPSEEK_CODER,
    "seed-coder": _SEED,
    "qwen35": _QWEN35,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
}
_SINGLE_DIGITS = frozenset({"smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b"})
"""Pre-tokenizers that cut as GPT-2's does, and each digit from the next one."""
_GPT2 = frozenset({"default", "gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion"})
_IGNORE_MERGES = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken", "llama4", "gpt-4o"})
"""Pre-tokenizers after which a word that is in the vocabulary becomes one token, without merges."""
_BOS_BY_DEFAULT = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})
"""Pre-tokenizers of models whose prompts begin with the BOS token if the metadata does not say so."""


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Return the tokenizer of a GGUF file; ValueError, with what is missing or wrong, if its metadata has none."""
    metadata = _read_metadata(path)
    tokens = _strings(metadata, "tokens")
    kind = _text(metadata, "model", None)
    if kind == "gpt2":
        backend = _byte_level(metadata, tokens)
    elif kind == "llama":
        backend = sentencepiece(metadata, tokens)
    else:
        raise ValueError(f"its metadata names the tokenizer {str(kind)[:80]!r}; this version knows 'gpt2' and 'llama'")
    add_tokens(backend, tokens, metadata)
    bos, eos = _token_id(metadata, "bos", tokens), _token_id(metadata, "eos", tokens)
    by_default = _text(metadata, "pre", None) in _BOS_BY_DEFAULT or kind == "llama"
    if bos is not None and _flag(metadata, "add_bos_token", by_default):
        with library_errors("the token that begins a text cannot be added"):
            backend.post_processor = processors.TemplateProcessing(
                single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
            )
    named = {"bos_token": bos, "eos_token": eos}
    named |= {
        f"{short}_token": _token_id(metadata, name, tokens) for short, name in (("unk", "unknown"), ("pad", "padding"))
    }
    return TokenizerParts(
        backend=backend,
        special_tokens={name: tokens[token_id] for name, token_id in named.items() if token_id is not None},
        bos=bos,
        chat_template=_text(metadata, "chat_template", None),
    )


def _read_metadata(path: Path) -> dict[str, Any]:
    keys = read_gguf(path).metadata
    tokenizer = {key.removeprefix("tokenizer."): value for key, value in keys.items() if key.startswith("tokenizer.")}
    return {key.removeprefix("ggml."): value for key, value in tokenizer.items()}


def _strings(metadata: dict[str, Any], name: str) -> list[str]:
    value = metadata.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(f"its metadata has no {_PREFIX}{name}")
    return value


def _of_type(metadata: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return the value of `name`, or `default` if there is none; ValueError if it is not of type `kind`."""
    value = metadata.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(
            f"its metadata has {name} of type {type(value).__name__}, which should be of type {kind.__name__}"
        )
    return value


def _text(metadata: dict[str, Any], name: str, default: str | None) -> str | None:
    value: str | None = _of_type(metadata, name, str, default)
    return value


def _flag(metadata: dict[str, Any], name: str, default: bool) -> bool:
    value: bool = _of_type(metadata, name, bool, default)
    return value


def _numbers(metadata: dict[str, Any], name: str, count: int) -> list[float] | None:
    """Return the list `name`, which has one number for each of `count` tokens; None if there is no such list."""
    value: list[Any] | None = _of_type(metadata, name, list, None)
    if value is None:
        return None
    if len(value) != count or not all(type(item) in (int, float) and math.isfinite(item) for item in value):
        raise ValueError(f"its metadata has no number for each of the {count} tokens in {_PREFIX}{name}")
    return value


def _token_id(metadata: dict[str, Any], name: str, tokens: Sequence[str]) -> int | None:
    value = _of_type(metadata, f"{name}_token_id", int, None)
    return value if value is not None and 0 <= value < len(tokens) else None


def _byte_level(metadata: dict[str, Any], tokens: Sequence[str]) -> Backend:
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in _strings(metadata, "merges"))]
    pre = _text(metadata, "pre", None) or "default"
    backend = _bpe(vocab=_by_id(tokens), merges=merges, ignore_merges=pre in _IGNORE_MERGES)
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = _pre_tokenizer(pre)
    return backend


def _bpe(**parts: Any) -> Backend:
    with library_errors("its vocabulary and merges do not match"):
        return Backend(models.BPE(**parts))


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if (split := _SPLITS.get(pre)) is not None:
        cuts = (split,) if isinstance(split, str) else split
        return pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in cuts),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre == "falcon":
        threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")
        punctuation = pre_tokenizers.Punctuation("contiguous")
        return pre_tokenizers.Sequence([punctuation, words, pre_tokenizers.Digits(individual_digits=False), threes])
    if pre in _GPT2:
        return words
    known = ", ".join(sorted({*_SPLITS, *_SINGLE_DIGITS, *_GPT2, "falcon"}))
    raise ValueError(f"its metadata names the pre-tokenizer {pre[:80]!r}; this version knows {known}")


def sentencepiece(metadata: dict[str, Any], tokens: Sequence[str], *, always: bool = False) -> Backend:
    """Return SentencePiece's byte-pair encoding of `tokens`; of `metadata` it reads the keys as GGUF files have them.

    `always`: whether a text after a control token gets the space too that is put before the first one.
    """
    vocabulary = _by_id(tokens)
    if "merges" in metadata:
        merges = [(left, right) for left, _, right in (m.partition(" ") for m in _strings(metadata, "merges"))]
    else:
        merges = _merges_from_scores(vocabulary, tokens, _numbers(metadata, "scores", len(tokens)))
    unknown = _token_id(metadata, "unknown", tokens)
    backend = _bpe(
        vocab=vocabulary,
        merges=merges,
        fuse_unk=True,
        byte_fallback=True,
        unk_token=tokens[unknown] if unknown is not None else None,
    )
    prefix = _flag(metadata, "add_space_prefix", True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme=("always" if always else "first") if prefix else "never", split=False
    )
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_from_scores(
    vocabulary: dict[str, int], tokens: Sequence[str], scores: list[float] | None
) -> list[tuple[str, str]]:
    """Return the merges, best first: SentencePiece always merges the pair whose token has the best score."""
    if scores is None:
        raise ValueError(f"its metadata has neither {_PREFIX}merges nor {_PREFIX}scores for each token")
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


def _by_id(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def add_tokens(backend: Backend, tokens: Sequence[str], metadata: dict[str, Any]) -> None:
    """Add the control tokens and the user-defined ones, which are found in a text before it is cut into words."""
    kinds = _numbers(metadata, "token_type", len(tokens))
    if kinds is None:
        return
    pairs = list(zip(tokens, kinds, strict=True))
    control = [token for token, kind in pairs if kind == _CONTROL]
    own = [token for token, kind in pairs if kind == _USER_DEFINED]
    with library_errors("its control tokens cannot be added"):
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
        backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
