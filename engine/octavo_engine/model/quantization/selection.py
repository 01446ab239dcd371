"""Which linear layers of a checkpoint are quantized, and how: rules by the names of modules, as tools write them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.unquantized import UNQUANTIZED

_PLAIN = re.compile(r"[\w.-]+")
"""A name, or some of its components, rather than a pattern."""
_LONGEST_PATTERN = 1000
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The modules of these names are stored by `method`."""

    method: LinearMethod = UNQUANTIZED
    names: frozenset[str] = frozenset()
    """Whole ones."""
    parts: frozenset[str] = frozenset()
    """Components that follow one another somewhere in a name, as in `layers.3` or `mlp.gate`."""
    ends: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    """That names begin with."""

    def matches(self, name: str) -> bool:
        """Whether it is one of the modules."""
        if name in self.names or (self.ends and name.endswith(self.ends)):
            return True
        if self.parts and not self.parts.isdisjoint(_runs(name)):
            return True
        return any(pattern.match(name) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights of a model's linear layers are stored: the first rule that matches a name decides."""

    default: LinearMethod
    """Where no rule matches."""
    rules: tuple[Rule, ...] = ()
    head: bool = False
    """Whether all this holds for the model's head too; else it is not quantized."""
    _found: dict[tuple[str, ...], LinearMethod] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        """For the plan's table, log lines and `--quantization`."""
        methods = (self.default, *(rule.method for rule in self.rules))
        return " and ".join(dict.fromkeys(method.name for method in methods if method is not UNQUANTIZED))

    def method(self, *names: str) -> LinearMethod:
        """That of the module that has these names, in this program and in files."""
        if names not in self._found:
            found = (rule.method for rule in self.rules if any(map(rule.matches, names)))
            self._found[names] = next(found, self.default)
        return self._found[names]


def left_out(config: Fields, names: Iterable[str]) -> Rule:
    """Modules that are not quantized, in a list as Hugging Face's quantizers read it: beginnings, ends or components of
    names, or regular expressions for beginnings."""
    plain, patterns = list[str](), list[re.Pattern[str]]()
    for name in names:
        if _PLAIN.fullmatch(name):
            plain.append(name)
        else:
            patterns.append(expression(config, rf"(?:{name})(?:(?<=\.)|(?=\.|$))"))
    return Rule(parts=frozenset(plain), ends=tuple(plain), patterns=tuple(patterns))


def left_out_by_wildcards(config: Fields, names: Iterable[str]) -> Rule:
    """The same in a list as modelopt writes it: names of modules and of what holds them, `*` for anything."""
    plain = [name for name in names if "*" not in name and "?" not in name]
    patterns = [expression(config, fnmatch.translate(name)) for name in names if "*" in name or "?" in name]
    return Rule(parts=frozenset(plain), patterns=tuple(patterns))


def names_in(config: Fields, name: str) -> list[str]:
    """The list `name` of strings, empty if there is none; ModelLoadError if it is something else."""
    values = config.values.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise config.wrong(name, values, "is no list of names")
    return values


def expression(config: Fields, text: str) -> re.Pattern[str]:
    """A checkpoint's regular expression; ModelLoadError if it is none."""
    if len(text) > _LONGEST_PATTERN:
        raise ModelLoadError(f"{config.origin}: a pattern of {len(text)} characters, more than {_LONGEST_PATTERN}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ModelLoadError(f"{config.origin}: {text!r} is no regular expression ({error})") from None


def _runs(name: str) -> Iterable[str]:
    """All components of a name that follow one another."""
    places = [0, *(place + 1 for place, character in enumerate(name) if character == ".")]
    ends = [*(place - 1 for place in places[1:]), len(name)]
    return (name[first:end] for index, first in enumerate(places) for end in ends[index:])
