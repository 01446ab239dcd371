"""The children of one LLMService, brought to what they should be: applied, mended, pruned; each for itself."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.fights import Fights, HeldError, changed_paths, others
from octavo_operator.reconcile.handover import Applier, apply_scaled, is_scaled, is_stopped, keeps_replicas, start_of
from octavo_operator.reconcile.kinds import BY_NAME, Kind
from octavo_operator.reconcile.observe import Key, Observation, belongs_to, fingerprint, trimmed

Object = dict[str, Any]
Identity = tuple[str, str]
"""Kind and name of a child."""

logger = logging.getLogger(__name__)


class NameTakenError(ApiError):
    """An object of the child's name belongs to somebody else. Not the API server says so, but we."""

    def __init__(self, identity: Identity) -> None:
        kind, name = identity
        message = f"{kind} {name} exists and is not this LLMService's; rename the LLMService, or delete that object"
        super().__init__(409, "NameTaken", message)

    @property
    def transient(self) -> bool:
        """It is that somebody's to keep."""
        return False


class Writer(Applier, Protocol):
    """What reconciling needs of a cluster."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Deletes the object of that uid."""


@dataclass
class Applied:
    """What a pass over the children came to: how they are now, what failed, and what is held back in a fight."""

    children: dict[Identity, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[Identity, ApiError] = field(default_factory=dict)
    held: list[HeldError] = field(default_factory=list)

    @property
    def refusals(self) -> dict[Identity, ApiError]:
        """Those failures that say something about the child."""
        return {identity: failure for identity, failure in self.failures.items() if not failure.transient}


class Children:
    """Applies children. Remembers what was last applied, so that what is as it should be is not written again."""

    def __init__(self, cluster: Writer, fights: Fights) -> None:
        self._cluster = cluster
        self._fights = fights
        self._applied: dict[Key, dict[Identity, tuple[str, str]]] = {}

    def forget(self, key: Key) -> None:
        """The LLMService is gone."""
        self._applied.pop(key, None)
        self._fights.forget(key)

    async def apply(self, key: Key, service: LLMService, observed: Observation, wanted: Sequence[Object]) -> Applied:
        """Applies and prunes each child for itself: a claim that cannot grow must not keep a Deployment from stopping.

        The result has the children as they are now, ahead of the watches: a Deployment as it was before would be rolled
        out still, and be reported so for the new generation.
        """
        applied, start = Applied(), start_of(wanted)
        identities = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
        for each in wanted:
            manifest = keeps_replicas(each, observed.children, identities)
            identity = (manifest["kind"], manifest["metadata"]["name"])
            live = observed.children.get(identity)
            try:
                applied.children[identity] = await self._apply_one(key, service, live, manifest, start)
                continue
            except ApiError as error:
                applied.failures[identity] = error
            except HeldError as held:
                applied.held.append(held)
            if live is not None:
                applied.children[identity] = live
        await self._prune(key, service, observed, identities, applied)
        return applied

    async def _prune(
        self, key: Key, service: LLMService, observed: Observation, wanted: set[Identity], applied: Applied
    ) -> None:
        for identity, child in observed.children.items():
            if identity in wanted or not belongs_to(child, service.name, service.metadata.uid or ""):
                continue
            logger.info("%s/%s: deletes %s %s, no longer wanted", *key, *identity)
            kind = BY_NAME[identity[0]]
            self._applied.get(key, {}).pop(identity, None)
            try:
                await self._cluster.delete(kind, service.namespace, identity[1], child["metadata"]["uid"])
            except ApiError as error:
                applied.failures[identity] = error

    async def _apply_one(
        self, key: Key, service: LLMService, seen: Mapping[str, Any] | None, manifest: Object, start: int
    ) -> Mapping[str, Any]:
        identity = (manifest["kind"], manifest["metadata"]["name"])
        kind, digest = BY_NAME[identity[0]], digest_of(manifest)
        before = self._applied.setdefault(key, {}).get(identity)
        if seen is not None and before == (digest, seen["fingerprint"]):
            return seen
        drifted = before is not None and before[0] == digest
        live: Mapping[str, Any] | None = seen
        if seen is None or drifted:  # not seen: perhaps not ours to see, since the watches select by our label
            live = await self._cluster.get(kind, service.namespace, identity[1])
        if live is not None and before == (digest, fingerprint(live)):
            return trimmed(kind, live)  # only the watch is behind
        if live is not None and not belongs_to(live, service.name, service.metadata.uid or ""):
            raise NameTakenError(identity)
        if drifted and not await self._may_mend(key, kind, live, manifest):
            kept = trimmed(kind, live or {})
        else:
            scaled = is_scaled(manifest)
            live = await (apply_scaled(self._cluster, manifest, start) if scaled else self._cluster.apply(manifest))
            kept = trimmed(kind, live)
            logger.info("%s/%s: %s %s %s", *key, "mended" if drifted else "applied", *identity)
        self._applied[key][identity] = (digest, kept["fingerprint"])
        return kept

    async def _may_mend(self, key: Key, kind: Kind, live: Mapping[str, Any] | None, manifest: Object) -> bool:
        """Whether there is something to mend. HeldError: there is, but it was mended just now already."""
        name = manifest["metadata"]["name"]
        if live is None:
            self._fights.mend(key, (kind.name, name), {(): "somebody who deletes it"})
            return True
        mended = await self._cluster.apply(manifest, dry_run=True)
        paths = changed_paths(live, mended)
        if is_stopped(manifest, live):
            paths.append(("spec", "replicas"))
        if paths:
            self._fights.mend(key, (kind.name, name), {path: others(live, path) for path in paths})
        return bool(paths)


def digest_of(manifest: Object) -> str:
    """A hash of what is wanted."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
