"""`make bench`: Octavo and transformers' generate on this machine, one after the other, into bench/results/.

Both answer the same prompts of the same length; see bench.py for the method. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ENGINE = Path(sys.executable).parent / "octavo-engine"
MODEL = "smollm2"
_PACKAGES = ("torch", "transformers", "tokenizers")


@contextmanager
def octavo(dtype: str) -> Iterator[str]:
    """A running server's URL; says how long it took to be ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(ENGINE), "serve", MODEL, f"--port={port}", "--host=127.0.0.1", f"--dtype={dtype}"]
    started = time.perf_counter()
    with subprocess.Popen([*command, "--max-model-len=2048"]) as process:
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/health/ready")
            print(f"octavo: ready {time.perf_counter() - started:.1f} s after the start of its process", flush=True)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Until the server is ready; RuntimeError if it ends instead."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310  (our own server)
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise RuntimeError(f"octavo-engine ended with exit code {process.returncode}")


def run_octavo(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """The report of `octavo-engine bench` against a server of its own, which was warmed up first."""
    sizes = [f"--input-len={args.input_len}", f"--output-len={args.output_len}"]
    with octavo(args.dtype) as url:
        warm_up = ["--concurrency=8", "--num-prompts=8", "--seed=99"]
        subprocess.run([ENGINE, "bench", url, *warm_up, *sizes], check=True, stdout=subprocess.DEVNULL)
        levels = [f"--concurrency={args.concurrency}", f"--num-prompts={args.num_prompts}"]
        subprocess.run([ENGINE, "bench", url, *levels, *sizes, f"--json={file}"], check=True)
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def run_transformers(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """The same prompts through transformers' generate, in static batches of as many as there are users."""
    script = Path(__file__).parent / "transformers_generate.py"
    sizes = [f"--input-len={args.input_len}", f"--output-len={args.output_len}", f"--num-prompts={args.num_prompts}"]
    command = [sys.executable, script, *sizes, f"--batch={args.concurrency}", f"--dtype={args.dtype}"]
    subprocess.run([*command, f"--json={file}"], check=True)
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def table(reports: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for each engine and number of users."""
    lines = [
        "| engine | users | output tokens/s | TTFT p50 / p90 ms | ITL p50 / p99 ms | against transformers |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    base = {level["concurrency"]: level["output_tokens_per_s"] for level in reports["transformers generate"]["levels"]}
    for name, report in reports.items():
        for level in report["levels"]:
            ttft, itl, users = level["ttft_ms"], level["itl_ms"], level["concurrency"]
            rate = level["output_tokens_per_s"]
            lines.append(
                f"| {name} | {users} | {rate:.1f} | {_ms(ttft['p50'])} / {_ms(ttft['p90'])} | "
                f"{_ms(itl['p50'])} / {_ms(itl['p99'])} | {rate / base[users]:.1f}× |"
            )
    return "\n".join(lines)


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
    stem = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{args.name}"
    RESULTS.mkdir(exist_ok=True)
    scratch = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108
    reports = {
        "Octavo": run_octavo(args, scratch / "octavo-bench.json"),
        "transformers generate": run_transformers(args, scratch / "transformers-bench.json"),
    }
    machine = {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    versions = {name: version(name) for name in _PACKAGES}
    result = {"machine": machine, "versions": versions, "arguments": vars(args), "reports": reports}
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    said = ", ".join(f"{name} {value}" for name, value in versions.items())
    note = f"{args.dtype}, {args.input_len} prompt + {args.output_len} output tokens, {args.num_prompts} requests a row"
    page = f"# {stem.name}\n\n`make bench` on {machine['cores']} cores ({machine['cpu']}): {MODEL}, {note}. {said}.\n\n"
    stem.with_suffix(".md").write_text(page + table(reports) + "\n")
    print(table(reports))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
