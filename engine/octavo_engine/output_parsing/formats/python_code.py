"""Measures Python source, so that only what is parsed quickly is parsed: `ast.parse` blocks the whole process."""

from __future__ import annotations

import re

_LONGEST = 1 << 16
_MOST_CODE = 1 << 13
_TEXT_OR_COMMENT = re.compile(
    r"""
    (?P<code>[fFtT][rR]?['"])
    | '''(?:\\(?:.|\Z)|[^\\])*?(?:'''|\Z) | \"\"\"(?:\\(?:.|\Z)|[^\\])*?(?:\"\"\"|\Z)
    | '(?:\\.|[^'\\\n])*'? | "(?:\\.|[^"\\\n])*"?
    | \#[^\n]*
    """,
    re.DOTALL | re.VERBOSE,
)
"""A string, also one without an end, or a comment; or the beginning of an f-string or a t-string. What begins matches,
so that nothing is read twice."""


def is_quickly_parsed(source: str) -> bool:
    """Return whether `ast.parse` takes at most about 20 ms: strings take no time, other code 2 us a sign.

    An f-string or a t-string contains code, whose end cannot be found so. It is no constant, and never accepted.
    """
    if len(source) > _LONGEST:
        return False
    code = len(source)
    for found in _TEXT_OR_COMMENT.finditer(source):
        if found["code"]:
            return False
        code -= len(found[0])
    return code <= _MOST_CODE
