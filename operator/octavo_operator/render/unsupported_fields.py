"""The fields of a spec that are accepted but have no effect yet: one table, which condition Degraded repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from octavo_operator.api.engine_flags import NOT_YET
from octavo_operator.api.llmservice import LLMServiceSpec

Test = Callable[[LLMServiceSpec], bool]


@dataclass(frozen=True)
class UnsupportedField:
    """One field of the spec that does not act yet. `blocks`: no pod is made, since none could run.

    `applies` says whether a spec asks for it; None: whether the field differs from its default.
    """

    path: str
    sentence: str
    blocks: bool = False
    applies: Test | None = None

    def __str__(self) -> str:
        shown = ".".join(to_camel(name) for name in self.path.split("."))
        return f"spec.{shown}: {self.sentence}"

    def asked_for_by(self, spec: LLMServiceSpec) -> bool:
        """Whether `spec` sets the field to something that does not act."""
        return self.applies(spec) if self.applies else _differs_from_default(spec, self.path.split("."))


def _gives(flag: str, value: str | None) -> Test:
    """Whether engine.extraArgs gives `flag` another value than `value`."""

    def applies(spec: LLMServiceSpec) -> bool:
        given = (argument.removeprefix("--").partition("=") for argument in spec.engine.extra_args)
        return any(name == flag and text != value for name, _, text in given)

    return applies


_TABLE = (
    *(
        UnsupportedField(
            "engine.extra_args", f"the engine refuses --{flag} yet, so no pod is made; leave it out", True,
            _gives(flag, value),
        )
        for flag, value in NOT_YET.items()
    ),
    UnsupportedField("adapters", "LoRA adapters are not loaded yet"),
)  # fmt: skip


def unsupported_fields(spec: LLMServiceSpec) -> list[UnsupportedField]:
    """The rows of the table that `spec` asks for."""
    return [row for row in _TABLE if row.asked_for_by(spec)]


def blocking(spec: LLMServiceSpec) -> list[UnsupportedField]:
    """Those of them for which no pod is made; none where none is asked for, since what runs is to end."""
    return [] if spec.suspend else [row for row in unsupported_fields(spec) if row.blocks]


def _differs_from_default(model: BaseModel, path: list[str]) -> bool:
    value: Any = model
    for name in path:
        if value is None:
            return False
        default = type(value).model_fields[name].get_default(call_default_factory=True)
        value = getattr(value, name)
    return bool(value != default)
