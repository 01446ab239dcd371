"""An API server in memory for the tests of the reconciler, the objects in it, and a clock that tests move on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.fields.added_fields import Path
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, OPTIONAL, POD, Kind
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.render import RenderConfig
from tests.operator.bad_llmservices import GONE, VALID, copied, merged

KEY = ("llm", "good")
CHILD = {kind.name: kind for kind in (*CHILDREN, *OPTIONAL)}
METADATA = {"namespace": "llm", "uid": "u1", "generation": 1, "resourceVersion": "0"}


class Server:
    """Keeps what is applied, as server-side apply would, and shows it as watches would; fails where a test says so."""

    def __init__(self, **spec: Any) -> None:
        self.writes: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.live: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, ApiError] = {}
        self.unread: dict[str, ApiError] = {}
        """Errors of reads of children, by kind."""
        self.version = 0
        self.refuses_writes = False
        """Whether it only answers what would be."""
        self.named: dict[str, Any] = {}
        """The LLMService as it lives, where the watch is behind."""
        self.others_status: dict[str, Any] = {}
        """Fields of the status that another manager has set, and keeps."""
        self.others_conditions: list[dict[str, Any]] = []
        self.not_in_crd: set[str] = set()
        """Fields of the status that the cluster's CRD does not have."""
        self.autoscalers: list[dict[str, Any]] = []
        """HorizontalPodAutoscalers of others."""
        self.events_of_pods: list[dict[str, Any]] = []
        """Events of the scheduler."""
        self.all_pods: list[dict[str, Any]] = []
        self.lagging: set[str] = set()
        """Plurals of the kinds whose watch reports nothing any more."""
        self.indexes: dict[str, dict[Any, list[Any]]] = {
            kind.plural: {} for kind in (LLMSERVICE, POD, *CHILDREN, *OPTIONAL)
        }
        self.indexes[LLMSERVICE.plural][KEY] = [merged(VALID, {"metadata": METADATA, "spec": spec})]
        self.indexes[POD.plural][KEY] = [trimmed(POD, SERVING_POD)]  # which its Deployment does not count yet

    @property
    def service(self) -> dict[str, Any]:
        found: dict[str, Any] = self.indexes[LLMSERVICE.plural][KEY][0]
        return found

    def reason(self, kind: str) -> str:
        return str(self.condition(kind)["reason"])

    def condition(self, kind: str) -> dict[str, Any]:
        return next(found for found in self.service["status"]["conditions"] if found["type"] == kind)

    def change(self, kind: str, change: dict[str, Any], manager: str = "kubectl") -> None:
        """Another client changes a child: a merge patch whose `spec` they then own."""
        live = merged(self.live[kind], change)
        fields = {f"f:{name}": {} for name in change["spec"]}
        live["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": {"f:spec": fields}}]
        self._store(kind, live)

    def remove(self, kind: str) -> None:
        """Another client deletes a child."""
        del self.live[kind]
        self.indexes[CHILD[kind].plural].pop(KEY, None)

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.name in self.unread:
            raise self.unread[kind.name]
        return copied((self.named or self.service) if kind is LLMSERVICE else self.live.get(kind.name))

    async def list_selected(
        self, kind: Kind, namespace: str, selector: str, *, metadata_only: bool = False, fields: str = ""
    ) -> list[dict[str, Any]]:
        if kind.name == "Event":
            return self.events_of_pods
        if kind is POD:
            return self.all_pods
        assert (kind.name, selector) == ("HorizontalPodAutoscaler", "")
        if kind.name in self.unread:
            raise self.unread[kind.name]
        return self.autoscalers

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        return True

    async def create_event(self, event: dict[str, Any]) -> bool:
        self.events.append(event)
        return True

    async def repeat_event(self, namespace: str, name: str, now: str) -> None:
        raise AssertionError("no event is repeated here")

    async def apply(
        self,
        manifest: dict[str, Any],
        subresource: str = "",
        dry_run: bool = False,
        manager: str = "octavo-operator",
        force: bool = True,
    ) -> dict[str, Any]:
        what = manifest["kind"] + subresource
        if what in self.failures:
            raise self.failures[what]
        if self.refuses_writes and not dry_run:
            raise ApiError(503, "x", "try later")
        if not dry_run:
            self.writes.append(what)
        if subresource:
            if unknown := self.not_in_crd & manifest["status"].keys():
                sentence = "\n".join(f".status.{name}: field not declared in schema" for name in sorted(unknown))
                raise ApiError(500, "", f"failed to create typed patch object (llm/good): {sentence}")
            self.version += 1
            written = merged(self.service, {"metadata": {"resourceVersion": str(self.version)}})
            written["status"] = {**self.others_status, **copied(manifest["status"])}
            written["status"]["conditions"] += self.others_conditions
            if LLMSERVICE.plural not in self.lagging:
                self.indexes[LLMSERVICE.plural][KEY] = [written]
            return copied(written)
        before = self.live.get(manifest["kind"], {"metadata": {"uid": "c1", "generation": 0}})
        live = merged(before, manifest)
        if manifest["kind"] == "Service":
            live["spec"]["ports"] = beside((before.get("spec") or {}).get("ports", []), manifest["spec"]["ports"])
            live["spec"]["selector"] = dict(manifest["spec"]["selector"])  # the API server's schema: atomic
        if {"minAvailable", "maxUnavailable"} <= live["spec"].keys():
            raise ApiError(422, "Invalid", "minAvailable and maxUnavailable cannot be both set")
        if dry_run:
            return live
        if live != before:
            self._store(manifest["kind"], live)
        return copied(self.live[manifest["kind"]])

    async def put_back(
        self, manifest: dict[str, Any], added: Sequence[Path] = (), dry_run: bool = False
    ) -> dict[str, Any]:
        live = merged(merged(self.live[manifest["kind"]], manifest), removal(added))
        if not dry_run:
            self.writes.append(f"put back {manifest['kind']}")
            self._store(manifest["kind"], live)
        return copied(live)

    def _store(self, kind: str, live: dict[str, Any]) -> None:
        self.version += 1
        generation = live["metadata"]["generation"] + (live["spec"] != self.live.get(kind, {}).get("spec"))
        live["metadata"].update(generation=generation, resourceVersion=str(self.version))
        if kind == "Deployment" and "replicas" not in live.get("status", {}):  # else a test plays its controller
            live["status"] = {**live.get("status", {}), "observedGeneration": generation}
        self.live[kind] = live
        if CHILD[kind].plural not in self.lagging:
            self.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], live)]

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Any, subresource: str = "") -> Any:
        self.writes.append(f"merge {kind.name}{subresource} {name}")
        if kind.name in self.failures:
            raise self.failures[kind.name]
        if kind.name in self.live:
            self._store(kind.name, merged(self.live[kind.name], patch))
        if kind is LLMSERVICE:
            self.version += 1
            self.others_status = {
                name: self.others_status[name] for name in self.others_status.keys() - patch["status"]
            }
            status = {name: GONE if value is None else value for name, value in patch["status"].items()}
            metadata = {"resourceVersion": str(self.version)}
            written = merged(self.service, {"metadata": metadata, "status": status})
            self.indexes[LLMSERVICE.plural][KEY] = [written]
            return copied(written)
        return None

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        self.writes.append(f"delete {kind.name}")
        metadata = self.live[kind.name]["metadata"]
        if metadata["uid"] == uid and version in ("", metadata["resourceVersion"]):
            self.remove(kind.name)


def beside(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ports as server-side apply merges them, by number; ApiError as the API server's where two have one name."""
    numbers = {port["port"] for port in ours}
    found = [*(port for port in theirs if port["port"] not in numbers), *ours]
    if len({port["name"] for port in found}) < len(found):
        raise ApiError(422, "Invalid", 'spec.ports[1].name: Duplicate value: "http"')
    return found


def removal(paths: Sequence[Path]) -> dict[str, Any]:
    """A patch that removes what is at these places."""
    patch: dict[str, Any] = {}
    for *way, last in paths:
        here = patch
        for step in way:
            here = here.setdefault(step, {})
        here[last] = GONE
    return patch


def reconciler(server: Server, image: str = "engine:1") -> Reconciler:
    return Reconciler(server, Sources(server.indexes), RenderConfig(image))


SERVING_POD = {
    "metadata": {"name": "good-1", "namespace": "llm", "uid": "p1", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "conditions": [{"type": name, "status": "True"} for name in ("PodScheduled", "Ready")],
        "containerStatuses": [{"name": "engine", "state": {"running": {}}, "started": True, "ready": True}],
    },
}


def autoscaler(name: str, deployment: str = "good") -> dict[str, Any]:
    """Another's HorizontalPodAutoscaler of this Deployment."""
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": deployment}}}


def with_pods(server: Server, ready: int) -> None:
    """Set the counts of the Deployment's controller, of whose one pod `ready` are ready; that one is there then."""
    counts = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": ready, "availableReplicas": ready}
    generation = server.live["Deployment"]["metadata"]["generation"]
    server.live["Deployment"]["status"] = {"observedGeneration": generation, **counts}
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    server.indexes[POD.plural][KEY] = [trimmed(POD, SERVING_POD)] * ready


def owners(server: Server, kind: str, *owned_by: dict[str, Any]) -> None:
    """Another client writes the owners of a child."""
    server.live[kind]["metadata"]["ownerReferences"] = list(owned_by)
    server.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], server.live[kind])]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def settled(server: Server) -> Reconciler:
    """An operator that has nothing to do any more."""
    operator = reconciler(server)
    for _ in range(3):
        await operator.reconcile(KEY)
    server.writes.clear()
    return operator


AUTOSCALED = {"autoscaling": {"minReplicas": 3, "maxReplicas": 8}}
