"""The fields of a spec that are accepted but have no effect yet: one table, which condition Degraded repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from octavo_operator.api.engine_flags import NOT_YET
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


def _gives(flag: str, value: str | None) -> Test:
    """Whether engine.extraArgs gives `flag` another value than `value`."""

    def applies(spec: LLMServiceSpec) -> bool:
        given = (argument.removeprefix("--").partition("=") for argument in spec.engine.extra_args)
        return any(name == flag and text != value for name, _, text in given)

    return applies


_TABLE = (
    *(
        UnsupportedField(
            "engine.extra_args", f"the engine refuses --{flag} yet, so no pod is made; leave it out",
            _gives(flag, value),
        )
        for flag, value in NOT_YET.items()
    ),
)  # fmt: skip


def unsupported_fields(spec: LLMServiceSpec) -> list[UnsupportedField]:
    """The rows of the table that `spec` asks for."""
    return [row for row in _TABLE if row.asked_for_by(spec)]


def blocking(spec: LLMServiceSpec) -> list[UnsupportedField]:
    """Why no pod is made; nothing where none is asked for, since what runs is to end."""
    return [] if spec.suspend else unsupported_fields(spec)
