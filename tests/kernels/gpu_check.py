"""`make gpu-check`: every kernel against its reference, and whole models against transformers, on this machine's GPU.

    python -m tests.kernels.gpu_check --out DIR

Checks run in several processes, which compile kernels side by side; one that crashes or hangs is a failed check, and
its process is replaced. What is not run when the time is over counts as not checked. The exit code is 1 if a check
failed or none passed, else 0. A dry run where there is no GPU:

    TRITON_INTERPRET=1 python -m tests.kernels.gpu_check --device cpu --limit 3
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.gpu.clock import describe, short_name
from tests.kernels.check import NotCheckedError, modules
from tests.kernels.interpreter import interpret_quickly
from tests.kernels.rounding import round_as_hardware

_SECONDS = 540.0
"""Of a lent machine's ten minutes for a command."""
_CHECK_SECONDS = 240.0
"""After which a check counts as hanging."""
_START_SECONDS = 120.0
"""Of a process, before its first check; not counted as the check's."""
_FIRST = (
    "norm", "rope", "gather", "activation", "paged_attention", "sampling", "decoder", "whole_model", "fp8",
    "quantized_linear", "grouping", "moe", "causal_conv", "gated_delta_net", "latent_attention", "lora",
    "adapted_model",
)  # fmt: skip
"""Modules in the order in which serving calls their kernels: what is cut short has checked what matters."""
_PASSED, _FAILED, _NOT_CHECKED = "passed", "failed", "not checked"


@dataclass(frozen=True)
class Job:
    """One check, found by names, which is all that a process is sent."""

    module: str
    check: str


@dataclass(frozen=True)
class Outcome:
    """The result of one check."""

    module: str
    check: str
    status: str
    seconds: float = 0.0
    said: str = ""
    """What it found, why it failed, or why it was not checked."""


def _turn(name: str) -> tuple[int, str]:
    """Return a key by which modules' checks are ordered."""
    short = _short(name)
    if short in _FIRST:
        return _FIRST.index(short), short
    return len(_FIRST), short


def jobs_of(names: Sequence[str], device: str, limit: int | None) -> list[Job]:
    """The checks of the modules, `limit` of each, in the order in which serving needs them; on a CPU no large ones."""
    jobs: list[Job] = []
    for name in sorted(names, key=_turn):
        checks = [check for check in import_module(name).CHECKS if device == "cuda" or not check.large]
        jobs += [Job(name, check.name) for check in checks[:limit]]
    return sorted(jobs, key=_runs_alone)  # one by one at the end, when others no longer wait


def _serve(connection: Connection, device: str, seed: int, threads: int) -> None:
    """A process of checks: reports that it has started, then runs checks one by one until it is asked to end.

    References on the CPU take `threads` threads: with all cores in every process they took ten times as long.
    """
    torch.set_num_threads(threads)
    if device == "cpu":
        interpret_quickly()
        round_as_hardware()
    connection.send(None)
    while (job := connection.recv()) is not None:
        torch.manual_seed(seed)
        status, said, broken = _PASSED, "", False
        try:
            [check] = [check for check in import_module(job.module).CHECKS if check.name == job.check]
            said = check.run(torch.device(device)) or ""
            if device == "cuda":
                torch.cuda.synchronize()
        except NotCheckedError as reason:
            status, said = _NOT_CHECKED, str(reason)
        except Exception as error:  # noqa: BLE001  (a check may fail in any way)
            status, said = _FAILED, traceback.format_exc(limit=-4)
            # After an error of CUDA nothing in this process works any more.
            broken = not isinstance(error, AssertionError)
        connection.send((status, said, broken))
        if broken:
            return


Note = Callable[[Outcome], None]


class Worker(threading.Thread):
    """Hands checks to a process of its own, and replaces it when it dies."""

    def __init__(self, waiting: deque[Job], note: Note, end: float, args: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self._waiting, self._note, self._end, self._args = waiting, note, end, args
        self._process: Any = None
        self._connection: Any = None

    def run(self) -> None:
        """Run checks until none waits."""
        while True:
            try:
                job = self._waiting.popleft()
            except IndexError:
                break
            begin = time.monotonic()
            status, said = self._check(job) if begin < self._end else (_NOT_CHECKED, "the time was over")
            outcome = Outcome(job.module, job.check, status, time.monotonic() - begin, said)
            self._note(outcome)
            if status != _PASSED or outcome.said:
                print(f"{status}: {_short(job.module)} {job.check}: {said.strip().splitlines()[-1][:300]}", flush=True)
        self._stop(kindly=True)

    def _check(self, job: Job) -> tuple[str, str]:
        try:
            if self._process is None or not self._process.is_alive():
                self._start()
            left = min(self._args.check_seconds, self._end - time.monotonic())
            self._connection.send(job)
            if self._connection.poll(left):
                status, said, broken = self._connection.recv()
                if broken:
                    self._stop()
                return status, said
        except (EOFError, OSError):
            self._process.join(10)
            code = self._process.exitcode
            self._stop()
            return _FAILED, f"its process died with exit code {code}"
        self._stop()
        if left < self._args.check_seconds:
            return _NOT_CHECKED, f"the time was over after {left:.0f} s of it"
        return _FAILED, f"no answer after {left:.0f} s: it hangs"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self._args.workers)
        given = (theirs, self._args.device, self._args.seed, threads)
        self._process = context.Process(target=_serve, args=given, daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(_START_SECONDS):
            raise EOFError
        self._connection.recv()

    def _stop(self, *, kindly: bool = False) -> None:
        if self._process is None:
            return
        if kindly and self._process.is_alive():
            self._connection.send(None)
            self._process.join(10)
        self._process.kill()
        self._process.join(10)
        self._process = None


def run(jobs: Sequence[Job], args: argparse.Namespace) -> list[Outcome]:
    """Run all jobs; outcomes are written after each, so that a machine that is taken away loses none.

    Jobs are done in their order, side by side, but those in a row that need the device for themselves one by one.
    """
    outcomes, lock = list[Outcome](), threading.Lock()
    order = {job: place for place, job in enumerate(jobs)}
    begin, save = time.monotonic(), saver(args, len(jobs))

    def note(outcome: Outcome) -> None:
        with lock:
            outcomes.append(outcome)
            outcomes.sort(key=lambda outcome: order[Job(outcome.module, outcome.check)])
            save(outcomes, time.monotonic() - begin)

    for alone, group in groupby(jobs, _runs_alone):
        waiting = deque(group)
        count = 1 if alone else min(args.workers, len(waiting))
        workers = [Worker(waiting, note, begin + args.seconds, args) for _ in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return outcomes


def _runs_alone(job: Job) -> bool:
    """Return True if a check needs the device for itself."""
    return any(check.alone for check in import_module(job.module).CHECKS if check.name == job.check)


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a row for each module, then what single checks had to say."""
    lines = ["| module | passed | failed | not checked | seconds |", "| --- | ---: | ---: | ---: | ---: |"]
    for module in dict.fromkeys(outcome.module for outcome in outcomes):
        its = [outcome for outcome in outcomes if outcome.module == module]
        lines.append(_row(_short(module), its))
    lines += [_row("**all**", outcomes), ""]
    for outcome in outcomes:
        if outcome.status != _PASSED or outcome.said:
            said = outcome.said.strip().splitlines()[-1] if outcome.said.strip() else ""
            lines.append(f"- {outcome.status}: {_short(outcome.module)} {outcome.check}: {said}")
    return "\n".join(lines)


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return f"| {name} | {counts[_PASSED]} | {counts[_FAILED]} | {counts[_NOT_CHECKED]} | {seconds:.0f} |"


def _short(module: str) -> str:
    return module.rpartition(".")[2].removesuffix("_checks")


def path_of(args: argparse.Namespace) -> Path:
    """The JSON file of this run."""
    path: Path = args.out / f"{datetime.now(UTC):%Y-%m-%d}-{short_name(torch.device(args.device))}-check.json"
    return path


def saver(args: argparse.Namespace, jobs: int) -> Callable[[Sequence[Outcome], float], None]:
    """Return a function that writes all outcomes so far, and the seconds taken, as JSON, and a table of them."""
    path, device = path_of(args), describe(torch.device(args.device))
    said = {"device": device, "seed": args.seed, "workers": args.workers, "jobs": jobs}
    args.out.mkdir(parents=True, exist_ok=True)

    def save(outcomes: Sequence[Outcome], seconds: float) -> None:
        counts = Counter(outcome.status for outcome in outcomes)
        checks = [asdict(outcome) for outcome in outcomes]
        result = {**said, "seconds": round(seconds, 1), "counts": counts, "checks": checks}
        for file, text in ((path, json.dumps(result, indent=1)), (path.with_suffix(".md"), table(outcomes))):
            making = file.with_suffix(f"{file.suffix}.new")
            making.write_text(f"{text}\n" if file is path else f"# {path.stem}\n\n{text}\n")
            making.replace(file)

    return save


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tests.kernels.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".cache/gpu-check"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--module", action="append", help="a module with CHECKS (default: all of tests/kernels)")
    parser.add_argument("--limit", type=int, help="only the first so many checks of each module")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help=f"of all (default: {_SECONDS:.0f})")
    parser.add_argument("--check-seconds", type=float, default=_CHECK_SECONDS, help="of one check, before it hangs")
    parser.add_argument("--workers", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    return parser.parse_args(arguments)


def main() -> int:
    """Entry point of `python -m tests.kernels.gpu_check`."""
    args = parse()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA GPU here; a dry run: TRITON_INTERPRET=1 ... --device cpu --limit 3")
    if args.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("--device cpu needs TRITON_INTERPRET=1: on CPU tensors kernels can only be interpreted")
    names = args.module or [module.__name__ for module in modules()]
    jobs = jobs_of(names, args.device, args.limit)
    print(f"{len(jobs)} checks of {len(names)} modules, {args.workers} processes, seed {args.seed}", flush=True)
    begin = time.monotonic()
    outcomes = run(jobs, args)
    counts = Counter(outcome.status for outcome in outcomes)
    for outcome in outcomes:
        if outcome.status == _FAILED:
            print(f"\n{outcome.module} {outcome.check}\n{outcome.said}")
    print(f"\n{table(outcomes)}\n\n{path_of(args)}: {dict(counts)}, {time.monotonic() - begin:.0f} s")
    return 1 if counts[_FAILED] or not counts[_PASSED] else 0


if __name__ == "__main__":
    sys.exit(main())
