"""Hands over a Deployment's number of replicas between the spec and an autoscaler, never through a wrong number.

Under server-side apply, a field that its only owner leaves out is removed, and `replicas` falls to its default of 1: an
outage. So on the way to an autoscaler a second manager of ours first owns the number as it is, beside the operator;
then the operator omits it, and it stays. The autoscaler's first write takes it over from there. On the way back the
autoscaler is deleted first (`without_replicas_during_handover`), and only then the operator sets the number that the
spec asks for: there are never two writers with different numbers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from octavo_operator.api.names import FIELD_MANAGER
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import BY_NAME, Kind

Object = dict[str, Any]

HANDOVER_MANAGER = f"{FIELD_MANAGER}-handover"
DEPLOYMENT = "Deployment"
_TRIES = 3  # another client may change the number between our reading and our sharing it
SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")


class Applier(Protocol):
    """The API calls that a hand-over makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the live object, or None."""

    async def apply(
        self,
        manifest: Object,
        subresource: str = "",
        dry_run: bool = False,
        manager: str = FIELD_MANAGER,
        force: bool = True,
    ) -> Object:
        """Apply the object by server-side apply, and return the live one."""


def start_of(wanted: Sequence[Mapping[str, Any]]) -> int:
    """Return the replicas that a new Deployment gets: the lower bound of the autoscaler among `wanted`."""
    specs = [manifest["spec"] for manifest in wanted if manifest["kind"] in SCALERS]
    return max((spec.get("minReplicas") or spec.get("minReplicaCount") or 1 for spec in specs), default=1)


def is_stopped(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return True if a Deployment for an autoscaler has no replicas, in which state no autoscaler scales it."""
    return is_scaled(manifest) and not live["spec"].get("replicas")


def is_unfinished(manifest: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """Return True if the operator still owns the replicas of a trimmed Deployment that an autoscaler scales.

    It was killed between the writes of `apply_scaled`; the digest alone says that all of the manifest was applied.
    """
    return is_scaled(manifest) and "f:replicas" in json.loads(seen.get("owned") or "{}").get("f:spec", {})


def is_scaled(manifest: Mapping[str, Any]) -> bool:
    """Return True if the manifest is a Deployment whose replicas an autoscaler sets."""
    return manifest["kind"] == DEPLOYMENT and "replicas" not in manifest["spec"]


def without_replicas_during_handover(
    manifest: Object, children: Mapping[tuple[str, str], Any], wanted: set[tuple[str, str]]
) -> Object:
    """Return `manifest`, without its replicas while an autoscaler that is no longer wanted is still there.

    Except for 0: an autoscaler does nothing with a Deployment of none, and suspension does not wait.
    """
    waits = stale_scaler(children, wanted) and (DEPLOYMENT, manifest["metadata"]["name"]) in children
    if manifest["kind"] != DEPLOYMENT or not waits or not manifest["spec"].get("replicas"):
        return manifest
    return {**manifest, "spec": {name: value for name, value in manifest["spec"].items() if name != "replicas"}}


def stale_scaler(
    children: Collection[tuple[str, str]], wanted: Collection[tuple[str, str]] = ()
) -> tuple[str, str] | None:
    """Return an autoscaler that is no longer `wanted` and still there; a ScaledObject first, which has another."""
    there = [child for child in children if child[0] in SCALERS and child not in wanted]
    return max(there, key=lambda child: SCALERS.index(child[0]), default=None)


async def apply_scaled(cluster: Applier, manifest: Object, start: int) -> Object:
    """Apply a Deployment whose replicas are an autoscaler's, and which has `start` of them when it is made.

    May be ended at any point and called again: what is left to do is read from the live object.
    """
    metadata = manifest["metadata"]
    for attempt in range(_TRIES):
        live = await cluster.get(BY_NAME[DEPLOYMENT], metadata["namespace"], metadata["name"])
        if live is None:
            live = await cluster.apply({**manifest, "spec": {**manifest["spec"], "replicas": start}})
        try:
            await _give_up_replicas(cluster, manifest, live, start)
            break
        except ApiError as error:
            if error.status != 409 or attempt == _TRIES - 1:
                raise
    return await cluster.apply(manifest)


async def _give_up_replicas(cluster: Applier, manifest: Object, live: Object, start: int) -> None:
    """Make sure that omitting replicas from the manifest changes nothing; ApiError 409 if `live` is outdated."""
    if not live["spec"].get("replicas"):  # after a suspension: autoscalers leave a Deployment of none alone, forever
        await _share_replicas(cluster, manifest, start, force=True)
    elif owns_replicas(live, FIELD_MANAGER):
        await _share_replicas(cluster, manifest, live["spec"]["replicas"], force=False)


async def _share_replicas(cluster: Applier, manifest: Object, count: int, *, force: bool) -> None:
    metadata = {name: manifest["metadata"][name] for name in ("name", "namespace")}
    only = {
        "apiVersion": manifest["apiVersion"],
        "kind": DEPLOYMENT,
        "metadata": metadata,
        "spec": {"replicas": count},
    }
    await cluster.apply(only, manager=HANDOVER_MANAGER, force=force)


def owns_replicas(live: Mapping[str, Any], manager: str) -> bool:
    """Return True if `manager` owns the live object's replicas by server-side apply."""
    return any(
        entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
        for entry in live["metadata"].get("managedFields") or ()
    )
