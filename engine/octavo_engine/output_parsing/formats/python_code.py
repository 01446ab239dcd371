"""Measures Python source, so that only what is parsed quickly is parsed: `ast.parse` blocks the whole process."""

from __future__ import annotations

import re

_LONGEST = 1 << 16
_MOST_CODE = 1 << 13
_TEXT_OR_COMMENT = re.compile(
    r"""
    (?P<is_code>[fF]?)
    (?P<text>
        '''(?:\\.|[^\\])*?(?:'''|\Z) | \"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)
        | '(?:\\.|[^'\\\n])*'? | "(?:\\.|[^"\\\n])*"?
        | \#[^\n]*
    )
    """,
    re.DOTALL | re.VERBOSE,
)
"""A string, also one without an end, or a comment. An f-string contains expressions."""


def is_quickly_parsed(source: str) -> bool:
    """Return whether `ast.parse` takes at most about 20 ms: strings take no time, other code 2 us a sign."""
    if len(source) > _LONGEST:
        return False
    found = _TEXT_OR_COMMENT.finditer(source)
    return len(source) - sum(len(each["text"]) for each in found if not each["is_code"]) <= _MOST_CODE
