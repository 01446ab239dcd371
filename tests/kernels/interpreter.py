"""Makes Triton's interpreter skip work that changes no result, so that kernels take a third of the time.

Only for a process with TRITON_INTERPRET=1, in which all of Triton's language is interpreted.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from triton.language import core
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
    core.block_type.__init__ = sharing_attributes(core.block_type.__init__)
    core.tensor.__init__ = _sharing_shapes(core.tensor.__init__)


def _cached_by_name(function: Any) -> Any:
    """Types are equal if their names are; a table of all of them is made at each call otherwise."""
    found: dict[str, Any] = {}

    def cached(dtype: Any) -> Any:
        if (result := found.get(dtype.name)) is None:
            result = found[dtype.name] = function(dtype)
        return result

    return cached


def sharing_attributes(initialize: Any) -> Any:
    """Types of blocks with the same elements and sizes are equal; each checks and wraps its sizes otherwise."""
    found: dict[Any, dict[str, Any]] = {}

    def shared(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [getattr(size, "value", size) for size in shape]
        key = (element_ty.name, *sizes, *map(type, sizes))  # 64.0 is equal to 64, and refused
        if (attributes := found.get(key)) is None:
            initialize(self, element_ty, shape)
            found[key] = dict(vars(self))
        else:
            vars(self).update(attributes)

    return shared


def _sharing_shapes(initialize: Any) -> Any:
    """All but its values follows from a tensor's type; its sizes are multiplied and wrapped for each otherwise."""
    found: dict[str, dict[str, Any]] = {}

    def shared(self: Any, handle: Any, of_type: Any) -> None:
        if (attributes := found.get(of_type.name)) is None:
            initialize(self, handle, of_type)
            found[of_type.name] = {name: value for name, value in vars(self).items() if name not in ("handle", "type")}
        else:
            vars(self).update(attributes, handle=handle, type=of_type)

    return shared


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
