"""A model's tokenizer: it turns text into token ids and back, and has the model's special tokens and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.source import ModelFiles
from octavo_engine.text.characters_per_token import most_characters
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.hf_files import read_directory
from octavo_engine.text.token_bytes import spelling_of
from octavo_engine.text.tokenizer_parts import TokenizerParts, library_errors

MAX_VOCABULARY = 1 << 20
"""The most tokens: four times as many as large vocabularies have. A mask of guided decoding has a bit for each."""
MAX_TOKEN_BYTES = 2048
"""The most bytes of one token; they bound the size of answers and of their log probabilities."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """The token ids of two texts in one prompt."""

    ids: list[int]
    second: int
    """The position at which the tokens of the second text begin; 0 if the tokenizer does not mark it."""


class Tokenizer:
    """A loaded tokenizer. Methods may be called from several threads at once."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend: Backend = parts.backend
        self._backend.no_truncation()
        self._backend.no_padding()
        if (size := self._backend.get_vocab_size(with_added_tokens=True)) > MAX_VOCABULARY:
            raise ValueError(f"it has {size} tokens, and at most {MAX_VOCABULARY} are supported")
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        added = self._backend.get_added_tokens_decoder()
        self._spell = spelling_of(self._backend)
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self._control = frozenset(token_id for token_id, token in added.items() if token.special)
        self._control_ids = {added[token_id].content: token_id for token_id in self._control}
        self._bytes: dict[int, bytes] = {}
        self.bos_token_id: int | None = parts.bos
        """The token that begins a text, if the model has one."""
        self.chat_template: ChatTemplate | None = None
        if parts.chat_template is not None:
            self.chat_template = ChatTemplate(parts.chat_template, parts.special_tokens)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the largest token id."""
        longest = max((len(piece.encode()) for piece in vocabulary), default=1)
        self.most_characters = most_characters(self._backend, vocabulary)
        """The most characters that one token can stand for; None if a token can stand for any number of them. It allows
        to refuse or cut a long text before it is tokenized."""
        if self.vocab_size > MAX_VOCABULARY:
            raise ValueError(f"its largest token id is {self.vocab_size - 1}, and ids are below {MAX_VOCABULARY}")
        if longest > MAX_TOKEN_BYTES:
            raise ValueError(f"it has a token of {longest} bytes, and at most {MAX_TOKEN_BYTES} are allowed")

    def encode(self, text: str, add_special_tokens: bool = True, *, continued: bool = False) -> list[int]:
        """Return the token ids of `text`. Special tokens that are written in it become their ids.

        `continued`: whether the model is to continue the text, so that what some tokenizers add after one, such as the
        EOS token, is left out. Releases the interpreter lock while it works (`encode` of the library does not,
        `encode_batch` does).
        """
        found = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        ids = found.ids
        if continued and add_special_tokens:
            texts = found.sequence_ids[::-1]
            if 0 in texts:
                del ids[len(ids) - texts.index(0) :]
        return ids

    def encode_beginning(self, text: str, keep: int, add_special_tokens: bool = True) -> list[int]:
        """Return at most `keep` token ids: the first ones of `text`, and all that the tokenizer adds.

        ValueError if the added ones leave no room for text. Releases the interpreter lock while it works.
        """
        found = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        ids = found.ids
        own = [place for place, text_of in enumerate(found.sequence_ids) if text_of == 0]
        if (added := len(ids) - len(own)) >= keep:
            raise ValueError(f"beside the {added} tokens that the tokenizer adds")
        dropped = frozenset(own[keep - added :])
        return [token for place, token in enumerate(ids) if place not in dropped]

    def encode_pair(self, first: str, second: str, keep: int | None = None) -> TextPair:
        """Return the token ids of two texts as they are joined, at most `keep`: the second loses its last ones.

        ValueError if the others are more than `keep`. Releases the interpreter lock while it works.
        """
        found = self._backend.encode_batch([(first, second)])[0]
        ids, kinds = found.ids, found.type_ids
        excess = 0 if keep is None else max(0, len(ids) - keep)
        own = [place for place, text in enumerate(found.sequence_ids) if text == 1]
        if excess > len(own):
            raise ValueError(f"the first text and what the tokenizer adds have {len(ids) - len(own)} tokens")
        for place in reversed(own[len(own) - excess :]):
            del ids[place], kinds[place]
        return TextPair(ids, kinds.index(1) if 1 in kinds else 0)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids beyond the vocabulary have none."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        """Return True if the token is a control token rather than text."""
        return token_id in self._control

    def control_token(self, text: str) -> int | None:
        """Return the id of the control token that is written as `text`; None if there is none."""
        return self._control_ids.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may end within a character; none for ids beyond the vocabulary."""
        if (known := self._bytes.get(token_id)) is not None:
            return known
        if (spelled := self._added.get(token_id)) is None:
            piece = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
            spelled = self._spell(piece) if piece is not None else b""
        self._bytes[token_id] = spelled
        return spelled

    def token_text(self, token_id: int) -> str:
        """Return the text of one token for people to read; bytes that are not valid UTF-8 become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return the tokenizer of a model on this machine; ModelLoadError, with the reason, if it cannot be used."""
    place = files.gguf or files.directory
    try:
        if files.gguf is not None:
            from octavo_engine.text.gguf.tokenizer import read_gguf_tokenizer

            return _tokenizer(read_gguf_tokenizer(files.gguf))
        if files.directory is not None:
            return _tokenizer(read_directory(files.directory))
    except OSError as error:
        raise ModelLoadError(f"the tokenizer of {place} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ModelLoadError(f"the tokenizer of {place} cannot be used: {error}") from None
    raise ModelLoadError(f"{files.name} has no files to read a tokenizer from")


def _tokenizer(parts: TokenizerParts) -> Tokenizer:
    with library_errors("its parts do not fit together"):
        return Tokenizer(parts)
