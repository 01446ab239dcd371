"""When a CRD appears, the watches are reopened: no worker starts before the indexes are complete again.

kopf runs for real here, with an API server that lists one LLMService and, late, one pod.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from kopf._cogs.aiokits import aiotasks
from kopf._cogs.clients import watching
from kopf._cogs.clients.errors import APINotFoundError
from kopf._cogs.clients.watching import WatchingError
from kopf._core.reactor import inventory

from octavo_operator.api.names import SERVICE_LABEL, pod_labels
from octavo_operator.reconcile import operator
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.api_requests.rights import MissingRights
from octavo_operator.reconcile.api_requests.server_clock import ServerClock
from octavo_operator.reconcile.health import Heartbeat
from octavo_operator.reconcile.kinds import CHILDREN, ENDPOINT_SLICE, LLMSERVICE, OBSERVED, OPTIONAL, POD, Kind
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.relist import Listing, missed
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.watching import discovery, foreign_objects, indexes, list_and_watch, resync, watches
from octavo_operator.reconcile.watching.watched_namespaces import WatchedNamespaces

KEY = ("llm", "good")
GONE = ("llm", "deleted-meanwhile")
LATE_SECONDS = 0.3


def body(name: str, namespace: str = "llm", **labels: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "5", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {}}


def owned(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod as a ReplicaSet's; another would count as one that left its Deployment."""
    owner = {"kind": "ReplicaSet", "name": "good-r1", "uid": "r1", "controller": True}
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": [owner]}}


KOPFS_OWN = (
    Kind("Namespace", "v1", "namespaces"),
    Kind("CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions"),
)


def test_indexes_are_complete_once_all_kinds_are_listed_in_all_namespaces_though_there_is_no_object() -> None:
    """Only an LLMService made them so: where none was left, the children's owners stayed in the queue."""
    complete: list[bool] = []
    filled = indexes.Indexes([LLMSERVICE, POD], ["a", "b"], lambda _: None, lambda: complete.append(True))
    for kind in (LLMSERVICE, POD):
        for namespace in ("a", "b"):
            assert not complete
            filled.listed(kind, namespace)
    assert complete


class ApiServer:
    """Lists and watches in which nothing happens; `optional` are the kinds whose CRDs are installed."""

    def __init__(self) -> None:
        self.optional: tuple[Kind, ...] = ()
        self.server = self  # a stand-in for a Cluster and its ApiServer in one
        self.url, self.clock = "", ServerClock()
        self.selectors: dict[tuple[str, bool], set[str | None]] = {}
        """The label selectors of requests, by the kind's plural and whether they watch."""
        self.has_crd = True
        """Whether LLMServices are known."""
        self.forbidden: set[str] = set()
        """Namespaces of which nothing may be read."""
        self.forbidden_kinds: set[tuple[str, str]] = set()
        """Namespaces with the plural of a kind that may not be read there."""
        self.failing: Kind | None = None
        """A kind of which every list fails, as with a CRD whose conversion webhook does not answer."""
        self.missing_rights = MissingRights()
        self.watch_error: int | None = None
        """The code of an error with which one watch ends."""
        self.outdated: Kind | None = None
        """A kind whose watches all end with 410 Gone."""
        self.silent: tuple[Kind, ...] = ()
        """Kinds whose watches get no answer, not even its head."""
        self.kept_waiting: set[str] = set()
        """Those of them that have been asked for."""
        self.listed_at: dict[str, list[float]] = {}
        """The times of the lists of all objects, by the kind's plural."""
        self.items: dict[str, list[dict[str, Any]]] = {
            LLMSERVICE.plural: [body("good")],
            POD.plural: [owned(body("good-1", **pod_labels("good")))],
        }

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return (*([LLMSERVICE] if self.has_crd else []), *CHILDREN, *self.optional, *OBSERVED, *KOPFS_OWN)

    async def wait_for_crd(self, answered: Callable[[], object]) -> None:
        while not self.has_crd:
            await asyncio.sleep(0.01)

    async def plurals(self, api_version: str) -> frozenset[str]:
        if self.forbidden and api_version == LLMSERVICE.api_version:
            raise ApiError(404, "", "the request has been made before all known HTTP paths have been installed")
        return frozenset(kind.plural for kind in self._kinds if kind.api_version == api_version)

    async def probe(self, kind: Kind, namespace: str) -> None:
        if namespace in self.forbidden:
            raise ApiError(403, "Forbidden", f"no rights in {namespace}")
        if (namespace, kind.plural) in self.forbidden_kinds:
            raise ApiError(403, "Forbidden", f"no right to {kind.plural} in {namespace}")
        if kind is self.failing:
            raise ApiError(500, "InternalError", f"conversion webhook for {kind.name} failed")

    async def list_all(self, kind: Kind, namespace: str) -> Listing:
        return Listing(kind, 5, ())

    async def list_selected(
        self, kind: Kind, namespace: str, selector: str, metadata_only: bool = False
    ) -> list[dict[str, Any]]:
        return []

    async def get(self, kind: Kind, namespace: str, name: str) -> None:
        """Return None: there are no other objects."""

    async def credentials(self) -> dict[str, Any]:
        return {"server": self.url}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path, namespace = request.path, ""
        if "/namespaces/" in path:
            root, _, rest = path.partition("/namespaces/")
            namespace, _, plural = rest.partition("/")
            path = f"{root}/{plural}"
        if kind := next((kind for kind in self._kinds if kind.path() == path), None):
            return await self._list_or_watch(kind, namespace, request)
        if LLMSERVICE.plural in path:
            refusal = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "there are none"}
            return web.json_response(refusal, status=404)
        return web.json_response(self._discovery(request.path))

    async def _list_or_watch(self, kind: Kind, namespace: str, request: web.Request) -> web.StreamResponse:
        if namespace in self.forbidden or (namespace, kind.plural) in self.forbidden_kinds:
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        if kind is self.failing:
            return web.json_response({"kind": "Status", "code": 500, "reason": "InternalError"}, status=500)
        asked = self.selectors.setdefault((kind.plural, "watch" in request.query), set())
        asked.add(request.query.get("labelSelector"))
        if "watch" in request.query:
            while kind in self.silent:
                self.kept_waiting.add(kind.plural)
                await asyncio.sleep(0.02)
            response = web.StreamResponse()
            await response.prepare(request)
            while kind in self._kinds:
                await asyncio.sleep(0.02)
                if code := 410 if kind is self.outdated else self.watch_error:
                    error = {"type": "ERROR", "object": {"kind": "Status", "code": code}}
                    self.watch_error = None
                    await response.write(json.dumps(error).encode() + b"\n")
            return response
        self.listed_at.setdefault(kind.plural, []).append(time.monotonic())
        if kind is POD:
            await asyncio.sleep(LATE_SECONDS)
        items = self.items.get(kind.plural, [])
        within = [item for item in items if namespace in ("", item["metadata"]["namespace"])]
        begin = int(request.query.get("continue", 0))
        end = begin + int(request.query["limit"])
        rest = {"continue": str(end)} if end < len(within) else {}
        listed = {"metadata": {"resourceVersion": "9", **rest}, "items": within[begin:end]}
        return web.Response(text=json.dumps(listed), content_type="application/json")

    def _discovery(self, path: str) -> dict[str, Any]:
        versions = {kind.api_version for kind in self._kinds if "/" in kind.api_version}
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            rows = [{"version": each.partition("/")[2], "groupVersion": each} for each in sorted(versions)]
            groups = [
                {"name": row["groupVersion"].partition("/")[0], "versions": [row], "preferredVersion": row}
                for row in rows
            ]
            return {"groups": groups}
        found = [kind for kind in self._kinds if kind.path().rpartition("/")[0] == path]
        verbs = ["list", "watch", "get", "patch"]
        return {
            "resources": [
                {"name": kind.plural, "singularName": "", "kind": kind.name, "namespaced": True, "verbs": verbs}
                for kind in found
            ]
        }

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


class Passes:
    """In place of the reconciler: notes which kinds of a key each reconcile knew, and wants the next one at once."""

    def __init__(self) -> None:
        self.seen: list[tuple[Key, bool, frozenset[str]]] = []
        self.foreign_objects: list[int] = []
        """How many slices and pods of others each reconcile knew."""
        self.remembered: list[Any] = []
        """What each reconciler was given that outlasts it."""

    def reconciler(self, cluster: Any, sources: Sources, *_: Any, **more: Any) -> Passes:
        self.indexes, self.unwatched, self.foreign_problems = (
            sources.indexes,
            sources.unwatched,
            sources.foreign_problems,
        )
        self.remembered.append(more["remembered"])
        return self

    async def reconcile(self, key: Key) -> float:
        kinds = [plural for plural, index in self.indexes.items() if list(index.get(key, ()))]
        self.seen.append((key, bool(self.indexes), frozenset(kinds)))
        self.foreign_objects.append(len(self.foreign_problems.get(key, ())))
        return 0.001


def process_of(server: ApiServer, namespaces: Sequence[str] = ()) -> operator._Process:
    """An operator's process that leads, on this server."""
    options = operator.OperatorOptions("image:1", namespaces)
    process = operator._Process(
        options, cast(Cluster, server), WorkQueue[Key](), Heartbeat(), WatchedNamespaces(options.namespaces)
    )
    process.leads.set()
    return process


async def test_after_a_crd_came_no_worker_starts_before_the_cluster_is_known_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, server = Passes(), ApiServer()
    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    monkeypatch.setattr(discovery, "POLL_SECONDS", 0.02)
    process = process_of(server)
    whole = frozenset({LLMSERVICE.plural, POD.plural})
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while len(passes.seen) < 5:
            await asyncio.sleep(0.01)
        first = passes.indexes
        process.queue.add(GONE)
        while GONE not in {key for key, _, _ in passes.seen}:
            await asyncio.sleep(0.01)
        server.optional = OPTIONAL[:1]
        while passes.indexes is first:
            await asyncio.sleep(0.001)
        process.queue.add(KEY)  # as a report of a pod that loads may do, from indexes half filled
        del passes.seen[:]
        while len(passes.seen) < 5:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert set(passes.seen) == {(KEY, True, whole)}
    assert len(passes.remembered) > 1 and all(each is process.remembered for each in passes.remembered)
    # Of what is not Octavo's nothing comes over the line: the API server selects, and only our CRD is listed whole.
    ours = {(LLMSERVICE.plural, watch): {None} for watch in (False, True)}
    children = (*CHILDREN, *OPTIONAL[:1], *OBSERVED)
    theirs = {(kind.plural, watch): {SERVICE_LABEL} for kind in children for watch in (False, True)}
    assert server.selectors == ours | theirs


@pytest.mark.parametrize("problem", ["", "error", "no answer"])
async def test_the_first_pass_knows_the_endpoint_slices_of_others_if_they_can_be_listed(
    monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """Else each start would report that all is well, and take it back a moment later."""
    passes, server = Passes(), ApiServer()

    async def listed(kind: Kind, namespace: str, selector: str, metadata_only: bool = False) -> list[dict[str, Any]]:
        if kind is not ENDPOINT_SLICE or selector != foreign_objects.foreign_slices(()):
            return []
        if problem == "error":
            raise ApiError(503, "ServiceUnavailable", "not now")
        await asyncio.sleep(600 if problem else 0.05)
        found = body("theirs", **{"kubernetes.io/service-name": "good"})
        return [{**found, "endpoints": [{"addresses": ["10.9.9.9"]}], "ports": [{"name": "http", "port": 8000}]}]

    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    monkeypatch.setattr(server, "list_selected", listed)
    monkeypatch.setattr(foreign_objects, "FIRST_SECONDS", 0.1 if problem else 120)
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while len(passes.foreign_objects) < 3:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert set(passes.foreign_objects) == {0 if problem else 1}


async def test_an_object_that_cannot_be_read_is_none_that_the_watches_have_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A resync would end the process for it, and so would each one after the new start."""
    passes, server, trimmed = Passes(), ApiServer(), indexes.trimmed

    def failing(kind: Kind, body: Any) -> Any:
        if kind is POD:
            raise KeyError("an unexpected error")
        return trimmed(kind, body)

    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    monkeypatch.setattr(indexes, "trimmed", failing)
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while not passes.seen:
            await asyncio.sleep(0.01)
        items = tuple(server.items[POD.plural])
        assert missed(Listing(POD, 9, items), passes.indexes[POD.plural]) == set()
        assert "cannot read Pod llm/good-1" in caplog.text
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_objects_are_listed_in_pages_and_kopf_gets_llmservices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it got of all kinds until it has everything: whole objects took 300 MiB at 1,000 LLMServices."""
    passes, server, got = Passes(), ApiServer(), set[str]()
    pods = [owned(body(f"good-{number}", **pod_labels("good"))) for number in range(3)]
    server.items[POD.plural] = [{**pod, "spec": {"hostname": "is not read"}} for pod in pods]
    recall = inventory.ResourceMemories.recall

    async def noted(memories: Any, raw_body: Any, **arguments: Any) -> Any:
        got.add(raw_body["metadata"]["uid"])
        return await recall(memories, raw_body, **arguments)

    monkeypatch.setattr(inventory.ResourceMemories, "recall", noted)
    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    monkeypatch.setattr(watches, "PAGE", 2)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process_of(server)))
        while not passes.seen:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(server.listed_at[POD.plural]) == 2
    assert got == {"good"}
    assert [pod["spec"] for pod in passes.indexes[POD.plural][KEY]] == [{}] * 3


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_crd_that_is_deleted_is_waited_for_and_the_operator_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passes, server = Passes(), ApiServer()
    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while not passes.seen:
            await asyncio.sleep(0.01)
        first = passes.indexes
        server.has_crd = False
        while process.queue._workers:
            await asyncio.sleep(0.01)
        assert not running.done()
        while not (said := warned(caplog)):
            await asyncio.sleep(0.01)
        assert said == ["a watch has failed: the API server answers 404: there are none; reopening the watches in 0 s"]
        assert "Traceback" not in caplog.text
        del passes.seen[:]
        server.has_crd = True
        while not passes.seen:
            await asyncio.sleep(0.01)
        assert passes.indexes is not first
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_watches_that_have_missed_a_new_llmservice_are_opened_again_in_the_same_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the process ended for it, Kubernetes would start it again later each time."""
    passes, server, due = Passes(), ApiServer(), asyncio.Event()

    async def list_all(kind: Kind, namespace: str) -> Listing:
        return Listing(kind, 9, tuple(server.items.get(kind.plural, ())))

    async def pause(_: float) -> None:
        await due.wait()
        due.clear()

    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    monkeypatch.setattr(server, "list_all", list_all)
    monkeypatch.setattr(resync, "_pause", pause)
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.0)
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while not passes.seen:
            await asyncio.sleep(0.01)
        server.items[LLMSERVICE.plural].append(body("unreported"))
        due.set()
        while ("llm", "unreported") not in {key for key, _, kinds in passes.seen if LLMSERVICE.plural in kinds}:
            assert not running.done()
            await asyncio.sleep(0.01)
        assert "the watches missed 1 changes (LLMService of llm/unreported); reopening the watches" in warned(caplog)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_further_watch_that_fails_meanwhile_is_logged_only_if_this_program_is_at_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(error: Exception) -> None:
        raise error

    errors = (APINotFoundError(None, status=404, headers={}), WatchingError("code 500"), ValueError("a fault"))
    failing, own = [aiotasks.guard(fail(error), name="watcher") for error in errors], TimeoutError("of no watch")
    await asyncio.wait([asyncio.create_task(each) for each in (*failing, fail(own))])
    gc.collect()  # asyncio logs the error of a task when the task is freed without anybody having asked for it
    assert {record.exc_info[1] for record in caplog.records if record.exc_info} == {errors[-1], own}


async def test_what_asyncio_reports_without_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its records then have False, not None, in the place of the error."""
    asyncio.get_running_loop().call_exception_handler({"message": "a task was destroyed while it was pending"})
    assert [record.getMessage() for record in caplog.records] == ["a task was destroyed while it was pending"]


async def test_what_is_deleted_while_no_watch_is_open_is_noticed_at_the_next_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the API server restarts: a follower that leads later would make children of a deleted LLMService."""
    passes, server = Passes(), ApiServer()
    server.items[LLMSERVICE.plural].append(body("other"))
    server.items[POD.plural].append(owned(body("good-2", **pod_labels("good"))))
    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    monkeypatch.setattr(watches, "RELIST_SECONDS", 0.1)
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while {key for key, _, _ in passes.seen} != {KEY, ("llm", "other")}:
            await asyncio.sleep(0.01)
        first = passes.indexes
        del server.items[LLMSERVICE.plural][1], server.items[POD.plural][0]
        for kind in (LLMSERVICE, POD):
            before = len(server.listed_at[kind.plural])
            server.outdated = kind
            while len(server.listed_at[kind.plural]) == before:
                await asyncio.sleep(0.01)
        server.outdated = None
        while list(passes.indexes[LLMSERVICE.plural]) != [KEY]:
            await asyncio.sleep(0.01)
        while len(pods := list(passes.indexes[POD.plural][KEY])) > 1:
            await asyncio.sleep(0.01)
        assert [pod["metadata"]["name"] for pod in pods] == ["good-2"]
        assert passes.indexes is first
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_watches_end_while_the_api_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf takes the cancellation of its tasks for another one then, and they would go on."""
    passes, server = Passes(), ApiServer()
    monkeypatch.setattr(operator, "Reconciler", passes.reconciler)
    process = process_of(server)
    server.silent = CHILDREN
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        while not passes.seen or len(server.kept_waiting) < len(CHILDREN):
            await asyncio.sleep(0.01)
        first, server.watch_error = passes.indexes, 500
        while passes.indexes is first:
            assert not running.done()
            await asyncio.sleep(0.01)
        server.silent = ()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("lasted", "pause"), [(0.0, 1.0), (0.4, 0.6), (300.0, 0.0)])
async def test_watches_that_end_at_once_are_not_opened_all_the_time(
    monkeypatch: pytest.MonkeyPatch, lasted: float, pause: float
) -> None:
    now, pauses = 5.0, list[float]()

    async def watch(**_: object) -> AsyncIterator[str]:
        nonlocal now
        yield "event"
        now += lasted

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(list_and_watch, "_WATCH", watch)
    monkeypatch.setattr(list_and_watch, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(list_and_watch, "asyncio", SimpleNamespace(sleep=sleep))
    assert watching.watch_objs is list_and_watch.watch_objs
    assert [event async for event in watching.watch_objs()] == ["event"]
    assert pauses == [pytest.approx(pause)]
