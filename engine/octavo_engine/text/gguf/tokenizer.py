"""Rebuilds the tokenizer that a GGUF file's metadata describes, with the `tokenizers` library.

A GGUF file has no tokenizer.json: it names llama.cpp's tokenizer (`gpt2`: byte-level BPE, `llama`: SentencePiece BPE,
`gemma4`: the same with merges, `bert`: WordPiece, `t5`: unigrams), the way it cuts text into words
(`tokenizer.ggml.pre`), the vocabulary and the merges. Sources: llama.cpp's `llama-vocab.cpp` for the names and their
meaning, transformers' `gguf_tokenizer_mapping.py` for the same parts in the `tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo_engine.text.gguf.byte_pairs import byte_level, characters, sentencepiece
from octavo_engine.text.gguf.metadata import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Metadata,
    of_kinds,
    read_metadata,
    strings,
    text,
    token_id,
)
from octavo_engine.text.gguf.post_processor import SpecialTokens
from octavo_engine.text.gguf.pre_tokenizers import ROBERTA
from octavo_engine.text.gguf.unigram import unigram
from octavo_engine.text.gguf.word_pieces import with_hashes, word_pieces
from octavo_engine.text.tokenizer_parts import TokenizerParts, library_errors

_KINDS: dict[str, Callable[[Metadata, Sequence[str]], Backend]] = {
    "bert": word_pieces,
    "gemma4": characters,
    "gpt2": byte_level,
    "llama": sentencepiece,
    "t5": unigram,
}
_SPECIAL = {"unk": "unknown", "pad": "padding", "cls": "cls", "mask": "mask"}
_KEEPS_SPACES_AFTER = ("<unk>", "<s>", "<|endoftext|>")
"""The special tokens of Phi-3 after which spaces and line ends of a text count."""


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Return the tokenizer of a GGUF file; ValueError, with what is missing or wrong, if its metadata has none."""
    metadata = read_metadata(path)
    kind = text(metadata, "model", None) or ""
    if (build := _KINDS.get(kind)) is None:
        known = ", ".join(sorted(_KINDS))
        raise ValueError(f"its metadata names the tokenizer {kind[:80]!r}; this version knows {known}")
    tokens = strings(metadata, "tokens")
    if kind == "bert":
        tokens = with_hashes(metadata, tokens)
    backend = build(metadata, tokens)
    add_tokens(backend, tokens, metadata)
    around = SpecialTokens.of(metadata, kind, tokens)
    around.put(backend, tokens)
    named = {"bos_token": around.bos, "eos_token": around.eos, "sep_token": around.separator}
    named |= {f"{short}_token": token_id(metadata, name, tokens) for short, name in _SPECIAL.items()}
    return TokenizerParts(
        backend=backend,
        special_tokens={name: tokens[number] for name, number in named.items() if number is not None},
        bos=around.bos,
        chat_template=text(metadata, "chat_template", None),
    )


def add_tokens(backend: Backend, tokens: Sequence[str], metadata: Metadata) -> None:
    """Add the control tokens and the user-defined ones, which are found in a text before it is cut into words."""
    kind, pre = text(metadata, "model", None), text(metadata, "pre", None)
    phi3 = metadata.get("architecture") == "phi3" and kind == "llama"
    takes_spaces = {"<mask>"} if kind == "t5" or pre in ROBERTA else {"[MASK]"} if pre == "modern-bert" else set()

    def added(token: str, *, special: bool) -> AddedToken:
        return AddedToken(
            token,
            normalized=False,
            special=special,
            lstrip=token in takes_spaces,
            rstrip=phi3 and token not in _KEEPS_SPACES_AFTER,
        )

    with library_errors("its control tokens cannot be added"):
        control = of_kinds(metadata, tokens, CONTROL, UNKNOWN)
        backend.add_special_tokens([added(token, special=True) for token in control])
        backend.add_tokens([added(token, special=False) for token in of_kinds(metadata, tokens, USER_DEFINED)])
