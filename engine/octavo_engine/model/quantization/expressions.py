"""Checks a checkpoint's regular expressions: those that could take long are refused, since Python's `re` backtracks.

The number of ways in which an expression can match a name is the product of its successive choices: how often an item
is repeated, and which alternative is taken. A repeat within a repeat has a power of them. Groups that are not entered
again (atomic groups, lookahead and lookbehind) only add theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as ops  # type: ignore[attr-defined]  # Python has no public way to an expression's tree
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields

_LONGEST = 1000
"""The most characters of an expression."""
_MOST = 50_000
"""The most expressions of a list."""
_REPEATS = 32
"""The number of times that an unbounded repeat counts for: names have some 40 characters."""
_MOST_WAYS = 40_000_000
"""The most ways of all expressions of a list: five unbounded repeats in one, or a thousand expressions with three.

Five take some milliseconds for a name, and each further one ten times as long.
"""
_REPEATED = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)


def expressions(config: Fields, texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of one list; ModelLoadError if one is not valid, or if matching a name could take long."""
    texts = list(texts)
    check_expressions(config, texts)
    return tuple(compiled(config, text, text) for text in texts)


def compiled(config: Fields, text: str, whole: str) -> re.Pattern[str]:
    """Compile the expression `whole` that contains the checked one `text`; ModelLoadError if it is not valid."""
    try:
        return re.compile(whole)
    except (re.error, RecursionError, OverflowError) as error:
        raise _invalid(config, text, error) from None


def _invalid(config: Fields, text: str, error: Exception) -> ModelLoadError:
    return ModelLoadError(f"{config.origin}: {text!r} is not a regular expression ({error})")


def check_expressions(config: Fields, texts: Sequence[str], *, most_ways: int = _MOST_WAYS) -> None:
    """Raise ModelLoadError if a pattern of a list is not valid, or if matching a name could take long."""
    left = most_ways
    if len(texts) > _MOST:
        raise ModelLoadError(f"{config.origin}: {len(texts)} patterns in a list, more than {_MOST}")
    for text in texts:
        if len(text) > _LONGEST:
            raise ModelLoadError(f"{config.origin}: a pattern of {len(text)} characters, more than {_LONGEST}")
        try:
            left -= _ways(_parser.parse(text))
        except (re.error, RecursionError, OverflowError) as error:
            raise _invalid(config, text, error) from None
        if left < 0:
            raise ModelLoadError(
                f"{config.origin}: to match a name with {text!r} could take too long, by itself or after the patterns "
                "before it; write fewer *, +, ? and |, and none that is inside of another's repeated group"
            )


def _ways(items: Sequence[tuple[Any, Any]]) -> int:
    """Return in how many ways a sequence of an expression's items can match; not much more than _MOST_WAYS if more."""
    ways = 1
    for kind, value in reversed(items):
        if kind in (ops.ASSERT, ops.ASSERT_NOT):
            ways += _ways(value[1])
        elif kind is ops.ATOMIC_GROUP:
            ways += _ways(value)
        elif kind in _REPEATED:
            ways *= _repeated(*value)
        elif kind is ops.SUBPATTERN:
            ways *= _ways(value[-1])
        elif kind is ops.BRANCH:
            ways *= sum(map(_ways, value[1]))
        elif kind is ops.GROUPREF_EXISTS:
            ways *= sum(_ways(item) for item in value[1:] if item is not None)
        ways = min(ways, _MOST_WAYS + 1)
    return ways


def _repeated(least: int, most: int, item: Sequence[tuple[Any, Any]]) -> int:
    ways, most = _ways(item), min(most, max(least, _REPEATS))
    if ways == 1:
        return max(least, most - least + 1)
    if most > _MOST_WAYS.bit_length():
        return _MOST_WAYS + 1
    return sum(ways**count for count in range(least, most + 1))
