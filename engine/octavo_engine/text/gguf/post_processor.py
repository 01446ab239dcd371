"""The special tokens that a tokenizer puts around a text, and between and around two texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from octavo_engine.text.gguf.metadata import Metadata, flag, text, token_id
from octavo_engine.text.gguf.pre_tokenizers import BOS_BY_DEFAULT, CHARACTERS, ROBERTA
from octavo_engine.text.tokenizer_parts import library_errors

_ALWAYS_BOS = CHARACTERS - {"sarvam-moe"}
"""Names of Gemma's vocabularies; some of their files say by mistake that texts have no BOS token."""
_BERT = {"cls": 101, "seperator": 102}
"""The ids of files that do not name them; the keys are spelt as in the files."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of special tokens and where they stand."""

    bos: int | None
    eos: int | None
    separator: int | None
    begin: int | None
    """Stands before a text; None if nothing does."""
    end: int | None
    """Stands after a text, and after each of two."""
    between: int | None
    """Stands between two texts, after the one that ends the first."""
    marks_second: bool
    """Whether the second of two texts has tokens of type 1."""

    @staticmethod
    def of(metadata: Metadata, kind: str, tokens: Sequence[str]) -> SpecialTokens:
        """Return what the metadata says of a vocabulary of this kind."""
        bos, eos = token_id(metadata, "bos", tokens), token_id(metadata, "eos", tokens)
        separator = token_id(metadata, "seperator", tokens)
        if kind == "bert":
            begin = bos if bos is not None else token_id(metadata, "cls", tokens, _BERT["cls"])
            end = token_id(metadata, "seperator", tokens, _BERT["seperator"])
            return SpecialTokens(bos, eos, end, begin, end, None, marks_second=True)
        pre = text(metadata, "pre", None)
        by_default = pre in BOS_BY_DEFAULT or kind == "llama"
        begins = flag(metadata, "add_bos_token", by_default) or kind == "gemma4" or pre in _ALWAYS_BOS
        ends = flag(metadata, "add_eos_token", kind == "t5")
        end = eos if ends else None
        separated = flag(metadata, "add_sep_token", pre in ROBERTA)
        between = separator if separated and end is None else None
        if kind == "t5" or pre in ROBERTA:
            between = end
        return SpecialTokens(bos, eos, separator, bos if begins else None, end, between, marks_second=False)

    def put(self, backend: Backend, tokens: Sequence[str]) -> None:
        """Make `backend` add the tokens; ValueError if it cannot."""
        used = [each for each in (self.begin, self.end, self.between) if each is not None]
        if not used:
            return
        second = int(self.marks_second)
        begin, end, between = ([] if each is None else [tokens[each]] for each in (self.begin, self.end, self.between))
        single = [*begin, "$A", *end]
        ends = [f"{token}:{second}" for token in end]
        with library_errors("the tokens that stand around a text cannot be added"):
            backend.post_processor = processors.TemplateProcessing(
                single=single,
                pair=[*single, *between, f"$B:{second}", *ends] if end or between else None,
                special_tokens=[(tokens[each], each) for each in dict.fromkeys(used)],
            )
