"""Measures what guided decoding costs: tokens/s of users whose answers follow a JSON schema, and of free answers.

Both kinds take turns on one server, round by round, so that a machine that becomes slower makes both slower. Answers
have the same length: the schema is an array that cannot end before, and free answers ignore the model's end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psutil
import uvloop

from bench.load import Client, prompts
from bench.report import save
from bench.server import Serving, octavo

_SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["fruit", "tool", "animal"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 1000},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        },
        "required": ["name", "kind", "count", "tags"],
        "additionalProperties": False,
    },
}


def body_of(prompt: str, tokens: int, *, guided: bool) -> bytes:
    """Return the body of a completion with exactly `tokens` tokens."""
    form = {"guided_json": _SCHEMA} if guided else {"ignore_eos": True}
    return json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 1, "seed": 1, **form}).encode()


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round: one answer for each user, all at once."""

    tokens_s: float
    cpu_ms: float
    """CPU time of the engine's and the HTTP process for each token, which other work on the machine changes little."""


async def round_of(client: Client, args: argparse.Namespace, serving: Serving, seed: int, *, guided: bool) -> Round:
    """Measure a round; RuntimeError if an answer is not complete."""
    bodies = [body_of(text, args.tokens, guided=guided) for text in prompts(args.users, 16, seed)]
    start, used = time.monotonic(), cpu_seconds(serving)
    replies = await asyncio.gather(*(client.ask(body) for body in bodies))
    seconds = time.monotonic() - start
    for reply in replies:
        if (reply.status, reply.tokens) != (200, args.tokens):
            raise RuntimeError(f"an answer has status {reply.status} and {reply.tokens} tokens ({reply.code})")
    tokens = args.users * args.tokens
    return Round(tokens / seconds, (cpu_seconds(serving) - used) * 1000 / tokens)


def cpu_seconds(serving: Serving) -> float:
    """Return the CPU time of the server's two processes so far."""
    times = [process.cpu_times() for process in (serving.engine, serving.http)]
    return sum(each.user + each.system for each in times)


async def measure(args: argparse.Namespace, serving: Serving) -> tuple[list[Round], list[Round]]:
    """Return the rounds of free and of guided answers, without the first of each, which is a warm-up."""
    client, free, guided = Client(serving.port), [], []
    for turn in range(args.rounds + 1):
        free.append(await round_of(client, args, serving, turn, guided=False))
        guided.append(await round_of(client, args, serving, turn, guided=True))
    client.close()
    return free[1:], guided[1:]


def page(title: str, args: argparse.Namespace, free: Sequence[Round], guided: Sequence[Round]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.guided` on {psutil.cpu_count()} cores, client included: smollm2, bfloat16, {args.users}"
        f" users, {args.tokens} tokens an answer, temperature 1, medians of {args.rounds} rounds in turns.\n",
        "| answers | tokens/s | lowest | highest | CPU ms a token |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rounds in (("free", free), ("of a JSON schema", guided)):
        rates, cpu = [each.tokens_s for each in rounds], statistics.median(each.cpu_ms for each in rounds)
        lines.append(f"| {name} | {statistics.median(rates):.0f} | {min(rates):.0f} | {max(rates):.0f} | {cpu:.2f} |")
    ratios = [each.tokens_s / other.tokens_s for each, other in zip(guided, free, strict=True)]
    lines.append(
        f"\nGuided answers come at {statistics.median(ratios):.1%} of the rate of free ones ({min(ratios):.1%} to "
        f"{max(ratios):.1%} in the rounds).\n"
    )
    return "\n".join(lines)


def main() -> None:
    """Entry point of `python -m bench.guided`."""
    parser = argparse.ArgumentParser(prog="bench.guided", description=__doc__)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--name", default="guided", help="of the result files, after the date")
    args = parser.parse_args()
    with (
        octavo("smollm2", "--dtype=bfloat16", "--max-model-len=1024", f"--max-num-seqs={args.users}") as serving,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        free, guided = runner.run(measure(args, serving))
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version()}
    result = {
        "machine": machine,
        "arguments": vars(args),
        "free": [asdict(each) for each in free],
        "guided": [asdict(each) for each in guided],
    }
    save(args.name, result, lambda title: page(title, args, free, guided))


if __name__ == "__main__":
    main()
