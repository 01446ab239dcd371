"""Deadlines of requests, from the body, a header or the server; and requests that cannot begin in time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from octavo_engine.server.admission.auth import ANYONE
from octavo_engine.server.admission.refusal import RefusedError
from tests.api.admission.test_limits import ALICE, BOB, ManualAdmission
from tests.api.served import PATIENCE, Served

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def timeout_of(server: Served, body: dict[str, float], header: str | None) -> float:
    """Return the timeout that the engine is given."""
    headers = {"X-Request-Timeout": header} if header is not None else {}
    answer = server.http.post("/v1/completions", json={"prompt": "x", **body}, headers=headers)
    assert answer.status_code == 200
    timeout = server.engine.requests[-1].timeout
    assert timeout is not None
    return timeout


@pytest.mark.parametrize(
    ("body", "header", "longest"),
    [
        ({}, None, 10_000),
        ({"timeout": 5000}, None, 5000),
        ({}, "5000", 5000),
        ({"timeout": 3000}, "5000", 3000),
        ({"timeout": 5000}, "3000.5", 3000.5),
        ({"timeout": 50_000}, "40000", 10_000),
    ],
)
def test_the_smallest_timeout_counts(
    start: Callable[..., Served], body: dict[str, float], header: str | None, longest: float
) -> None:
    server = start(request_timeout=10_000)
    server.play("Hello")
    assert longest - PATIENCE < timeout_of(server, body, header) <= longest


@pytest.mark.parametrize("value", ["", "0", "-1", "soon", "nan", "inf", "1e3", "86401", "1_0", "5s", "0.0001", "٣"])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", CHAT)])
def test_a_header_that_is_no_timeout_is_refused(server: Served, path: str, body: dict[str, object], value: str) -> None:
    answer = server.http.post(path, json=body, headers={"X-Request-Timeout": value.encode()})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "X-Request-Timeout")
    assert "0.001 to 86400" in error["message"]


def moving(admission: ManualAdmission, waiting: int) -> ManualAdmission:
    """Full seats, and a queue of so many that moves by two a second."""
    admission.fill_seats()
    for admitted in [admission.enter(ANYONE, 1) for _ in range(10)]:
        admission.now += 0.5
        admitted.begin()
        admitted.leave()
    for _ in range(waiting):
        admission.enter(ANYONE, 1)
    return admission


def test_what_could_not_begin_in_time_is_refused_at_once() -> None:
    admission = moving(ManualAdmission(requests=1000), 100)  # 50 s of work
    with pytest.raises(
        RefusedError, match=r"the 100 requests before this one may take 6[67] s and its timeout is 20 s"
    ) as caught:
        admission.enter(ANYONE, 1, seconds_left=20)
    assert (caught.value.reason, caught.value.status) == ("deadline", 503)
    assert 35 <= int(caught.value.headers["Retry-After"]) <= 43  # until 15 s are left, and up to a fifth more
    admission.enter(ANYONE, 1, seconds_left=70)


def test_what_would_wait_longer_than_the_server_allows_is_refused_at_once() -> None:
    admission = moving(ManualAdmission(requests=1000, queue_seconds=10.0), 10)  # 5 s of work
    for _ in range(4):
        admission.enter(ANYONE, 1)
    with pytest.raises(RefusedError, match=r"may take 1\d s and --max-queue-seconds is 10 s") as caught:
        for _ in range(4):
            admission.enter(ANYONE, 1)
    assert (caught.value.reason, caught.value.status) == ("deadline", 503)
    assert 1 <= int(caught.value.headers["Retry-After"]) <= 3


@pytest.mark.parametrize("priorities", [False, True])
def test_what_would_wait_too_long_is_refused_before_its_body_is_read(priorities: bool) -> None:
    admission = moving(ManualAdmission(requests=1000, priorities=priorities), 30)  # 15 s of work
    admission.limits = replace(admission.limits, queue_seconds=10.0)
    admission.arrive(ANYONE, generates=False)
    if priorities:
        admission.arrive(ANYONE, generates=True)  # its body may name a priority that overtakes those 30
        return
    with pytest.raises(RefusedError, match="--max-queue-seconds is 10 s"):
        admission.arrive(ANYONE, generates=True)


def test_no_wait_is_predicted_for_a_queue_that_has_never_moved() -> None:
    admission = ManualAdmission(requests=1000)
    admission.fill_seats()
    for _ in range(100):
        admission.enter(ANYONE, 1)
    admission.enter(ANYONE, 1, seconds_left=0.1)


def test_only_what_is_surely_ahead_counts() -> None:
    admission = moving(ManualAdmission(requests=1000, keys=True), 0)
    for _ in range(100):
        admission.enter(ALICE, 1)
    admission.enter(BOB, 1, seconds_left=1)  # keys take turns
    admission.enter(ALICE, 1, priority=-1, seconds_left=1)  # the more important comes first
    with pytest.raises(RefusedError):
        admission.enter(ALICE, 1, seconds_left=1)
    with pytest.raises(RefusedError):
        admission.enter(ALICE, 1, priority=7, seconds_left=1)  # nor is a lane of its own a way past the limit


def test_a_refusal_for_its_deadline_is_counted_and_says_when(start: Callable[..., Served]) -> None:
    server = start(max_queued_requests=1000)
    server.play("Hello")
    for _ in range(10):  # so that a rate is known
        assert server.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
    server.do(lambda: server.engine.report(running=4, waiting=1))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))
    server.play("Hello", hold_after=0)
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"}) for _ in range(20)]
        server.wait_until(lambda: len(server.engine.requests) == 30)
        refused = server.http.post("/v1/completions", json={"prompt": "x", "timeout": 0.001})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        server.do(server.engine.release.set)
        assert {answer.result().status_code for answer in waiting} == {200}
    assert 'reason="deadline"} 1.0' in server.http.get("/metrics").text
