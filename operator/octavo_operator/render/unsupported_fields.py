"""A table of the spec's fields that are accepted but have no effect yet; condition Degraded repeats it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from octavo_operator.api.engine_flags import SPECULATIVE_METHODS
from octavo_operator.api.llmservice import LLMServiceSpec

Test = Callable[[LLMServiceSpec], bool]


@dataclass(frozen=True)
class UnsupportedField:
    """One field of the spec that does not act yet. No pod is made, since none could run.

    `asked_for_by` says whether a spec sets it to something that does not act.
    """

    path: str
    sentence: str
    asked_for_by: Test

    def __str__(self) -> str:
        shown = ".".join(to_camel(name) for name in self.path.split("."))
        return f"spec.{shown}: {self.sentence}"


def _gives_unknown_method(spec: LLMServiceSpec) -> bool:
    """Return True if engine.extraArgs has a --speculative-config with a method that the engine does not know."""
    given = (argument.partition("=") for argument in spec.engine.extra_args)
    return any(name == "--speculative-config" and _method(text) not in SPECULATIVE_METHODS for name, _, text in given)


def _method(config: str) -> str:
    """Return the method in a --speculative-config; empty if there is none."""
    try:
        values = json.loads(config)
    except (ValueError, RecursionError):
        return ""
    method = values.get("method") if isinstance(values, dict) else None
    return method if isinstance(method, str) else ""


_TABLE = (
    UnsupportedField(
        "engine.extra_args",
        "the engine refuses a --speculative-config whose method is not one of "
        f"{', '.join(sorted(SPECULATIVE_METHODS))}, so no pod is created; omit it",
        _gives_unknown_method,
    ),
)


def unsupported_fields(spec: LLMServiceSpec) -> list[UnsupportedField]:
    """Return the rows of the table that `spec` asks for."""
    return [row for row in _TABLE if row.asked_for_by(spec)]


def blocking(spec: LLMServiceSpec) -> list[UnsupportedField]:
    """Return the unsupported fields for which no pod is made; none for a suspended service, whose pods are to end."""
    return [] if spec.suspend else unsupported_fields(spec)
