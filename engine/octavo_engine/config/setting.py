"""A setting: one field of a configuration class, with its help and its limits, from which its flag is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from octavo_engine.errors import ConfigurationError
from octavo_engine.sizes import parse_size


def _boolean(text: str) -> bool:
    value = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }.get(text.lower())
    if value is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return value


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": _boolean,
    "size": parse_size,
    "str": str,
    "path": Path,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The description and the limits of a setting. Its name and default are those of the dataclass field."""

    kind: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    metavar: str | None = None
    repeated: bool = False

    def parse(self, name: str, text: str) -> Any:
        """Return the typed value of `text`; the ConfigurationError names the setting and the values that it accepts."""
        try:
            value = _PARSERS[self.kind](text)
        except ValueError as error:
            expected = {"int": "a whole number", "float": "a number"}.get(self.kind)
            raise ConfigurationError(f"--{name}: {f'{text!r} is not {expected}' if expected else error}") from None
        self.check(name, value)
        return value

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigurationError unless `value` is in the setting's range, or None."""
        if value is None:
            return
        if self.choices is not None and value not in self.choices:
            raise ConfigurationError(f"--{name}: {value!r} is not one of {', '.join(map(str, self.choices))}")
        if isinstance(value, str) and self.kind in ("int", "float", "size"):
            unit = ", of bytes" if self.kind == "size" else ""
            raise ConfigurationError(f"--{name}: {value!r} is text; in Python, give a number{unit}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"--{name}: {value} is not a finite number")
        if self.minimum is not None and value < self.minimum:
            raise ConfigurationError(f"--{name}: {value} is below the smallest allowed value, {self.minimum:,}")
        if self.maximum is not None and value > self.maximum:
            raise ConfigurationError(f"--{name}: {value} is above the largest allowed value, {self.maximum:,}")


def setting(default: Any, kind: str, help: str, **limits: Any) -> Any:
    """Return a dataclass field that is also a flag, an `OCTAVO_<NAME>` variable and a key of the configuration file."""
    metadata = {"setting": Setting(kind, help, **limits)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def flag_name(name: str) -> str:
    """Return a setting's name as a flag: `max-num-seqs` for `max_num_seqs`."""
    return name.replace("_", "-")


def settings_of(config: type) -> list[tuple[Field[Any], Setting]]:
    """Return the fields of a configuration class that are settings, in order."""
    return [(f, f.metadata["setting"]) for f in fields(config) if "setting" in f.metadata]


def default_of(f: Field[Any]) -> Any:
    """Return the default of a setting's field."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def check_ranges(config: Any) -> None:
    """Raise ConfigurationError if a value of this configuration is outside its setting's range."""
    for f, known in settings_of(type(config)):
        value = getattr(config, f.name)
        if not known.repeated:
            known.check(flag_name(f.name), value)
