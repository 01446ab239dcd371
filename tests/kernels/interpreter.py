"""Makes Triton's interpreter skip work that changes no result, so that kernels take a third of the time.

Only for a process with TRITON_INTERPRET=1, in which all of Triton's language is interpreted.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction


def interpret_quickly() -> None:
    """Called before the first kernel is launched."""
    builder = interpreter.interpreter_builder
    # Each sum of integers is computed again in 64 bits and compared, for an assertion that is only made in debug mode.
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = _cached_by_name(interpreter._get_np_dtype)
    interpreter._patch_lang = _once_for_each(interpreter._patch_lang)
    InterpretedFunction.__call__ = _call


def _cached_by_name(function: Any) -> Any:
    """Types are equal if their names are; a table of all of them is made at each call otherwise."""
    found: dict[str, Any] = {}

    def cached(dtype: Any) -> Any:
        if (result := found.get(dtype.name)) is None:
            result = found[dtype.name] = function(dtype)
        return result

    return cached


class _Patched:
    """In the place of what undoes a patch: triton.language stays as the interpreter needs it."""

    def restore(self) -> None:
        """Nothing is undone."""


def _once_for_each(patch: Any) -> Any:
    """`patch` for each function once, not at each of its launches and calls."""

    @cache
    def patched(function: Any) -> _Patched:
        patch(function)
        return _Patched()

    return patched


def _call(function: InterpretedFunction, *arguments: Any, **named: Any) -> Any:
    """A call of one kernel's function by another."""
    interpreter._patch_lang(function.fn)
    return function.rewrite()(*arguments, **named)
