"""Grammars in the language of llguidance, made from the forms of structured output that requests ask for.

The HTTP process sends a grammar to the engine as a text, in a field of `SamplingParams`, and the engine compiles it
(grammar_masks.py). https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md describes the language.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from octavo_engine.errors import NotAdmissibleError
from octavo_engine.json_schema.alternatives import Alternatives
from octavo_engine.json_schema.closed import closed_schema, joins_schemas
from octavo_engine.json_schema.conditions import Conditions
from octavo_engine.json_schema.contains import ContainedItems
from octavo_engine.json_schema.controls import names_control_characters
from octavo_engine.json_schema.formats import with_exact_format
from octavo_engine.json_schema.growth import Growth
from octavo_engine.json_schema.items import UniqueLists, with_evaluated_items, without_idle_uniqueness
from octavo_engine.json_schema.names import without_property_names
from octavo_engine.json_schema.negations import without_negation
from octavo_engine.json_schema.numbers import with_exact_numbers
from octavo_engine.json_schema.patterns import with_exact_pattern
from octavo_engine.json_schema.properties import with_counted_properties, with_joined_counts
from octavo_engine.json_schema.walk import changed_schema

MAX_CHARACTERS = 1 << 18
"""The most characters of one grammar, or of the schema that it is made from."""
LIMITS = LLParserLimits(
    max_lexer_states=20_000, max_grammar_size=24_000, step_lexer_fuel=200_000, step_max_items=10_000,
    verbose_errors=False,
)  # fmt: skip
"""The limits of one grammar while it is compiled and while a mask is computed: about 40 MB, and about 20 ms a mask. A
request that needs more ends with an error. The items of a mask are the ways in which a grammar can read a text. The
time grows with their square: 0.38 s for 50,000 of `s: s s | "a" | "b" | " "`. A choice of 1,990 texts, the most that
llguidance allows at one position, has fewer than 10,000. The limits of a step do not bound the time for many
alternatives at one position, which grows with the square of their number: 10,000 took 1.8 s, in which all other
requests waited. The max_grammar_size allows 4,000 of the shortest alternatives (0.3 s). grammar_check.py limits the
time to compile."""
WHITESPACE = r"( |\n {0,32})"
"""The white space that is allowed between JSON's tokens: enough for usual layouts, but of limited length."""

_ESCAPES = 'nrbtf\\"'
"""The characters that may follow a backslash in a string. With `u`, an answer could write the name `a` of a property as
`\\u0061`, and the property's value would not have to follow its schema."""
_MAY_BE_INEXACT = re.compile(
    r'"format"|"oneOf"|"not"|"uniqueItems"|"minProperties"|"propertyNames"|"pattern|[0-9.]{16}|[0-9][eE]'
    r'|"if"|"then"|"else"|"depende|"unevaluated|[cC]ontains"|"multipleOf"'
)
"""What is in the JSON text of each schema that llguidance would not follow exactly, or refuses without need."""
_NOTHING_ALLOWED = "NoExtensionBias"
"""llguidance's error for a grammar that no token can begin."""
_TOO_MANY_WAYS = "Too many items ("
"""In llguidance's error where a mask needs more than `step_max_items`."""
_OF_A_SCHEMA = "failed to compile JSON schema: "
_ELSEWHERE = re.compile(r"Resource '(?:json-schema:///)?(.*?)' is not present in a registry")
_NOWHERE = re.compile(r"(?:Pointer|Anchor) '(.*)' does not exist")
"""llguidance's errors for a `$ref` that leads out of the schema, and for one that leads to nothing within it."""
_WITHOUT_FORCING = json.dumps({"name": "no_forcing", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "a"'})
"""A grammar to which no other one refers. Its option `no_forcing` applies to all grammars in the same list."""


class GrammarError(NotAdmissibleError):
    """Raised if a grammar is not valid or exceeds `LIMITS`; the message says why."""


def json_schema_grammar(schema: dict[str, Any] | str, *, compact: bool = False) -> str:
    """Return the grammar of JSON that is valid under a schema, which is given as an object or as its JSON text.

    Schemas are those of https://json-schema.org, draft 2020-12, but see `exact_schema`. With `compact`, JSON has no
    white space between tokens.
    Raises GrammarError if the schema is not valid, uses something that is not supported, or is too large.
    """
    return exact_schema_grammar(exact_schema(schema), compact=compact)


@dataclass(frozen=True, slots=True)
class ExactSchema:
    """A schema under which llguidance allows no values that the schema itself does not allow."""

    value: Any
    """The parsed schema, which has to be an object or a boolean; llguidance refuses others."""
    text: str
    """The same schema as JSON."""


def exact_schema(schema: dict[str, Any] | str) -> ExactSchema:
    """Return a schema, narrowed where llguidance would allow values that the schema does not.

    An object that only lists its properties has no others, as with vLLM's default.
    Raises GrammarError if that cannot be done, or the schema is too large or not valid JSON.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    _check_length(text)
    value = _parsed(text) if isinstance(schema, str) else schema
    try:
        closed = closed_schema(_narrowed(value) if _MAY_BE_INEXACT.search(text) else value)
        return ExactSchema(closed, json.dumps(closed))
    except (ValueError, RecursionError) as error:
        raise GrammarError(str(error)) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from None


def _narrowed(value: Any) -> Any:
    """Return a schema that llguidance follows exactly. A schema's properties are counted with those of its `allOf`."""
    growth = Growth()
    value = changed_schema(value, growth.counted(without_negation))
    value = changed_schema(value, Conditions(value).divided)
    alternatives = Alternatives(value, closable=not joins_schemas(value))
    contained, lists = ContainedItems(value), UniqueLists(value)

    def plain(each: dict[str, Any]) -> Any:
        each = contained.placed(with_evaluated_items(each))
        if not isinstance(each, dict):
            return each
        each = alternatives.with_any_of(lists.listed(without_idle_uniqueness(each)))
        return with_joined_counts(without_property_names(each, root=value))

    joined = changed_schema(value, plain)
    joined = changed_schema(joined, Conditions(joined, {"oneOf"}).divided)

    def exact(each: dict[str, Any]) -> dict[str, Any]:
        return with_exact_pattern(with_exact_numbers(with_exact_format(with_counted_properties(each))))

    return changed_schema(joined, growth.counted(exact))


def json_options(schema: ExactSchema, *, compact: bool = False) -> dict[str, Any]:
    """Return llguidance's options for the grammar of a schema."""
    whitespace = {"whitespace_flexible": False} if compact else {"whitespace_pattern": WHITESPACE}
    named = names_control_characters(schema.value, schema.text)
    return whitespace if named else {**whitespace, "json_allowed_escapes": _ESCAPES}


def exact_schema_grammar(schema: ExactSchema, *, compact: bool = False) -> str:
    """Return the grammar of JSON that is valid under a schema; GrammarError if llguidance refuses the schema."""
    if schema.value is False:
        raise GrammarError("the schema allows no value")
    options = cast("Any", json_options(schema, compact=compact))
    try:
        return LLMatcher.grammar_from_json_schema(schema.text, overrides=options)
    except ValueError as error:
        raise GrammarError(_in_plain_words(str(error))) from None


def json_object_grammar(*, compact: bool = False) -> str:
    """Return the grammar of any JSON object, with `compact` without white space between its tokens."""
    return json_schema_grammar({"type": "object"}, compact=compact)


def regex_grammar(regex: str) -> str:
    """Return the grammar of texts that a regular expression matches in full, in the syntax of Rust's regex crate.

    Raises GrammarError if the expression is too long.
    """
    _check_length(regex)
    return LLMatcher.grammar_from_regex(with_ascii_digits(regex))


def with_ascii_digits(regex: str) -> str:
    r"""Return the same regular expression, in which `\d` means 0 to 9, as in JavaScript and in patterns of schemas.

    In Rust's syntax `\d` is a digit of any script, and models did answer with digits that no program can read.
    """
    return re.sub(r"\\(.)", lambda found: "[0-9]" if found[1] == "d" else found[0], regex, flags=re.DOTALL)


def choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of answers that are one of the given texts."""
    return written_grammar("start: " + " | ".join(map(literal, choices)))


def literal(text: str) -> str:
    """Return a text as a string literal of Lark, escaped as in JSON, as is DEL; GrammarError if it is not Unicode."""
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
    """Return the grammar of a text in llguidance's variant of Lark, in llama.cpp's GBNF, or in llguidance's JSON.

    Of the JSON only the list of grammars is kept, to whose end `without_forcing` adds one.
    Raises GrammarError if the text is too long or cannot be read.
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
        except Exception as error:  # noqa: BLE001  # the converter raises exceptions of any type
            raise GrammarError(f"it is neither Lark nor GBNF: {error}") from None
    return LLMatcher.grammar_from_lark(text)


def without_forcing(grammar: str) -> str:
    """Return the same grammar with an option by which a mask is computed for the next token only.

    Without it, llguidance also computes all of the text that the grammar leaves no choice about from there on, and its
    tokens. That took 60 ms for `(b|c)a{30}{10000}`, in which all other requests waited.
    """
    if not grammar.startswith("{"):
        return f'{{"grammars": [{json.dumps({"lark_grammar": grammar})}, {_WITHOUT_FORCING}]}}'
    grammars, end, rest = grammar.rpartition("]")
    return f"{grammars}, {_WITHOUT_FORCING}{end}{rest}"


def error_in(grammar: str, vocabulary: LLTokenizer) -> str:
    """Compile the grammar and compute its first mask; return why that fails, in at most 500 characters, else nothing.

    This may take seconds, or end the process: grammar_check.py has it done in a child.
    """
    matcher = LLMatcher(vocabulary, without_forcing(grammar), log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return _in_plain_words(reason(matcher))[:500] if matcher.is_error() else ""


def reason(matcher: LLMatcher) -> str:
    """Return why a matcher that has an error cannot continue, in at most 500 characters."""
    error = matcher.get_error().removesuffix("<non-verbose/>").strip()
    if error == _NOTHING_ALLOWED:
        return "the grammar allows no text"
    if _TOO_MANY_WAYS in error:
        return (
            f"the grammar reads the text in more than {LIMITS.step_max_items:,} ways; write rules that read it in one "
            'way, such as `list: item ("," item)*` instead of `list: list "," list`'
        )
    return error[:500] or f"the grammar stopped: {matcher.stop_reason()}"


def _in_plain_words(message: str) -> str:
    """Return a message of llguidance about a schema or a regular expression in words that a client can act upon.

    A schema within a larger grammar is named without that grammar, which the client did not write.
    """
    if _OF_A_SCHEMA in message:
        message = message.partition(_OF_A_SCHEMA)[2].partition("\n")[0]
    if (names := message.removeprefix("Unimplemented keys: ")) != message:
        return f"the schema has keywords that are not supported: {names.strip('[]')}"
    if (name := message.removeprefix("Unknown format: ")) != message:
        return f"the format {name!r} is not supported"
    if message.startswith("oneOf constraints are not supported"):
        return "oneOf is supported only where at most one of its schemas can match, as by a const; use anyOf"
    if message.startswith(("regex parse error", "at 1(8): invalid regex")):  # all of the grammar is this expression
        return f"the regular expression is not valid: {_regex_reason(message)}"
    return _reference_reason(message)


def _reference_reason(message: str) -> str:
    """Return a message about a `$ref` that cannot be followed in plain words, and any other message as it is."""
    if (found := _ELSEWHERE.match(message)) is not None:
        return f"a $ref leads out of the schema, to {found[1]!r}; put what it refers to into the schema's $defs"
    if (found := _NOWHERE.match(message)) is not None:
        return f"a $ref leads to {found[1]!r}, which the schema does not have"
    return message


def _regex_reason(message: str) -> str:
    if "lookarounds not supported" in message:
        return "word boundaries and look-around are not supported"
    return message.rpartition("\nerror: ")[2].partition("\n")[0]


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"it has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
