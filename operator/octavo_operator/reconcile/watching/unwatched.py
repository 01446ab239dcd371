"""Reads children of kinds that the operator may not list or watch in a namespace: by name, at each reconcile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import OBSERVED, OPTIONAL, Kind
from octavo_operator.reconcile.observation.observe import Key, Observation, belongs_to, child_names
from octavo_operator.reconcile.observation.trimmed import trimmed

UNWATCHED_SECONDS = 30.0
"""The pause between two reconciles where some kinds are not watched: no event reports their changes."""
_FORBIDDEN = 403


class Getter(Protocol):
    """The part of `Cluster` that is needed."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None."""


async def with_unwatched_children(cluster: Getter, key: Key, observed: Observation) -> Observation:
    """Return `observed` with the children of its unwatched kinds, but for those that cannot be asked for either."""
    if not observed.unwatched or observed.service is None:
        return observed
    (namespace, service), uid = key, observed.service["metadata"]["uid"]
    children = dict(observed.children)
    for kind in observed.unwatched.keys() - set(OBSERVED):
        for name in child_names(kind, service):
            try:
                live = await cluster.get(kind, namespace, name)
            except ApiError as error:
                if error.status != _FORBIDDEN and kind not in OPTIONAL:
                    raise
                continue
            if live is not None and belongs_to(live, service, uid):
                children[kind.name, name] = trimmed(kind, live)
    return replace(observed, children=children)
