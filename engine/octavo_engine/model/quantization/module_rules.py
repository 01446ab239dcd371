"""Selects the linear method of each module of a checkpoint, by rules on the modules' names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import methodcaller

from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.expressions import expressions
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.unquantized import UNQUANTIZED

_PLAIN = re.compile(r"[\w.-]+")
"""A name, or some of its components, rather than a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: modules with these names are stored by `method`."""

    method: LinearMethod = UNQUANTIZED
    names: frozenset[str] = frozenset()
    """Full names."""
    parts: frozenset[str] = frozenset()
    """Successive components anywhere in a name, such as `layers.3` or `mlp.gate`."""
    ends: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    """Patterns of the beginnings of names."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """The storage of the weights of a model's linear layers: the first rule that matches a name decides."""

    default: LinearMethod
    """The method of modules that no rule matches."""
    rules: tuple[Rule, ...] = ()
    head: bool = False
    """Whether the rules hold for the model's head, too; otherwise the head is not quantized."""
    kept: tuple[Rule, ...] = ()
    """Rules for embedding, head and experts, which stay in 4 or 8 bits where the device computes with such codes.
    Elsewhere they are dequantized while they are loaded."""
    online: bool = False
    """Whether weights are quantized while they are loaded."""
    kv_in_fp8: bool = True
    """Whether the checkpoint's scales of the KV cache are for a cache in FP8."""
    _by_name: dict[str, int] = field(default_factory=dict, init=False, compare=False, repr=False)
    """The first rule for each full name: a checkpoint may have a rule for each of 20,000 modules."""
    _by_part: dict[str, int] = field(default_factory=dict, init=False, compare=False, repr=False)
    _tests: list[tuple[int, Callable[[str], object]]] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    """The rules of other modules, in order."""
    _found: dict[tuple[str, ...], LinearMethod] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for index, rule in enumerate(self.rules):
            self._by_name.update((name, index) for name in rule.names if name not in self._by_name)
            self._by_part.update((part, index) for part in rule.parts if part not in self._by_part)
            if rule.ends:
                self._tests.append((index, methodcaller("endswith", rule.ends)))
            self._tests.extend((index, pattern.match) for pattern in rule.patterns)

    @property
    def methods(self) -> tuple[LinearMethod, ...]:
        """All methods by which some module may be stored."""
        return (self.default, *(rule.method for rule in self.rules))

    @property
    def name(self) -> str:
        """The name for the plan's table, log lines and `--quantization`."""
        return " and ".join(dict.fromkeys(method.name for method in self.methods if method is not UNQUANTIZED))

    def method(self, *names: str) -> LinearMethod:
        """Return the linear method of the module that has these names, in this program and in files."""
        if names not in self._found:
            first = min((index for name in names for index in self._matches(name)), default=None)
            self._found[names] = self.default if first is None else self.rules[first].method
        return self._found[names]

    def kept_method(self, name: str) -> LinearMethod | None:
        """Return the method of the module `name` by the rules `kept`; None: none is about it."""
        return next((rule.method for rule in self.kept if name in rule.names), None)

    def _matches(self, name: str) -> Iterator[int]:
        """Yield rules that match a name, among them the first one."""
        if name in self._by_name:
            yield self._by_name[name]
        if self._by_part:
            yield from (self._by_part[run] for run in _runs(name) if run in self._by_part)
        for index, test in self._tests:
            if test(name):
                yield index
                return


def not_quantized(config: Fields, names: Iterable[str]) -> Rule:
    """Return the rule of modules that are not quantized, from a list as Hugging Face's quantizers read it: beginnings,
    ends or components of names, or regular expressions for beginnings."""
    plain, texts = list[str](), list[str]()
    for name in names:
        if _PLAIN.fullmatch(name):
            plain.append(name)
        else:
            texts.append(rf"(?:{name})(?:(?<=\.)|(?=\.|$))")
    return Rule(parts=frozenset(plain), ends=tuple(plain), patterns=expressions(config, texts))


def not_quantized_by_wildcards(config: Fields, names: Iterable[str]) -> Rule:
    """Return the rule of modules that are not quantized, from modelopt's list of modules or parents (with `*`)."""
    plain = [name for name in names if "*" not in name and "?" not in name]
    texts = [fnmatch.translate(name) for name in names if "*" in name or "?" in name]
    return Rule(parts=frozenset(plain), patterns=expressions(config, texts))


def names_in(config: Fields, name: str) -> list[str]:
    """Return the list `name` of strings, empty if there is none; ModelLoadError if it is something else."""
    values = config.values.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise config.wrong(name, values, "is not a list of names")
    return values


def _runs(name: str) -> Iterable[str]:
    """Return all sequences of successive components of a name."""
    places = [0, *(place + 1 for place, character in enumerate(name) if character == ".")]
    ends = [*(place - 1 for place in places[1:]), len(name)]
    return (name[first:end] for index, first in enumerate(places) for end in ends[index:])
