"""`python -m bench.before_after --before CHECKOUT`: compares another checkout of this repository with this one.

Both need a `.venv` of their own (`make setup`). In each round each checkout serves SmolLM2 once, and three things are
measured: the seconds from the start of the process until it is ready, how long an answer of one token takes, then
output tokens/s at each number of users. The order alternates from round to round, so that other work on the machine
affects both equally; the page has medians and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from pathlib import Path

import psutil
import uvloop

from bench.load import tokens_per_second
from bench.report import save
from bench.server import ENGINE, octavo

READY = "seconds to ready"
FIRST = "ms to the first token, 1 user"
"""The name of the figure of answers of one token."""

Figures = dict[str, dict[str, list[float]]]
"""The values of each round, by measurement and by checkout."""


def measure(engines: dict[str, Path], args: argparse.Namespace, runner: asyncio.Runner) -> Figures:
    """Run all rounds."""
    figures: Figures = {}

    def note(what: str, name: str, value: float) -> None:
        figures.setdefault(what, {}).setdefault(name, []).append(value)
        print(f"{what}, {name}: {value:.2f}", flush=True)

    for round_number in range(args.rounds):
        for name in sorted(engines, reverse=round_number % 2 == 1):
            started = time.monotonic()
            with octavo("smollm2", "--max-model-len=2048", engine=engines[name]) as serving:
                note(READY, name, time.monotonic() - started)
                runner.run(tokens_per_second(serving.port, 8, 2.0, args.words, args.tokens))  # warm-up
                rate = runner.run(tokens_per_second(serving.port, 1, args.seconds, args.words, 1))
                note(FIRST, name, 1000 / rate)
                for users in args.users:
                    speed = runner.run(tokens_per_second(serving.port, users, args.seconds, args.words, args.tokens))
                    note(f"tokens/s, {users} users", name, speed)
    return figures


def page(title: str, args: argparse.Namespace, figures: Figures) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.before_after` on {psutil.cpu_count()} cores, client included, load {os.getloadavg()[0]:.1f} "
        f"at the end: smollm2, {args.rounds} rounds of {args.seconds:.0f} s, prompts of {args.words} words, answers of "
        f"{args.tokens} tokens. Median (least to most).\n",
        "| | before | after | after / before |",
        "| --- | --- | --- | --- |",
    ]
    for what, by_name in figures.items():
        before, after = (statistics.median(by_name[name]) for name in ("before", "after"))
        cells = [
            f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            for values in (by_name["before"], by_name["after"])
        ]
        lines.append(f"| {what} | {cells[0]} | {cells[1]} | {after / before:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point of `python -m bench.before_after`."""
    parser = argparse.ArgumentParser(prog="bench.before_after", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT", help="a checkout with its .venv")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--words", type=int, default=64, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--name", default="before-after", help="of the result files, after the date")
    args = parser.parse_args()
    engines = {"after": ENGINE, "before": args.before.resolve() / ".venv" / "bin" / "octavo-engine"}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = measure(engines, args, runner)
    arguments = {key: value for key, value in vars(args).items() if key != "before"}
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version()}
    save(args.name, {"machine": machine, "arguments": arguments, "figures": figures}, lambda t: page(t, args, figures))


if __name__ == "__main__":
    main()
