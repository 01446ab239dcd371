"""The engine process seen from the HTTP process: results, aborts, deadlines, death and stalls."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from octavo_engine.config import EngineConfig
from octavo_engine.core.request import Request
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine import client as client_module
from octavo_engine.engine import messages
from octavo_engine.engine.client import EngineClient
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.engine.watchdog import Watchdog
from octavo_engine.errors import ConfigurationError, EngineDeadError, ModelLoadError
from octavo_engine.sampling_params import SamplingParams
from tests.history import Record, losses
from tests.processes import alive

PROMPT = list(range(40))
PATIENCE = 120
"""Seconds in which something has to happen: no test waits so long unless something is wrong."""
SHARED = pytest.mark.asyncio(loop_scope="module")
"""For tests with the engine that they share, which is in the event loop of the module."""


@asynccontextmanager
async def started(tiny_model: Path) -> AsyncIterator[EngineClient]:
    config = EngineConfig(
        model=str(tiny_model),
        device="cpu",
        dtype="float32",
        num_kv_blocks=64,
        max_model_len=1000,
        watchdog_timeout=PATIENCE,
    )
    client = EngineClient(config)
    await client.start()
    await client.wait_ready()
    yield client
    await client.stop()
    assert client._process.returncode is not None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny_model: Path) -> AsyncIterator[EngineClient]:
    """One engine for all tests that do it no harm."""
    async with started(tiny_model) as client:
        yield client


def request(name: str, max_tokens: int = 8, **kwargs: object) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(request_id=name, prompt_token_ids=tuple(PROMPT), sampling=sampling, **kwargs)  # type: ignore[arg-type]


async def collect(client: EngineClient, asked: Request) -> list[RequestOutput]:
    outputs = OutputStream([asked.request_id])
    async with client.generate([asked], outputs):
        return [output async for output in outputs]


async def until_idle(client: EngineClient) -> None:
    """Wait until the engine has reported that nothing runs and no block is held."""
    async with asyncio.timeout(PATIENCE):
        while client.state.stats.running or client.state.stats.waiting or client.state.stats.kv_blocks_used:
            await asyncio.sleep(0.02)


@SHARED
async def test_many_requests_at_once_are_each_answered(client: EngineClient) -> None:
    ready = await client.wait_ready()
    assert (ready.max_model_len, ready.vocab_size, ready.num_kv_blocks) == (1000, 64, 64)
    answers = await asyncio.gather(*(collect(client, request(f"r{i}", max_tokens=i + 1)) for i in range(20)))
    tokens = [[token for output in answer for token in output.token_ids] for answer in answers]
    assert [len(answer) for answer in tokens] == list(range(1, 21))
    assert all(answer == tokens[-1][: len(answer)] for answer in tokens)
    assert all(answer[-1].finish_reason == "length" for answer in answers)
    await until_idle(client)


@SHARED
async def test_leaving_a_stream_early_frees_its_blocks(client: EngineClient) -> None:
    asked, outputs = [request("long", max_tokens=900), request("short")], OutputStream(["long", "short"])
    async with client.generate(asked, outputs):
        while outputs.unfinished != {"long"}:
            await anext(outputs)
    await until_idle(client)
    assert not client._streams


@SHARED
async def test_one_of_several_requests_is_aborted_alone(client: EngineClient) -> None:
    outputs = OutputStream(["a", "b", "c"])
    lengths: Counter[str] = Counter()
    async with client.generate([request(name, max_tokens=400) for name in "abc"], outputs):
        async for output in outputs:
            lengths[output.request_id] += len(output.token_ids)
            if lengths["b"] == 3 and "b" in outputs.unfinished:
                await client.abort(["b"])
    assert (lengths["a"], lengths["c"]) == (400, 400)
    assert lengths["b"] < 400
    await until_idle(client)


async def test_a_stream_that_has_ended_does_not_hear_of_a_dead_engine() -> None:
    outputs = OutputStream(["a"])
    outputs.put(RequestOutput("a", (5,), finish_reason="length"))
    outputs.fail(EngineDeadError("too late"))
    assert [output.token_ids async for output in outputs] == [(5,)]


async def recorded(client: EngineClient, name: str, record: Record, leave_after: int | None) -> None:
    """Ask for an answer of `record.wanted` tokens, and go away after `leave_after` of them, if that is a number."""
    outputs = OutputStream([name])
    async with client.generate([request(name, max_tokens=record.wanted)], outputs):
        if leave_after == 0:  # while it is queued, or its prompt is computed
            record.left = True
            return
        try:
            async for output in outputs:
                record.tokens += output.token_ids
                if output.finish_reason is not None:
                    record.ends.append(output.finish_reason)
                elif leave_after is not None and len(record.tokens) >= leave_after:
                    record.left = True
                    return
        except EngineDeadError:
            record.ends.append("engine died")


@SHARED
async def test_nothing_is_lost_when_a_third_of_500_clients_leave_at_any_moment(client: EngineClient) -> None:
    """More than can run at once, so that some leave while they wait and others while they run."""
    chance = random.Random(9)
    [*whole] = [token for output in await collect(client, request("whole", 60)) for token in output.token_ids]
    records = {f"r{number}": Record(chance.randint(1, 60)) for number in range(500)}
    leaving = {name: chance.randrange(60) if chance.random() < 0.33 else None for name in records}
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(recorded(client, name, record, leaving[name]) for name, record in records.items()))
    assert losses(records, whole) == []
    assert 50 < sum(record.left for record in records.values()) < 250
    await until_idle(client)
    assert not client._streams


async def test_nothing_is_lost_when_the_engine_is_killed(faulty: Callable[[str], Awaitable[EngineClient]]) -> None:
    """Each of 64 streams ends once, in full or with the engine's death, and soon.

    Its device hangs before a long answer could be complete, however late the engine is killed.
    """
    client = await faulty("stuck 300")
    [*whole] = [token for output in await collect(client, request("whole", 200)) for token in output.token_ids]
    records = {f"r{number}": Record(400 if number % 4 else 2) for number in range(64)}
    streams = [asyncio.create_task(recorded(client, name, record, None)) for name, record in records.items()]
    async with asyncio.timeout(PATIENCE):
        while not any(record.ends for record in records.values()):
            await asyncio.sleep(0.01)
        client._kill()
        await asyncio.gather(*streams)
    assert losses(records, whole) == []
    assert {record.ends[0] for record in records.values()} == {"length", "engine died"}


def test_losses_finds_streams_that_are_cut_or_end_twice() -> None:
    right, left, died = Record(2, [1, 2], ["length"]), Record(3, [1], [], left=True), Record(3, [1], ["engine died"])
    assert losses({"right": right, "left": left, "died": died}, [1, 2, 3]) == []
    for tokens, ends in (([1, 2], []), ([1], ["length"]), ([1, 2], ["length", "length"]), ([2, 2], ["length"])):
        assert len(losses({"right": right, "wrong": Record(2, tokens, ends)}, [1, 2, 3])) == 1


@SHARED
async def test_a_deadline_ends_an_answer(client: EngineClient) -> None:
    outputs = await collect(client, request("slow", max_tokens=900, timeout=0.2))
    assert outputs[-1].finish_reason == "timeout"
    await until_idle(client)


@SHARED
async def test_a_request_that_cannot_run_gets_an_error_and_harms_no_other(client: EngineClient) -> None:
    other = asyncio.create_task(collect(client, request("other", max_tokens=200)))
    (too_long,) = await collect(client, request("long", max_tokens=5000))
    strange = Request(request_id="strange", prompt_token_ids=(1, 64), sampling=SamplingParams(max_tokens=2))
    (outside,) = await collect(client, strange)
    assert too_long.finish_reason == outside.finish_reason == "invalid"
    assert "more than the 1000 tokens" in str(too_long.error)
    assert "64" in str(outside.error)
    assert sum(len(output.token_ids) for output in await other) == 200


@SHARED
async def test_forks_have_their_prompt_from_the_request_that_they_share_it_with(client: EngineClient) -> None:
    names = [f"f{number}" for number in range(6)]
    outputs, found = OutputStream(names), Counter[str]()
    asked = [request(name, max_tokens=4, fork_of=None if name in ("f0", "f3") else "f0") for name in names]
    async with client.generate(asked, outputs):
        async for output in outputs:
            found[output.request_id] += len(output.token_ids)
    assert found == dict.fromkeys(names, 4)
    await until_idle(client)


def test_the_engine_has_one_copy_of_the_prompt_of_many_answers() -> None:
    """128 copies of 8,000 ids took the engine 50 MiB, and 25 ms between two steps."""
    prompt = tuple(range(1000, 9000))
    first = Request(request_id="x-0", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=1))
    forks = [replace(first, request_id=f"x-{number}", fork_of="x-0") for number in range(1, 128)]
    [message] = messages.to_add([first, *forks])
    data = messages.encode(message)
    assert len(data) < 2 * len(messages.encode(messages.AddRequests([first]))) + 128 * 500
    added = messages.decode_to_engine(data)
    assert isinstance(added, messages.AddRequests)
    found = added.with_prompts()
    assert found == [first, *forks]
    assert len({id(each.prompt_token_ids) for each in found}) == 1
    assert [len(each.requests) for each in messages.to_add([first, *forks[:2], replace(first, request_id="y")])] == [
        3,
        1,
    ]


@SHARED
async def test_garbage_on_the_socket_is_ignored(client: EngineClient) -> None:
    await client._socket.send(b"\x80\x04\x95 not ours")
    assert (await collect(client, request("after")))[-1].finish_reason == "length"


async def begun(client: EngineClient, count: int) -> list[asyncio.Task[list[RequestOutput]]]:
    """Start so many streams of long answers; return once the first has a token."""
    outputs, token = OutputStream(["first"]), asyncio.Event()

    async def first() -> list[RequestOutput]:
        async with client.generate([request("first", max_tokens=900)], outputs):
            found = [await anext(outputs)]
            token.set()
            return found + [output async for output in outputs]

    streams = [asyncio.create_task(first())]
    streams += [asyncio.create_task(collect(client, request(f"r{i}", max_tokens=900))) for i in range(count - 1)]
    await asyncio.wait_for(token.wait(), PATIENCE)
    return streams


async def test_every_open_stream_ends_when_the_engine_is_killed(
    faulty: Callable[[str], Awaitable[EngineClient]],
) -> None:
    """Its device hangs, so that no answer ends before. Signals by which a server drains do not end it."""
    client = await faulty("stuck 10")
    streams = await begun(client, 5)
    assert os.getsid(client._process.pid) == client._process.pid  # a terminal's signals do not come
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        os.kill(client._process.pid, number)
    for result in await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), PATIENCE):
        assert isinstance(result, EngineDeadError)
        assert "SIGKILL" in str(result)
    failed = await client.closed()
    assert failed is not None
    assert failed.exit_code == 5
    with pytest.raises(EngineDeadError):
        await collect(client, request("late"))
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await asyncio.wait_for(client.load_adapter("late", "/adapters/late"), PATIENCE)


@pytest.mark.parametrize("index", [0, 1, 2], ids=["read", "watch", "ping"])
async def test_a_task_of_the_client_that_ends_is_the_engines_end(
    faulty: Callable[[str], Awaitable[EngineClient]], index: int
) -> None:
    """Fault 3 in this process: without any of them, streams would wait forever for answers, or for the end."""
    client = await faulty("stuck 10")
    streams = await begun(client, 5)
    client._tasks[index].cancel()
    for result in await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), PATIENCE):
        assert isinstance(result, EngineDeadError)
        assert "has ended" in str(result)
    failed = await asyncio.wait_for(client.closed(), PATIENCE)
    assert failed is not None and failed.exit_code == 5
    async with asyncio.timeout(PATIENCE):
        assert await client._process.wait() == -signal.SIGKILL


async def test_a_computing_thread_that_ends_is_the_engines_end(
    faulty: Callable[[str], Awaitable[EngineClient]],
) -> None:
    """Fault 3 in the engine's process: the watchdog, whose limit is long here, need not find it."""
    client = await faulty("thread 10")
    for result in await asyncio.wait_for(
        asyncio.gather(*(await begun(client, 5)), return_exceptions=True), PATIENCE / 2
    ):
        assert isinstance(result, EngineDeadError)
        assert "the thread that computes has ended" in str(result)
    failed = await asyncio.wait_for(client.closed(), PATIENCE)
    assert failed is not None and failed.exit_code == 5


async def test_a_stalled_engine_is_found_and_ended(tiny_model: Path) -> None:
    async with started(tiny_model) as client:
        streams = await begun(client, 40)  # more than is answered before the signal, however late that is sent
        os.kill(client._process.pid, signal.SIGSTOP)
        client.watchdog.timeout = 1.0  # from here on: before, a busy machine may let it stand still as well
        results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), PATIENCE)
        errors = [result for result in results if isinstance(result, EngineDeadError)]
        assert errors
        assert all("stalled" in str(error) for error in errors)
        assert all(len(result) > 0 for result in results if not isinstance(result, BaseException))
        failed = await asyncio.wait_for(client.closed(), PATIENCE)
        assert failed is not None
        assert failed.exit_code == 5


@SHARED
async def test_time_in_which_the_watchdog_stood_still_as_well_is_no_stall(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a frozen pod or a paused machine; without this both processes go on, and the engine is ended."""
    watchdog = client.watchdog
    with monkeypatch.context() as patch:
        patch.setattr(Watchdog, "answer", lambda *_: None)  # an answer would end the silence too
        async with asyncio.timeout(PATIENCE / 2):
            while watchdog.silence < 0.1:  # then the ping is sent, and the watchdog sleeps
                await asyncio.sleep(0.02)
            watchdog.clock = lambda: time.monotonic() + 1000
            while watchdog.silence > 500:
                assert client.state.phase == "ready"
                await asyncio.sleep(0.02)
    watchdog.answer(watchdog._sequence)
    outputs = await asyncio.wait_for(collect(client, request("later")), PATIENCE)
    assert outputs[-1].finish_reason == "length"


@pytest.fixture
async def faulty(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], Awaitable[EngineClient]]]:
    """Starts an engine whose device fails as `fault` says."""
    monkeypatch.setattr(client_module, "_PROCESS", "faulty_engine")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    started = []

    async def start(fault: str) -> EngineClient:
        monkeypatch.setenv("OCTAVO_TEST_FAULT", fault)
        config = EngineConfig(model=str(tiny_model), device="cpu", num_kv_blocks=64, watchdog_timeout=PATIENCE)
        started.append(client := EngineClient(config))
        await client.start()
        await client.wait_ready()
        return client

    yield start
    for client in started:
        await client.stop()


async def test_a_step_that_fails_in_the_devices_thread_ends_the_engine_with_a_dump(
    faulty: Callable[[str], Awaitable[EngineClient]], capfd: pytest.CaptureFixture[str]
) -> None:
    client = await faulty("error 80")
    streams = [asyncio.create_task(collect(client, request(f"r{i}", max_tokens=900))) for i in range(3)]
    for result in await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), PATIENCE):
        assert isinstance(result, EngineDeadError)
        assert "an illegal memory access" in str(result)
    failed = await asyncio.wait_for(client.closed(), PATIENCE)
    assert failed is not None
    assert failed.exit_code == 5
    assert client._process.returncode == 5
    dump = capfd.readouterr().err
    assert "step 80: 3 tokens, 3 decodes" in dump
    assert "running=3" in dump


@pytest.mark.parametrize("fault", ["memory 80", "no-memory 80"])
async def test_a_step_without_memory_is_computed_again_and_then_ends_the_engine(
    faulty: Callable[[str], Awaitable[EngineClient]], fault: str
) -> None:
    """Fault 6: once costs no request anything; twice ends every request with an error, and none gets a wrong token."""
    failing = await faulty(fault)
    [*whole] = [token for output in await collect(failing, request("whole", 60)) for token in output.token_ids]
    records = {f"r{number}": Record(10 * number) for number in range(1, 7)}
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(recorded(failing, name, record, None) for name, record in records.items()))
    assert losses(records, whole) == []
    ends = {record.ends[0] for record in records.values()}
    assert ends == {"length"} if fault == "memory 80" else "engine died" in ends
    if fault != "memory 80":
        failed = await asyncio.wait_for(failing.closed(), PATIENCE)
        assert failed is not None and failed.exit_code == 5 and "out of memory" in str(failed)


async def test_a_device_that_never_ends_its_step_is_a_stall(
    faulty: Callable[[str], Awaitable[EngineClient]],
) -> None:
    client = await faulty("stuck 4")
    (stream,) = await begun(client, 1)
    client.watchdog.timeout = 0.5
    with pytest.raises(EngineDeadError, match=r"stalled: no step ended for .* 1 requests were in progress"):
        await asyncio.wait_for(stream, PATIENCE)
    failed = await asyncio.wait_for(client.closed(), PATIENCE)
    assert failed is not None
    assert failed.exit_code == 5


async def test_what_comes_during_a_slow_step_is_answered_after_it(
    faulty: Callable[[str], Awaitable[EngineClient]],
) -> None:
    client = await faulty("slow 4")
    first = asyncio.create_task(collect(client, request("first", max_tokens=900)))
    outputs = OutputStream(["aborted"])
    async with client.generate([request("aborted", max_tokens=900)], outputs):
        await anext(outputs)
        await asyncio.sleep(0.3)
    second = await collect(client, request("second", max_tokens=3))
    assert sum(len(output.token_ids) for output in second) == 3
    assert sum(len(output.token_ids) for output in await first) == 900
    await until_idle(client)


async def test_a_model_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    client = EngineClient(EngineConfig(model=str(tmp_path / "nothing")))
    await client.start()
    with pytest.raises(ModelLoadError, match="no such file or directory"):
        await client.wait_ready()
    await client.stop()


@pytest.mark.parametrize("folder", ["nothing", "file"])
async def test_without_a_folder_for_temporary_files_the_error_names_the_variable(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a read-only root and no volume for /tmp."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    with pytest.raises(ConfigurationError, match=r"temporary files can be written: .* directory; set TMPDIR"):
        await EngineClient(EngineConfig(model=str(tmp_path))).start()


async def test_the_engine_ends_when_its_parent_does(tiny_model: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from octavo_engine.config import EngineConfig\n"
        "from octavo_engine.engine.client import EngineClient\n"
        "async def main():\n"
        "    client = EngineClient(EngineConfig(model=sys.argv[1], device='cpu', num_kv_blocks=64))\n"
        "    await client.start()\n"
        "    await client.wait_ready()\n"
        "    print(client._process.pid, flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    import sys

    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tiny_model), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    engine = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(PATIENCE):
        while alive(engine):
            await asyncio.sleep(0.05)


FRAGMENTED = """
import ctypes
from octavo_engine.engine import process
from octavo_engine.process_setup import freed_memory
freed_memory.RETURN_INTERVAL = 0.05
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [malloc(64 << 10) for _ in range(1600)]
for block in blocks:
    ctypes.memset(block, 1, 64 << 10)
print(flush=True)
for block in blocks[:-1]:  # the last one is behind the others, so that free() alone returns none of them
    free(block)
process.main()
"""


def test_the_engine_process_returns_freed_memory_to_the_kernel(tmp_path: Path) -> None:
    """Otherwise what steps and compiled grammars have used stays: it grew for an hour."""
    command = [sys.executable, "-c", FRAGMENTED, f"ipc://{tmp_path}/engine", "text"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdin is not None and started.stdout is not None
        assert started.stdout.readline() == b"\n"
        until = time.monotonic() + PATIENCE
        while (resident := psutil.Process(started.pid).memory_info().rss) > 80 << 20 and time.monotonic() < until:
            time.sleep(0.01)
        assert started.poll() is None, "the engine process has ended"
        started.kill()
    assert resident <= 80 << 20
