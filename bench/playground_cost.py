"""Measures what open pages of the playground cost the users of an engine: 16 users with three pages open, and none.

     python -m bench.playground_cost

Both are measured in turn by `octavo-engine bench`, with a new browser each time, which runs on the same machine. In use
a browser's CPU time is its user's own, so the browser has the lowest priority here: it computes in what the
engine leaves. The HTTP process's CPU time, busy and idle, shows whether the pages did request their data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench.report import save
from bench.server import ENGINE, Serving, octavo
from tests.browser import browser

_PAGES = 3
_IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """One run of all users; times in ms."""

    pages: int
    tokens_per_s: float
    ttft_p50: float
    itl_p50: float
    e2e_p50: float
    http_cpu_seconds: float
    """CPU time of the HTTP process in this run."""
    idle_cpu_share: float
    """CPU seconds of the HTTP process for each second, before the users came."""


_FIGURES = ("tokens_per_s", "ttft_p50", "itl_p50", "e2e_p50", "http_cpu_seconds", "idle_cpu_share")


@contextmanager
def opened(port: int, pages: int) -> Iterator[None]:
    """Open `pages` pages of the playground in a browser, which keep requesting data until the block ends."""
    with ExitStack() as stack:
        if pages:
            chromium = stack.enter_context(browser())
            for _ in range(pages):
                page = chromium.new_page()
                page.goto(f"http://127.0.0.1:{port}/")
                page.get_by_label("Your message").wait_for()
            for process in psutil.Process().children(recursive=True):
                if "chromium" in process.name():
                    for thread in process.threads():  # Linux keeps a priority for each thread
                        os.setpriority(os.PRIO_PROCESS, thread.id, 19)
        yield


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(serving: Serving, pages: int, seed: int, args: argparse.Namespace) -> Round:
    """Measure one run, which has prompts of its own."""
    with opened(serving.port, pages), tempfile.TemporaryDirectory() as scratch:
        begin = cpu_seconds(serving.http)
        time.sleep(_IDLE_SECONDS)
        idle = (cpu_seconds(serving.http) - begin) / _IDLE_SECONDS
        before, file = cpu_seconds(serving.http), Path(scratch) / "figures.json"
        flags = [f"--concurrency={args.users}", f"--num-prompts={args.num_prompts}", f"--seed={seed}", f"--json={file}"]
        flags += [f"--input-len={args.input_len}", f"--output-len={args.output_len}"]
        url = f"http://127.0.0.1:{serving.port}"
        subprocess.run([ENGINE, "bench", url, *flags], check=True, stdout=subprocess.DEVNULL)
        [level] = json.loads(file.read_text())["levels"]
        times = (level[kind]["p50"] for kind in ("ttft_ms", "itl_ms", "e2e_ms"))
        return Round(pages, level["output_tokens_per_s"], *times, cpu_seconds(serving.http) - before, idle)


def table(rounds: Sequence[Round]) -> str:
    """Return Markdown with medians without and with pages, their ratio, and the spread of the runs without pages."""
    lines = [
        "| figure | no page | three pages | ratio | runs without a page, largest over smallest |",
        "| --- " * 5 + "|",
    ]
    for name in _FIGURES:
        without, there = ([getattr(each, name) for each in rounds if bool(each.pages) is on] for on in (False, True))
        medians = statistics.median(without), statistics.median(there)
        ratio = f"{medians[1] / medians[0]:.3f}" if medians[0] else "–"
        spread = f"{max(without) / min(without):.2f}" if min(without) else "–"
        lines.append(f"| {name} | {medians[0]:.4g} | {medians[1]:.4g} | {ratio} | {spread} |")
    return "\n".join(lines)


def main() -> None:
    """Entry point of `python -m bench.playground_cost`."""
    parser = argparse.ArgumentParser(prog="bench.playground_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="runs with and without pages (default: 6)")
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=32)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rounds: list[Round] = []
    with octavo("smollm2") as serving:
        for number in range(args.rounds):
            for pages in (0, _PAGES) if number % 2 else (_PAGES, 0):
                rounds.append(measure(serving, pages, 10 * len(rounds), args))
                print(rounds[-1], flush=True)
    text = (
        f"`python -m bench.playground_cost --rounds {args.rounds}`: {args.users} users of smollm2, {args.input_len} "
        f"words in and {args.output_len} tokens out, {len(os.sched_getaffinity(0))} cores (load {load:.1f} before). "
        f"With {_PAGES} pages of the playground in a headless Chromium on the same machine, and with none: medians of "
        f"{args.rounds} runs each, in turn.\n\n{table(rounds)}\n"
    )
    result = {"arguments": vars(args), "load_before": round(load, 2), "rounds": [asdict(each) for each in rounds]}
    save("playground-cost", result, lambda title: f"# {title}\n\n{text}")


if __name__ == "__main__":
    main()
