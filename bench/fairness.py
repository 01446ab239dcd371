"""Measures how much an API key that floods the server with prompts of the full context slows down ten other keys.

One real server has eleven keys. The ten send short prompts at random moments (Poisson) during the whole run. In
every second period the eleventh key sends fifty prompts of the full context at once; those that are unfinished at the
end of the period are cancelled. The bench compares the times to first token of short prompts sent with and without the
flood, in the same run. Client and server share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import psutil
import uvloop

from bench.load import Client, Reply, body_of, percentile, prompts
from bench.report import save
from bench.server import octavo

_SHORT_KEYS = [f"short-{number}" for number in range(10)]
_FLOOD_KEY = "flood"
_TOKENS = range(1000, 40_000)
"""Ordinary tokens of the vocabulary."""


@dataclass(slots=True)
class Seen:
    """The short requests of all periods of one kind (with or without the flood)."""

    name: str
    seconds: float = 0.0
    replies: list[Reply] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """Return the figures of one row of the table; times in milliseconds."""
        good = [reply for reply in self.replies if reply.status == 200]
        first = [(reply.first_token - reply.asked) * 1000 for reply in good]
        return {
            "seconds": self.seconds,
            "requests": len(self.replies),
            "failed": len(self.replies) - len(good),
            "ttft_p50_ms": percentile(first, 0.5),
            "ttft_p90_ms": percentile(first, 0.9),
            "ttft_p99_ms": percentile(first, 0.99),
            "total_p90_ms": percentile([(reply.ended - reply.asked) * 1000 for reply in good], 0.9),
        }


@dataclass(slots=True)
class Flood:
    """The results of the flooding key."""

    sent: int = 0
    answered: int = 0
    refused: int = 0


class Bench:
    """The traffic of one run."""

    def __init__(self, args: argparse.Namespace, port: int) -> None:
        self._args = args
        self._client = Client(port)
        self._chance = random.Random(args.seed)
        self._ended = False
        self._now: Seen | None = None
        self.quiet, self.flooded, self.flood = Seen("without"), Seen("with"), Flood()

    async def run(self) -> None:
        """Run all periods, and wait for the answer of the last short request."""
        shorts = [asyncio.create_task(self._short_key(number, key)) for number, key in enumerate(_SHORT_KEYS)]
        await asyncio.sleep(self._args.warm_up)
        for _ in range(self._args.rounds):
            await self._during(self.quiet)
            floods = [asyncio.create_task(self._flood_one()) for _ in range(self._args.prompts)]
            await self._during(self.flooded)
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
            await self._client.ask(body_of("x", 1), f"sk-{_SHORT_KEYS[0]}")  # the last steps with the flood are over
        self._ended = True
        await asyncio.gather(*shorts)
        self._client.close()

    async def _during(self, seen: Seen) -> None:
        """Count requests sent from now on for this period; the first moments of a period are not counted."""
        self._now = None
        await asyncio.sleep(self._args.settle)
        self._now = seen
        await asyncio.sleep(self._args.seconds - self._args.settle)
        self._now = None
        seen.seconds += self._args.seconds - self._args.settle

    async def _short_key(self, number: int, key: str) -> None:
        chance = random.Random(f"{self._args.seed} {key}")
        bodies = [body_of(p, self._args.output_len, stream=True) for p in prompts(1000, self._args.input_len, number)]
        tasks = []

        async def ask(body: bytes, asked: float, seen: Seen | None) -> None:
            reply = await self._client.ask(body, f"sk-{key}", asked)
            if seen is not None:
                seen.replies.append(reply)

        moment = time.monotonic()
        while True:
            moment += chance.expovariate(self._args.rate)
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            if self._ended:
                break
            tasks.append(asyncio.create_task(ask(chance.choice(bodies), moment, self._now)))
        await asyncio.gather(*tasks)

    async def _flood_one(self) -> None:
        length = self._args.max_model_len - self._args.output_len
        body = body_of(self._chance.choices(_TOKENS, k=length), self._args.output_len)
        self.flood.sent += 1
        reply = await self._client.ask(body, f"sk-{_FLOOD_KEY}")
        self.flood.answered += reply.status == 200
        self.flood.refused += reply.status in (429, 503)


def page(title: str, args: argparse.Namespace, seen: Sequence[Seen], flood: Flood) -> str:
    """Return the results as Markdown."""
    rows = [each.row() for each in seen]
    lines = [
        f"# {title}\n",
        f"`python -m bench.fairness` on {psutil.cpu_count()} cores, client included: smollm2, bfloat16, context"
        f" {args.max_model_len}. Ten keys with {args.input_len} words in and {args.output_len} tokens out,"
        f" {args.rate:g} requests a second each; the flood: {args.prompts} prompts of"
        f" {args.max_model_len - args.output_len} tokens at once, {args.rounds} times for {args.seconds:g} s"
        f" ({flood.answered} of {flood.sent} answered by then, {flood.refused} refused).\n",
        "| the ten keys' requests | number | failed | TTFT p50 ms | p90 | p99 | whole answer p90 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each, row in zip(seen, rows, strict=True):
        lines.append(
            f"| {each.name} the flood | {row['requests']} | {row['failed']} | {row['ttft_p50_ms']:.0f} | "
            f"{row['ttft_p90_ms']:.0f} | {row['ttft_p99_ms']:.0f} | {row['total_p90_ms']:.0f} |"
        )
    lines.append(f"\nTTFT p90 with the flood is {ratio(seen):.2f} times that without.\n")
    return "\n".join(lines)


def ratio(seen: Sequence[Seen]) -> float:
    """Return the factor by which the flood raised the 90th percentile of the short requests' times to first token."""
    quiet, flooded = (each.row()["ttft_p90_ms"] for each in seen)
    return flooded / quiet


def main() -> None:
    """Entry point of `python -m bench.fairness`."""
    parser = argparse.ArgumentParser(prog="bench.fairness", description=__doc__)
    parser.add_argument("--prompts", type=int, default=50, help="of the flood")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=0.1, help="short requests of each of the ten keys in a second")
    parser.add_argument("--input-len", type=int, default=32, help="words in a short prompt")
    parser.add_argument("--output-len", type=int, default=16, help="tokens of every answer")
    parser.add_argument("--rounds", type=int, default=3, help="each: a while without the flood, then one with it")
    parser.add_argument("--seconds", type=float, default=45, help="of each while")
    parser.add_argument("--settle", type=float, default=3, help="seconds at its beginning that do not count")
    parser.add_argument("--warm-up", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flag", action="append", default=[], help="another one for the server")
    parser.add_argument("--name", default="fairness", help="of the result files, after the date")
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as keys:
        json.dump({"keys": [{"name": key, "key": f"sk-{key}"} for key in (*_SHORT_KEYS, _FLOOD_KEY)]}, keys)
        keys.flush()
        flags = ("--dtype=bfloat16", f"--max-model-len={args.max_model_len}", f"--api-key-file={keys.name}", *args.flag)
        with octavo("smollm2", *flags) as serving, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            bench = Bench(args, serving.port)
            runner.run(bench.run())
    seen = (bench.quiet, bench.flooded)
    result = {
        "machine": {"cores": psutil.cpu_count(), "python": platform.python_version()},
        "arguments": vars(args),
        "ttft_p90_ratio": ratio(seen),
        "flood": asdict(bench.flood),
        **{each.name: each.row() for each in seen},
    }
    save(args.name, result, lambda title: page(title, args, seen, bench.flood))


if __name__ == "__main__":
    main()
