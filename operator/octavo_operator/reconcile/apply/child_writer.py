"""Writes one child so that it is as its manifest says, whatever other managers have added beside our fields.

Server-side apply alone does not do it: it leaves what others have put into our lists, cannot say that a Deployment is
not paused, and is refused where a field of another excludes one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.field_conflicts import REPLICAS, drifted_paths, others
from octavo_operator.reconcile.apply.handover import Applier, apply_scaled, is_scaled, is_stopped
from octavo_operator.reconcile.apply.other_autoscalers import CONTROLLER, AutoscalerReader, who_scales
from octavo_operator.reconcile.fields.added_fields import Path, added_fields
from octavo_operator.reconcile.kinds import BY_NAME, Kind

Object = dict[str, Any]

_INVALID = 422
_HEADLESS = "None"
_WHOLE_LISTS = {"Service": ("spec", "ports")}
"""Lists whose items are all ours: another item would open a way to the pods that the LLMService does not ask for."""


class ChildCluster(Applier, AutoscalerReader, Protocol):
    """The API calls that reconciling makes."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        """Delete the object of that uid, where `version` is given in that resource version alone."""

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """Merge `patch` into an object that exists; the live object."""

    async def put_back(self, manifest: Object, added: Sequence[Path] = (), dry_run: bool = False) -> Object:
        """Set `manifest` without others' items in its lists and the `added` fields; return the live object."""


class ChildWriter:
    """Writes children, and finds what a write would change."""

    def __init__(self, cluster: ChildCluster) -> None:
        self._cluster = cluster

    async def drift(self, live: Mapping[str, Any] | None, manifest: Object) -> dict[Path, str]:
        """Return our fields that an apply would change in the live object, each with the manager that changed it."""
        if live is None:
            return {(): "another client, which deletes it"}
        # It is created again: the API server refuses to change it, even in a dry run.
        if has_other_address(manifest, live):
            address = ("spec", "clusterIP")
            return {address: others(live, address)}
        added = added_fields(manifest, live)
        paths = drifted_paths(live, await self._tried(manifest, added), manifest, added)
        if (extended := extended_list(manifest, live)) and extended not in paths:
            back = await self._cluster.put_back(manifest, added, dry_run=True)
            if not extended_list(manifest, back):  # else admission adds an item to each write
                paths.append(extended)
        if is_stopped(manifest, live):
            paths.append(REPLICAS)
        if is_held(manifest, live):
            paths.append(("spec", "paused"))
        found = {path: others(live, path) for path in paths}
        if found.get(REPLICAS) == CONTROLLER:
            found[REPLICAS] = await who_scales(self._cluster, live)
        return found

    async def _tried(self, manifest: Object, added: Sequence[Path]) -> Object:
        """Return the object as it would be with `manifest` applied and without what others have `added` (a dry run)."""
        try:
            if added:
                return await self._cluster.put_back(manifest, added, dry_run=True)
            return await self._cluster.apply(manifest, dry_run=True)
        except ApiError as error:
            if error.status != _INVALID:
                raise
            return await self._put_back(manifest, error, dry_run=True)

    async def write(self, manifest: Object, start: int, before: Mapping[str, Any] | None) -> Object:
        """Apply a manifest and return the object; `start` is the number of replicas of a new Deployment that is scaled.

        What cannot become the manifest by an apply, as `before` shows, is deleted first. ApiError if a request fails.
        """
        scaled, metadata = is_scaled(manifest), manifest["metadata"]
        if before is not None and is_held(manifest, before):
            kind = BY_NAME[manifest["kind"]]
            await self._cluster.merge(kind, metadata["namespace"], metadata["name"], {"spec": {"paused": False}})
        if before is not None and has_other_address(manifest, before):  # it cannot change
            kind = BY_NAME[manifest["kind"]]
            await self._cluster.delete(kind, metadata["namespace"], metadata["name"], before["metadata"]["uid"])
        try:
            live = await (apply_scaled(self._cluster, manifest, start) if scaled else self._cluster.apply(manifest))
        except ApiError as error:
            if before is None or error.status != _INVALID:
                raise
            return await self._put_back(manifest, error)
        added = added_fields(manifest, live)
        return await self._cluster.put_back(manifest, added) if added or extended_list(manifest, live) else live

    async def _put_back(self, manifest: Object, refusal: ApiError, dry_run: bool = False) -> Object:
        """Remove other managers' items beside ours if the API server refuses the two together; else raise `refusal`."""
        kind, metadata = BY_NAME[manifest["kind"]], manifest["metadata"]
        live = await self._cluster.get(kind, metadata["namespace"], metadata["name"])
        tries = (tuple(added_fields(manifest, live, refused)) if live else () for refused in (False, True))
        for added in dict.fromkeys(tries):
            try:
                return await self._cluster.put_back(manifest, added, dry_run)
            except ApiError as error:
                if error.status != _INVALID:
                    raise error from None
        raise refusal


def extended_list(manifest: Object, live: Mapping[str, Any]) -> Path | None:
    """Return a list of `manifest` that is entirely ours and to which others have added items in `live`."""
    if manifest["kind"] not in _WHOLE_LISTS:
        return None
    section, name = path = _WHOLE_LISTS[manifest["kind"]]
    theirs = (live.get(section) or {}).get(name) or ()
    return path if len(theirs) > len(manifest[section][name]) else None


def is_held(manifest: Object, live: Mapping[str, Any]) -> bool:
    """Return True if a client other than the operator has paused a Deployment: no change would be rolled out.

    The manifest cannot say that it is not paused, since the API server drops `false`.
    """
    return manifest["kind"] == "Deployment" and live["spec"].get("paused", False) and "paused" not in manifest["spec"]


def has_other_address(manifest: Object, live: Mapping[str, Any]) -> bool:
    """Return True if a Service that is to have an address is headless, or the other way round.

    Another client may have deleted it and created it so. A headless Service does not forward its port to that of pods.
    """
    if manifest["kind"] != "Service":
        return False
    wanted, there = (body["spec"].get("clusterIP") == _HEADLESS for body in (manifest, live))
    return bool(wanted != there)
