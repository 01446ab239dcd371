"""A watch that dies silently is noticed: by comparing lists with the watch's events, and by the time without events."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.reconcile import health
from octavo_operator.reconcile.api_requests.api_error import HELD_BACK, ApiError
from octavo_operator.reconcile.health import Heartbeat
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.relist import Listing, missed
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.watching import resync
from octavo_operator.reconcile.watching.failing_lists import MOST_FAILURES, FailingLists
from octavo_operator.reconcile.watching.resync import Resync, WatchLostError
from octavo_operator.reconcile.watching.watched import Watched
from tests.cluster.waiting import wait_until

KEY = ("llm", "good")
OTHER = ("llm", "other")
KINDS = (LLMSERVICE, POD, *CHILDREN)


def body(version: int, name: str = "good", uid: str = "u1") -> dict[str, Any]:
    return {"metadata": {"namespace": "llm", "name": name, "uid": uid, "resourceVersion": str(version)}}


COMPARISONS = [
    ("the same", [body(5)], {KEY: [body(5)]}, set()),
    ("changed unseen", [body(6)], {KEY: [body(5)]}, {KEY}),
    ("made unseen", [body(6), body(7, "other", "u2")], {KEY: [body(6)]}, {OTHER}),
    ("the watch is ahead", [body(5)], {KEY: [body(12)]}, set()),
    ("deleted unseen", [], {KEY: [body(5)]}, {KEY}),
    ("made after the list", [], {KEY: [body(12)]}, set()),
    ("made again unseen", [body(9, uid="u2")], {KEY: [body(5)]}, {KEY}),
]


@pytest.mark.parametrize(("listed", "index", "keys"), [row[1:] for row in COMPARISONS], ids=[r[0] for r in COMPARISONS])
def test_what_the_watches_missed(listed: list[Any], index: dict[Key, list[Any]], keys: set[Key]) -> None:
    assert {each.key for each in missed(Listing(LLMSERVICE, 10, tuple(listed)), index)} == keys


class EndOfTestError(Exception):
    """Ends what would go on forever."""


class Cluster:
    """Lists what it is given."""

    def __init__(self, services: list[dict[str, Any]]) -> None:
        self.services = services
        self.failures: dict[Kind, ApiError] = {}

    async def list_all(self, kind: Kind, namespace: str) -> Listing:
        if kind in self.failures:
            raise self.failures[kind]
        return Listing(kind, 10, tuple(self.services) if kind is LLMSERVICE else ())


def resyncing(listed: list[dict[str, Any]], known: list[dict[str, Any]]) -> tuple[Resync, WorkQueue[Key], Any]:
    indexes: dict[str, Any] = {kind.plural: {} for kind in KINDS}
    indexes[LLMSERVICE.plural] = {KEY: known} if known else {}
    queue = WorkQueue[Key]()
    watched = Watched({kind: [""] for kind in KINDS}, indexes, queue)
    return Resync(Cluster(listed), watched, Heartbeat(), FailingLists(), {""}), queue, indexes


async def queued(queue: WorkQueue[Key]) -> set[Key]:
    seen = set()

    async def handle(key: Key) -> None:
        seen.add(key)

    worker = asyncio.create_task(queue.work(handle))
    for _ in range(20):  # turns of the loop, however long each takes
        await asyncio.sleep(0)
    worker.cancel()
    return seen


def with_pauses(monkeypatch: pytest.MonkeyPatch, then: Callable[[int], object]) -> list[float]:
    """The pauses of a resync, which take no time; `then` is called in each, with how many there have been before."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        then(len(pauses))
        pauses.append(seconds)

    monkeypatch.setattr(resync, "_pause", pause)
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.0)
    return pauses


async def test_a_full_resync_queues_services_that_have_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    same, queue, _ = resyncing([body(5)], [body(5)])

    def end(before: int) -> None:
        if before:
            raise EndOfTestError

    with_pauses(monkeypatch, end)
    with pytest.raises(EndOfTestError):
        await same.run()
    assert await queued(queue) == {KEY}


async def test_an_llmservice_whose_event_was_lost_is_found_at_the_next_look_at_llmservices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = [body(5)]
    watching, _, _ = resyncing(listed, [body(5)])
    pauses = with_pauses(monkeypatch, lambda before: listed.append(body(7, "other", "u2")) if before else None)
    with pytest.raises(WatchLostError, match="LLMService of llm/other"):
        await watching.run()
    assert pauses == [resync.FIRST_SECONDS, resync.RETRY_SECONDS]


@pytest.mark.parametrize("each", [1, 500])
@pytest.mark.parametrize(("others", "minutes"), [(0, 1), (3000, 4), (50_000, 10)])
async def test_a_change_of_another_kind_is_found_the_sooner_the_fewer_objects_there_are(
    monkeypatch: pytest.MonkeyPatch, others: int, minutes: int, each: int
) -> None:
    """Few LLMServices with many pods `each` are as many objects as many with one."""
    watching, _, indexes = resyncing([body(5)], [body(5)])
    bodies = [body(12, uid=str(number)) for number in range(others)]
    indexes["deployments"] = {("llm", str(at)): bodies[at : at + each] for at in range(0, others, each)}

    def lose_a_deletion(before: int) -> None:
        if before:
            indexes[POD.plural] = {KEY: [body(5)]}

    pauses = with_pauses(monkeypatch, lose_a_deletion)
    with pytest.raises(WatchLostError, match="Pod of llm/good"):
        await watching.run()
    assert pauses == [resync.FIRST_SECONDS, *[resync.RETRY_SECONDS] * minutes]


async def test_a_watch_that_stays_behind_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.0)
    lost, queue, _ = resyncing([body(6)], [body(5)])
    with pytest.raises(WatchLostError, match="LLMService of llm/good"):
        await lost.once(KINDS)
    assert await queued(queue) == {KEY}


@pytest.mark.parametrize("read", [3, 2])
async def test_watches_that_still_read_what_was_there_are_lost_only_without_progress(
    monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """A first listing that took longer than 90 s was begun again and again, and no LLMService was looked after."""
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.0)
    services = [body(number, f"model-{number}", f"u{number}") for number in (5, 6, 7)]
    indexes: dict[str, Any] = {kind.plural: {} for kind in KINDS}
    unread = services[:read]

    class Slow(Cluster):
        """The watches read one more object between two lists, until `unread` is empty."""

        async def list_all(self, kind: Kind, namespace: str) -> Listing:
            if kind is LLMSERVICE and unread:
                found = unread.pop()
                indexes[LLMSERVICE.plural]["llm", found["metadata"]["name"]] = [found]
            return await super().list_all(kind, namespace)

    watched = Watched({kind: [""] for kind in KINDS}, indexes, WorkQueue[Key]())
    slow = Resync(Slow(services), watched, Heartbeat(), FailingLists(), set())
    if read == 3:
        assert await slow.once(KINDS) == []
    else:
        with pytest.raises(WatchLostError, match="missed 1 changes"):
            await slow.once(KINDS)


async def test_a_watch_that_was_only_late_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.0)
    late, _, indexes = resyncing([body(6)], [body(5)])
    looking = asyncio.create_task(late.once(KINDS))
    await asyncio.sleep(0)  # it has looked once, and yields to this test before it looks again
    indexes[LLMSERVICE.plural][KEY] = [body(6)]
    await looking


async def test_a_kind_that_cannot_be_listed_is_reported_once_it_lasts_and_others_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resync, "SETTLE_SECONDS", 0.0)
    cluster, failing, heartbeat, queue = Cluster([body(5)]), FailingLists(), Heartbeat(), WorkQueue[Key]()
    monkeypatch.setattr(heartbeat, "_last", time.monotonic() - 2000)
    cluster.failures = {POD: ApiError(503, "", "try later"), CHILDREN[0]: ApiError(403, "Forbidden", "no right")}
    kinds = (CHILDREN[0], POD, LLMSERVICE)
    watched = Watched({kind: ["a"] for kind in kinds}, {LLMSERVICE.plural: {KEY: [body(5)]}}, queue)
    listing = Resync(cluster, watched, heartbeat, failing, {""})
    for number in range(1, MOST_FAILURES + 1):
        assert await listing.once(kinds) == [CHILDREN[0], POD]
        assert failing.lasting == ({("a", POD): "try later"} if number == MOST_FAILURES else {})
    assert heartbeat.silent_seconds() < 1000  # what could be listed is a sign of life
    cluster.failures = {}
    assert await listing.once([POD]) == []
    assert not failing.lasting
    assert await queued(queue) == set(), "no LLMService is looked at for the sake of pods that nothing was missed of"


async def test_a_list_that_was_not_made_as_a_refusal_asked_to_wait_is_not_counted_as_failed() -> None:
    cluster, failing = Cluster([]), FailingLists()
    cluster.failures = {POD: ApiError(429, HELD_BACK, "in a minute", 50.0)}
    listing = Resync(cluster, Watched({POD: ["a"]}, {}, WorkQueue[Key]()), Heartbeat(), failing, {"a"})
    for _ in range(MOST_FAILURES):
        assert await listing.once([POD]) == [POD]
    assert not failing.lasting


def test_silence_is_ill_health(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat, queue = Heartbeat(), WorkQueue[Key]()
    assert health.problem(queue, heartbeat) == ""
    monkeypatch.setattr(health, "SILENT_SECONDS", -1.0)
    assert "no message from the cluster" in health.problem(queue, heartbeat)


def test_an_operator_that_waits_for_the_crd_is_healthy_and_ends_when_asked(tmp_path: Path) -> None:
    """Its API server cannot be reached; as the first process of a container it would ignore an unhandled SIGTERM."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context],
              "users": [{"name": "u", "user": {}}], "current-context": "x"}  # fmt: skip
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "octavo_operator.cli", "run", f"--health-port={port}"]
    env = {**os.environ, "KUBECONFIG": str(tmp_path / "config")}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(healthy, timeout=120, describe="the operator is healthy")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said, said
    finally:
        process.kill()
        process.communicate()
