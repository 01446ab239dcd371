"""A namespace that cannot be read stops no work in others, and watches that hang do not keep the process from ending.

kopf runs for real here, with an API server that refuses everything in one namespace.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from octavo_operator.api.names import pod_labels
from octavo_operator.reconcile import operator
from octavo_operator.reconcile.api_requests.api_error import HELD_BACK, ApiError
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, OBSERVED, OPTIONAL, POD, Kind
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observation.relist import Listing
from octavo_operator.reconcile.watching import watched_namespaces, watches
from octavo_operator.reconcile.watching.failing_lists import MOST_FAILURES
from octavo_operator.reconcile.watching.watched_namespaces import (
    NamespacesChangedError,
    WatchedNamespaces,
    watch_namespaces,
)
from octavo_operator.reconcile.watching.watches import WatchesHangError, WatchFailedError
from tests.operator.reconcile.test_operator_metrics import samples
from tests.operator.reconcile.watching.test_reopening import ApiServer, Passes, body, process_of

A, B = ("a", "in-a"), ("b", "in-b")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """In place of the reconciler; namespaces are asked for again quickly."""
    found = Passes()
    monkeypatch.setattr(operator, "Reconciler", found.reconciler)
    monkeypatch.setattr(watched_namespaces, "POLL_SECONDS", 0.05)
    return found


def server_of_two() -> ApiServer:
    """An API server with one LLMService in each of two namespaces."""
    server = ApiServer()
    server.items = {LLMSERVICE.plural: [body("in-a", "a"), body("in-b", "b")]}
    return server


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def worked_on(passes: Passes) -> set[tuple[str, str]]:
    return {key for key, _, _ in passes.seen}


def shown(metrics: OperatorMetrics) -> list[str]:
    """The names of the LLMServices' metrics."""
    return [name for name in samples(metrics) if name.startswith("octavo_llmservice")]


async def test_a_namespace_that_cannot_be_read_does_not_stop_the_others(passes: Passes) -> None:
    server = server_of_two()
    process = process_of(server, ("a", "b"))
    process.metrics.leads()
    async with asyncio.timeout(120), server.listening():
        server.forbidden = {"b"}
        running = asyncio.create_task(operator._serve_for_ever(process))
        await until(lambda: worked_on(passes) == {A})
        begun_since = asyncio.create_task(asyncio.sleep(3600))  # as a connection to /metrics that is kept alive
        assert process.namespaces.problems == ["namespace b cannot be read: no rights in b"]
        server.forbidden = set()
        await until(lambda: worked_on(passes) == {A, B})
        assert process.namespaces.problems == []
        server.forbidden = {"a"}
        await until(lambda: process.namespaces.readable == ("b",))
        passes.seen.clear()
        await until(lambda: len(passes.seen) > 5)
        await until(lambda: worked_on(passes) == {B} and passes.seen.clear() is None)
        assert shown(process.metrics)
        server.forbidden = {"a", "b"}
        await until(lambda: process.namespaces.readable == () and not shown(process.metrics))
        server.forbidden = set()
        passes.seen.clear()
        await until(lambda: worked_on(passes) == {A, B})
        assert not begun_since.done()
        begun_since.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_end_is_the_operators_own_from_the_first_watch_on(passes: Passes) -> None:
    """By its own handler kopf would end the watches first, while the leader goes on with renewing its lease."""
    server = server_of_two()
    process = process_of(server, ("a", "b"))
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        await until(lambda: worked_on(passes) == {A, B})
        os.kill(os.getpid(), signal.SIGTERM)
        await until(process.stop.is_set)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("kind", (CHILDREN[-1], *OBSERVED), ids=lambda kind: kind.plural)
async def test_a_kind_that_cannot_be_read_does_not_stop_the_others(kind: Kind, passes: Passes) -> None:
    server = server_of_two()
    server.items |= {each.plural: [child(each, "a"), child(each, "b")] for each in (*CHILDREN, *OBSERVED)}
    process = process_of(server, ("a", "b"))
    all_kinds = {each.plural for each in (LLMSERVICE, *CHILDREN, *OBSERVED)}

    def known(key: tuple[str, str]) -> set[str]:
        return next((set(kinds) for each, _, kinds in reversed(passes.seen) if each == key), set())

    async with asyncio.timeout(120), server.listening():
        server.forbidden_kinds = {("b", kind.plural)}
        running = asyncio.create_task(operator._serve_for_ever(process))
        await until(lambda: worked_on(passes) == {A, B})
        assert (known(A), known(B)) == (all_kinds, all_kinds - {kind.plural})
        assert process.namespaces.problems == [
            f"namespace b: its {kind.plural} are not watched: no right to {kind.plural} in b"
        ]
        assert (list(passes.unwatched("a")), list(passes.unwatched("b"))) == ([], [kind])
        server.forbidden_kinds = set()
        await until(lambda: known(B) == all_kinds)
        server.forbidden_kinds = {("a", kind.plural)}  # it is taken away while the watches are open
        await until(lambda: list(passes.unwatched("a")) == [kind])
        passes.seen.clear()
        await until(lambda: known(A) == all_kinds - {kind.plural} and known(B) == all_kinds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_foreign_kind_that_always_fails_stops_nothing(passes: Passes) -> None:
    """As with a CRD whose conversion webhook does not answer: no watch begins before all kinds are listed."""
    server, kind = server_of_two(), OPTIONAL[0]
    server.optional, server.failing = OPTIONAL, kind
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        await until(lambda: worked_on(passes) == {A, B})
        assert list(passes.unwatched("a")) == [kind]
        assert "conversion webhook for ServiceMonitor failed" in process.namespaces.problems[0]
        server.failing, first = None, passes.indexes
        await until(lambda: passes.indexes is not first and not passes.unwatched("a"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_foreign_kind_whose_list_fails_for_a_later_object_is_not_watched() -> None:
    server, scope, kinds, kind = LaterObjectFails(), WatchedNamespaces(("a",)), (LLMSERVICE, *OPTIONAL), OPTIONAL[0]
    await scope.probe(server, kinds)
    scope.failing.failed(("a", kind), "as a resync finds", of_all=True)
    for _ in range(MOST_FAILURES - 1):
        assert not scope.unwatched("a")
        await scope.probe(server, kinds, everything=False)
    assert scope.unwatched("a") == {kind: "no conversion"}
    server.later_fails = False
    await scope.probe(server, kinds, everything=False)
    assert not scope.unwatched("a")


class LaterObjectFails(ApiServer):
    later_fails = True

    async def list_all(self, kind: Kind, namespace: str) -> Listing:
        if self.later_fails:
            raise ApiError(500, "InternalError", "no conversion")
        return Listing(kind, 1, ())


async def test_while_the_api_server_fails_no_kind_is_given_up_and_the_failure_is_said_once_it_lasts() -> None:
    class Down(ApiServer):
        async def probe(self, kind: Kind, namespace: str) -> None:
            raise ApiError(503, "", "try later")

    scope, kinds = WatchedNamespaces(("a",)), (LLMSERVICE, *OPTIONAL)
    for number in range(1, 2 * MOST_FAILURES):
        await scope.probe(Down(), kinds)
        failing = number >= MOST_FAILURES
        said = "namespace a: its llmservices cannot be listed, so their changes go unseen: try later"
        assert scope.problems == [said] * failing
        assert scope.by_namespace() == {"a": not failing}
    assert scope.groups(kinds) == {kinds: ("a",)}
    await scope.probe(ApiServer(), kinds)
    assert (scope.problems, scope.by_namespace()) == ([], {"a": True})


@pytest.mark.parametrize("refused", [LLMSERVICE, OPTIONAL[0]], ids=lambda kind: kind.plural)
async def test_a_list_that_is_not_made_as_one_refusal_asked_to_wait_is_no_further_failure(refused: Kind) -> None:
    class Refusing(ApiServer):
        failure = ApiError(503, "", "in a minute", 60.0)

        async def probe(self, kind: Kind, namespace: str) -> None:
            if kind is refused:
                raise self.failure

    server, scope, kinds = Refusing(), WatchedNamespaces(("a",)), (LLMSERVICE, *OPTIONAL)
    await scope.probe(server, kinds)
    server.failure = ApiError(429, HELD_BACK, "in a minute", 50.0)
    for _ in range(2 * MOST_FAILURES):
        await scope.probe(server, kinds)
    assert (scope.problems, scope.groups(kinds)) == ([], {kinds: ("a",)})


async def test_after_one_right_was_refused_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_namespaces, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(watched_namespaces, "CHECKS_OF_ALL", 10**9)
    server, scope, kinds = ApiServer(), WatchedNamespaces(("a",)), (LLMSERVICE, *CHILDREN)
    server.forbidden_kinds = {("a", CHILDREN[0].plural)}
    looking = asyncio.create_task(watch_namespaces(server, scope, kinds, server.missing_rights.lately))
    await asyncio.sleep(0.05)
    assert not looking.done()
    server.missing_rights.note('cannot create resource "services" in API group "" in the namespace "a"')
    async with asyncio.timeout(120):
        with pytest.raises(NamespacesChangedError):
            await looking
    assert list(scope.unwatched("a")) == [CHILDREN[0]]


def child(kind: Kind, namespace: str) -> dict[str, Any]:
    """An object that belongs to the LLMService in the namespace."""
    name = f"in-{namespace}"
    labels = {**pod_labels(name), "kubernetes.io/service-name": name}
    return body(f"{kind.plural}-of-{name}", namespace, **labels)


@pytest.mark.parametrize("status", [403, 500])
async def test_a_watch_that_fails_is_opened_anew(status: int, passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_FAILED_SECONDS", 0.01)
    server = server_of_two()
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        await until(lambda: worked_on(passes) == {A, B})
        server.watch_error, first = status, passes.indexes
        await until(lambda: server.watch_error is None and passes.indexes is not first)
        passes.seen.clear()
        await until(lambda: worked_on(passes) == {A, B})
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_watches_that_always_end_with_410_do_not_list_all_the_time(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "RELIST_SECONDS", 0.5)
    server = server_of_two()
    server.outdated = CHILDREN[0]
    listed = server.listed_at.setdefault(CHILDREN[0].plural, [])
    process = process_of(server, namespaces=("a",))
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        await until(lambda: len(listed) >= 3)
        assert min(after - before for before, after in itertools.pairwise(listed)) >= 0.5
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_watches_that_fail_again_and_again_are_reopened_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each opening lists the whole cluster: a right that only the watch lacks would cost a list of all every second."""
    pauses: list[float] = []
    failures = iter(range(8))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def fails(_: object) -> None:
        if next(failures, None) is not None:
            raise WatchFailedError("403")

    process = process_of(server_of_two())
    monkeypatch.setattr(operator, "_serve", fails)
    monkeypatch.setattr(operator, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    await operator._serve_for_ever(process)
    assert pauses == [0, 1, 3, 7, 15, 30, 30, 30]


async def test_most_looks_ask_only_for_llmservices_and_for_what_was_refused() -> None:
    asked: list[tuple[str, Kind]] = []

    class Counting(ApiServer):
        async def probe(self, kind: Kind, namespace: str) -> None:
            asked.append((namespace, kind))
            await super().probe(kind, namespace)

    server, scope, kinds = Counting(), WatchedNamespaces(("a", "b")), (LLMSERVICE, *CHILDREN, *OBSERVED)
    server.forbidden_kinds = {("b", POD.plural)}
    await scope.probe(server, kinds)
    assert len(asked) == 2 * len(kinds)
    asked.clear()
    server.forbidden_kinds.add(("a", POD.plural))
    await scope.probe(server, kinds, everything=False)
    assert sorted(asked, key=str) == sorted([("a", LLMSERVICE), ("b", LLMSERVICE), ("b", POD)], key=str)
    assert list(scope.unwatched("b")) == [POD]
    await scope.probe(server, kinds)
    assert list(scope.unwatched("a")) == [POD]


@pytest.mark.parametrize(("namespaces", "at_once"), [(1, len(CHILDREN)), (100, 16)])
async def test_kinds_are_asked_for_at_once_and_never_too_many_of_them(namespaces: int, at_once: int) -> None:
    """Where each answer takes seconds, the start must not take their sum; and other requests must not wait for all."""

    class Counting(ApiServer):
        running = most = 0

        async def probe(self, kind: Kind, namespace: str) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1

    server = Counting()
    await WatchedNamespaces([f"n{each}" for each in range(namespaces)]).probe(server, (LLMSERVICE, *CHILDREN))
    assert server.most == at_once


async def test_what_cannot_be_read_is_a_metric(passes: Passes) -> None:
    metrics, known = OperatorMetrics(), WatchedNamespaces(("a", "b"))
    metrics.read_namespaces(known)
    server = server_of_two()
    server.forbidden = {"b"}
    await known.probe(server, [LLMSERVICE])
    found = samples(metrics)
    assert found["octavo_operator_namespace_readable['a']"] == 1
    assert found["octavo_operator_namespace_readable['b']"] == 0
    assert WatchedNamespaces(()).by_namespace() == {"*": True}


@pytest.mark.parametrize("way", ["it has failed", "it was asked to end"])
async def test_watches_that_do_not_end_are_not_waited_for(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf puts no limit to the time in which its tasks end, after a failure of one of them neither."""
    monkeypatch.setattr(watches, "WIND_UP_SECONDS", 0.05)
    released, watching = asyncio.Event(), asyncio.Event()

    async def fails() -> None:
        await asyncio.sleep(3600 if way == "it was asked to end" else 0)

    async def spawn(**_: object) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(fails())]

    async def run_tasks(*_: object, **__: object) -> None:
        watching.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr(kopf, "spawn_tasks", spawn)
    monkeypatch.setattr(kopf, "run_tasks", run_tasks)
    server = server_of_two()
    process = process_of(server)
    async with asyncio.timeout(120), server.listening():
        running = asyncio.create_task(operator._serve_for_ever(process))
        if way == "it was asked to end":
            await watching.wait()
            running.cancel()
        with pytest.raises(WatchesHangError):
            await running
    released.set()


HANGS = """
import asyncio, sys
from octavo_operator import cli
from octavo_operator.reconcile import operator

async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("stays", flush=True)

async def run(options):
    asyncio.ensure_future(stubborn())
    await asyncio.sleep(0.01)

operator.run = run
sys.exit(cli.main(["run"]))
"""


def test_the_process_ends_though_a_part_of_it_does_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGS], env=dict(os.environ))
    try:
        assert process.wait(120) == 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
