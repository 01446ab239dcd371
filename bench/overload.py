"""Sends five times as many requests as the server can answer, and measures goodput and the times of rejections.

One real server gets three phases. Saturation: enough users to keep it busy, each sending its next request as soon as
the last is answered. Overload: for a minute, requests at random moments (Poisson) at five times the rate of answers in
saturation, however many are waiting. Then saturation again, since the machine may have changed meanwhile. Goodput
counts the tokens of complete answers that ended in the measured time, which begins long after the queue is full. Client
and server share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import shlex
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import psutil
import uvloop

from bench.load import Client, Reply, body_of, percentile, prompts
from bench.report import save
from bench.server import Serving, octavo

_BODIES = 4096
_WAITS = "octavo_request_queue_seconds"


@dataclass(frozen=True, slots=True)
class Phase:
    """The results of one phase."""

    name: str
    seconds: float
    sent: int
    answered: int
    """Complete answers that ended in the measured time."""
    tokens_per_s: float
    """Tokens of these answers per second: goodput."""
    requests_per_s: float
    ttlb_p50_ms: float
    """The time from when the request was due to the last byte, of complete answers."""
    refused: int
    refused_p50_ms: float
    refused_p99_ms: float
    refused_max_ms: float
    without_retry_after: int
    hung: int
    """Requests that were never answered, or whose connection broke."""
    other: dict[str, int]
    """Answers that are neither complete nor rejections, by status and code."""
    refused_for: dict[str, int]
    """Rejections by reason, in the whole phase."""
    begun: int
    """Requests whose first step began in the whole phase."""
    waited_longer: int
    """Those that waited longer for it than --max-queue-seconds, by the server's own histogram."""
    waited_at_most_s: float
    """The upper end of the histogram's last bucket that is not empty: none waited longer."""
    client_late_p99_ms: float
    cpu_share: dict[str, float]
    """CPU cores that each process used."""


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """What the server itself reports of one phase."""

    refused_for: dict[str, int]
    """Rejections by reason."""
    cpu_share: dict[str, float]
    """CPU cores that each process used."""
    waits: Mapping[float, int]
    """How many requests waited in the queue for at most so many seconds."""
    most_wait: float
    """The seconds of --max-queue-seconds."""


def summarize(name: str, replies: Sequence[Reply], begin: float, end: float, server: ServerFigures) -> Phase:
    """Return the figures of the requests that ended between two times, of all hung requests, and of all waits."""
    seen = [reply for reply in replies if begin <= reply.ended < end]
    good = [reply for reply in seen if reply.status == 200]
    refused = [reply for reply in seen if reply.status in (429, 503)]
    waits = [(reply.ended - reply.asked) * 1000 for reply in refused]
    begun = max(server.waits.values(), default=0)
    in_time = max((count for seconds, count in server.waits.items() if seconds <= server.most_wait), default=0)
    others = Counter(f"{reply.status} {reply.code}" for reply in seen if reply.status not in (0, 200, 429, 503))
    return Phase(
        name=name,
        seconds=end - begin,
        sent=sum(begin <= reply.asked < end for reply in replies),
        answered=len(good),
        tokens_per_s=sum(reply.tokens for reply in good) / (end - begin),
        requests_per_s=len(good) / (end - begin),
        ttlb_p50_ms=percentile([(reply.ended - reply.asked) * 1000 for reply in good], 0.5),
        refused=len(refused),
        refused_p50_ms=percentile(waits, 0.5),
        refused_p99_ms=percentile(waits, 0.99),
        refused_max_ms=max(waits, default=float("nan")),
        without_retry_after=sum(reply.retry_after is None or int(reply.retry_after) < 1 for reply in refused),
        hung=sum(reply.status == 0 for reply in replies),
        other=dict(others),
        refused_for=server.refused_for,
        begun=begun,
        waited_longer=begun - in_time,
        waited_at_most_s=min((seconds for seconds, count in server.waits.items() if count == begun), default=0.0),
        client_late_p99_ms=percentile([(reply.sent - reply.asked) * 1000 for reply in seen if reply.sent], 0.99),
        cpu_share=server.cpu_share,
    )


class Load:
    """Sends the requests of the phases."""

    def __init__(self, args: argparse.Namespace, serving: Serving) -> None:
        self._args = args
        self._serving = serving
        chance, shortest = random.Random(3), args.output_len // 2
        lengths = (chance.randint(shortest, args.output_len + shortest) for _ in range(_BODIES))  # no lockstep
        self._bodies = cycle(map(body_of, prompts(_BODIES, args.input_len, 1), lengths))

    async def phase(
        self, name: str, seconds: float, send: Callable[[Client, float, list[Reply]], Awaitable[None]]
    ) -> Phase:
        """Run one phase: a warm-up, then `seconds` that are measured; wait for every answer."""
        so_far, waits_before = self._serving.metrics("octavo_requests_rejected_total"), self._serving.histogram(_WAITS)
        client, replies = Client(self._serving.port), list[Reply]()
        begin = time.monotonic() + self._args.warm_up
        end = begin + seconds
        sending = asyncio.ensure_future(send(client, end, replies))
        await asyncio.sleep(begin - time.monotonic())
        before = self._cpu_seconds()
        await asyncio.sleep(end - time.monotonic())
        used = {who: (now - before[who]) / seconds for who, now in self._cpu_seconds().items()}
        await sending
        client.close()
        after = self._serving.metrics("octavo_requests_rejected_total")
        reasons = {reason: int(count - so_far[reason]) for reason, count in after.items() if count > so_far[reason]}
        waits = {
            seconds: count - waits_before.get(seconds, 0) for seconds, count in self._serving.histogram(_WAITS).items()
        }
        figures = ServerFigures(reasons, used, waits, self._args.max_queue_seconds)
        found = summarize(name, replies, begin, end, figures)
        print(json.dumps(asdict(found)), flush=True)
        return found

    def _cpu_seconds(self) -> dict[str, float]:
        http, engine = self._serving.http, self._serving.engine
        workers = [each for each in http.children() if each != engine]
        processes = {"engine": [engine], "http": [http], "text workers": workers, "client": [psutil.Process()]}
        return {who: sum(sum(each.cpu_times()[:2]) for each in group) for who, group in processes.items()}

    async def closed(self, client: Client, end: float, replies: list[Reply]) -> None:
        """Let a fixed number of users send requests, each one at a time."""

        async def user() -> None:
            while time.monotonic() < end:
                reply = await client.ask(next(self._bodies))
                replies.append(reply)
                if reply.retry_after is not None:
                    await asyncio.sleep(int(reply.retry_after))

        await asyncio.gather(*(user() for _ in range(self._args.users)))

    async def poisson(self, rate: float, client: Client, end: float, replies: list[Reply]) -> None:
        """Send requests at random times, `rate` per second, however many are unanswered."""
        chance = random.Random(2)
        tasks: set[asyncio.Task[None]] = set()

        async def ask(body: bytes, asked: float) -> None:
            replies.append(await client.ask(body, asked=asked))

        moment = time.monotonic()
        while (moment := moment + chance.expovariate(rate)) < end:
            if (pause := moment - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(ask(next(self._bodies), moment))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)


async def measure(args: argparse.Namespace, serving: Serving) -> list[Phase]:
    """Run the three phases: saturation, overload, saturation."""
    load = Load(args, serving)
    first = await load.phase("saturation before", args.saturation_seconds, load.closed)
    rate = first.requests_per_s * args.factor

    async def overload(client: Client, end: float, replies: list[Reply]) -> None:
        await load.poisson(rate, client, end, replies)

    middle = await load.phase(f"overload {args.factor:g}x", args.seconds, overload)
    return [first, middle, await load.phase("saturation after", args.saturation_seconds, load.closed)]


def targeted(phases: Sequence[Phase]) -> dict[str, Any]:
    """Return the figures to which the targets refer."""
    before, overload, after = phases
    saturation = (before.tokens_per_s + after.tokens_per_s) / 2
    return {
        "goodput_share": overload.tokens_per_s / saturation,
        "refused_p99_ms": overload.refused_p99_ms,
        "all_refused_have_retry_after": overload.without_retry_after == 0,
        "waited_longer_than_told": sum(phase.waited_longer for phase in phases),
        "hung": sum(phase.hung for phase in phases),
    }


def page(title: str, args: argparse.Namespace, phases: Sequence[Phase]) -> str:
    """Return the results as Markdown."""
    found = targeted(phases)
    lines = [
        f"# {title}\n",
        f"`python -m bench.overload` on {psutil.cpu_count()} cores, client included: smollm2 with"
        f" {args.flags or 'default flags'}, {args.input_len} words in, {args.output_len} tokens out on average,"
        f" {args.users} users at saturation.\n",
        "| phase | answered/s | tokens/s | answer p50 ms | refused/s | refused p50 / p99 / max ms | hung | "
        "cores: engine, http, text workers, client |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for phase in phases:
        waits = f"{phase.refused_p50_ms:.1f} / {phase.refused_p99_ms:.1f} / {phase.refused_max_ms:.1f}"
        cores = ", ".join(f"{share:.2f}" for share in phase.cpu_share.values())
        lines.append(
            f"| {phase.name} | {phase.requests_per_s:.2f} | {phase.tokens_per_s:.1f} | {phase.ttlb_p50_ms:.0f} | "
            f"{phase.refused / phase.seconds:.1f} | {waits if phase.refused else '–'} | {phase.hung} | {cores} |"
        )
    more = {who: phases[1].cpu_share[who] - phases[0].cpu_share[who] for who in ("http", "client")}
    refused = max(1e-9, phases[1].refused / phases[1].seconds)
    lines.append(
        f"\nEach refusal takes {1000 * more['http'] / refused:.2f} ms of CPU time in the HTTP process and"
        f" {1000 * more['client'] / refused:.2f} ms in the client, which elsewhere does not share the cores."
    )
    waited = [
        f"{phase.waited_longer} of {phase.begun} (none longer than {phase.waited_at_most_s:g} s)" for phase in phases
    ]
    lines.append(
        f"\nBegun after more than --max-queue-seconds ({args.max_queue_seconds:g} s), by phase: {', '.join(waited)}."
    )
    lines.append(
        f"\nGoodput under overload: {found['goodput_share']:.1%} of saturation (mean of before and after). Refused:"
        f" p99 {found['refused_p99_ms']:.1f} ms, {'all' if found['all_refused_have_retry_after'] else 'NOT all'} with"
        f" Retry-After. Hung: {found['hung']}.\n"
    )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="bench.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of overload that count")
    parser.add_argument("--saturation-seconds", type=float, default=30, help="of each saturation that count")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds of each phase before those that count")
    parser.add_argument("--factor", type=float, default=5, help="how many times the rate of saturation")
    parser.add_argument("--input-len", type=int, default=64, help="words in a prompt")
    parser.add_argument("--output-len", type=int, default=32, help="tokens of an answer on average")
    parser.add_argument("--flags", default="", help="flags of the server, such as '--max-num-seqs 32'")
    parser.add_argument("--max-queue-seconds", type=float, default=30, help="the server's flag of this name")
    parser.add_argument("--users", type=int, default=48, help="at saturation")
    parser.add_argument("--name", default="overload", help="of the result files, after the date")
    return parser.parse_args()


def main() -> None:
    """Entry point of `python -m bench.overload`."""
    args = arguments()
    with (
        octavo("smollm2", f"--max-queue-seconds={args.max_queue_seconds}", *shlex.split(args.flags)) as serving,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        phases = runner.run(measure(args, serving))
    result = {
        "machine": {"cores": psutil.cpu_count(), "python": platform.python_version()},
        "arguments": vars(args),
        "verdict": targeted(phases),
        "phases": [asdict(phase) for phase in phases],
    }
    save(args.name, result, lambda title: page(title, args, phases))


if __name__ == "__main__":
    main()
