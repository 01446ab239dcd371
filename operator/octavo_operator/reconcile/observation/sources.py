"""The sources of an observation: the watches' indexes, and what pods, autoscaling and regular checks have reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.observation.observe import Index, Key, Observation, observe
from octavo_operator.reconcile.pods.adapter_report import AdapterReport
from octavo_operator.reconcile.pods.load_report import LoadReport
from octavo_operator.reconcile.problem import Problem


def _all_watched(_namespace: str) -> Mapping[Kind, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that a reconcile reads without asking the API server. Others keep the mappings up to date."""

    indexes: Mapping[str, Index]
    """By the plural of each kind, the objects of each LLMService."""
    load_reports: Mapping[str, LoadReport] = field(default_factory=dict)
    """By a pod's uid, how far it has loaded its model."""
    adapter_reports: Mapping[str, AdapterReport] = field(default_factory=dict)
    """By a pod's uid, which LoRA adapters it has."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """By the uid of a pod that serves, why the operator cannot reach it."""
    scaling: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    """For each LLMService that the operator itself scales, the object in the place of a HorizontalPodAutoscaler."""
    unwatched: Callable[[str], Mapping[Kind, str]] = _all_watched
    """Returns the kinds that may not be read in a namespace, each with a sentence that says why."""
    foreign_problems: Mapping[Key, Sequence[Problem]] = field(default_factory=dict)
    """The problems with what acts for an LLMService without being part of it."""

    def observe(self, key: Key) -> Observation:
        """Return the observation of one LLMService as it is now."""
        return replace(
            observe(key, self.indexes, self.unwatched(key[0])),
            reports=self.load_reports,
            adapter_reports=self.adapter_reports,
            unanswered=self.unanswered,
            foreign_problems=self.foreign_problems.get(key, ()),
        )
