"""What is remembered of LLMServices for as long as the process runs, also where the watches are opened again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from octavo_operator.api.status import DisruptionsStatus
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.observation.observe import Key, Object, Observation
from octavo_operator.reconcile.status.changed_templates import ChangedTemplates
from octavo_operator.reconcile.status.deleted_pods import DeletedPods
from octavo_operator.reconcile.status.disruptions import Disruptions
from octavo_operator.reconcile.status.load_balancer import MissingAddresses
from octavo_operator.reconcile.status.unobserved import UnobservedChanges


@dataclass(frozen=True)
class Remembered:
    """What the objects of the API server do not tell: since when something lacks, and which pods are gone."""

    unobserved: UnobservedChanges = field(default_factory=UnobservedChanges)
    disruptions: Disruptions = field(default_factory=Disruptions)
    deleted: DeletedPods = field(default_factory=DeletedPods)
    addresses: MissingAddresses = field(default_factory=MissingAddresses)
    templates: ChangedTemplates = field(default_factory=ChangedTemplates)
    uids: dict[Key, str] = field(default_factory=dict)
    """The uids of the LLMServices of which it is remembered."""
    _begun: set[Key] = field(default_factory=set)

    def begin(self, key: Key, live: Object, observed: Observation, now: str) -> None:
        """Where this process has not looked after it before, take over what the status of `live` holds.

        What was said of pods that were deleted is said of so many replicas as were wanted then. `now` is RFC 3339.
        """
        if key in self._begun:
            return
        self._begun.add(key)
        status = live.get("status")
        stored, deployment = _stored(status), observed.children.get(("Deployment", key[1]), {})
        self.disruptions.restore(key, stored.ended_pods or (), now)
        wanted = value_at(deployment, int, "spec", "replicas")
        if stored.pods_deleted_since and wanted == value_at(status, int, "desiredReplicas"):
            revision = value_at(status, str, "revision", "updated") or ""
            self.deleted.restore(key, deployment, observed.pods, revision, stored.pods_deleted_since)

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self.unobserved.forget(key)
        self.disruptions.forget(key)
        self.deleted.forget(key)
        self.addresses.forget(key)
        self.templates.forget(key)
        self._begun.discard(key)
        self.uids.pop(key, None)


def _stored(status: Mapping[str, Any] | None) -> DisruptionsStatus:
    """Return what a status says that others have done to pods; nothing where another version has written it."""
    with suppress(ValidationError):
        return DisruptionsStatus.model_validate(value_at(status, dict, "disruptions") or {})
    return DisruptionsStatus()
