r"""Rewrites the patterns of JSON schemas where llguidance would let a string have characters that they exclude.

llguidance matches a string as JSON writes it. A class of characters that has all control characters, such as `[^"]`,
then allows every escape, among them `\"` and `\\`, although the class has neither a quotation mark nor a backslash. One
that has all of them but U+0000 allows exactly its characters.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from octavo_engine.json_schema.negations import are_few, other_texts

_CLASS = re.compile(
    r"""
    (?P<property>\\[pP](?:\{[^}]{0,64}\}|[a-zA-Z]))
    | \\.
    | \[(?P<members>\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\\\]])*)(?:(?P<end>\])|\\?\Z)
    """,
    re.DOTALL | re.VERBOSE,
)
r"""A class of a property, such as `\P{P}`; another escape; or a class of characters. Classes without an end are matched
as well, so that they are read once."""
_AHEAD, _NOT_AHEAD = "(?=", "(?!"
_MOST_AHEAD = 64
"""Look-aheads of one pattern. What is left of it was copied for each of them, and 50,000 took a text worker 20 s."""
_MOST_CHARACTERS = 1 << 17
"""Characters of what the look-aheads of one pattern stand for: 64 of 4,000 characters each took 2 s."""
_ONE = r"(\\[sdwSDW]|\\[^\w]|\[(?!\^\])\^?(?:\\.|[^\\\[\]&~-]|-(?!-))+\]|[^\\\[\](){}.*+?|^$])"
"""A class of characters, or one character."""
_ANY = r"(?:\.|\[\\s\\S\])\*"
_BEGINS, _CONTAINS, _ENDS = re.compile(_ONE), re.compile(_ANY + _ONE), re.compile(rf"{_ANY}{_ONE}\$")
_TWICE = re.compile(rf"{_ANY}{_ONE}\1")
_HAS_AT_MOST, _HAS_ONLY = re.compile(rf"{_ONE}\*\$"), re.compile(rf"{_ONE}\+\$")
_TEXTS = re.compile(r"(\((?:\?:)?)?((?:[\w @:/,;=<>'\"#%&~|-]|\\[^\w|\\])+)(?(1)\))(\$)?")
"""Texts between bars, perhaps in a group, at the beginning of a text or, with an end, as the whole of it."""
_BY_NUMBER = re.compile(r"\\[xuU]\{([0-9a-fA-F]{1,8})\}")
"""A character as only Rust's syntax writes it."""
_CLASSES_WITHIN = re.compile(r"\[|&&|--|~~")
"""What begins a class within a class, or joins two of them, in Rust's syntax only."""


def with_exact_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with exact patterns of its own; the schemas in it are left as they are."""
    exact = dict(schema)
    if isinstance(pattern := schema.get("pattern"), str):
        *ahead, exact["pattern"] = map(_exact, _without_look_ahead(pattern))
        if ahead and isinstance(all_of := schema.get("allOf", []), list):
            exact["allOf"] = [*all_of, *({"pattern": each} for each in ahead)]
    if isinstance(rules := schema.get("patternProperties"), dict):
        exact["patternProperties"] = {_exact(name): rule for name, rule in rules.items()}
    return exact


def _without_look_ahead(pattern: str) -> list[str]:
    """Return patterns all of which a text must match: `^(?:a)` and `^b` for `^(?=a)b`, so that none begins so.

    A pattern with alternatives outside of groups is returned as it is, and so is one with a negative look-ahead to
    which `_opposite` knows none, with a look-ahead that is repeated, as in `^(?!a){0}b`, or with look-aheads that
    stand for too many characters.
    """
    masked = _CLASS.sub(lambda found: "_" * len(found[0]), pattern)
    depths = list(accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in masked))
    if not masked.startswith((f"^{_AHEAD}", f"^{_NOT_AHEAD}")) or any(map(_is_bar, masked, depths)):
        return [pattern]
    found, at, characters = list[str](), 1, 0
    for end in (place for place, depth in enumerate(depths) if depth == 0 and place):
        if not masked.startswith((_AHEAD, _NOT_AHEAD), at):
            break
        ahead = pattern[at + len(_AHEAD) : end]
        other = f"^(?:{ahead})" if masked.startswith(_AHEAD, at) else _opposite(ahead)
        if other is None or len(found) == _MOST_AHEAD or characters > _MOST_CHARACTERS:
            return [pattern]
        found.append(other)
        characters += len(other)
        at = end + 1
    return [pattern] if masked.startswith(("*", "+", "?", "{"), at) else [*found, f"^{pattern[at:]}"]


def _opposite(ahead: str) -> str | None:
    """Return a pattern of the texts that do not begin with what a pattern matches; None if its form is not known.

    Known are a class or character x, `.*x`, `.*xx`, `.*x$`, `x*$`, `x+$`, and texts. The pattern of a `.*` also
    excludes what is beyond the end of a line, where `.*` does not look. That of a `$` also excludes texts with a line
    feed after that end, where Python's `$` matches too.
    """
    for form, other in (
        (_BEGINS, r"^(?:{0}[\s\S]*)?$"),
        (_CONTAINS, "^{0}*$"),
        (_TWICE, "^(?:{1}?{0})*{1}?$"),
    ):
        if (found := form.fullmatch(ahead)) is not None:
            return other.format(_any_but(found[1]), found[1])
    for form, other in ((_ENDS, r"^(?:[\s\S]*{0})?$"), (_HAS_AT_MOST, "{0}"), (_HAS_ONLY, "^$|{0}")):
        if (found := form.fullmatch(ahead)) is not None:
            without_feed = _any_but_line_feed_and(found[1])
            return other.format(without_feed) if without_feed else None
    found = _TEXTS.fullmatch(ahead)
    if found is None or (found[3] and "|" in found[2] and not found[1]):  # the end belongs to the last text alone
        return None
    texts = [re.sub(r"\\(.)", r"\1", text) for text in found[2].split("|")]
    texts += [f"{text}\n" for text in texts if found[3] and text]
    return f"^(?:{other_texts(texts, beginnings=not found[3])})$" if all(texts) and are_few(texts) else None


def _any_but(characters: str) -> str:
    """Return the class of all characters but those of a class, or but one character."""
    if characters.startswith("[^"):
        return "[" + _escaped_first("^", characters[2:])
    return f"[^{characters[1:]}" if characters.startswith("[") else f"[^{characters}]"


def _any_but_line_feed_and(characters: str) -> str | None:
    """Return the class of all characters but those and the line feed; None if it is not known how to write it."""
    other = _any_but(characters)
    if other.startswith("[^"):
        return r"[^\n" + _escaped_first("-", other[2:])
    try:
        return None if re.match(other, "\n") else other
    except re.error:  # a class that only Rust's syntax has
        return None


def _escaped_first(letter: str, members: str) -> str:
    """Return the members of a class, the first of which is escaped if it is this letter."""
    return f"\\{members}" if members.startswith(letter) else members


def _is_bar(letter: str, depth: int) -> bool:
    return letter == "|" and depth == 0


def _exact(pattern: str) -> str:
    """Return the same pattern, whose classes lack U+0000 if they would otherwise have every escape."""
    return _CLASS.sub(_without_null, pattern)


def _without_null(found: re.Match[str]) -> str:
    inexact = found["property"] or (found["end"] and _may_be_inexact(found["members"]))
    return rf"[{found[0]}&&[^\x00]]" if inexact else found[0]


def _may_be_inexact(members: str) -> bool:
    r"""Return whether a class of these members has all control characters, but lacks `"` or `\`.

    Return True too if Python's `re` cannot read the members.
    """
    if _CLASSES_WITHIN.search(members):
        return True
    members = _BY_NUMBER.sub(lambda found: rf"\U{found[1]:0>8}", members)
    try:
        has = re.compile(f"[{members}]").match
    except re.error:
        return True
    return bool(has("\x00") and has("\x1f")) and not (has('"') and has("\\"))
