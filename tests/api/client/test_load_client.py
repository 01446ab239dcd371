"""The client of bench/overload.py and bench/fairness.py: it reads the server's streams, and its figures are right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.load import Client, Reply, body_of, percentile, prompts
from bench.overload import ServerFigures, summarize
from tests.api.served import PATIENCE, Served, write_keys


def ask(port: int, *bodies: bytes, key: str = "none", timeout: float = PATIENCE) -> list[Reply]:
    """One after the other, on as few connections as the client can."""

    async def run() -> list[Reply]:
        client = Client(port, timeout)
        replies = [await client.ask(body, key) for body in bodies]
        client.close()
        return replies

    return asyncio.run(run())


def test_replies_of_whole_answers_and_streams_have_their_times_and_tokens(server: Served) -> None:
    server.play("one two three")
    whole, stream = body_of("Hi", 8), body_of([5, 6], 8, stream=True)
    for reply in ask(server.port, whole, stream, whole, stream):
        assert (reply.status, reply.code) == (200, None)
        assert reply.asked <= reply.sent < reply.first_token <= reply.ended
    assert ask(server.port, whole)[0].tokens == 4  # three words and the end
    assert server.engine.requests[-1].sampling.max_tokens == 8


def test_refusals(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(max_queued_requests=0, api_key_file=write_keys(tmp_path / "keys.yaml", "alice"))
    server.do(lambda: server.engine.report(running=4))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))
    [full] = ask(server.port, body_of("Hi", 8), key="sk-alice")
    assert (full.status, full.code, full.tokens) == (503, "server_overloaded", 0)
    assert full.retry_after is not None
    [unknown] = ask(server.port, body_of("Hi", 8))
    assert (unknown.status, unknown.code, unknown.retry_after) == (401, "invalid_api_key", None)


def test_what_is_never_answered(start: Callable[..., Served]) -> None:
    server = start()
    server.play("Hi", hold_after=0)
    assert [reply.status for reply in ask(server.port, body_of("Hi", 8), timeout=0.2)] == [0]
    server.stop()
    assert [reply.status for reply in ask(server.port, body_of("Hi", 8))] == [0]


def test_prompts_share_no_beginning_and_are_the_same_again() -> None:
    first = prompts(50, 20, 1)
    assert first == prompts(50, 20, 1)
    assert len({tuple(prompt.split()[:5]) for prompt in first}) == 50


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value
    assert percentile([7.0], share) == 7


def test_goodput_is_what_ended_whole_in_the_measured_time() -> None:
    def reply(asked: float, ended: float, status: int, **more: object) -> Reply:
        found = Reply(asked, asked, ended=ended, status=status)
        for name, value in more.items():
            setattr(found, name, value)
        return found

    replies = [
        reply(0, 9, 200, tokens=100), reply(1, 11, 200, tokens=32), reply(5, 19, 200, tokens=32),
        reply(19, 21, 200, tokens=100), reply(10, 10.02, 503, retry_after="3"), reply(12, 12.04, 429),
        reply(3, 40, 0), reply(13, 14, 500, code="x"),
    ]  # fmt: skip
    waits = {1.0: 5, 30.0: 8, 40.0: 9, 50.0: 9, float("inf"): 9}
    phase = summarize("p", replies, 10, 20, ServerFigures({}, {}, waits, most_wait=30))
    assert (phase.answered, phase.tokens_per_s, phase.hung) == (2, 6.4, 1)
    assert (phase.refused, phase.without_retry_after, phase.other) == (2, 1, {"500 x": 1})
    assert (round(phase.refused_p50_ms), round(phase.refused_p99_ms)) == (20, 40)
    assert (phase.begun, phase.waited_longer, phase.waited_at_most_s) == (9, 1, 40)
