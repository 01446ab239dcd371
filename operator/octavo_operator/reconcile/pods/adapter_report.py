"""A pod's report about its LoRA adapters: the body of /health/adapters."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from octavo_operator.api.conditions import AdapterState

_LONGEST_MESSAGE = 600


def _known_state(text: Any) -> Any:
    """Return a known state; one that only a newer engine has says no more than that the adapter is not loaded."""
    return text if isinstance(text, str) and text in set(AdapterState) else AdapterState.PENDING


def _beginning(text: Any) -> Any:
    return text[:_LONGEST_MESSAGE] if isinstance(text, str) else text


class ReportedAdapter(BaseModel):
    """One adapter. What answers at a pod's address is not trusted: all is bounded."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    name: str = Field(max_length=256)
    version: str = Field("", max_length=128)
    state: Annotated[AdapterState, BeforeValidator(_known_state)]
    message: Annotated[str, BeforeValidator(_beginning)] = ""


class AdapterReport(BaseModel):
    """All adapters of a pod."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    adapters: tuple[ReportedAdapter, ...] = Field((), max_length=1024)
