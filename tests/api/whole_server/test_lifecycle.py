"""The states of a server: loading, serving, draining, and the end of the engine process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from anyio._backends._asyncio import WorkerThread
from starlette.concurrency import run_in_threadpool

from octavo_engine.engine.client import EngineState
from octavo_engine.engine.info import MemoryInfo, ModelInfo
from octavo_engine.engine.messages import Failed, Loading
from octavo_engine.errors import ConfigurationError, DoesNotFitError, EngineDeadError, ModelLoadError
from octavo_engine.server import lifecycle
from octavo_engine.server.connections import acceptor
from octavo_engine.server.console import progress
from octavo_engine.server.run import bind
from tests.api import odd_worker
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served
from tests.loopback import loopbacks

ASK: list[Any] = [{"role": "user", "content": "Hi"}]


def status(server: Served, path: str) -> tuple[int, str]:
    answer = server.http.get(path)
    return answer.status_code, answer.json()["status"]


async def test_a_line_that_says_nothing_new_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_TICK", 0.0)
    monkeypatch.setattr(progress, "_LINE_INTERVAL", 0.0)
    caplog.set_level("INFO", "octavo.server")
    starting, half = EngineState(), EngineState("loading", Loading("loading", 0.5, "1 of 2"))
    states = iter([starting, starting, starting, half, half, EngineState("ready")])
    await progress.show_loading(lambda: next(states), "m")
    assert caplog.messages == ["m: starting, 0%, importing PyTorch", "m: loading, 50%, 1 of 2"]


def test_freed_memory_is_returned_again_and_again(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise malloc keeps as much as a burst of connections took; and idle threads that read files end with it."""
    returns: list[None] = []
    monkeypatch.setattr(lifecycle, "RETURN_INTERVAL", 0.01)
    monkeypatch.setattr(WorkerThread, "MAX_IDLE_TIME", 0)
    monkeypatch.setattr(lifecycle, "return_freed_memory", lambda: returns.append(None))
    server = start()
    server.wait_until(lambda: len(returns) > 1)
    started = asyncio.run_coroutine_threadsafe(_use_threads(8), server.loop).result(PATIENCE)
    server.wait_until(lambda: sum(thread.is_alive() for thread in started) <= 1)


async def _use_threads(count: int) -> set[threading.Thread]:
    """Return `count` of Starlette's threads, which were all in use at the same time."""
    together = threading.Barrier(count)

    def use() -> threading.Thread:
        together.wait(PATIENCE)
        return threading.current_thread()

    return set(await asyncio.gather(*(run_in_threadpool(use) for _ in range(count))))


def test_while_loading_probes_and_metrics_answer(start: Callable[..., Served]) -> None:
    server = start(load=False)
    answer = server.http.get("/health/startup")
    report = {"status": "loading", "phase": "loading", "progress": 0.25, "detail": "1 of 4 files"}
    assert (answer.status_code, answer.json()) == (503, report)
    assert status(server, "/health/ready") == (503, "loading")
    assert status(server, "/health") == (503, "loading")
    assert status(server, "/health/live") == (200, "ok")
    assert 'octavo_load_progress_ratio{model_name="smollm2"} 0.25' in server.http.get("/metrics").text
    for path in ("/v1/models", "/v1/models/smollm2"):
        assert server.http.get(path).json()["error"]["code"] == "model_loading"
    answer = server.http.post("/v1/chat/completions", json={"messages": ASK})
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (
        503, "model_loading", "5",
    )  # fmt: skip
    server.engine.state.phase, server.engine.state.progress = "starting", EngineState().progress
    assert server.http.get("/health/startup").json()["detail"] == "importing PyTorch"
    server.do(server.engine.finish_loading)
    server.wait_until(lambda: server.serving.loaded)
    for path in ("/health/startup", "/health/ready", "/health"):
        assert status(server, path) == (200, "ok")
    server.play("Hello")
    assert server.openai().completions.create(model="smollm2", prompt="x").choices[0].text == "Hello"


def test_a_loaded_engine_says_what_it_is(start: Callable[..., Served]) -> None:
    server = start()
    server.engine.state.ready = replace(
        READY,
        memory=MemoryInfo(weights=1, step=2, kv_per_token=3, total=4),
        model=ModelInfo(commit="abc", size=5),
    )
    answer = server.http.get("/health/startup").json()
    assert answer["memory"] == {"weightBytes": 1, "stepBytes": 2, "kvBytesPerToken": 3, "totalBytes": 4}
    assert answer["model"] == {"resolvedRevision": "abc", "sizeBytes": 5}


@pytest.mark.parametrize(
    ("code", "kind"), [(2, ConfigurationError), (3, ModelLoadError), (4, DoesNotFitError), (5, EngineDeadError)]
)
def test_failing_to_load_ends_with_the_engines_own_error(
    start: Callable[..., Served], code: int, kind: type[BaseException]
) -> None:
    server = start(load=False)
    server.do(lambda: server.engine.fail(Failed(code, "need 9 GiB")))
    outcome = server.join()
    assert isinstance(outcome, kind)
    assert str(outcome) == "need 9 GiB"


def test_a_broken_tokenizer_ends_loading(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: object) -> None:
        raise ModelLoadError("no tokenizer.json")

    monkeypatch.setattr(lifecycle, "_read_tokenizer", broken)
    server = start(load=False)
    assert isinstance(server.join(), ModelLoadError)


def test_a_signal_while_loading_ends_at_once(start: Callable[..., Served]) -> None:
    server = start(load=False)
    server.signal()
    assert server.join() == 0


def test_a_signal_while_an_adapter_loads_or_a_file_comes_ends_in_an_explicit_error(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn cancels what has not ended by then; the client saw a 500 without a word about why."""
    monkeypatch.setattr(lifecycle, "_CLOSING", 1.0)
    server, began = start(batch_storage=tmp_path), threading.Event()
    server.engine.state.ready = replace(READY, max_loras=2)

    async def load(*_: str) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(server.engine, "load_adapter", load)
    with ThreadPoolExecutor() as pool, socket.create_connection(("127.0.0.1", server.port)) as uploading:
        body = {"lora_name": "a", "lora_path": "b"}
        loading = pool.submit(server.http.post, "/v1/load_lora_adapter", json=body)
        form = "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b"
        part = 'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        uploading.sendall(f"{form}\r\nContent-Length: 9999\r\n\r\n--b\r\n{part}some bytes".encode())
        server.wait_until(lambda: began.is_set() and any(tmp_path.rglob("*")))
        server.signal()
        answers = [(loading.result().status_code, loading.result().json()), read_answer(uploading)]
    assert [(status, body["error"]["code"]) for status, body in answers] == [(503, "server_shutting_down")] * 2
    assert server.join() == 0


def read_answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of the next answer."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, json.loads(answer.read())


def test_drain_lets_answers_finish_and_takes_no_new_ones(start: Callable[..., Served]) -> None:
    server = start()
    server.play("one two three", hold_after=1)
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        stream = server.openai().chat.completions.create(model="smollm2", messages=ASK, stream=True)
        first = next(iter(stream))
        assert first.choices[0].delta.role == "assistant"
        server.wait_until(lambda: len(server.engine.requests) == 2)
        server.signal()
        server.wait_until(lambda: server.serving.draining)
        assert status(server, "/health/ready") == (503, "draining")
        assert status(server, "/health/live") == (200, "ok")
        refused = server.http.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_shutting_down")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        server.do(server.engine.release.set)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one two three"
        assert whole.result().json()["choices"][0]["text"] == "one two three"
    assert server.join() == 0


def test_a_request_that_is_being_tokenized_when_draining_begins_is_answered(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    server = start(program=odd_worker.PROGRAM)
    server.play("one two")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.http.post, "/v1/completions", json={"prompt": f"wait {tmp_path}"})
        server.wait_until((tmp_path / "begun").exists)
        server.signal()
        server.wait_until(lambda: server.serving.draining)
        (tmp_path / "go_on").touch()
        assert answer.result().json()["choices"][0]["text"] == "one two"
    assert server.join() == 0


def test_drain_waits_for_a_client_that_reads_slowly(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_CLOSING", 0)
    monkeypatch.setattr(acceptor, "_SEND_BUFFER", 16 << 10)
    server = start()
    server.play(" word" * 400)
    body = json.dumps({"prompt": "x", "max_tokens": 400, "n": 8, "logprobs": 20}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        answer = client.recv(12)
        server.wait_until(lambda: len(server.serving.running) == 0)
        server.signal()
        server.wait_until(lambda: server.serving.draining)
        time.sleep(0.5)
        answer += b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]) == 8
    assert server.join() == 0


class Reading:
    """A client of a stream."""

    def __init__(self) -> None:
        self.said = ""

    def read(self, server: Served) -> tuple[str, Any]:
        """The text of a stream and the error that ended it."""
        try:
            for chunk in server.openai().completions.create(model="smollm2", prompt="x", stream=True):
                self.said += chunk.choices[0].text
        except openai.APIError as error:
            return self.said, error.code
        return self.said, None


def _open_streams(server: Served, pool: ThreadPoolExecutor, count: int) -> list[Any]:
    """Streams of which each has said "one two" to its client, and waits."""
    server.play("one two three", hold_after=2)
    readings = [Reading() for _ in range(count)]
    streams = [pool.submit(reading.read, server) for reading in readings]
    server.wait_until(lambda: [reading.said for reading in readings] == ["one two"] * count)
    assert server.serving.admission.begun == count
    return streams


def test_what_does_not_finish_in_time_gets_an_error(start: Callable[..., Served]) -> None:
    server = start(drain_timeout=0.2)
    with ThreadPoolExecutor() as pool:
        streams = _open_streams(server, pool, 3)
        server.signal()
        assert [stream.result() for stream in streams] == [("one two", "server_shutting_down")] * 3
    assert server.join() == 0


def test_a_second_signal_ends_at_once(start: Callable[..., Served], caplog: pytest.LogCaptureFixture) -> None:
    server = start(drain_timeout=3600)
    with ThreadPoolExecutor() as pool:
        streams = _open_streams(server, pool, 2)
        whole = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        server.wait_until(lambda: server.serving.admission.begun == 3)
        server.signal()
        server.wait_until(lambda: server.serving.draining)
        server.signal()
        assert [stream.result() for stream in streams] == [("one two", "server_shutting_down")] * 2
        answer = whole.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_shutting_down")
    assert server.join() == 0
    assert "3 requests end with an error, at a second signal" in caplog.messages


def test_probes_do_not_call_a_dead_engine_loading(start: Callable[..., Served]) -> None:
    server = start()
    server.do(lambda: setattr(server.engine.state, "phase", "dead"))
    assert [status(server, f"/health{probe}") for probe in ("", "/startup", "/live")] == [(503, "dead")] * 3


def test_when_the_engine_dies_every_client_gets_an_error_and_the_server_ends(start: Callable[..., Served]) -> None:
    server = start()
    with ThreadPoolExecutor() as pool:
        streams = _open_streams(server, pool, 3)
        whole = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        server.wait_until(lambda: server.serving.admission.begun == 4)
        server.do(lambda: server.engine.fail(Failed(5, "the engine stalled")))
        assert [stream.result() for stream in streams] == [("one two", "engine_dead")] * 3
        answer = whole.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
    outcome = server.join()
    assert isinstance(outcome, EngineDeadError)
    assert str(outcome) == "the engine stalled"


def test_liveness_and_readiness_follow_the_heartbeat(start: Callable[..., Served]) -> None:
    server = start()
    now = [0.0]

    def mute() -> None:
        server.engine.watchdog.clock = lambda: now[0]
        server.engine.watchdog.next_ping()

    server.do(mute)
    assert (status(server, "/health/ready"), status(server, "/health/live")) == ((200, "ok"), (200, "ok"))
    now[0] = 16.0
    assert (status(server, "/health/ready"), status(server, "/health/live")) == ((503, "stalled"), (200, "ok"))
    now[0] = 31.0
    assert status(server, "/health/live") == (503, "dead")


def test_port_taken_is_one_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} on 127.0.0.1 is in use.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("address", loopbacks())
def test_all_addresses_are_those_of_both_kinds(address: str) -> None:
    """A pod's address is one of IPv6 in some clusters, and kubelet's probes go there."""
    with bind("::", 0) as listener, socket.create_connection((address, listener.getsockname()[1]), 5) as client:
        assert client.getpeername()[0] == address


def test_without_ipv6_in_the_kernel_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with bind("::", 0) as listener:
        assert listener.family == socket.AF_INET
    with pytest.raises(ConfigurationError, match="--host ::1 --port 0: Address family"):
        bind("::1", 0)


def test_an_address_that_is_not_here() -> None:
    with pytest.raises(ConfigurationError, match=re.escape("--host 192.0.2.1 --port 80")):
        bind("192.0.2.1", 80)


def test_metrics_exist_from_the_start_and_their_labels_are_closed(start: Callable[..., Served]) -> None:
    server = start(load=False)
    before = server.http.get("/metrics").text
    for name in NAMES:
        assert f"\n{name}{{" in before, name
    server.do(server.engine.finish_loading)
    server.wait_until(lambda: server.serving.loaded)
    after = server.http.get("/metrics").text
    for index in range(20):
        server.http.request("NONSENSE", f"/nonsense/{index}")
        server.http.post("/v1/completions", json={"prompt": "x", "model": f"m{index}"})
    assert series(server.http.get("/metrics").text) == series(after)
    assert series(after) - series(before) == {
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",model_name="smollm2",num_gpu_blocks="64"}'
    }


def series(text: str) -> set[str]:
    return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}


def test_metrics_count_what_happened(start: Callable[..., Served]) -> None:
    server = start()
    server.play("Hello there.", queue_seconds=0.25)
    server.openai().completions.create(model="smollm2", prompt="one two", n=2)
    server.do(
        lambda: server.engine.report(
            running=3,
            waiting=5,
            kv_usage=0.25,
            preemptions=2,
            prefix_queried_tokens=9,
            prefix_hit_tokens=4,
            step_seconds=[0.5],
        )
    )
    text = server.http.get("/metrics").text
    for name, value in {
        "octavo_requests_running": 3, "vllm:num_requests_running": 3, "octavo_requests_waiting": 5,
        "vllm:num_requests_waiting": 5, "octavo_kv_cache_usage_ratio": 0.25, "vllm:kv_cache_usage_perc": 0.25,
        "octavo_preemptions_total": 2, "octavo_prefix_cache_queried_tokens_total": 9,
        "octavo_prefix_cache_hit_tokens_total": 4, "octavo_prompt_tokens_total": 2, "octavo_generation_tokens_total": 8,
        "vllm:generation_tokens_total": 8, "octavo_time_to_first_token_seconds_count": 2,
        "vllm:time_to_first_token_seconds_count": 2, "octavo_inter_token_latency_seconds_count": 6,
        "octavo_request_duration_seconds_count": 2, "octavo_request_queue_seconds_sum": 0.5,
        "octavo_step_seconds_sum": 0.5,
        "vllm:request_generation_tokens_sum": 8, "vllm:request_prompt_tokens_sum": 2, "vllm:request_params_n_sum": 2,
        "vllm:request_max_num_generation_tokens_sum": 4, "vllm:request_max_num_generation_tokens_count": 1,
    }.items():  # fmt: skip
        [line] = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        assert float(line.split()[-1]) == value, line
    assert 'octavo_requests_total{model_name="smollm2",outcome="stop"} 2.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="smollm2"} 2.0' in text


def test_vllm_names_can_be_left_out(start: Callable[..., Served]) -> None:
    server = start(vllm_metrics=False)
    text = server.http.get("/metrics").text
    assert "vllm:" not in text
    assert "octavo_requests_running" in text


def test_outcomes_tell_how_answers_ended(start: Callable[..., Served]) -> None:
    server = start()

    def outcomes() -> dict[str, float]:
        lines = [x for x in server.http.get("/metrics").text.splitlines() if x.startswith("octavo_requests_total")]
        return {line.split('outcome="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}

    for finish in (None, "timeout", "error"):
        server.play("Hello", finish=finish)
        server.http.post("/v1/completions", json={"prompt": "x"})
    server.play("Hello")
    server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    server.play("Hello", hold_after=0)
    with server.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}):
        server.wait_until(lambda: len(server.serving.running) == 1)
    server.wait_until(lambda: outcomes()["abort"] == 1)
    assert outcomes() == {"stop": 1, "length": 1, "timeout": 1, "error": 1, "abort": 1}
    server.play(finish="timeout")
    server.http.post("/v1/completions", json={"prompt": "x", "n": 3})  # none of the choices is given up by the client
    assert outcomes() == {"stop": 1, "length": 1, "timeout": 4, "error": 1, "abort": 1}
    server.play(finish="error")
    server.http.post("/v1/completions", json={"prompt": "x", "n": 3})  # the first that fails ends the other two
    assert outcomes() == {"stop": 1, "length": 1, "timeout": 4, "error": 2, "abort": 3}


def test_one_request_that_breaks_harms_no_other(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    server.play("one two three", gap=0.05)
    sequence = "octavo_engine.server.generation.generation.Sequence.take"
    with ThreadPoolExecutor() as pool:
        good = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        server.wait_until(lambda: good.done() or server.serving.admission.begun)
        good_answer = good.result()
        monkeypatch.setattr(sequence, lambda self, output: json.loads("{"))
        bad = server.http.post("/v1/completions", json={"prompt": "x"})
        monkeypatch.undo()
    assert good_answer.status_code == 200
    assert (bad.status_code, bad.json()["error"]["code"]) == (500, "internal_error")
    assert server.http.post("/v1/completions", json={"prompt": "x"}).json()["choices"][0]["text"] == "one two three"


def test_of_two_streams_only_the_one_that_failed_is_reported(start: Callable[..., Served]) -> None:
    server = start()
    with ThreadPoolExecutor() as pool:
        [good] = _open_streams(server, pool, 1)
        server.play("one", finish="error")
        assert Reading().read(server) == ("one", "engine_error")
        server.do(server.engine.release.set)
        assert good.result() == ("one two three", None)
    server.wait_until(lambda: server.serving.admission.begun == 0)


@pytest.mark.parametrize("tokens", [[], [5]])
def test_a_request_that_the_engine_could_not_compute_is_a_500(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture, tokens: list[int]
) -> None:
    server = start()
    server.play(tokens=tokens, finish="error")
    headers = {"X-Request-Id": "mine/sk-secret"}
    answer = server.http.post("/v1/completions", json={"prompt": "x", "n": 2}, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (500, "server_error", "engine_error")
    assert "NaN in the logits" in error["message"]
    server.wait_until(lambda: "request mine/sk-...: its sequence" in caplog.text)
    assert "secret" not in caplog.text
    admission = server.serving.admission
    server.wait_until(lambda: len(server.serving.running) == 0)
    assert (admission.total.requests.used, admission.total.tokens.used, admission.total.kv.used, admission.begun) == (
        0,
        0,
        0,
        0,
    )


def test_what_fails_here_is_logged_under_the_id_that_the_client_sees(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    server.play("one two")
    for name, function in (
        ("octavo_engine.server.generation.generation.Sequence.take", lambda self, output: json.loads("{")),
        ("octavo_engine.server.generation.admitted_generation.engine_requests", lambda *_: json.loads("{")),
    ):
        monkeypatch.setattr(name, function)
        for headers in ({}, {"X-Request-Id": f"mine-{name[-4:]}"}):
            answer = server.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            words = f"request {answer.headers['x-request-id']}"
            server.wait_until(lambda words=words: words in caplog.text)  # type: ignore[misc]
        monkeypatch.undo()


def test_metrics_show_what_the_scheduler_reports(start: Callable[..., Served]) -> None:
    server = start()

    def shown() -> dict[str, float]:
        lines = server.http.get("/metrics").text.splitlines()
        parts = [line.rsplit(" ", 1) for line in lines if line.startswith("octavo_")]
        return {name.replace('model_name="smollm2"', "").replace("{}", ""): float(value) for name, value in parts}

    before = shown()
    assert (before["octavo_running_limit"], before["octavo_latency_target_met"]) == (4, 1)
    assert before["octavo_kv_cache_waste_ratio"] == 0
    server.do(
        lambda: server.engine.report(
            kv_blocks_used=10,
            kv_wasted_slots=40,
            recomputed_tokens=7,
            swapped_out_blocks=5,
            swapped_in_blocks=3,
            copied_blocks=2,
            running_limit=1,
            chunk_limit=64,
            target_met=False,
        )
    )
    after = shown()
    for name, value in {
        "octavo_kv_cache_waste_ratio": 0.25, "octavo_recomputed_tokens_total": 7, "octavo_copied_blocks_total": 2,
        'octavo_swapped_blocks_total{direction="in",}': 3, 'octavo_swapped_blocks_total{direction="out",}': 5,
        "octavo_running_limit": 1, "octavo_prefill_chunk_limit": 64, "octavo_latency_target_met": 0,
    }.items():  # fmt: skip
        assert after[name] == value, name


NAMES = [
    "octavo_requests_running", "octavo_requests_waiting", "octavo_kv_cache_usage_ratio", "octavo_load_progress_ratio",
    "octavo_prompt_tokens_total", "octavo_generation_tokens_total", "octavo_prefix_cache_queried_tokens_total",
    "octavo_prefix_cache_hit_tokens_total", "octavo_preemptions_total", "octavo_requests_total",
    "octavo_requests_rejected_total", "octavo_time_to_first_token_seconds_bucket",
    "octavo_inter_token_latency_seconds_bucket", "octavo_request_duration_seconds_bucket",
    "octavo_request_queue_seconds_bucket", "octavo_step_seconds_bucket",
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total",
    "vllm:request_success_total", "vllm:admission_rejections_total", "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_bucket", "vllm:request_prefill_time_seconds_bucket",
    "vllm:request_decode_time_seconds_bucket", "vllm:request_inference_time_seconds_bucket",
    "vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket", "vllm:request_params_n_bucket",
    "vllm:request_params_max_tokens_bucket", "vllm:request_max_num_generation_tokens_bucket",
]  # fmt: skip


def test_clients_that_do_not_read_leave_one_line_in_the_log_of_a_server_that_ends(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback of each filled the log at the end."""
    monkeypatch.setattr(lifecycle, "_CLOSING", 1.0)
    server = start(drain_timeout=0.2)
    body = json.dumps({"tokens": [100] * 700_000}).encode()
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            client = opened.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            kind = b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
            client.sendall(b"POST /detokenize HTTP/1.1\r\nHost: x\r\n" + kind + b"\r\n\r\n" + body)
            assert client.recv(12) == b"HTTP/1.1 200"
        server.signal()
        assert server.join() == 0
    assert "Traceback" not in caplog.text
