"""Children in which admission has changed what decides whether they serve and end: they are tried again once a minute.

A webhook or policy that changes our fields changes them in each write, so that a write at once would be of no use; and
no event reports that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo_operator.api.names import SERVICE_LABEL
from octavo_operator.reconcile.apply.dependencies import Identity
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.trimmed import engine_image, node_selector

RETRY_SECONDS = 60.0
"""The pause between two tries, which are dry runs."""


class AdmissionRetries:
    """Remembers when each such child was last tried. `clock`: seconds of no particular origin."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tried: dict[Key, dict[Identity, float]] = {}

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._tried.pop(key, None)

    def seconds(self, key: Key) -> float | None:
        """Return in how many seconds a child of `key` is to be tried again; None: there is no such child.

        One that is overdue could not be tried in this reconcile, as where another failure comes first.
        """
        left = [since + RETRY_SECONDS - self._clock() for since in self._tried.get(key, {}).values()]
        return min((each if each > 0 else RETRY_SECONDS for each in left), default=None)

    def is_due(self, key: Key, identity: Identity, manifest: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
        """Return True if the child `seen`, which is as the last apply left it, is to be tried now."""
        tried = self._tried.setdefault(key, {})
        if not is_changed_by_admission(manifest, seen):
            tried.pop(identity, None)
            return False
        since = tried.setdefault(identity, self._clock())
        if self._clock() - since < RETRY_SECONDS:
            return False
        tried[identity] = self._clock()
        return True


def is_changed_by_admission(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return True if a child lacks the label by which the watches, and a Service's EndpointSlices, are known, or its
    owner; if a Service selects other pods or leads to another port; or if a Deployment has other replicas, or another
    image or nodeSelector with which nothing serves.
    """
    wanted, there = manifest["spec"], live.get("spec") or {}
    label = (manifest["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    if (live["metadata"].get("labels") or {}).get(SERVICE_LABEL) != label:  # no watch reports its changes
        return True
    if not _owners(manifest) <= _owners(live):  # it would stay when the LLMService is deleted
        return True
    if manifest["kind"] == "Service":
        return bool(wanted["selector"] != there.get("selector") or _targets(wanted) != _targets(there))
    if manifest["kind"] != "Deployment":
        return False
    # A webhook may have put a mirror's image there, or other nodes, which are as good where pods run with them.
    as_asked = live["engineImage"] == engine_image(wanted) and live["nodeSelector"] == node_selector(wanted)
    works = live["status"].get("availableReplicas") or as_asked
    return not works or ("replicas" in wanted and wanted["replicas"] != there.get("replicas"))


def _owners(child: Mapping[str, Any]) -> set[str]:
    return {owner["uid"] for owner in child["metadata"].get("ownerReferences") or ()}


def _targets(spec: Mapping[str, Any]) -> list[Any]:
    return [port.get("targetPort") for port in spec.get("ports") or ()]
