"""Measures how many tokens the HTTP process sends in a second of CPU time, for an engine that answers at once.

    python -m bench.http_cost [--profile]

The server is the real one, with a scripted engine in its process; each stream gets one token in a turn of the server's
loop, and each token is an event of its own. CPU time is measured, as other work on the machine changes it little;
the client, which only counts bytes, is another process. The outputs of a real engine are decoded in the HTTP process,
which is measured separately.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import json
import platform
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import psutil
import uvloop

from bench.peers import free_port, wait_ready
from bench.report import save
from octavo_engine import cli
from octavo_engine.core.request import Request
from octavo_engine.core.step import RequestOutput, StepOutputs
from octavo_engine.engine.messages import Outputs
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.server import run
from tests.api.scripted_engine import ScriptedEngine

_PATHS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "completion": ("/v1/completions", {"prompt": "Hi"}),
}
_FLAGS = ("--host=127.0.0.1", "--max-queued-requests=4096", "--max-kv-commitment=100000")


class InstantEngine(ScriptedEngine):
    """An engine that answers every request with one word again and again, each time as an output of its own.

    With `together`, all tokens of an answer wait to be sent at once, as those of an engine that is faster than the HTTP
    process. Otherwise each turn of the loop has one token for each stream, so that each is written by itself.
    """

    together = False

    def __init__(self, *_: object) -> None:
        super().__init__()

    async def _play(self, request: Request, outputs: OutputStream) -> None:
        last = request.sampling.max_tokens - 1
        for number in range(last + 1):
            if not self.together or number == 0:
                await asyncio.sleep(0)
            reason = "length" if number == last else None
            outputs.put(RequestOutput(request.request_id, (905,), finish_reason=reason))


def serve(arguments: Sequence[str], profile: str | None, *, together: bool) -> int:
    """Run `octavo-engine` with the instant engine, and write the times of functions to the file `profile`, if given."""
    InstantEngine.together = together
    run.EngineClient = InstantEngine  # type: ignore[misc, assignment]
    sys.argv = ["octavo-engine", *arguments]
    if profile is None:
        return cli.main()
    profiler = cProfile.Profile(time.process_time)
    try:
        return profiler.runcall(cli.main)
    finally:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(30)
        Path(profile).write_text(text.getvalue())


@dataclass(frozen=True, slots=True)
class Server:
    """A server under measurement."""

    port: int
    process: psutil.Process


@contextmanager
def serving(*, together: bool, profile: Path | None = None) -> Iterator[Server]:
    """Run a server with the instant engine until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "bench.http_cost", "--serve", *(["--together"] if together else [])]
    command += ["--profile-to", str(profile)] if profile else []
    command += ["--", "serve", "smollm2", f"--port={port}", *_FLAGS]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/health/ready")
            yield Server(port, psutil.Process(process.pid))
        finally:
            process.terminate()


async def read_stream(port: int, request: bytes, begun: asyncio.Semaphore) -> int:
    """Read one stream until its [DONE], and return the number of its events; RuntimeError if it ends before."""
    async with begun:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
    events, last = 0, b""
    while b"[DONE]" not in last:
        data = await reader.read(1 << 18)
        if not data:
            raise RuntimeError("a stream ended before its [DONE]")
        events += data.count(b"data: {")
        last = last[-16:] + data
    writer.close()
    return events


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round, in which all streams are read once."""

    events: int
    cpu_us: float
    """CPU time of the HTTP process for each event, in microseconds."""
    seconds: float

    @property
    def per_core(self) -> float:
        """Events in a second of CPU time."""
        return 1e6 / self.cpu_us


async def round_of(server: Server, kind: str, args: argparse.Namespace) -> Round:
    """Read all streams at once, and return the figures."""
    path, asked = _PATHS[kind]
    body = json.dumps({**asked, "stream": True, "max_tokens": args.tokens, "ignore_eos": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    begun = asyncio.Semaphore(32)
    before, start = server.process.cpu_times(), time.monotonic()
    counts = await asyncio.gather(*(read_stream(server.port, head.encode() + body, begun) for _ in range(args.streams)))
    seconds, after = time.monotonic() - start, server.process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Round(sum(counts), 1e6 * cpu / sum(counts), seconds)


def decoding_us(streams: int) -> float:
    """Return the CPU time for each token (microseconds) of decoding a message that a real engine sends after a step."""
    step = StepOutputs([f"request-{index}" for index in range(streams)], [905] * streams)
    data, decoder = msgspec.msgpack.encode(Outputs(step, SchedulerStats())), msgspec.msgpack.Decoder(Outputs)
    start = time.process_time()
    for _ in range(200):
        list(decoder.decode(data).outputs.each())
    return 1e6 * (time.process_time() - start) / (200 * streams)


async def measure(args: argparse.Namespace, servers: dict[str, Server], rounds: int) -> dict[str, list[Round]]:
    """Run the rounds of each kind on each server in turns, and return them without the first, which is a warm-up."""
    found: dict[str, list[Round]] = {f"{kind}, {name}": [] for name in servers for kind in _PATHS}
    for _ in range(rounds + 1):
        for name, server in servers.items():
            for kind in _PATHS:
                found[f"{kind}, {name}"].append(await round_of(server, kind, args))
    return {name: each[1:] for name, each in found.items()}


def page(title: str, args: argparse.Namespace, found: dict[str, list[Round]], decoding: float, profile: str) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.http_cost --streams {args.streams} --tokens {args.tokens} --rounds {args.rounds}`: CPU time "
        "of the HTTP process, the scripted engine in it included, for each event of one token; medians. The client is "
        f"another process. {psutil.cpu_count()} cores, Python {platform.python_version()}.\n",
        "| streams of | CPU us an event | events/s of one core | rounds, slowest and quickest |",
        "| --- | --- | --- | --- |",
    ]
    for kind, rounds in found.items():
        rates = [each.per_core for each in rounds]
        cpu = statistics.median(each.cpu_us for each in rounds)
        lines.append(f"| {kind} | {cpu:.1f} | {statistics.median(rates):.0f} | {min(rates):.0f}, {max(rates):.0f} |")
    lines.append(f"\nDecoding a step's outputs of a real engine takes {decoding:.2f} us a token besides.\n")
    if profile:
        lines.append(f"A round of each kind under cProfile, which makes calls of Python dearer:\n\n```\n{profile}```\n")
    return "\n".join(lines)


def main() -> int:
    """Entry point of `python -m bench.http_cost`."""
    parser = argparse.ArgumentParser(prog="bench.http_cost", description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream; at most 400")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="add the functions that take most time")
    parser.add_argument("--name", default="http-cost", help="of the result files, after the date")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--together", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile-to", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.arguments, args.profile_to, together=args.together)
    with serving(together=False) as turns, serving(together=True) as waiting:
        servers = {"each token by itself": turns, "tokens that wait": waiting}
        found = uvloop.run(measure(args, servers, args.rounds))
    profile = ""
    if args.profile:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile"
            with serving(together=False, profile=path) as server:
                uvloop.run(measure(args, {"": server}, 0))
            profile = path.read_text()
    decoding = decoding_us(args.streams)
    result = {"rounds": {kind: [asdict(each) for each in rounds] for kind, rounds in found.items()}}
    result |= {"decoding_us": decoding, "cores": psutil.cpu_count(), "python": platform.python_version()}
    save(args.name, result, lambda title: page(title, args, found, decoding, profile))
    return 0


if __name__ == "__main__":
    sys.exit(main())
