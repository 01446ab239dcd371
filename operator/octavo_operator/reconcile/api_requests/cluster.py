"""All requests to the API server but the watches: server-side apply, deletion by uid, reads and lists.

Paths are made here, since all kinds are known; `api_server.py` sends the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from octavo_operator.api.names import API_VERSION, FIELD_MANAGER, SCALE_MANAGER, SERVICE_LABEL
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.api_server import ApiServer, Object
from octavo_operator.reconcile.api_requests.history import History
from octavo_operator.reconcile.api_requests.rights import with_remedy
from octavo_operator.reconcile.fields.added_fields import Path, nulls
from octavo_operator.reconcile.kinds import BY_NAME, EVENT, LEASE, LLMSERVICE, OPTIONAL, Kind
from octavo_operator.reconcile.observation.relist import Listing

logger = logging.getLogger(__name__)

_CRD_POLL_SECONDS = 2
_PAGE = 500
_TRIES = 5
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_NO_SUCH_KIND = "install its CRD, or do not ask for it in the spec"
_REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Cluster:
    """The objects of the API server. Made by `connect`, ended by `close`."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.crd_problem = ""
        """Why the API server serves no LLMServices, while `wait_for_crd` waits for them; empty: it does not wait."""
        self._history = History()

    @classmethod
    async def connect(cls) -> Cluster:
        """Connect by the pod's service account, or by KUBECONFIG outside of a cluster."""
        return cls(await ApiServer.connect())

    async def close(self) -> None:
        """Close the connections."""
        await self.server.close()

    async def wait_for_crd(self, answered: Callable[[], object]) -> None:
        """Return once the API server serves LLMServices; log that it does not while waiting.

        `answered` is called with each list of kinds: waiting for the CRD does not count as a hang.
        """
        while why := await self._why_without_crd(answered):
            problem = f"waiting for the CRD of {API_VERSION} (manifests/crd.yaml): {why}"
            if problem != self.crd_problem:
                logger.warning("%s", problem)
            self.crd_problem = problem
            await asyncio.sleep(_CRD_POLL_SECONDS)
        self.crd_problem = ""

    async def _why_without_crd(self, answered: Callable[[], object]) -> str:
        try:
            known = await self.plurals(API_VERSION)
        except ApiError as error:
            return error.message
        answered()
        return "" if LLMSERVICE.plural in known else f"the API server has no {LLMSERVICE.plural}"

    async def plurals(self, api_version: str) -> frozenset[str]:
        """Return the plurals of the kinds that the API server has in `api_version`; none if it does not know that."""
        try:
            known = await self.server.request("GET", f"/apis/{api_version}")
        except ApiError as error:
            if error.status == 404:
                return frozenset()
            raise
        return frozenset(resource["name"] for resource in known["resources"])

    async def probe(self, kind: Kind, namespace: str) -> None:
        """Raise ApiError if objects of the kind cannot be listed and watched in the namespace; "": in the cluster.

        HistoryLostError if the API server has forgotten what it said before.
        """
        before = self._history.newest(kind)
        page = await self.server.request("GET", kind.path(namespace), None, [("limit", "1")], accept=_METADATA_ONLY)
        self._history.note(kind, page["metadata"].get("resourceVersion", ""), before)
        if not await self.may("watch", kind, namespace):
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            why = f'the operator cannot watch resource "{kind.plural}" in API group "{kind.group}"{where}'
            self.server.missing_rights.note(why)
            raise ApiError(403, "Forbidden", with_remedy(why))

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Return True if the API server authorizes the verb, or does not answer the question."""
        asked = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": namespace}
        review = {**_REVIEW, "spec": {"resourceAttributes": asked}}
        try:
            answer = await self.server.request(
                "POST", f"/apis/{_REVIEW['apiVersion']}/selfsubjectaccessreviews", review
            )
        except ApiError as error:
            if error.status in (403, 404):
                return True
            raise
        return bool(answer["status"]["allowed"])

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the live object, or None."""
        try:
            return await self.server.request("GET", kind.path(namespace, name), at_once=kind is LEASE)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(self, kind: Kind, namespace: str) -> Listing:
        """Return the metadata of all objects of the kind in a namespace ("": in all); of children, our own."""
        pages = [page async for page in self._pages(kind, namespace)]
        items = tuple(item for page in pages for item in page.get("items") or ())
        return Listing(kind, int(pages[0]["metadata"]["resourceVersion"]), items)

    async def _pages(self, kind: Kind, namespace: str) -> AsyncIterator[Object]:
        query = [("limit", str(_PAGE))]
        if kind is not LLMSERVICE:
            query.append(("labelSelector", SERVICE_LABEL))
        continued = ""
        while True:
            more = [("continue", continued)] if continued else []
            page = await self.server.request("GET", kind.path(namespace), None, query + more, accept=_METADATA_ONLY)
            yield page
            continued = page["metadata"].get("continue") or ""
            if not continued:
                return

    async def apply(
        self,
        manifest: Object,
        subresource: str = "",
        dry_run: bool = False,
        manager: str = FIELD_MANAGER,
        force: bool = True,
    ) -> Object:
        """Create `manifest` or take its fields over (`force`: our fields are ours); return the live object.

        With `dry_run` nothing is written, and what is returned is what the object would be. Without `force` it is an
        ApiError 409 if another manager has set a field to another value; to the same value, the two share it.
        """
        metadata = manifest["metadata"]
        path = BY_NAME[manifest["kind"]].path(metadata["namespace"], metadata["name"]) + subresource
        query = [("fieldManager", manager), ("force", str(force).lower()), ("fieldValidation", "Strict")]
        if dry_run:
            return await self.server.request("PATCH", path, manifest, [*query, ("dryRun", "All")], _APPLY)
        try:
            return await self.server.write(
                "apply", manifest["kind"] + subresource, "PATCH", path, manifest, query, _APPLY
            )
        except ApiError as error:
            kind = BY_NAME[manifest["kind"]]
            if error.status == 404 and kind in OPTIONAL and kind.plural not in await self.plurals(kind.api_version):
                raise ApiError(404, error.reason, f"this cluster has no {kind.name}: {_NO_SUCH_KIND}") from None
            raise

    async def put_back(self, manifest: Object, added: Sequence[Path] = (), dry_run: bool = False) -> Object:
        """Set `manifest` without other managers' items in its lists and the `added` fields; return the live object.

        Server-side apply merges lists item by item, and leaves what others have put there beside ours; a merge patch
        replaces each list as a whole. What it makes us own is then owned by server-side apply alone, so that a field
        that a later manifest omits is removed.
        """
        metadata, kind = manifest["metadata"], BY_NAME[manifest["kind"]]
        path = kind.path(metadata["namespace"], metadata["name"])
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        removed = nulls(added)  # of a Service also a label
        patch = {**removed, "spec": _joined(manifest["spec"], removed.get("spec", {}))}
        if dry_run:
            return await self.server.request("PATCH", path, patch, [*query, ("dryRun", "All")], _MERGE)
        await self.server.write("patch", kind.name, "PATCH", path, patch, query, _MERGE)
        live = await self.apply(manifest)
        for _ in range(_TRIES):
            metadata = {"managedFields": _applied_only(live), "resourceVersion": live["metadata"]["resourceVersion"]}
            try:
                return await self.server.write("patch", kind.name, "PATCH", path, {"metadata": metadata}, query, _MERGE)
            except ApiError as error:
                if error.status != 409:
                    raise
            live = await self.apply(manifest)  # it has changed meanwhile, if only its status
        return live

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        """Delete the object of that uid and no other, where `version` is given only as it is in that resource version;
        one that is gone already, or has changed, is fine.
        """
        only = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options = {"preconditions": only, "propagationPolicy": "Background"}
        try:
            await self.server.write("delete", kind.name, "DELETE", kind.path(namespace, name), options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def list_selected(
        self,
        kind: Kind,
        namespace: str,
        selector: str = SERVICE_LABEL,
        metadata_only: bool = False,
        fields: str = "",
    ) -> list[Object]:
        """Return all objects of the kind that the label selector selects, as the API server last saw them.

        It asks no other for this, so that it is cheap. `namespace`: "" stands for all; `fields`: a field selector.
        """
        query = [("labelSelector", selector), ("resourceVersion", "0")]
        query += [("fieldSelector", fields)] if fields else []
        accept = _METADATA_ONLY if metadata_only else "application/json"
        listed = await self.server.request("GET", kind.path(namespace), None, query, accept=accept)
        return list(listed.get("items") or ())

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """Merge `patch` into an object that exists; return the live object."""
        path, what = kind.path(namespace, name) + subresource, kind.name + subresource
        return await self.server.write(
            "patch", what, "PATCH", path, dict(patch), [("fieldManager", FIELD_MANAGER)], content_type=_MERGE
        )

    async def scale(self, kind: Kind, namespace: str, name: str, replicas: int) -> None:
        """Set the number of replicas by the subresource /scale, under another name than that of server-side apply."""
        path, patch = f"{kind.path(namespace, name)}/scale", {"spec": {"replicas": replicas}}
        query = [("fieldManager", SCALE_MANAGER)]
        await self.server.write("scale", kind.name, "PATCH", path, patch, query, _MERGE)

    async def apply_cluster_wide(self, kind: Kind, manifest: Object) -> None:
        """Create an object without a namespace, or take its fields over.

        By server-side apply the right to create it can be limited to its name, unlike by POST.
        """
        query = [("fieldManager", FIELD_MANAGER), ("force", "true"), ("fieldValidation", "Strict")]
        await self.server.write(
            "apply", kind.name, "PATCH", kind.path("", manifest["metadata"]["name"]), manifest, query, _APPLY
        )

    async def create_event(self, event: Object) -> bool:
        """Create the event; return False if one of its name exists already."""
        try:
            await self.server.write("create", EVENT.name, "POST", EVENT.path(event["metadata"]["namespace"]), event)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def repeat_event(self, namespace: str, name: str, now: str) -> None:
        """Increase the count of an event that exists; `now` is RFC 3339 with microseconds."""
        path = EVENT.path(namespace, name)
        known = (await self.server.request("GET", path)).get("series") or {"count": 1}
        series = {"series": {"count": known["count"] + 1, "lastObservedTime": now}}
        await self.server.write("patch", EVENT.name, "PATCH", path, series, content_type=_MERGE)

    async def put(self, kind: Kind, manifest: Object) -> Object:
        """Create `manifest`, or replace the version that its resourceVersion names; ApiError 409: another was quicker.

        It also writes while this replica may not write anything else, since it is for the lease itself.
        """
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if "resourceVersion" in manifest["metadata"]:
            return await self.server.request("PUT", kind.path(namespace, name), manifest, at_once=True)
        return await self.server.request("POST", kind.path(namespace), manifest, at_once=True)


def _joined(fields: Mapping[str, Any], more: Mapping[str, Any]) -> Object:
    """Return `fields` with the keys that only `more` has added, in nested mappings too."""
    inner = {name: _joined(fields[name], more[name]) for name in fields.keys() & more.keys()}
    return {**more, **fields, **inner}


def _applied_only(live: Object) -> list[Any]:
    """Return the managed fields without the entries by which we own fields otherwise than by server-side apply."""
    ours = (FIELD_MANAGER, "Update")
    return [each for each in live["metadata"]["managedFields"] if (each.get("manager"), each.get("operation")) != ours]
