"""Measures how much busy neighbour processes slow down an engine on a CPU, by its threads' spin time (openmp.py).

One real server after another runs with its own setting and answers first alone, then beside processes that only
compute. Every round measures each setting once, so that other work on the machine affects all equally; figures are
medians.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import uvloop

from bench.load import tokens_per_second
from bench.report import save
from bench.server import octavo
from octavo_engine.process_setup.openmp import SPIN_COUNT

_WORDS, _TOKENS = 8, 16
"""Words of each prompt and tokens of each answer."""
SETTINGS = {
    "OpenMP's own": {"GOMP_SPINCOUNT": "300000"},
    f"{SPIN_COUNT} spins (ours)": {"GOMP_SPINCOUNT": SPIN_COUNT},
    "no spinning": {"OMP_WAIT_POLICY": "PASSIVE"},
}
"""The spin counts; 300,000 is libgomp's default as long as there are no more threads than cores."""

Figures = dict[str, dict[str, list[float]]]
"""Tokens/s of each round, by load and setting."""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that compute all the time, until the block ends."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(args: argparse.Namespace, runner: asyncio.Runner) -> Figures:
    """Run all rounds."""
    figures: Figures = {}
    for _ in range(args.rounds):
        for name, env in SETTINGS.items():
            with octavo("smollm2", "--max-model-len=2048", env=env) as serving:
                runner.run(tokens_per_second(serving.port, 8, 2.0, _WORDS, _TOKENS))  # warm-up
                for neighbours in args.neighbours:
                    with busy(neighbours):
                        for users in args.users:
                            run = tokens_per_second(serving.port, users, args.seconds, _WORDS, _TOKENS)
                            speed = runner.run(run)
                            load = f"{users} users, {neighbours} busy neighbours"
                            figures.setdefault(load, {}).setdefault(name, []).append(speed)
    return figures


def page(title: str, args: argparse.Namespace, figures: Figures) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.neighbours` on {psutil.cpu_count()} cores, client included: smollm2, {args.rounds} rounds of"
        f" {args.seconds:.0f} s, answers of {_TOKENS} tokens. Tokens/s, median (least to most).\n",
        "| | " + " | ".join(SETTINGS) + " |",
        "| --- |" + " --- |" * len(SETTINGS),
    ]
    for load, by_setting in figures.items():
        cells = [f"{statistics.median(s):.1f} ({min(s):.1f} to {max(s):.1f})" for s in by_setting.values()]
        lines.append(f"| {load} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point of `python -m bench.neighbours`."""
    parser = argparse.ArgumentParser(prog="bench.neighbours", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--name", default="neighbours", help="of the result files, after the date")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = measure(args, runner)
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version()}
    result = {"machine": machine, "arguments": vars(args), "tokens_per_second": figures}
    save(args.name, result, lambda title: page(title, args, figures))


if __name__ == "__main__":
    main()
