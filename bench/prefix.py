"""The gain from prefix caching: time to first token of long prompts with an unknown and a cached prefix, on one server.

Requests are sent in pairs, one after the other: a prompt whose prefix no request had before, then one with the same
prefix and another end. The second finds the blocks of the first in the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random

import psutil
import uvloop

from bench.load import Client, body_of, percentile
from bench.report import save
from bench.server import octavo

_TOKENS = range(1000, 40_000)
"""Ordinary tokens of the vocabulary."""


async def first_token_ms(client: Client, prompt: list[int]) -> float:
    """Return the milliseconds to the first piece of the answer; RuntimeError if there is none."""
    reply = await client.ask(body_of(prompt, 4, stream=True))
    if reply.status != 200:
        raise RuntimeError(f"a request failed with status {reply.status}")
    return (reply.first_token - reply.sent) * 1000


async def measure(args: argparse.Namespace, port: int) -> tuple[list[float], list[float]]:
    """Return the TTFTs of the first and of the second requests of all pairs."""
    client, chance = Client(port), random.Random(args.seed)
    cold, warm = [], []
    for pair in range(args.pairs + 1):
        prefix = chance.choices(_TOKENS, k=args.prefix_len)
        ends = [chance.choices(_TOKENS, k=args.own_len) for _ in range(2)]
        times = [await first_token_ms(client, prefix + end) for end in ends]
        if pair:  # the first pair is a warm-up
            cold.append(times[0])
            warm.append(times[1])
    client.close()
    return cold, warm


def page(title: str, args: argparse.Namespace, cold: list[float], warm: list[float]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.prefix` on {psutil.cpu_count()} cores, client included: smollm2, bfloat16, {args.pairs}"
        f" pairs of prompts of {args.prefix_len} shared and {args.own_len} own tokens, one request at a time.\n",
        "| the beginning was | TTFT p50 ms | p90 |",
        "| --- | --- | --- |",
    ]
    for name, times in (("unknown", cold), ("known", warm)):
        lines.append(f"| {name} | {percentile(times, 0.5):.1f} | {percentile(times, 0.9):.1f} |")
    lines.append(f"\nKnown is {percentile(cold, 0.5) / percentile(warm, 0.5):.1f} times quicker (medians).\n")
    return "\n".join(lines)


def main() -> None:
    """Entry point of `python -m bench.prefix`."""
    parser = argparse.ArgumentParser(prog="bench.prefix", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--prefix-len", type=int, default=1024)
    parser.add_argument("--own-len", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="prefix", help="of the result files, after the date")
    args = parser.parse_args()
    with (
        octavo("smollm2", "--dtype=bfloat16", "--max-model-len=2048") as serving,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        cold, warm = runner.run(measure(args, serving.port))
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version()}
    result = {"machine": machine, "arguments": vars(args), "unknown_ttft_ms": cold, "known_ttft_ms": warm}
    save(args.name, result, lambda title: page(title, args, cold, warm))


if __name__ == "__main__":
    main()
