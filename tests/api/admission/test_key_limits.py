"""The limits of one API key, whose usage stays counted when the key file is read again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from octavo_engine.server import lifecycle
from octavo_engine.server.admission.auth import Key, read_keys
from octavo_engine.server.admission.key_limits import KeyLimits, KeyMeter
from octavo_engine.server.admission.refusal import RefusedError
from tests.api.served import Served


class Meter(KeyMeter):
    """The real meter with a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)

    def refuses(self, key: Key) -> tuple[str, int]:
        with pytest.raises(RefusedError) as caught:
            self.check(key)
        assert (caught.value.status, caught.value.detail.code) == (429, "rate_limit_exceeded")
        return caught.value.reason, int(caught.value.headers["Retry-After"])


def test_requests_a_minute_and_exactly_when_the_next_may_come() -> None:
    meter, key = Meter(), Key("a", requests_per_minute=10)
    for _ in range(10):
        meter.check(key)
        meter.begin()
    assert meter.refuses(key) == ("requests_per_minute", 6)
    meter.now += 4.5
    assert meter.refuses(key) == ("requests_per_minute", 2)  # 1.5 s
    meter.now += 1.5
    meter.check(key)
    meter.begin()
    assert meter.refuses(key) == ("requests_per_minute", 6)
    meter.now += 3600  # no more than a minute's worth is saved up
    for _ in range(10):
        meter.check(key)
        meter.begin()
    meter.refuses(key)


def test_a_request_counts_before_it_is_accepted_and_after_it_has_ended() -> None:
    meter, key = Meter(), Key("a", requests_per_minute=1)
    meter.check(key)
    meter.begin()
    assert meter.refuses(key) == ("requests_per_minute", 60)
    meter.end()
    assert meter.refuses(key) == ("requests_per_minute", 60)


def test_tokens_a_minute_are_paid_for_as_they_come() -> None:
    meter, key = Meter(), Key("a", tokens_per_minute=600)
    meter.check(key)
    meter.tokens.take(500)
    meter.check(key)
    meter.tokens.take(400)  # an accepted request may go on; the key pays for it afterwards
    assert meter.refuses(key) == ("tokens_per_minute", 31)  # 301 tokens at ten a second
    meter.now += 31
    meter.check(key)


def test_meters_of_keys_that_were_removed_go() -> None:
    """Not while one has used something: a key that comes back would have more than its limit."""
    now = 1000.0
    limits, meters = KeyLimits(lambda: now), {}
    kept = limits.meter(Key("kept"))
    for key in (Key("requests", requests_per_minute=6), Key("tokens", tokens_per_minute=60), Key("running")):
        meter = meters[key.name] = limits.meter(key)
        meter.check(key)
        getattr(meter, key.name).take(1)
    limits.forget_others({"kept"})
    for name, meter in meters.items():
        assert limits.meter(Key(name)) is meter
    now += 60
    meters["running"].running.release(1)
    limits.forget_others({"kept"})
    assert limits._meters == {"kept": kept}


def test_a_key_with_its_most_concurrent_requests_is_refused_until_one_ends() -> None:
    meter, key = Meter(), Key("a", max_concurrent_requests=2)
    meter.check(key)
    meter.begin()
    meter.begin()
    reason, seconds = meter.refuses(key)
    assert (reason, 1 <= seconds <= 3) == ("max_concurrent_requests", True)
    meter.end()
    meter.check(key)
    for _ in range(10):  # one ends every ten seconds
        meter.begin()
        meter.now += 10
        meter.end()
    meter.begin()
    reason, seconds = meter.refuses(key)
    assert 5 <= seconds <= 12


def test_without_limits_a_key_may_do_anything() -> None:
    meter, key = Meter(), Key("a")
    for _ in range(1000):
        meter.check(key)
        meter.begin()
        meter.tokens.take(10**9)


def test_another_limit_keeps_what_was_left() -> None:
    meter = Meter()
    meter.check(Key("a", requests_per_minute=10))
    for _ in range(10):
        meter.begin()
    assert meter.refuses(Key("a", requests_per_minute=60)) == ("requests_per_minute", 1)
    meter.check(Key("a"))
    meter.check(Key("a", requests_per_minute=1))  # new again, and full
    meter.begin()
    assert meter.refuses(Key("a", requests_per_minute=1)) == ("requests_per_minute", 60)


def test_the_file_names_all_limits(tmp_path: Path) -> None:
    path = write(
        tmp_path, "requestsPerMinute: 1, tokensPerMinute: 2, maxConcurrentRequests: 3, priority: -4, weight: 5"
    )
    [entry] = read_keys(path)
    assert entry.owner == Key("alice", -4, 5.0, 1, 2, 3)


def write(folder: Path, limits: str) -> Path:
    path = folder / "keys.yaml"
    path.write_text(f"keys:\n- {{name: alice, key: sk-alice, {limits}}}\n")
    return path


def standing(server: Served) -> Served:
    """The server, whose clock for the limits of keys stands still however long the test takes."""
    server.serving.admission._meters._clock = lambda: 1000.0
    return server


def ask(server: Served, **body: Any) -> httpx2.Response:
    headers = {"Authorization": "Bearer sk-alice"}
    return server.http.post("/v1/completions", json={"prompt": "x", **body}, headers=headers)


def rejected(server: Served, reason: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    [line] = [x for x in lines if x.startswith("octavo_requests_rejected") and f'"{reason}"' in x]
    return float(line.split()[-1])


def test_a_key_out_of_requests_gets_the_time_to_come_back(start: Callable[..., Served], tmp_path: Path) -> None:
    server = standing(start(api_key_file=write(tmp_path, "requestsPerMinute: 2")))
    server.play("Hello")
    assert ask(server, prompt=[]).status_code == 400  # costs as much as any other
    assert [ask(server).status_code for _ in range(3)] == [200, 429, 429]
    refused = ask(server)
    assert int(refused.headers["retry-after"]) == 30
    assert "2 requests a minute (requestsPerMinute of key alice)" in refused.json()["error"]["message"]
    with pytest.raises(openai.RateLimitError):
        server.openai(api_key="sk-alice").completions.create(model="smollm2", prompt="x")
    assert (rejected(server, "requests_per_minute"), rejected(server, "invalid")) == (4, 1)


def test_answers_say_what_is_left_of_a_keys_limits(start: Callable[..., Served], tmp_path: Path) -> None:
    server = standing(start(api_key_file=write(tmp_path, "requestsPerMinute: 2, tokensPerMinute: 600")))
    server.play("Hello")
    first, second, refused = (ask(server, prompt=[5] * 98) for _ in range(3))
    missing = server.http.get("/v1/nothing", headers={"Authorization": "Bearer sk-alice"})
    for answer, status, left in ((first, 200, "1"), (second, 200, "0"), (refused, 429, "0"), (missing, 429, "0")):
        assert (answer.status_code, answer.headers["x-ratelimit-remaining-requests"]) == (status, left)
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert 0 < float(answer.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert answer.headers["x-ratelimit-limit-tokens"] == "600"
    assert int(refused.headers["x-ratelimit-remaining-tokens"]) == 600 - 2 * (98 + 2)
    assert not any(name.startswith("x-ratelimit") for name in server.http.get("/health").headers)


def test_a_key_without_limits_is_told_none(server: Served) -> None:
    assert not any(name.startswith("x-ratelimit") for name in ask(server).headers)


def test_a_key_pays_for_prompt_and_answer(start: Callable[..., Served], tmp_path: Path) -> None:
    server = standing(start(api_key_file=write(tmp_path, "tokensPerMinute: 20")))
    server.play("one two three four five six seven eight nine ten")
    assert ask(server, prompt=[5] * 12).status_code == 200
    refused = ask(server)
    assert (refused.status_code, rejected(server, "tokens_per_minute")) == (429, 1)
    assert int(refused.headers["retry-after"]) == 12  # 12 + 11 tokens of 20, one more in three seconds


def test_a_key_with_enough_under_way_waits_for_one_to_end(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=write(tmp_path, "maxConcurrentRequests: 1"))
    server.play("Hello", hold_after=0)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, server)
        server.wait_until(lambda: len(server.engine.requests) == 1)
        assert ask(server).status_code == 429
        server.do(server.engine.release.set)
        assert first.result().status_code == 200
    assert ask(server).status_code == 200
    assert ask(server, prompt=[]).status_code == 400  # gives its place back, too
    assert ask(server).status_code == 200
    assert rejected(server, "max_concurrent_requests") == 1


def test_what_a_key_has_used_outlives_a_new_key_file(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_RELOAD_INTERVAL", 0.02)
    server = start(api_key_file=write(tmp_path, "requestsPerMinute: 1"))
    server.play("Hello")
    assert [ask(server).status_code for _ in range(2)] == [200, 429]
    write(tmp_path, "requestsPerMinute: 1, weight: 3.5")
    keys = server.serving.keys
    assert keys is not None
    server.wait_until(lambda: (found := keys.owner_of("sk-alice")) is not None and found.weight == 3.5)
    assert ask(server).status_code == 429


def test_a_key_that_was_removed_is_forgotten_but_not_what_it_owes(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_RELOAD_INTERVAL", 0.02)
    server = start(api_key_file=write(tmp_path, "requestsPerMinute: 1"))
    server.play("Hello")
    assert ask(server).status_code == 200
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    server.wait_until(lambda: not server.do(lambda: dict(server.serving.admission._by_key)))
    assert ask(server).status_code == 401
    write(tmp_path, "requestsPerMinute: 1")
    server.wait_until(lambda: ask(server).status_code != 401)
    assert ask(server).status_code == 429
