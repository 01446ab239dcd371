"""Admission: what waits is bounded; who is turned away hears when to come back; the numbers come back to nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from octavo_engine.core.step import SchedulerStats
from octavo_engine.server.limits import Admission, OverloadedError
from tests.api.served import Served


def admission(stats: SchedulerStats, *, requests: int = 2, tokens: int = 100, seats: int = 4) -> Admission:
    return Admission(requests, tokens, lambda: stats, lambda: seats)


def test_free_seats_do_not_count_as_queue() -> None:
    door = admission(SchedulerStats(running=0))
    for _ in range(6):  # four seats and two places in the queue
        door.enter(1)
    with pytest.raises(OverloadedError) as caught:
        door.enter(1)
    assert (caught.value.reason, caught.value.status) == ("queued_requests", 503)
    assert 1 <= int(caught.value.headers["Retry-After"]) <= 60


def test_no_queue_at_all_still_serves_free_seats() -> None:
    door = admission(SchedulerStats(running=3), requests=0)
    door.begun = 3
    door.enter(1)
    with pytest.raises(OverloadedError):
        door.enter(1)


def test_what_has_begun_is_not_counted_again_when_preempted() -> None:
    stats = SchedulerStats()
    door = admission(stats)
    tickets = [door.enter(1) for _ in range(4)]
    for ticket in tickets:
        ticket.begin()
    stats.running, stats.waiting = 1, 3  # three were preempted
    assert door.queued == 0
    door.enter(1)
    door.enter(1)
    with pytest.raises(OverloadedError):
        door.enter(1)


def test_tokens_are_bounded_but_one_long_prompt_alone_is_welcome() -> None:
    door = admission(SchedulerStats())
    first = door.enter(1)
    first.add_tokens(500)
    second = door.enter(1)
    with pytest.raises(OverloadedError) as caught:
        second.add_tokens(1)
    assert caught.value.reason == "queued_tokens"
    first.begin()
    second.add_tokens(100)


def test_a_request_larger_than_the_queue_is_welcome_when_none_waits() -> None:
    stats = SchedulerStats(running=4)
    door = admission(stats, requests=2)
    door.begun = 4
    ticket = door.enter(32)  # as large as a request can be: it would never fit otherwise
    with pytest.raises(OverloadedError, match="32 requests wait already and this one has 1"):
        door.enter(1)
    with pytest.raises(OverloadedError):
        door.enter(32)
    ticket.leave()
    with pytest.raises(OverloadedError):
        door.enter(6)  # fits once there are seats
    stats.running, door.begun = 0, 0
    door.enter(6)
    with pytest.raises(OverloadedError):
        door.enter(32)


def test_a_request_larger_than_the_queue_still_needs_some_room() -> None:
    door = admission(SchedulerStats(running=4), requests=0)
    door.begun = 4
    with pytest.raises(OverloadedError):
        door.enter(32)


def test_a_sequence_that_has_ended_is_not_counted_while_others_of_its_request_run() -> None:
    stats = SchedulerStats()
    door = admission(stats, requests=10)
    ticket = door.enter(3)
    ticket.add_tokens(30)
    for _ in range(2):
        ticket.begin()
        ticket.end(begun=True)
    stats.running = 1  # the engine reads the third
    assert (door.begun, door.queued, door.waiting, door.waiting_tokens) == (0, 0, 1, 10)
    ticket.end(begun=False)
    ticket.leave()
    assert (door.begun, door.waiting, door.waiting_tokens) == (0, 0, 0)


def test_everything_comes_back_whatever_the_order() -> None:
    door = admission(SchedulerStats(), requests=100, tokens=10_000)
    tickets = [door.enter(n) for n in (1, 3, 2)]
    tickets[0].add_tokens(7)
    tickets[1].add_tokens(100)  # not a multiple of three
    tickets[1].begin()
    tickets[0].begin()
    for ticket in (*tickets, *tickets):
        ticket.leave()
    assert (door.waiting, door.waiting_tokens, door.begun) == (0, 0, 0)


def test_retry_after_follows_the_rate() -> None:
    now = 0.0
    door = Admission(1000, 10**9, SchedulerStats, lambda: 0, clock=lambda: now)
    tickets = [door.enter(1) for _ in range(120)]
    for ticket in tickets[:20]:  # two a second
        now += 0.5
        ticket.begin()
    assert 40 <= door.retry_after() <= 60


def post(server: Served, **body: Any) -> httpx2.Response:
    return server.http.post("/v1/completions", json={"prompt": "x", **body})


def test_a_full_server_answers_503(start: Callable[..., Served]) -> None:
    server = start(max_queued_requests=1)
    server.do(lambda: server.engine.report(running=4, waiting=0))
    server.serving.admission.begun = 4  # four that have begun fill all seats
    server.play("Hello", hold_after=0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post, server)
        server.wait_until(lambda: len(server.engine.requests) == 1)
        refused = post(server)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_overloaded"
        assert "--max-queued-requests" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert 'octavo_requests_waiting{model_name="smollm2"} 1.0' in server.http.get("/metrics").text
        server.do(server.engine.release.set)
        assert waiting.result().status_code == 200
    assert post(server).status_code == 200
    text = server.http.get("/metrics").text
    assert 'octavo_requests_rejected_total{model_name="smollm2",reason="queued_requests"} 1.0' in text
    assert 'vllm:admission_rejections_total{engine="0",model_name="smollm2",reason="max_num_queued_reqs"} 1.0' in text


def test_an_idle_server_takes_a_request_larger_than_its_queue(start: Callable[..., Served]) -> None:
    server = start(max_queued_requests=1)
    server.play("Hello")
    answer = post(server, prompt=["x"] * 32, n=8)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 256)


def test_what_waits_is_counted_right_while_a_request_is_half_answered(start: Callable[..., Served]) -> None:
    server = start()
    server.play("one two", hold_after=1, hold_prompts_over=3)
    with ThreadPoolExecutor() as pool:
        half = pool.submit(post, server, prompt=[[5], [5, 5, 5, 5]])  # the first is answered, the second is held
        server.wait_until(lambda: server.serving.admission.begun == 1 and server.serving.admission.waiting == 0)
        server.play("Hi", hold_after=0)
        reading = pool.submit(post, server)
        server.wait_until(lambda: len(server.engine.requests) == 3)
        server.do(lambda: server.engine.report(running=2))
        assert 'octavo_requests_waiting{model_name="smollm2"} 0.0' in server.http.get("/metrics").text
        server.do(server.engine.release.set)
        assert (half.result().status_code, reading.result().status_code) == (200, 200)


def test_too_many_waiting_tokens_answer_503(start: Callable[..., Served]) -> None:
    server = start(max_queued_tokens=100)
    server.play("Hello", hold_after=0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post, server, prompt=[5] * 80)
        server.wait_until(lambda: len(server.engine.requests) == 1)
        refused = post(server, prompt=[5] * 30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
        server.do(server.engine.release.set)
        assert waiting.result().status_code == 200


def test_refused_requests_leave_no_trace(server: Served) -> None:
    post(server, prompt=[5] * 600)
    post(server, prompt=[])
    server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x " * 600}]})
    door = server.serving.admission
    assert (door.waiting, door.waiting_tokens, door.begun, len(server.serving.running)) == (0, 0, 0, 0)
