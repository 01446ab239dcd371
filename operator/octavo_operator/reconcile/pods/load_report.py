"""A pod's report about itself while it downloads or loads its model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from octavo_operator.api.conditions import LoadingPhase

_MOST_BYTES = 1 << 62
_PHASES = {
    "pulling": LoadingPhase.DOWNLOADING,
    "sizing": LoadingPhase.LOADING,
    "loading": LoadingPhase.LOADING,
    "warmup": LoadingPhase.WARMUP,
    "ready": LoadingPhase.WARMUP,  # until the kubelet's probe has succeeded, too
}


class MemoryReport(BaseModel):
    """The figures of the engine's memory plan, in bytes."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, extra="ignore")
    weight_bytes: int = Field(ge=0, le=_MOST_BYTES)
    step_bytes: int = Field(ge=0, le=_MOST_BYTES)
    kv_bytes_per_token: int = Field(ge=1, le=_MOST_BYTES)
    total_bytes: int = Field(ge=1, le=_MOST_BYTES)


class ModelReport(BaseModel):
    """The identity of the model that the engine has loaded."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, extra="ignore")
    resolved_revision: str | None = Field(None, max_length=64)
    size_bytes: int | None = Field(None, ge=0, le=_MOST_BYTES)


class LoadReport(BaseModel):
    """The body of `/health/startup`. The sender is not trusted: all sizes are bounded."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, extra="ignore")
    phase: str = Field(max_length=32)
    detail: str = Field("", max_length=400)
    bytes_loaded: int | None = Field(None, ge=0, le=_MOST_BYTES)
    bytes_total: int | None = Field(None, ge=0, le=_MOST_BYTES)
    memory: MemoryReport | None = None
    model: ModelReport | None = None

    @property
    def loading_phase(self) -> LoadingPhase | None:
        """The phase in the words of the status; None: one of a newer engine."""
        return _PHASES.get(self.phase)
