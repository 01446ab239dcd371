"""The fields that are accepted but do not act yet: one table, which a condition reads to the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from octavo_operator.api.llmservice import LLMServiceSpec


@dataclass(frozen=True)
class Pending:
    """One field of the spec that does not act yet. `blocks`: without it nothing can run."""

    path: str
    sentence: str
    blocks: bool = False

    def __str__(self) -> str:
        shown = ".".join(to_camel(name) for name in self.path.split("."))
        return f"spec.{shown}: {self.sentence}"


_TABLE = (
    Pending("model.source.s3", "weights are not fetched from S3 yet, so no pod is made", blocks=True),
    Pending("adapters", "LoRA adapters are not loaded yet"),
    Pending("cache.host_path", "the cache is not kept on the node yet; it is lost with the pod"),
    Pending("autoscaling", "replicas do not follow the load yet; minReplicas (at least 1) are kept"),
    Pending("rollout.surge_timeout_seconds", "a rollout that finds no free GPU waits; it does not go on in place yet"),
    Pending("monitoring", "nothing is made for the Prometheus Operator yet"),
    Pending("pod_template", "the pod template is not merged over yet"),
)


def not_yet_acted_on(spec: LLMServiceSpec) -> list[Pending]:
    """The rows of the table whose field `spec` sets to something else than its default."""
    return [row for row in _TABLE if _differs_from_default(spec, row.path.split("."))]


def _differs_from_default(model: BaseModel, path: list[str]) -> bool:
    value: Any = model
    for name in path:
        if value is None:
            return False
        default = type(value).model_fields[name].get_default(call_default_factory=True)
        value = getattr(value, name)
    return bool(value != default)
