"""Jinja's immutable sandbox with a budget, which limits how much a template computes.

A turn of a loop takes one step of the budget, a call several. Operators, filters and methods that can make a large
value from small ones (`*`, `**`, `%`, `~`, `center`, `replace` ...) are refused if the value would be too large.
A value that holds another one several times (`[x, x]`, nested again and again) is not measured in full: what is made
of it is bounded only by a memory limit of the process.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
"""Steps for one rendering: about a second of work at most. Seven calls for each of 16,384 messages stay below it."""
_STEPS_OF_CALL = 8
MAX_SIZE = 16 << 20
"""The most characters of a text, or items of a list."""
_SIZE_OF_STEP = 1024
"""Characters or items of a new value that count as one step."""
MAX_BITS = 4096
"""The most bits of a number."""
_MAX_WIDTH = 10_000
"""The largest width of a text that is padded or indented."""
_WIDE = re.compile(r"%[^%a-zA-Z]*(\*|\d{5})|\{[^{}]*:[^{}]*\d{5}")
"""Matches a format with a width of five digits or more, or one with a width that `%` takes from the arguments."""
_NESTED = re.compile(r"\{[^{}]*:[^{}]*\{")
"""Matches a format with a part that may be a width which `str.format` takes from the arguments."""
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})

_steps_left: ContextVar[int] = ContextVar("steps left")


class BudgetError(SecurityError):
    """Raised if a template takes more steps than its budget has, or would make a value that is too large."""


@contextmanager
def budget(steps: int = MAX_STEPS) -> Iterator[None]:
    """Allow a template that is rendered in the block to take `steps` steps."""
    token = _steps_left.set(steps)
    try:
        yield
    finally:
        _steps_left.reset(token)


def _spend(steps: int) -> None:
    left = _steps_left.get() - steps
    if left < 0:
        raise BudgetError(f"it takes more than {MAX_STEPS} steps")
    _steps_left.set(left)


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise BudgetError(f"it makes a text or list of {size} parts, more than {MAX_SIZE}")
    _spend(size // _SIZE_OF_STEP)


def _check_width(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and value > _MAX_WIDTH:
            raise BudgetError(f"it pads a text to {value} characters, more than {_MAX_WIDTH}")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 1


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
            _check_size(len(sequence) * max(0, times))
    if _bits(left) + _bits(right) > MAX_BITS:
        raise BudgetError(f"it computes a number of more than {MAX_BITS} bits")


def _check_power(base: Any, exponent: Any) -> None:
    if _bits(base) * max(0, exponent if isinstance(exponent, int) else 1) > MAX_BITS:
        raise BudgetError(f"it computes a number of more than {MAX_BITS} bits")


def _check_format(form: Any, values: Collection[Any]) -> None:
    if not isinstance(form, str):
        return
    if _WIDE.search(form):
        raise BudgetError("it formats with a width that is too large, or that is taken from the arguments")
    if _NESTED.search(form):
        _check_width(values)
    places = form.count("%") + form.count("{")
    _check_size(len(form) + places * max(map(_size, values), default=0))


def _check_binary(operator: str, left: Any, right: Any) -> None:
    match operator:
        case "+":
            _check_size(_size(left) + _size(right))
        case "*":
            _check_product(left, right)
        case "**":
            _check_power(left, right)
        case "%":
            values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
            _check_format(left, values)


def _check_replace(text: str, old: str = "", new: str = "", *_: Any) -> None:
    _check_size(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _check_join(separator: str, values: Collection[Any]) -> None:
    _check_size(len(separator) * len(values) + sum(map(_size, values)))


def _check_method(obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Check a call, if it is of a text's method, and return the arguments to call it with.

    Jinja wraps `format` and `format_map` in functions that have the same name.
    """
    owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
    if name in ("format", "format_map"):
        _check_format(getattr(getattr(obj, "__wrapped__", obj), "__self__", ""), [*args, *kwargs.values()])
    if isinstance(owner, str):
        if name in _PADDING:
            _check_width((*args, *kwargs.values()))
        elif name == "replace":
            _check_replace(owner, *args, **kwargs)
        elif name == "join" and args:
            args = (list(args[0]),)
            _check_join(owner, args[0])
    return args


def _padded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that limits its integer arguments, such as widths, before it calls `original`."""

    @functools.wraps(original)
    def wrapper(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_width((*args, *kwargs.values()))
        return original(value, *args, **kwargs)

    return wrapper


def _format(form: str, *args: Any, **kwargs: Any) -> Any:
    _check_format(form, [*args, *kwargs.values()])
    return FILTERS["format"](form, *args, **kwargs)


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(value), str(old), str(new)
    _check_replace(text, old, new)
    return text.replace(old, new, -1 if count is None else count)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
    items = list(value)
    _check_join(d, items)
    return FILTERS["join"](context, items, d, attribute)


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    _check_width([width])
    _check_size(len(value) + (value.count("\n") + 1) * (width if isinstance(width, int) else len(width)))
    return FILTERS["indent"](value, width, first, blank)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes HTML, which would change the prompt.
    _check_width([indent])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    _check_format(form, [])
    return datetime.now().strftime(form)  # local time, as templates are written for


class _Generation(Extension):
    """Renders the content of `{% generation %}`, a tag that marks the assistant's text for training, as it is."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own way to declare it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Hugging Face's environment for chat templates, with the budget. Its templates must be rendered in `budget()`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Optimizing computes constant expressions while the template is compiled, where there is no budget.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        self.filters |= {"tojson": _tojson, "format": _format, "replace": _replace, "indent": _indent, "join": _join}
        self.filters |= {name: _padded(FILTERS[name]) for name in ("center", "wordwrap", "batch", "slice", "round")}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]
        self.octavo_concat = _concat

    @property
    def octavo_step(self) -> bool:
        """Take one step when it is read: reading an attribute takes far less time than a call that Jinja makes."""
        _spend(1)
        return True

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _add_budget(template)
        template.set_environment(self)
        return template

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  (as Jinja's)
        """Call a function, method or macro for a template, after taking steps and checking the arguments."""
        _spend(_STEPS_OF_CALL)
        return super().call(__context, __obj, *_check_method(__obj, args, kwargs), **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator of `intercepted_binops`, after checking how large its result would be."""
        _check_binary(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _concat(*values: Any) -> str:
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _add_budget(template: nodes.Template) -> None:
    """Make each turn of the template's loops take a step, and replace its operator `~` by `_concat`."""
    for loop in template.find_all(nodes.For):
        loop.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("octavo_step")))
        if loop.test is not None:  # it is evaluated for items that the loop skips, too
            loop.test = nodes.And(nodes.EnvironmentAttribute("octavo_step"), loop.test)
    _replace_concats(template)


def _replace_concats(node: nodes.Node) -> None:
    for name, value in node.iter_fields():
        setattr(node, name, [_replaced(item) for item in value] if isinstance(value, list) else _replaced(value))


def _replaced(value: Any) -> Any:
    if not isinstance(value, nodes.Node):
        return value
    _replace_concats(value)
    if isinstance(value, nodes.Concat):
        return nodes.Call(nodes.EnvironmentAttribute("octavo_concat"), value.nodes, [], None, None)
    return value
