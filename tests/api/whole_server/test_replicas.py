"""Two real servers behind a stand-in for a Service: a rollout under load, and a drain too short for long answers.

Each client records how its requests end, and tests/history.py judges the records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.api.real_server import RealServer
from tests.api.served import PATIENCE
from tests.history import Record, losses

PROMPT = "Once upon a time"
LONG = 900
"""Tokens of an answer that takes several times as long as the second server's drain, also on a quick machine."""
SHORT = 10
"""Tokens of an answer while a replica is replaced: some are under way at any moment, and longer ones only cost CPU."""
COMPARED = 30
"""Tokens of the answer that is computed without a fault. Longer ones must begin with them and equal one another."""
DRAINS = {"first": "60", "second": "3"}
"""In seconds. Three are many times what two tokens take, also on a machine that is busy with other tests."""
TERMS = ("--max-model-len", "1024", "--num-kv-blocks", "512", "--max-num-seqs", "16", "--drain-timeout")


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[RealServer, RealServer]]:
    """Two servers: the first has time to end all its answers when it drains, the second has not."""
    servers = []
    for name, drain in DRAINS.items():
        (tmp_path / name).mkdir()
        servers.append(RealServer(tmp_path / name / "log", "smollm2", *TERMS, drain))
    try:
        for server in servers:
            server.wait_until(server.is_ready)
        yield servers[0], servers[1]
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


class Service:
    """A stand-in for a Service: each new connection goes to a replica that answers its readiness probe, in turn.

    As with kube-proxy, that it is not ready is noticed later, and connections that exist stay where they are.
    """

    def __init__(self, replicas: tuple[RealServer, ...]) -> None:
        self._ports = [replica.port for replica in replicas]
        self.ready = list(self._ports)
        self._next = 0

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        """Serve until the block ends; the address."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        probing = asyncio.create_task(self._probe())
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            probing.cancel()
            server.close()

    async def _probe(self) -> None:
        async with httpx2.AsyncClient(timeout=10) as http:
            while True:
                ready = []
                for port in self._ports:
                    with contextlib.suppress(httpx2.TransportError):
                        if (await http.get(f"http://127.0.0.1:{port}/health/ready")).status_code == 200:
                            ready.append(port)
                self.ready = ready or self.ready  # on a busy machine both may answer a probe too late
                await asyncio.sleep(0.5)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._next += 1
        port = self.ready[self._next % len(self.ready)]
        with contextlib.closing(writer), contextlib.suppress(OSError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(ours):
                ends = [asyncio.create_task(_copy(reader, ours)), asyncio.create_task(_copy(theirs, writer))]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()


async def recorded(client: openai.AsyncOpenAI, record: Record) -> None:
    """Stream an answer with log probabilities, which have one item a token."""
    try:
        stream = await client.completions.create(
            model="smollm2", prompt=PROMPT, max_tokens=record.wanted, temperature=0, logprobs=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for chunk in stream:
            for choice in chunk.choices:
                record.tokens += (choice.logprobs.tokens or []) if choice.logprobs is not None else []
                record.ends += [choice.finish_reason] if choice.finish_reason is not None else []
    except openai.APIStatusError as error:
        record.ends.append(str(error.code))
    except openai.APIConnectionError:
        record.ends.append("connection lost")
    except openai.APIError as error:
        record.ends.append(str(error.code))


def client_of(address: str, retries: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=retries, timeout=300)


async def test_a_rollout_and_a_short_drain_lose_nothing(replicas: tuple[RealServer, RealServer]) -> None:
    """Faults 15 and 17."""
    first, second = replicas
    undisturbed = Record(COMPARED)
    await recorded(client_of(f"{second.url}/v1", 0), undisturbed)
    assert undisturbed.ends == ["length"]

    # One of two replicas is replaced: with the SDK's own retries no user notices.
    records: dict[str, Record] = {}
    service, over = Service(replicas), asyncio.Event()

    async def user(number: int, client: openai.AsyncOpenAI) -> None:
        while not over.is_set():
            records[f"{number}.{len(records)}"] = record = Record(SHORT)
            await recorded(client, record)

    async with service.run() as address:
        users = [asyncio.create_task(user(number, client_of(address, 2))) for number in range(6)]
        async with asyncio.timeout(PATIENCE):
            while len(records) < 18:
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(first.end) == 0
        served = len(records)
        async with asyncio.timeout(PATIENCE):
            while len(records) < served + 12:
                await asyncio.sleep(0.05)
        over.set()
        await asyncio.gather(*users)
    assert losses(records, undisturbed.tokens) == []
    assert {record.ends[0] for record in records.values()} == {"length"}

    # The second server drains: short answers end within its drain, and long ones with an error that says why.
    records = {f"short {number}": Record(3) for number in range(2)} | {
        f"long {number}": Record(LONG) for number in range(4)
    }
    client = client_of(f"{second.url}/v1", 0)
    streams = [asyncio.create_task(recorded(client, record)) for record in records.values()]
    async with asyncio.timeout(PATIENCE):
        while not all(record.tokens for record in records.values()):
            await asyncio.sleep(0.02)
    assert await asyncio.to_thread(second.end) == 0
    await asyncio.gather(*streams)
    longest = max((record.tokens for record in records.values()), key=len)
    assert longest[:COMPARED] == undisturbed.tokens[: len(longest)]
    assert losses(records, longest) == []
    assert {record.ends[0] for name, record in records.items() if name.startswith("short")} == {"length"}
    assert {record.ends[0] for name, record in records.items() if name.startswith("long")} == {"server_shutting_down"}
    for server in replicas:
        assert "Traceback" not in server.log.read_text()
