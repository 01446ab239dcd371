"""Grammars in the language of llguidance, made from the forms of structured output that requests ask for.

A grammar is a text: it crosses from HTTP to the engine as a field of `SamplingParams`, and is compiled there
(grammar_masks.py). https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md describes the language.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from octavo_engine.errors import NotAdmissibleError
from octavo_engine.structured.schema_formats import with_exact_formats

MAX_CHARACTERS = 1 << 18
"""The most characters of one grammar, or of the schema that it is made from."""
LIMITS = LLParserLimits(
    max_lexer_states=20_000, max_grammar_size=24_000, step_lexer_fuel=200_000, step_max_items=50_000,
    verbose_errors=False,
)  # fmt: skip
"""The limits of one grammar while it is compiled and while a mask is computed: some 40 MB, and some 20 ms a mask. A
request that needs more ends with an error of its own. A mask's time grows with the square of the number of alternatives
at one place, before they are counted: 10,000 took 1.8 s, in which no other request went on. The size allows 4,000 of
the smallest (0.3 s), or a schema of 2,500 properties."""
WHITESPACE = r"( |\n {0,32})"
"""White space allowed between JSON's tokens: enough for any usual layout, and no endless run of spaces."""

_FORMAT = '"format"'
_WITHOUT_FORCING = json.dumps({"name": "no_forcing", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "a"'})
"""A grammar that nothing refers to. Its option holds for all grammars beside it."""


class GrammarError(NotAdmissibleError):
    """The grammar is wrong, or takes more than `LIMITS`; the message says what."""


def json_schema_grammar(schema: dict[str, Any] | str, *, compact: bool = False) -> str:
    """JSON that is valid under a schema (https://json-schema.org, draft 2020-12), given as an object or as its text.

    `compact`: without anything between its tokens.
    Raises GrammarError if it is no schema, uses what is not supported, or is too large.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    _check_length(text)
    try:
        if _FORMAT in text:
            text = json.dumps(with_exact_formats(json.loads(text)))
        return LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_flexible": False} if compact else {"whitespace_pattern": WHITESPACE}
        )
    except (ValueError, RecursionError) as error:
        raise GrammarError(str(error)) from None


def json_object_grammar(*, compact: bool = False) -> str:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"}, compact=compact)


def regex_grammar(regex: str) -> str:
    """Texts that a regular expression matches as a whole, in the syntax of Rust's regex crate.

    Raises GrammarError if it is too large.
    """
    _check_length(regex)
    return LLMatcher.grammar_from_regex(regex)


def choice_grammar(choices: Sequence[str]) -> str:
    """One of the given texts."""
    return written_grammar("start: " + " | ".join(map(literal, choices)))


def literal(text: str) -> str:
    """A text as a string of Lark, with escapes as in JSON, and for DEL too; GrammarError for what is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{text[:100]!r} holds an unpaired surrogate") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def written_grammar(text: str) -> str:
    """Return the grammar of a text that this package wrote in llguidance's variant of Lark.

    Unlike `lark_grammar` it never takes the text for GBNF, even if one of its strings contains `::=`.
    """
    _check_length(text)
    return LLMatcher.grammar_from_lark(text)


def lark_grammar(text: str) -> str:
    """Sentences of a context-free grammar in llguidance's variant of Lark's notation, or in llama.cpp's GBNF.

    Or in llguidance's JSON, of which only the list of grammars is kept: `without_forcing` adds one at its end.
    """
    _check_length(text)
    if text.lstrip().startswith("{"):
        try:
            return json.dumps({"grammars": json.loads(text)["grammars"]})
        except (ValueError, KeyError, RecursionError) as error:
            raise GrammarError(f"it begins as JSON, but is not a list of grammars for llguidance: {error!r}") from None
    if "::=" in text:
        try:
            text = any_to_lark(text)
        except Exception as error:  # noqa: BLE001  # the converter is a script, which fails in any way
            raise GrammarError(f"it is neither Lark nor GBNF: {error}") from None
    return LLMatcher.grammar_from_lark(text)


def without_forcing(grammar: str) -> str:
    """The same grammar, of whose masks none looks further ahead than one token.

    Otherwise a mask computes the whole text about which the grammar leaves no choice from there on, and which tokens
    the tokenizer would make of it. That was 60 ms for a few bytes as `(b|c)a{30}{10000}`, in which no other request
    went on.
    """
    if not grammar.startswith("{"):
        return f'{{"grammars": [{json.dumps({"lark_grammar": grammar})}, {_WITHOUT_FORCING}]}}'
    grammars, end, rest = grammar.rpartition("]")
    return f"{grammars}, {_WITHOUT_FORCING}{end}{rest}"


def check_grammar(grammar: str) -> None:
    """Raises GrammarError unless it can be compiled."""
    wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    if wrong:
        raise GrammarError(messages[0].strip()[:500])


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"it has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
