"""Admission: waiting requests are bounded, refusals have a Retry-After, and all counters return to zero."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.server.admission.auth import ANYONE, Key
from octavo_engine.server.admission.limits import Admission, AdmittedRequest, QueueLimits
from octavo_engine.server.admission.occupancy import Occupancy
from octavo_engine.server.admission.refusal import RefusedError
from tests.api.scripted_engine import READY
from tests.api.served import Served, write_keys

ALICE, BOB = Key("alice"), Key("bob")


class ManualAdmission(Admission):
    """The real admission with a clock of its own and an engine that reports what the test says."""

    def __init__(self, *, seats: int = 4, keys: bool = False, priorities: bool = True, **limits: Any) -> None:
        self.engine = SchedulerStats()
        self.now = 0.0
        info = replace(READY, max_num_seqs=seats)  # KV cache: 64 blocks of 16 tokens
        super().__init__(
            QueueLimits(**{"requests": 2, "tokens": 100, **limits}),
            lambda: self.engine,
            lambda: info,
            clock=lambda: self.now,
            several_keys=lambda: keys,
            priorities=priorities,
        )

    def place(
        self, sequences: int = 1, key: Key = ANYONE, *, tokens: int = 0, answer: int = 1, **more: Any
    ) -> AdmittedRequest:
        """A request that has come so far that its tokens are counted."""
        admitted = self.enter(key, sequences, **more)
        try:
            admitted.add_tokens(tokens, answer)
        except RefusedError:
            admitted.leave()
            raise
        return admitted

    def fill_seats(self) -> None:
        """All seats are taken by requests that have begun."""
        self.engine.running = self.begun = 4

    def refuses(self, sequences: int = 1, key: Key = ANYONE, **request: Any) -> RefusedError:
        with pytest.raises(RefusedError) as caught:
            self.place(sequences, key, **request)
        assert int(caught.value.headers["Retry-After"]) >= 1
        return caught.value

    @property
    def in_use(self) -> tuple[int, ...]:
        books = self.total
        return books.requests.used, books.tokens.used, books.kv.used, self.begun, len(self.lanes)


def test_a_request_takes_as_many_steps_among_thousands_of_keys_as_among_few() -> None:
    """It took 15 ms of the event loop among 10,000 keys. A turn of a generator counts as a call."""

    def calls(keys: int) -> int:
        admission = ManualAdmission(keys=True, requests=100, tokens=1000)
        for number in range(keys):
            admission.place(1, Key(f"key {number}"), tokens=1).leave()
        admission.place(60, ALICE, tokens=600, answer=20)  # more than a share of each limit
        admission.check_any(BOB)
        found = 0

        def count(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal found
            found += event == "call"

        gc.disable()  # a collection calls what earlier tests have left
        sys.setprofile(count)
        try:
            admission.arrive(BOB, generates=True)
            admission.place(1, BOB, tokens=1)
        finally:
            sys.setprofile(None)
            gc.enable()
        return found

    assert calls(2000) <= calls(20) + 20


def test_keys_that_use_up_everything_leave_room_for_one_that_asks_little() -> None:
    """Two keys filled the queue together, each with its half, and another's only request was refused."""
    admission = ManualAdmission(keys=True, requests=128, tokens=2048, key_share=0.5)
    admission.fill_seats()
    carol = Key("carol")
    for key in (ALICE, BOB):
        admission.place(64, key, tokens=1024, answer=16)  # all of the requests, the prompt tokens and the KV cache
    assert admission.refuses(1, ALICE).status == 503
    admission.place(1, carol, tokens=15)
    admission.place(1, carol, tokens=15)
    assert admission.refuses(1, carol).status == 503


def test_free_seats_do_not_count_as_queue() -> None:
    admission = ManualAdmission()
    for _ in range(6):  # four seats and two places in the queue
        admission.enter(ANYONE, 1)
    refused = admission.refuses()
    assert (refused.reason, refused.status, refused.detail.code) == ("queued_requests", 503, "server_overloaded")
    said = "6 requests are waiting, 4 can begin at once and 2 may wait (--max-queued-requests); this request adds 1"
    assert said in str(refused)


def test_slots_that_are_kept_for_keys_with_one_request_are_not_free_for_others() -> None:
    """A busy key's request was accepted and waited, with which the kept slots were no longer free for anyone."""
    admission = ManualAdmission(seats=64, keys=True, requests=0)
    admission.engine.running = admission.begun = 61
    admission.engine.kept_slots = 2
    admission.place(1, ALICE, tokens=1)
    said = "1 requests are waiting, 1 can begin at once and 0 may wait (--max-queued-requests); this request adds 1"
    assert said in str(admission.refuses(1, ALICE))
    assert admission.refuses(2, BOB).reason == "queued_requests"
    admission.place(1, BOB, tokens=1)
    admission.place(1, Key("carol"), tokens=1)


def test_several_sequences_that_may_not_take_kept_slots_must_fit_into_the_commitment() -> None:
    """They were taken for one that can begin at once, and were accepted to wait."""
    admission = ManualAdmission(seats=64, keys=True, requests=8, tokens=10**9, kv_ratio=1.0)
    admission.place(1, ALICE, tokens=900).begin()
    admission.engine.running = admission.begun = 62
    admission.engine.kept_slots = 2
    assert admission.refuses(2, BOB, tokens=200).reason == "kv_commitment"
    admission.place(1, BOB, tokens=200)


def test_a_lowered_running_limit_has_fewer_seats() -> None:
    admission = ManualAdmission()
    admission.engine.running_limit = 1
    for _ in range(3):
        admission.enter(ANYONE, 1)
    admission.refuses()


def test_no_queue_at_all_still_serves_free_seats() -> None:
    admission = ManualAdmission(requests=0)
    admission.engine.running = admission.begun = 3
    admission.enter(ANYONE, 1)
    admission.refuses()


def test_what_has_begun_is_not_counted_again_when_preempted() -> None:
    admission = ManualAdmission()
    for admitted in [admission.enter(ANYONE, 1) for _ in range(4)]:
        admitted.begin()
    admission.engine.running, admission.engine.waiting = 1, 3  # three were preempted
    assert admission.queued == 0
    admission.enter(ANYONE, 1)
    admission.enter(ANYONE, 1)
    admission.refuses()


def test_tokens_are_bounded_but_one_long_prompt_alone_is_welcome() -> None:
    admission = ManualAdmission()
    first = admission.place(tokens=500)
    refused = admission.refuses(tokens=1)
    assert refused.reason == "queued_tokens"
    assert "500 prompt tokens are waiting and this request has 1 (--max-queued-tokens 100)" in str(refused)
    first.begin()
    admission.place(tokens=100)


def test_the_kv_that_accepted_requests_may_need_is_bounded() -> None:
    admission = ManualAdmission(tokens=10**9, kv_ratio=1.0)
    admission.fill_seats()
    first = admission.place(tokens=700, answer=100)
    refused = admission.refuses(tokens=200, answer=100)
    assert (refused.reason, refused.status) == ("kv_commitment", 503)
    assert "800 tokens of KV cache and this one 300; at most 1024 (--max-kv-commitment 1 times 1024)" in str(refused)
    first.begin()  # needs its KV tokens as long as it runs
    admission.refuses(tokens=200, answer=100)
    first.end(begun=True)
    admission.place(tokens=200, answer=100)


def test_a_request_that_finds_a_free_seat_need_not_fit_into_the_commitment() -> None:
    admission = ManualAdmission(tokens=10**9, kv_ratio=0.1)
    for _ in range(4):
        admission.place(tokens=500)
    assert admission.refuses(tokens=500).reason == "kv_commitment"


def test_the_choices_of_a_request_share_their_prompt() -> None:
    admission = ManualAdmission(tokens=10**9, requests=100)
    admission.place(4, tokens=400, answer=10)
    assert admission.total.kv.used == 440


def test_an_answer_counts_with_what_answers_lately_had() -> None:
    admission = ManualAdmission(tokens=10**9, requests=10**6)
    assert admission.expected_tokens(100_000) == 512  # nothing has been answered yet
    for length in range(128):
        admission.answered(length)
    assert (admission.expected_tokens(100_000), admission.expected_tokens(20)) == (127, 20)


def test_a_request_larger_than_the_queue_is_welcome_when_none_waits() -> None:
    admission = ManualAdmission()
    admission.fill_seats()
    admitted = admission.enter(ANYONE, 32)  # as large as a request can be: it would never fit otherwise
    assert "32 requests are waiting, " in str(admission.refuses())
    admission.refuses(32)
    admitted.leave()
    admission.refuses(6)  # fits once there are seats
    admission.engine.running = admission.begun = 0
    admission.enter(ANYONE, 6)
    admission.refuses(32)


def test_a_request_larger_than_the_queue_still_needs_some_room() -> None:
    admission = ManualAdmission(requests=0)
    admission.fill_seats()
    admission.refuses(32)


def test_a_sequence_that_has_ended_is_not_counted_while_others_of_its_request_run() -> None:
    admission = ManualAdmission(requests=10)
    admitted = admission.place(3, tokens=30, answer=5)
    for _ in range(2):
        admitted.begin()
        admitted.end(begun=True)
    admission.engine.running = 1  # the engine reads the third
    assert (admission.queued, admission.in_use) == (0, (1, 10, 15, 0, 1))
    admitted.end(begun=False)
    admitted.leave()
    assert admission.in_use == (0, 0, 0, 0, 0)


def test_all_counts_are_zero_after_requests_have_left_in_any_order() -> None:
    admission = ManualAdmission(requests=100, tokens=10_000)
    several = [admission.place(n, key, tokens=t) for n, key, t in ((1, ALICE, 7), (3, BOB, 100), (2, ALICE, 0))]
    several[1].begin()
    several[0].begin()
    for admitted in (*several, *several):
        admitted.leave()
    assert admission.in_use == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("limits", "request_", "reason"),
    [
        ({}, {}, "queued_requests"),
        ({"requests": 100, "tokens": 10}, {"tokens": 10}, "queued_tokens"),
        ({"requests": 100, "kv_ratio": 0.1}, {"answer": 102}, "kv_commitment"),
    ],
)
def test_when_a_budget_is_spent_nothing_more_need_be_known_of_a_request(
    limits: dict[str, Any], request_: dict[str, Any], reason: str
) -> None:
    admission = ManualAdmission(**limits)
    admission.fill_seats()
    admission.place(2, **request_)
    with pytest.raises(RefusedError) as caught:
        admission.check_any(ANYONE)
    assert caught.value.reason == reason


def wait_of(admission: ManualAdmission) -> int:
    return int(admission.refuses().headers["Retry-After"])


def test_retry_after_follows_the_rate() -> None:
    admission = ManualAdmission(requests=96, tokens=10**9)
    several = [admission.enter(ANYONE, 1) for _ in range(100)]
    assert 1 <= wait_of(admission) <= 3  # nothing known yet
    for admitted in several[:40]:  # four a second
        admission.now += 0.25
        admitted.begin()
    for _ in range(40):
        admission.enter(ANYONE, 1)
    assert 25 <= wait_of(admission) <= 30


def test_retry_after_without_a_queue_is_the_time_until_a_slot_is_free() -> None:
    """Only the time of prefills was measured, so that a server with --max-queued-requests 0 answered 1."""
    admission = ManualAdmission(requests=0)
    for _ in range(3):
        four = [admission.place(tokens=10, answer=90) for _ in range(4)]
        for admitted in four:
            admitted.begin()
        for admitted in four:  # one answer ends each 10 s
            admission.now += 10
            admitted.end(begun=True)
            admitted.leave()
    for admitted in [admission.place(tokens=10, answer=90) for _ in range(4)]:
        admitted.begin()
    admission.engine.running = 4
    assert 6 <= wait_of(admission) <= 12


def test_retry_after_of_tokens_follows_the_rate_of_tokens() -> None:
    admission = ManualAdmission(requests=1000, tokens=2000)
    several = [admission.place(tokens=100) for _ in range(20)]
    for admitted in several[:10]:  # 400 tokens a second
        admission.now += 0.25
        admitted.begin()
    assert 3 <= int(admission.refuses(tokens=1500).headers["Retry-After"]) <= 4  # 1,000 wait


def test_idle_time_does_not_change_the_rate() -> None:
    admission = ManualAdmission(requests=96, tokens=10**9)
    for admitted in [admission.enter(ANYONE, 1) for _ in range(40)]:
        admission.now += 0.25
        admitted.begin()
        admitted.leave()
    admission.now += 3600
    for _ in range(100):
        admission.enter(ANYONE, 1)
    assert 25 <= wait_of(admission) <= 30


def test_one_key_leaves_room_for_others() -> None:
    admission = ManualAdmission(requests=10, keys=True, key_share=0.5)
    admission.fill_seats()
    for _ in range(5):
        admission.enter(ALICE, 1)
    refused = admission.refuses(key=ALICE)
    assert (refused.reason, refused.status, refused.detail.code) == ("key_share", 429, "rate_limit_exceeded")
    assert "a key may have 5 (--max-key-share 0.5 of --max-queued-requests)" in str(refused)
    with pytest.raises(RefusedError):
        admission.check_any(ALICE)
    for _ in range(5):
        admission.enter(BOB, 1)
    assert admission.refuses(key=BOB).reason == "queued_requests"


@pytest.mark.parametrize(("limits", "more"), [({"tokens": 100}, {"tokens": 30}), ({"kv_ratio": 0.1}, {"answer": 30})])
def test_one_key_leaves_room_in_the_other_budgets(limits: dict[str, Any], more: dict[str, int]) -> None:
    admission = ManualAdmission(requests=100, keys=True, key_share=0.5, **limits)
    admission.fill_seats()
    admission.place(key=ALICE, **more)
    assert admission.refuses(key=ALICE, **more).reason == "key_share"
    admission.place(key=BOB, **more)


@pytest.mark.parametrize(
    ("limits", "sequences", "more"),
    [({"requests": 10}, 2000, {}), ({"tokens": 100}, 1, {"tokens": 5000}), ({"kv_ratio": 0.1}, 1, {"answer": 5000})],
)
def test_one_request_that_is_larger_than_the_queue_keeps_no_other_key_out(
    limits: dict[str, int], sequences: int, more: dict[str, int]
) -> None:
    admission = ManualAdmission(keys=True, key_share=0.5, **{"requests": 100, **limits})
    admission.answered(5000)
    admission.fill_seats()
    admission.place(sequences, ALICE, **more)
    assert admission.refuses(key=ALICE, tokens=2, answer=2).status == 503
    for _ in range(4):
        admission.check_any(BOB)
        admission.place(key=BOB, tokens=2, answer=2)


def test_a_key_has_all_free_seats_and_any_one_request() -> None:
    admission = ManualAdmission(requests=2, keys=True, key_share=0.5)
    for _ in range(5):  # four seats and its half of the queue
        admission.enter(ALICE, 1)
    assert admission.refuses(key=ALICE).reason == "key_share"
    admission = ManualAdmission(requests=20, keys=True, key_share=0.1)
    admission.fill_seats()
    admission.enter(ALICE, 8)


def test_counts_of_removed_keys_are_dropped_once_none_of_their_requests_is_left() -> None:
    """Requests that are still here count if the key comes back meanwhile."""
    admission = ManualAdmission(requests=10, keys=True, key_share=0.5)
    admission.fill_seats()
    places = [admission.place(key=ALICE) for _ in range(5)]
    admission.place(key=BOB)
    admission.forget_others({"bob"})
    assert admission.refuses(key=ALICE).reason == "key_share"
    for place in places:
        place.leave()
    admission.forget_others({"bob"})
    assert set(admission._by_key) == {"bob"}


def test_a_key_alone_has_no_share() -> None:
    admission = ManualAdmission(requests=10, keys=False, key_share=0.5)
    admission.fill_seats()
    for _ in range(10):
        admission.enter(ALICE, 1)


def post(server: Served, **body: Any) -> httpx2.Response:
    return server.http.post("/v1/completions", json={"prompt": "x", **body})


def test_a_full_server_answers_503(start: Callable[..., Served]) -> None:
    server = start(max_queued_requests=1)
    server.do(lambda: server.engine.report(running=4, waiting=0))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))  # four that have begun fill all seats
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


def test_after_a_burst_nothing_is_left_and_the_next_request_is_answered(start: Callable[..., Served]) -> None:
    """Every request of 200 at once ends in a whole answer or in a refusal that says when to come again."""
    server = start(max_queued_requests=20)
    server.do(lambda: server.engine.report(running=4, waiting=0))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))
    server.play("Hello", hold_after=0)
    with ThreadPoolExecutor(40) as pool:
        burst = [pool.submit(post, server) for _ in range(200)]
        server.wait_until(lambda: sum(each.done() for each in burst) >= 160)
        server.wait_until(lambda: len(server.engine.requests) == 20)
        server.do(server.engine.release.set)
        answers = [each.result() for each in burst]
    refused = [answer for answer in answers if answer.status_code == 503]
    whole = [answer for answer in answers if answer.status_code == 200]
    assert len(refused) + len(whole) == 200
    assert len(whole) >= 20
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.json()["choices"][0]["text"] == "Hello" for answer in whole)
    assert not server.engine.aborted
    assert 'octavo_requests_waiting{model_name="smollm2"} 0.0' in server.http.get("/metrics").text
    assert post(server).status_code == 200


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
        server.wait_until(
            lambda: server.serving.admission.begun == 1 and server.serving.admission.total.requests.used == 0
        )
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
    admission = server.serving.admission
    books = admission.total
    server.wait_until(lambda: books.requests.used == 0)  # the answer may be here before its request has ended there
    assert (books.tokens.used, books.kv.used) == (0, 0)
    assert (admission.begun, len(server.serving.running)) == (0, 0)


def test_a_full_server_refuses_before_it_reads_the_body(start: Callable[..., Served]) -> None:
    server = start(max_queued_requests=0)
    server.do(lambda: server.engine.report(running=4, waiting=0))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))
    for path in ("/v1/completions", "/v1/chat/completions"):
        refused = server.http.post(path, content=b"{no json")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
    assert server.http.post("/tokenize", json={"prompt": "x"}).status_code == 200
    assert 'reason="queued_requests"} 2.0' in server.http.get("/metrics").text


def test_a_refused_connection_goes_on(start: Callable[..., Served]) -> None:
    server = start(max_queued_requests=0)
    server.play("Hello")
    server.do(lambda: server.engine.report(running=4, waiting=0))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))
    assert post(server, prompt="x" * 3_000_000).status_code == 503  # larger than what one read of the socket brings
    server.do(lambda: server.engine.report(running=0, waiting=0))
    server.do(lambda: setattr(server.serving.admission, "begun", 0))
    assert post(server).status_code == 200


def test_a_key_that_fills_its_share_gets_429(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(max_queued_requests=2, api_key_file=write_keys(tmp_path / "keys.yaml", "alice", "bob"))
    server.do(lambda: server.engine.report(running=4, waiting=0))
    server.do(lambda: setattr(server.serving.admission, "begun", 4))
    server.play("Hello", hold_after=0)

    def ask(key: str) -> httpx2.Response:
        return server.http.post("/v1/completions", json={"prompt": "x"}, headers={"Authorization": f"Bearer sk-{key}"})

    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, "alice")
        server.wait_until(lambda: len(server.engine.requests) == 1)
        refused = ask("alice")
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        second = pool.submit(ask, "bob")
        server.wait_until(lambda: len(server.engine.requests) == 2)
        server.do(server.engine.release.set)
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert [request.tenant for request in server.engine.requests] == ["alice", "bob"]
    assert 'reason="key_share"} 1.0' in server.http.get("/metrics").text


@pytest.mark.parametrize("finish", ["timeout", "error", "abort"])
def test_a_request_that_ends_without_a_token_was_not_served(start: Callable[..., Served], finish: str) -> None:
    server = start()
    server.play(tokens=[], finish=finish)
    for _ in range(6):
        assert post(server).status_code in (500, 503)
    admission = server.serving.admission
    books = admission.total
    assert server.do(lambda: books.requests.seconds_to_free(10)) is None
    assert server.do(lambda: books.tokens.seconds_to_free(10)) is None
    assert (books.requests.used, books.tokens.used, books.kv.used, admission.begun) == (0, 0, 0, 0)


def test_requests_that_were_never_served_do_not_change_the_drain_rate() -> None:
    now = 1000.0
    occupancy = Occupancy(lambda: now)
    occupancy.take(100)
    for _ in range(50):
        now += 1
        occupancy.release(1, served=False)
    assert occupancy.seconds_to_free(5) is None
    for _ in range(10):
        now += 1
        occupancy.release(1)
    assert occupancy.seconds_to_free(5) > 5
