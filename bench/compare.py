"""`make bench`: measures Octavo and transformers' generate on this machine, one after the other.

Both answer the same prompts with answers of the same length; see octavo_client/bench.py for the method. The table is
written to bench/results/. No other program should run meanwhile. bench/vllm_turns.py compares Octavo with vLLM.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers import Served, free_port, wait_ready
from bench.report import save

ENGINE = Path(sys.executable).parent / "octavo-engine"
MODEL = "smollm2"
MAX_MODEL_LEN = 2048
_PACKAGES = ("torch", "transformers", "tokenizers")
_TRANSFORMERS = "transformers generate"

Report = dict[str, Any]


@contextmanager
def octavo(dtype: str) -> Iterator[Served]:
    """Run an Octavo server until the block ends."""
    port = free_port()
    command = [str(ENGINE), "serve", MODEL, f"--port={port}", "--host=127.0.0.1", f"--dtype={dtype}"]
    started = time.perf_counter()
    with subprocess.Popen([*command, f"--max-model-len={MAX_MODEL_LEN}"], stderr=subprocess.DEVNULL) as process:
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/health/ready")
            yield Served(f"http://127.0.0.1:{port}", time.perf_counter() - started)
        finally:
            process.terminate()


def measure(served: Served, args: argparse.Namespace, file: Path) -> Report:
    """Warm up a server, then return the report of `octavo-engine bench` against it."""
    sizes = [f"--input-len={args.input_len}", f"--output-len={args.output_len}"]
    warm_up = ["--concurrency=8", "--num-prompts=8"]
    subprocess.run([ENGINE, "bench", served.url, *warm_up, *sizes], check=True, stdout=subprocess.DEVNULL)
    levels = [f"--concurrency={args.concurrency}", f"--num-prompts={args.num_prompts}"]
    subprocess.run([ENGINE, "bench", served.url, *levels, *sizes, f"--json={file}"], check=True)
    return {**json.loads(file.read_text()), "ready_seconds": served.ready_seconds}


def run_transformers(args: argparse.Namespace, file: Path) -> Report:
    """Run prompts of the same lengths through transformers' generate, in static batches of the number of users."""
    sizes = [f"--input-len={args.input_len}", f"--output-len={args.output_len}", f"--num-prompts={args.num_prompts}"]
    command = [sys.executable, "-m", "bench.transformers_generate", *sizes, f"--batch={args.concurrency}"]
    subprocess.run([*command, f"--dtype={args.dtype}", f"--json={file}"], check=True)
    report: Report = json.loads(file.read_text())
    return report


def run_all(args: argparse.Namespace, scratch: Path) -> dict[str, Report]:
    """Measure the engines one after the other, and return the report of each."""
    reports: dict[str, Report] = {}
    with octavo(args.dtype) as served:
        print(f"octavo: ready {served.ready_seconds:.1f} s after the start of its process", flush=True)
        reports["Octavo"] = measure(served, args, scratch / "octavo.json")
    reports[_TRANSFORMERS] = run_transformers(args, scratch / "transformers.json")
    return reports


def table(reports: dict[str, Report]) -> str:
    """Return Markdown with a row per engine and number of users, with rates as multiples of generate's for one user."""
    lines = [
        "| engine | users | output tokens/s | TTFT p50 / p90 ms | ITL p50 / p99 ms | of generate one by one "
        "| ready after |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    one_by_one = _rates(reports[_TRANSFORMERS]).get(1)
    for name, report in reports.items():
        ready = f"{report['ready_seconds']:.1f} s" if "ready_seconds" in report else "–"
        for level in report["levels"]:
            ttft, itl, users, rate = (level[key] for key in ("ttft_ms", "itl_ms", "concurrency", "output_tokens_per_s"))
            lines.append(
                f"| {name} | {users} | {rate:.1f} | {_ms(ttft['p50'])} / {_ms(ttft['p90'])} | {_ms(itl['p50'])} / "
                f"{_ms(itl['p99'])} | {_ratio(rate, one_by_one)} | {ready} |"
            )
    return "\n".join(lines)


def _rates(report: Report) -> dict[int, float]:
    return {level["concurrency"]: level["output_tokens_per_s"] for level in report["levels"]}


def _ratio(rate: float, base: float | None) -> str:
    return "–" if not base else f"{rate / base:.2f}×"


def _ms(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.0f}"


def main() -> None:
    """Entry point of `python -m bench.compare`."""
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--name", default="cpu", help="of the result files, after the date")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        reports = run_all(args, Path(scratch))
    machine = {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    machine["load_before"] = round(load_before, 2)
    versions = {name: version(name) for name in _PACKAGES}
    said = [f"{name} {value}" for name, value in versions.items()]
    result = {"machine": machine, "versions": versions, "arguments": vars(args), "reports": reports}
    note = f"{args.dtype}, {args.input_len} prompt + {args.output_len} output tokens, {args.num_prompts} requests a row"
    machine_said = f"{machine['cores']} cores ({machine['cpu']}; load {load_before:.1f} before)"
    text = f"`make bench` on {machine_said}: {MODEL}, {note}. {', '.join(said)}.\n\n{table(reports)}\n"
    save(args.name, result, lambda title: f"# {title}\n\n{text}")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
