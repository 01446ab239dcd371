"""The children of one LLMService, reconciled one by one: applied, corrected, or deleted."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.changed_by_admission import AdmissionRetries
from octavo_operator.reconcile.apply.child_writer import (
    ChildCluster,
    ChildWriter,
    extended_list,
    has_other_address,
    is_held,
)
from octavo_operator.reconcile.apply.dependencies import Identity, failure_of_named, identity_of, in_order
from octavo_operator.reconcile.apply.field_conflicts import REPLICAS, Conflict, FieldConflicts
from octavo_operator.reconcile.apply.handover import (
    DEPLOYMENT,
    SCALERS,
    is_stopped,
    is_unfinished,
    start_of,
    without_replicas_during_handover,
)
from octavo_operator.reconcile.apply.name_conflicts import NameTakenError, is_ours, refuse_name_conflict
from octavo_operator.reconcile.apply.orphans import delete_orphan
from octavo_operator.reconcile.apply.other_autoscalers import autoscalers_of
from octavo_operator.reconcile.apply.volume_claims import with_live_size
from octavo_operator.reconcile.fields.live_values import with_live_values
from octavo_operator.reconcile.fields.ownership import digest_of, is_as_applied, marked
from octavo_operator.reconcile.kinds import BY_NAME
from octavo_operator.reconcile.observation.observe import Key, Observation, belongs_to, is_terminating
from octavo_operator.reconcile.observation.trimmed import trimmed

Object = dict[str, Any]

logger = logging.getLogger(__name__)

_CLAIM = "PersistentVolumeClaim"
PASS_SECONDS = 30.0
"""The time after which a reconcile leaves further children to the next, so that workers are free for other services."""


@dataclass
class Applied:
    """The result of a reconcile of the children: their present state, failures, and conflicts with other managers.

    `retry`: in how many seconds a child that admission has changed is to be tried again; None: there is none.
    """

    children: dict[Identity, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[Identity, ApiError] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    retry: float | None = None

    @property
    def refusals(self) -> dict[Identity, ApiError]:
        """The failures that are about the child itself, not about the connection."""
        return {identity: failure for identity, failure in self.failures.items() if not failure.transient}


class _Last(NamedTuple):
    """A child as it was applied last: the digest of its manifest, and the fingerprint and uid of the object."""

    digest: str
    fingerprint: str
    uid: str

    @classmethod
    def of(cls, digest: str, child: Mapping[str, Any]) -> _Last:
        """Return what is to be remembered of a trimmed child."""
        return cls(digest, child["fingerprint"], child["metadata"]["uid"])


class Children:
    """Applies children. Remembers what was last applied, so that an unchanged child is not written again."""

    def __init__(
        self, cluster: ChildCluster, field_conflicts: FieldConflicts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._writer = ChildWriter(cluster)
        self._field_conflicts = field_conflicts
        self._clock = clock
        self._applied: dict[Key, dict[Identity, _Last]] = {}
        self._left: dict[Key, set[Identity]] = {}
        self._admission_retries = AdmissionRetries(clock)

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._applied.pop(key, None)
        self._left.pop(key, None)
        self._admission_retries.forget(key)
        self._field_conflicts.forget(key)

    async def apply(self, key: Key, service: LLMService, observed: Observation, wanted: Sequence[Object]) -> Applied:
        """Apply and prune each child on its own: a claim that cannot grow must not keep a Deployment from stopping.

        The result has the children as they are now, ahead of the watches: a Deployment as it was before would be rolled
        out still, and be reported so for the new generation.
        """
        applied, start, left = Applied(), start_of(wanted), self._left.pop(key, set())
        identities = {identity_of(manifest) for manifest in wanted}
        until = self._clock() + PASS_SECONDS
        for each in in_order(wanted, left):
            manifest = without_replicas_during_handover(each, observed.children, identities)
            identity = identity_of(manifest)
            live = observed.children.get(identity)
            manifest = with_live_size(manifest, live)
            hindrance = self._failure_of_dependency(key, manifest, observed, applied)
            if hindrance and identity[0] in SCALERS:
                if isinstance(hindrance, NameTakenError):  # it must not scale what is not ours: pruned if it is there
                    identities.discard(identity)
                elif live is not None:
                    applied.children[identity] = live
                continue
            try:
                if hindrance:
                    raise hindrance
                if self._clock() >= until:
                    self._left.setdefault(key, set()).add(identity)
                    raise _out_of_time(identity)
                live = await self._apply_one(key, service, live, manifest, start)
            except ApiError as error:
                applied.failures[identity] = error
            if live is not None:
                applied.children[identity] = live
        await self._prune(key, service, observed, identities, applied)
        applied.conflicts, applied.retry = await self._conflicts(key, service), self._admission_retries.seconds(key)
        return applied

    async def _conflicts(self, key: Key, service: LLMService) -> list[Conflict]:
        """Return the present conflicts, without those with autoscalers that were deleted, as between two changes."""
        for name in self._field_conflicts.over_replicas(key):
            with contextlib.suppress(ApiError):  # the next reconcile asks again
                if await autoscalers_of(self._cluster, service.namespace, name) == []:
                    self._field_conflicts.ended(key, (DEPLOYMENT, name), REPLICAS)
        return self._field_conflicts.conflicts(key)

    def _failure_of_dependency(
        self, key: Key, manifest: Object, observed: Observation, applied: Applied
    ) -> ApiError | None:
        """Return the failure of the child that `manifest` names, if that name may be of an object that is not ours.

        It is ours if the watches have seen it, or if it was applied before and `manifest` names it already.
        """
        failed = failure_of_named(manifest, applied.failures)
        if failed is None:
            return None
        named, failure = failed
        known = named in self._applied.get(key, {}) and identity_of(manifest) in observed.children
        ours = named in observed.children or known
        return None if ours and not isinstance(failure, NameTakenError) else failure

    async def _prune(
        self, key: Key, service: LLMService, observed: Observation, wanted: set[Identity], applied: Applied
    ) -> None:
        for identity, child in observed.children.items():
            if identity in wanted:
                continue
            try:
                stays = await self._is_kept(key, service, identity, child)
            except ApiError as error:
                applied.failures[identity], stays = error, True
            if stays:
                applied.children[identity] = child
        for identity in self._applied.get(key, {}).keys() - wanted - observed.children.keys():
            try:
                await self._remove_unseen(key, service, identity)
            except ApiError as error:
                applied.failures[identity] = error

    async def _remove_unseen(self, key: Key, service: LLMService, identity: Identity) -> None:
        """Delete a child that is not wanted, and that no watch shows, as without our label; if it is there and ours.

        Not a claim, whose data somebody may want to keep.
        """
        kind, last = BY_NAME[identity[0]], self._applied[key][identity]
        live = await self._cluster.get(kind, service.namespace, identity[1])
        if live is not None and kind.name != _CLAIM and is_ours(live, service, last.digest, last.uid):
            logger.info("%s/%s: deleting %s %s, which is no longer needed", *key, *identity)
            await self._cluster.delete(kind, service.namespace, identity[1], live["metadata"]["uid"])
        self._applied[key].pop(identity)
        self._field_conflicts.settled(key, identity)

    async def _is_kept(self, key: Key, service: LLMService, identity: Identity, child: Mapping[str, Any]) -> bool:
        """Delete a child that is not wanted; return True if it is being deleted, or is not ours, as KEDA's own HPA."""
        kind = BY_NAME[identity[0]]
        if is_terminating(child):
            return True
        if not belongs_to(child, service.name, service.metadata.uid or ""):
            return not await delete_orphan(self._cluster, kind, child, service)
        logger.info("%s/%s: deleting %s %s, which is no longer needed", *key, *identity)
        self._applied.get(key, {}).pop(identity, None)
        self._field_conflicts.settled(key, identity)
        await self._cluster.delete(kind, service.namespace, identity[1], child["metadata"]["uid"])
        return False

    async def _apply_one(
        self, key: Key, service: LLMService, seen: Mapping[str, Any] | None, manifest: Object, start: int
    ) -> Mapping[str, Any] | None:
        """Return the live child, or None if it was deleted so often that it is not created again for now."""
        identity = identity_of(manifest)
        kind, digest = BY_NAME[identity[0]], digest_of(manifest)
        manifest = marked(manifest, digest)
        before = self._applied.setdefault(key, {}).get(identity)
        unchanged = seen is not None and not is_terminating(seen) and before == _Last.of(digest, seen)
        retried = seen is not None and unchanged and self._admission_retries.is_due(key, identity, manifest, seen)
        if unchanged and not retried:
            return seen
        if seen is not None and before is None and self._needs_no_write(service, seen, manifest, digest):
            return self._remember(key, identity, digest, seen)
        drifted = before is not None and before.digest == digest
        live: Mapping[str, Any] | None = seen
        if seen is None or drifted:  # perhaps it exists without our label, by which the watches select
            live = await self._cluster.get(kind, service.namespace, identity[1])
        if live is not None and drifted and not retried and not is_terminating(live):
            kept = trimmed(kind, live)  # the watch is behind, or does not see it, since it lacks our label
            if before == _Last.of(digest, kept) and not self._admission_retries.is_due(key, identity, manifest, kept):
                return kept
        if live is not None and await delete_orphan(self._cluster, kind, live, service):
            live = await self._cluster.get(kind, service.namespace, identity[1])
        if live is not None:
            refuse_name_conflict(identity, live, service, digest, before.uid if before else "")
        if drifted:
            return await self._correct(key, identity, live, manifest, digest, start)
        self._field_conflicts.settled(key, identity)
        written = await self._writer.write(manifest, start, live)
        return self._remember_applied(key, identity, digest, written, "applied")

    def _needs_no_write(self, service: LLMService, seen: Mapping[str, Any], manifest: Object, digest: str) -> bool:
        """Return True if a child that another operator applied needs no write."""
        return (
            is_as_applied(manifest, digest, seen)
            and not is_terminating(seen)
            and belongs_to(seen, service.name, service.metadata.uid or "")
            and not extended_list(manifest, seen)
            and not seen.get("shared")
            and not is_stopped(manifest, seen)
            and not is_unfinished(manifest, seen)
            and not is_held(manifest, seen)
            and not has_other_address(manifest, seen)
        )

    async def _correct(
        self,
        key: Key,
        identity: Identity,
        live: Mapping[str, Any] | None,
        manifest: Object,
        digest: str,
        start: int,
    ) -> Mapping[str, Any] | None:
        """Revert fields that differ from what was applied, except fields that were reverted a moment ago."""
        kind = BY_NAME[identity[0]]
        drift = await self._writer.drift(live, manifest)
        held = self._field_conflicts.held(key, identity, drift)
        if live is not None and not drift:  # none of our fields was changed
            return self._remember_applied(key, identity, digest, live)
        wanted = with_live_values(manifest, live or {}, held) if held else manifest
        reverted = {path: who for path, who in drift.items() if path not in held}
        if wanted is None or not reverted:
            return trimmed(kind, live) if live is not None else None
        live = await self._writer.write(wanted, start, live)
        self._field_conflicts.reverted(key, identity, reverted)
        if held:  # not yet as it should be, so it is not remembered: the next reconcile looks at it again
            logger.info(
                "%s/%s: corrected %s %s, except for fields that another manager keeps changing", *key, *identity
            )
            return trimmed(kind, live)
        return self._remember_applied(key, identity, digest, live, "corrected")

    def _remember_applied(
        self, key: Key, identity: Identity, digest: str, live: Mapping[str, Any], done: str = ""
    ) -> Mapping[str, Any]:
        """Remember that the child is as it was applied."""
        if done:
            logger.info("%s/%s: %s %s %s", *key, done, *identity)
        return self._remember(key, identity, digest, trimmed(BY_NAME[identity[0]], live))

    def _remember(self, key: Key, identity: Identity, digest: str, seen: Mapping[str, Any]) -> Mapping[str, Any]:
        self._applied[key][identity] = _Last.of(digest, seen)
        return seen


def _out_of_time(identity: Identity) -> ApiError:
    why = f"requests for other objects took {PASS_SECONDS:.0f} s, as happens when an admission webhook does not answer"
    return ApiError(0, "OutOfTime", f"{identity[0]} {identity[1]} was left for the next try: {why}")
