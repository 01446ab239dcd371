"""The progress of loading pods is read by real HTTP; it is bounded, and reconciling does not depend on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from octavo_operator.reconcile.pods.load_report import LoadReport, MemoryReport
from octavo_operator.reconcile.polling.loading import LoadWatch, has_loaded, is_loading
from octavo_operator.reconcile.polling.poll_pods import address_of
from octavo_operator.reconcile.queue import WorkQueue

KEY = ("llm", "good")
RUNNING = {"state": {"running": {}}, "started": False, "ready": False}
DONE = {"name": "fetch", "state": {"terminated": {"exitCode": 0}}}


def pod(
    uid: str = "u1", *, fetch: dict[str, Any] | None = None, engine: dict[str, Any] | None = None
) -> dict[str, Any]:
    status: dict[str, Any] = {"podIP": "127.0.0.1"}
    if fetch:
        status["initContainerStatuses"] = [{"name": "fetch", **fetch}]
    if engine:
        status["containerStatuses"] = [{"name": "engine", **engine}]
    return {"metadata": {"uid": uid, "name": uid}, "status": status}


class Pod:
    """A pod's port: `answer` is what it says, `asked` how often."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        assert request.path == "/health/startup"
        if isinstance(self.answer, str) and self.answer.startswith("http"):
            return web.Response(status=302, headers={"Location": self.answer})
        body = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        return web.Response(text=body, status=503)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


async def watched(answer: Any, *pods: dict[str, Any], times: int = 1) -> tuple[LoadWatch, WorkQueue[Any], Pod]:
    """A watch that has looked at `pods` so many times."""
    queue: WorkQueue[Any] = WorkQueue()
    listener = Pod(answer)
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: list(pods)}}, queue, port)
        for _ in range(times):
            await watch.poll_once(session)
    return watch, queue, listener


PULLING = {
    "status": "loading",
    "phase": "pulling",
    "progress": 0.5,
    "detail": "half",
    "bytesLoaded": 1,
    "bytesTotal": 2,
}


async def test_what_a_downloading_pod_says_is_kept_and_its_service_looked_at() -> None:
    watch, queue, _ = await watched(PULLING, pod(fetch=RUNNING))
    assert watch.reports == {"u1": LoadReport(phase="pulling", detail="half", bytesLoaded=1, bytesTotal=2)}
    assert len(queue) == 1


async def test_no_news_is_no_work() -> None:
    queue: WorkQueue[Any] = WorkQueue()
    listener = Pod(PULLING)
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: [pod(fetch=RUNNING)]}}, queue, port)
        await watch.poll_once(session)
        worker = asyncio.create_task(queue.work(lambda key: asyncio.sleep(0)))
        while len(queue):
            await asyncio.sleep(0.01)
        await watch.poll_once(session)
        assert (listener.asked, len(queue)) == (2, 0)
        worker.cancel()


def pulling(loaded: int, phase: str = "pulling") -> dict[str, Any]:
    return {**PULLING, "phase": phase, "detail": f"{loaded} of 1000", "bytesLoaded": loaded, "bytesTotal": 1000}


NEWS = [  # what a pod says at which second, and whether its LLMService is looked at
    (0, pulling(0), True),
    (3, pulling(30), False),
    (9, pulling(300), False),
    (10, pulling(301), True),
    (20, pulling(320), False),  # less than 2 %
    (23, pulling(321), True),
    (26, pulling(1000), True),  # all
    (29, {**pulling(1000), "detail": "checks them"}, False),
    (36, {**pulling(1000), "detail": "checks them"}, True),
    (37, {"phase": "loading"}, True),
    (40, {"phase": "loading", "detail": "layer 1"}, False),
    (47, {"phase": "loading", "detail": "layer 7"}, True),
    (48, {"phase": "warmup"}, True),
    (99, {"phase": "warmup"}, False),
]


async def test_a_status_is_written_for_a_phase_at_once_and_for_bytes_now_and_then() -> None:
    queue, listener, now = WorkQueue[Any](), Pod(None), 0.0
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        indexes = {"llmservices": {KEY: [{}]}, "pods": {KEY: [pod(fetch=RUNNING)]}}
        watch = LoadWatch(indexes, queue, port, lambda: now)
        for second, answer, is_told in NEWS:
            now, listener.answer = second, answer
            await watch.poll_once(session)
            assert bool(len(queue)) == is_told, (second, answer)
            assert watch.reports["u1"] == LoadReport.model_validate(answer), (
                "a reconcile for another reason knows the newest"
            )
            queue.clear()


async def test_the_bytes_of_many_pods_are_reported_together() -> None:
    queue, listener, now = WorkQueue[Any](), Pod(pulling(0)), 0.0
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        pods = [pod(f"u{number}", fetch=RUNNING) for number in range(4)]
        watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: pods}}, queue, port, lambda: now)
        reported = 0
        for second in range(0, 60, 3):
            now, listener.answer = float(second), pulling(second * 10)
            await watch.poll_once(session)
            reported += len(queue)
            queue.clear()
        assert 4 <= reported <= 7


@pytest.mark.parametrize(
    "answer",
    ["", "{}", "[1]", "no json", '{"phase": 1}',
     '{"phase": "x", "bytesTotal": -1}', '{"phase": "x", "bytesTotal": 1e30}',
     json.dumps({"phase": "x" * 33}), json.dumps({"phase": "pulling", "detail": "x" * 100_000}), "http://127.0.0.1:1/"],
)  # fmt: skip
async def test_nonsense_is_no_news(answer: str) -> None:
    watch, queue, listener = await watched(answer, pod(fetch=RUNNING))
    assert (watch.reports, len(queue), listener.asked) == ({}, 0, 1)


async def test_a_pod_that_does_not_answer_is_no_news() -> None:
    queue: WorkQueue[Any] = WorkQueue()
    watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: [pod(fetch=RUNNING)]}}, queue, 1)
    async with aiohttp.ClientSession() as session:
        await watch.poll_once(session)
    assert (watch.reports, len(queue)) == ({}, 0)


async def test_a_pod_that_has_loaded_is_asked_until_it_answers_and_never_again() -> None:
    loaded = pod(engine={**RUNNING, "started": True, "ready": True})
    memory = {"weightBytes": 1, "stepBytes": 2, "kvBytesPerToken": 3, "totalBytes": 4}
    watch, _, listener = await watched({"phase": "ready", "memory": memory}, loaded, times=5)
    assert listener.asked == 1
    assert watch.reports["u1"].memory == MemoryReport(weightBytes=1, stepBytes=2, kvBytesPerToken=3, totalBytes=4)
    _, _, listener = await watched("nonsense", loaded, times=9)
    assert listener.asked == 3, "one that says nothing is left alone after a few times"


@pytest.mark.parametrize("answer", [{"phase": "ready"}, "404: Not Found"], ids=["a report", "an older engine's"])
async def test_a_pod_that_serves_and_cannot_be_reached_is_named_until_it_answers(answer: Any) -> None:
    """As where its namespace denies connections by default, or a mesh wants mutual TLS."""
    queue, listener = WorkQueue[Any](), Pod(answer)
    loaded = {**pod(engine={**RUNNING, "started": True, "ready": True})}
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: [loaded]}}, queue, port)
        loaded["status"]["podIP"] = "127.0.0.2"  # nobody listens there
        told = []
        for _ in range(5):
            await watch.poll_once(session)
            told.append(len(queue))
        assert told == [0, 0, 1, 1, 1]
        assert "cannot ask pod u1 (Connect call failed" in watch.unanswered["u1"]
        assert "set spec.networkPolicy, which lets it in" in watch.unanswered["u1"]
        loaded["status"]["podIP"] = "127.0.0.1"
        queue.clear()
        for _ in range(20):
            await watch.poll_once(session)
        assert (watch.unanswered, len(queue), listener.asked) == ({}, 1, 1)
    assert [report.phase for report in watch.reports.values()] == (["ready"] if answer == {"phase": "ready"} else [])


async def test_a_pod_that_loads_anew_is_asked_again() -> None:
    loading, queue, listener = pod(engine=RUNNING), WorkQueue[Any](), Pod(PULLING)
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: [loading]}}, queue, port)
        for started in (False, True, True, False, False):
            loading["status"]["containerStatuses"][0] |= {"started": started, "ready": started}
            await watch.poll_once(session)
    assert listener.asked == 4


async def test_what_an_engine_said_that_was_ready_is_forgotten_as_it_starts_anew() -> None:
    nobody = 9
    watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: [pod(engine=RUNNING)]}}, WorkQueue[Any](), nobody)
    async with aiohttp.ClientSession() as session:
        for said, kept in (("ready", False), ("loading", True)):
            watch.reports["u1"] = LoadReport(phase=said)
            await watch.poll_once(session)
            assert ("u1" in watch.reports) == kept


async def test_reports_of_pods_that_have_gone_are_forgotten() -> None:
    pods = [pod(fetch=RUNNING), pod("u2", engine=RUNNING)]
    queue: WorkQueue[Any] = WorkQueue()
    listener = Pod(PULLING)
    async with listener.listening() as port, aiohttp.ClientSession() as session:
        watch = LoadWatch({"llmservices": {KEY: [{}]}, "pods": {KEY: pods}}, queue, port)
        await watch.poll_once(session)
        assert set(watch.reports) == {"u1", "u2"}
        pods[0]["status"]["initContainerStatuses"] = [DONE]
        del pods[1]
        await watch.poll_once(session)
    assert watch.reports == {}


LOADED = {**RUNNING, "started": True, "ready": True}


@pytest.mark.parametrize(
    ("found", "loads", "loaded"),
    [
        (pod(), False, False),
        (pod(fetch={"state": {"waiting": {}}}), False, False),
        (pod(fetch=RUNNING), True, False),
        (pod(engine=RUNNING), True, False),
        (pod(engine={**RUNNING, "started": True}), False, False),
        (pod(engine=LOADED), False, True),
    ],
)
def test_who_is_asked(found: dict[str, Any], loads: bool, loaded: bool) -> None:
    assert (is_loading(found), has_loaded(found)) == (loads, loaded)


def test_a_pod_without_an_address_or_that_goes_is_not_asked() -> None:
    assert address_of(pod()) == "127.0.0.1"
    assert address_of({"metadata": {}, "status": {}}) == ""
    assert address_of({**pod(), "metadata": {"deletionTimestamp": "now"}}) == ""
