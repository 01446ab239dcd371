"""The operator's own metrics and health: over HTTP, in Prometheus' format, under the documented names."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo_operator.reconcile import health, operator
from octavo_operator.reconcile.api_requests import cluster as cluster_module
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.api_server import ApiServer
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.api_requests.rights import MissingRights
from octavo_operator.reconcile.health import STALLED_SECONDS, Heartbeat, serve_health
from octavo_operator.reconcile.kinds import LLMSERVICE, OPTIONAL
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.queue import ExpectedError, WorkQueue
from octavo_operator.reconcile.watching.failing_lists import MOST_FAILURES
from octavo_operator.reconcile.watching.resync import Resync
from octavo_operator.reconcile.watching.watched import Watched
from octavo_operator.reconcile.watching.watched_namespaces import WatchedNamespaces
from tests.loopback import loopbacks

DOCS = Path(__file__).parents[3] / "docs" / "concepts" / "operator.md"
KEY = ("llm", "good")


def samples(metrics: OperatorMetrics) -> dict[str, float]:
    """Each sample by its name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.values()) if sample.labels else ''}": sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


async def test_passes_are_counted_by_how_they_ended() -> None:
    metrics = OperatorMetrics()
    queue: WorkQueue[Key] = WorkQueue(metrics.reconciled)
    metrics.read_from(queue, Heartbeat())
    ends: list[Exception | None] = [None, ExpectedError("no"), RuntimeError("a bug")]

    async def handle(_: Key) -> None:
        if error := ends.pop():
            raise error

    worker = asyncio.create_task(queue.work(handle))
    for name in ("a", "b", "c"):
        queue.add(("llm", name))
    while ends:
        await asyncio.sleep(0.001)
    for _ in range(20):  # turns of the loop, however long each takes
        await asyncio.sleep(0)
    worker.cancel()
    found = samples(metrics)
    for result in ("done", "refused", "fault"):
        assert found[f"octavo_operator_reconciles_total['{result}']"] == 1
    assert found["octavo_operator_reconcile_seconds_count"] == 3


def test_gauges_are_read_when_they_are_asked_for() -> None:
    metrics, queue = OperatorMetrics(), WorkQueue[Key]()
    metrics.read_from(queue, Heartbeat())
    assert samples(metrics)["octavo_operator_queue_depth"] == 0
    queue.add(KEY)
    assert samples(metrics)["octavo_operator_queue_depth"] == 1
    assert samples(metrics)["octavo_operator_leader"] == 0
    metrics.leads()
    assert samples(metrics)["octavo_operator_leader"] == 1
    metrics.wrote("apply", "Service")
    assert samples(metrics)["octavo_operator_writes_total['Service', 'apply']"] == 1


def indexes_of(holding: list[str], monitored: bool = False) -> dict[str, dict[Key, list[Any]]]:
    """Return indexes of one LLMService for which these conditions of Ready and Degraded hold."""
    conditions = [{"type": kind, "status": str(kind in holding)} for kind in ("Ready", "Degraded")]
    conditions.append({"type": 'another controller\'s "own"', "status": "True"})
    status = {"conditions": conditions, "desiredReplicas": 2}
    monitors = {"servicemonitors": {KEY: [{"metadata": {}}]}} if monitored else {}
    return {LLMSERVICE.plural: {KEY: [{"metadata": {}, "status": status}]}, **monitors}


def test_conditions_of_llmservices_are_metrics_of_the_replica_that_leads() -> None:
    metrics = OperatorMetrics()
    metrics.read_services(indexes_of(["Ready"], monitored=True))
    assert not [name for name in samples(metrics) if name.startswith("octavo_llmservice")]
    metrics.leads()
    found = {name: value for name, value in samples(metrics).items() if name.startswith("octavo_llmservice")}
    assert found == {
        "octavo_llmservice_condition['Ready', 'True', 'good', 'llm']": 1,
        "octavo_llmservice_condition['False', 'Ready', 'good', 'llm']": 0,
        "octavo_llmservice_condition['Ready', 'Unknown', 'good', 'llm']": 0,
        "octavo_llmservice_condition['Degraded', 'True', 'good', 'llm']": 0,
        "octavo_llmservice_condition['Degraded', 'False', 'good', 'llm']": 1,
        "octavo_llmservice_condition['Degraded', 'Unknown', 'good', 'llm']": 0,
        "octavo_llmservice_desired_replicas['good', 'llm']": 2,
        "octavo_llmservice_monitored['good', 'llm']": 1,
    }
    metrics.read_services({})  # the watches are opened anew
    assert not [name for name in samples(metrics) if name.startswith("octavo_llmservice")]


def test_the_docs_name_every_metric() -> None:
    metrics = OperatorMetrics()
    metrics.read_from(WorkQueue[Key](), Heartbeat())
    metrics.wrote("apply", "Service")
    metrics.read_namespaces(WatchedNamespaces(()))
    metrics.read_rights(MissingRights())
    metrics.leads()
    metrics.read_services(indexes_of(["Ready"]))
    names = {family.name for family in text_string_to_metric_families(metrics.render().decode())}
    text = DOCS.read_text()
    ours = {name for name in names if name.startswith("octavo_") and not name.endswith("_created")}
    assert {name for name in ours if name not in text} == set()


async def test_health_and_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    wrong, problems = "", list[str]()
    runner = await serve_health(port, lambda: wrong, lambda: problems, OperatorMetrics().render)
    assert runner
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            async with session.get("/metrics") as answer:
                assert "octavo_operator_leader 0.0" in await answer.text()
            problems = ["namespace b cannot be read: no Role"]
            async with session.get("/healthz") as answer:  # no restart would mend that
                assert (answer.status, await answer.text()) == (200, "ok\nnamespace b cannot be read: no Role\n")
            wrong = "no worker has finished anything for 121 s"
            async with session.get("/healthz") as answer:
                assert (answer.status, "for 121 s" in await answer.text()) == (503, True)
        for address in loopbacks():  # kubelet's probes go to the pod's address, which may be one of IPv6
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
    finally:
        await runner.cleanup()


async def test_a_missing_crd_is_said_once_in_the_log_and_by_healthz_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = ApiError(404, "NotFound", "not found")
    answers = [gone, gone, ApiError(401, "Unauthorized", "who are you"), {"resources": [{"name": "llmservices"}]}]
    seen, beats = list[list[str]](), list[int]()
    cluster = Cluster(ApiServer(None))
    options = operator.OperatorOptions("engine:1")
    process = operator._Process(options, cluster, WorkQueue[Key](), Heartbeat(), WatchedNamespaces(()))

    async def request(*_: Any) -> Any:
        seen.append(operator._problems(process, None))
        answer = answers[len(seen) - 1]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    monkeypatch.setattr(cluster.server, "request", request)
    monkeypatch.setattr(cluster_module, "_CRD_POLL_SECONDS", 0)
    await cluster.wait_for_crd(lambda: beats.append(1))
    waits = "waiting for the CRD of octavo.dev/v1alpha1 (manifests/crd.yaml): "
    missing, unknown = f"{waits}the API server has no llmservices", f"{waits}who are you"
    assert seen == [[], [missing], [missing], [unknown]]
    assert [record.getMessage() for record in caplog.records] == [missing, unknown]
    assert len(beats) == 3
    assert operator._problems(process, None) == []


async def test_healthz_says_what_cannot_be_listed_though_the_first_object_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a conversion webhook that does not answer, which one object needs. Other kinds are looked after as well:
    one that is foreign and fails likewise is no longer watched."""
    cluster = Cluster(ApiServer(None))
    process = operator._Process(
        operator.OperatorOptions("engine:1"), cluster, WorkQueue[Key](), Heartbeat(), WatchedNamespaces(())
    )
    failing = True

    async def request(_: str, path: str, body: Any = None, query: Any = (), **__: Any) -> Any:
        if path.endswith("selfsubjectaccessreviews"):
            return {"status": {"allowed": True}}
        if failing and ("limit", "1") not in query:
            raise ApiError(500, "InternalError", "conversion webhook for octavo.dev/v1beta1 failed")
        return {"metadata": {"resourceVersion": "1"}}

    monkeypatch.setattr(cluster.server, "request", request)
    kinds, scope = (LLMSERVICE, OPTIONAL[0]), process.namespaces
    watched = Watched({kind: [""] for kind in kinds}, {}, process.queue)
    listing = Resync(cluster, watched, process.heartbeat, scope.failing, {""})
    await scope.probe(cluster, kinds)
    assert await listing.once(kinds) == [*kinds]
    assert operator._problems(process, None) == []  # one failure is none that lasts
    for _ in range(MOST_FAILURES - 1):
        await scope.probe(cluster, kinds, everything=False)
    why = "conversion webhook for octavo.dev/v1beta1 failed"
    cannot_be_listed = f"the cluster: its llmservices cannot be listed, so their changes go unseen: {why}"
    unwatched, *rest = operator._problems(process, None)
    assert rest == [cannot_be_listed]
    assert unwatched == f"the cluster: its {OPTIONAL[0].plural} are not watched: {why}"
    assert scope.by_namespace() == {"*": False}
    failing = False
    await scope.probe(cluster, kinds, everything=False)
    assert operator._problems(process, None) == []
    assert scope.by_namespace() == {"*": True}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_health_is_served_to_both_families(address: str) -> None:
    """A kubelet of an IPv6-only cluster asks by IPv6."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as holder:
        try:
            holder.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        port = holder.getsockname()[1]
    runner = await serve_health(port, lambda: "", list, OperatorMetrics().render)
    assert runner
    try:
        url = f"http://[{address}]:{port}/healthz" if ":" in address else f"http://{address}:{port}/healthz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
    finally:
        await runner.cleanup()


class Moments:
    """A queue on a clock that the test moves, and a piece of work that lasts until the test ends it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: WorkQueue[Key] = WorkQueue(clock=lambda: self.now)
        self.ends = asyncio.Semaphore(0)

    async def handle(self, key: Key) -> None:
        """Work that lasts until it is ended; of KEY forever."""
        await (asyncio.Event().wait() if key == KEY else self.ends.acquire())

    async def pass_seconds(self, seconds: float) -> str:
        """Let time pass after all work that can go on; return what is wrong then."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.now += seconds
        return health.problem(self.queue, Heartbeat())


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_pass_that_never_ends_is_ill_health(workers: int) -> None:
    """Also where another worker goes on finishing others."""
    moments = Moments()
    moments.queue.add(KEY)
    assert await moments.pass_seconds(2 * STALLED_SECONDS) == ""  # no worker has begun
    tasks = [asyncio.create_task(moments.queue.work(moments.handle)) for _ in range(workers)]
    for second in range(3):
        moments.queue.add(("llm", f"other-{second}"))
        moments.ends.release()
        assert await moments.pass_seconds(STALLED_SECONDS / 3) == ""
    assert len(moments.queue) == (3 if workers == 1 else 0)
    assert ("finished" in await moments.pass_seconds(1)) == (workers == 1)
    said = await moments.pass_seconds(health.HANGING_SECONDS - STALLED_SECONDS)
    assert ("the same LLMService" in said) == (workers == 2)
    for task in tasks:
        task.cancel()


async def test_a_backlog_is_healthy_as_long_as_passes_end() -> None:
    moments = Moments()
    for number in range(40):
        moments.queue.add(("llm", f"s{number}"))
    worker = asyncio.create_task(moments.queue.work(moments.handle))
    for _ in range(20):
        assert await moments.pass_seconds(STALLED_SECONDS / 2) == ""
        moments.ends.release()
    assert moments.queue.oldest_wait_seconds() > STALLED_SECONDS, "longer than anything may be worked on"
    assert await moments.pass_seconds(STALLED_SECONDS / 2) == ""
    assert "finished" in await moments.pass_seconds(STALLED_SECONDS)
    worker.cancel()


async def test_what_waits_long_after_the_last_pass_is_not_stalled_from_then_on() -> None:
    moments = Moments()
    worker = asyncio.create_task(moments.queue.work(moments.handle))
    await moments.pass_seconds(2 * STALLED_SECONDS)  # idle
    assert moments.queue.stalled_seconds() == 0
    moments.queue.add(KEY)
    moments.queue.add(("llm", "other"))
    assert moments.queue.stalled_seconds() == 0
    await moments.pass_seconds(1)
    assert moments.queue.stalled_seconds() == 1
    worker.cancel()
