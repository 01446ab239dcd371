"""`make bench-gpu`: measures the engine on this GPU and compares each figure with the GPU's own measured rates.

    python -m bench.gpu --out DIR                     all parts, each in a process of its own
    python -m bench.gpu --out DIR --part llama-8b     one part; --part may be given several times
    python -m bench.gpu --out DIR --part llama-8b --quick        with fewer cases
    python -m bench.gpu --out DIR --merge FILE ...    measures nothing: merges the results of several runs

Results go to DIR/<date>-<gpu>.json, .md and .png, after every figure, so that an interrupted part loses nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from bench.gpu import machine, report
from bench.gpu.adapters import adapters
from bench.gpu.clock import describe, short_name
from bench.gpu.context import FULL, TINY, Context, Measure
from bench.gpu.paged import paged_decode
from bench.gpu.peers import peers, vllm
from bench.gpu.quantized import quantized_linears
from bench.gpu.result import Figure, Part, Result, as_json, merged, read, stem
from bench.gpu.serving import offline, serving
from bench.gpu.shapes import Shape
from bench.gpu.startup import startup
from bench.gpu.targets import targets

_PART_SECONDS = 570
"""Seconds for one part: commands on a lent machine end after ten minutes."""


def _llama(context: Context, weights: str = "bf16") -> Iterator[Figure]:
    return serving(context, context.scale.llama, weights)


def _with_offline(context: Context, shape: Shape) -> Iterator[Figure]:
    yield from serving(context, shape)
    if context.scale.thorough:
        yield from offline(context, shape)


PARTS: dict[str, Measure] = {
    "llama-8b": _llama,
    "attention": paged_decode,
    "quantized-linears": quantized_linears,
    "offline": lambda context: offline(context, context.scale.llama),
    "start": startup,
    "vllm": vllm,
    "peers": peers,
    "llama-8b-adapters": adapters,
    "llama-8b-fp8": partial(_llama, weights="fp8"),
    "llama-8b-int4": partial(_llama, weights="int4"),
    "offline-fp8": lambda context: offline(context, context.scale.llama, "fp8"),
    "qwen3-0.6b": lambda context: _with_offline(context, context.scale.qwen),
    "gpt-oss-20b": lambda context: _with_offline(context, context.scale.gpt_oss),
}
"""The parts in the order in which they run: the most informative first, those that targets need before others."""


def run_part(name: str, args: argparse.Namespace) -> None:
    """Measure one part in this process.

    The machine's rates are measured with it, since each run may use another machine.
    """
    begin = time.perf_counter()
    device = torch.device(args.device)
    where = stem(args.out, "tiny" if args.tiny else short_name(device))
    rates, figures = machine.measure(device, machine.TINY if args.tiny else machine.FULL)
    said = {figure.what: f"{figure.value:.4g} {figure.unit}" for figure in figures if figure.value is not None}
    part = Part(describe(device) | {"rates": said}, list(figures), ended="broken off")
    scale = TINY if args.tiny else FULL
    context = Context(device, rates, scale.quick() if args.quick else scale, args.scratch, args.vllm_python)
    try:
        for figure in PARTS[name](context):
            part.figures.append(figure)
            part.seconds = time.perf_counter() - begin
            print(f"{part.seconds:6.0f} s  {_line(figure)}", flush=True)
            write(where, merged([read(where.with_suffix(".json")), Result({name: part})]))
        part.ended = "in time"
    except BaseException as error:
        part.ended = f"broken off by {type(error).__name__}: {str(error)[:300]}"
        raise
    finally:
        part.seconds = time.perf_counter() - begin
        write(where, merged([read(where.with_suffix(".json")), Result({name: part})]))


def _line(figure: Figure) -> str:
    value = "not measured" if figure.value is None else f"{figure.value:.4g} {figure.unit}"
    share = "" if figure.fraction is None else f", {100 * figure.fraction:.1f} % of the roofline"
    return f"{figure.key}: {value}{share}  {figure.note}"


def write(where: Path, result: Result) -> None:
    """Write the JSON file and the Markdown page."""
    where.parent.mkdir(parents=True, exist_ok=True)
    lines = targets(result)
    where.with_suffix(".json").write_text(as_json(result, lines))
    where.with_suffix(".md").write_text(report.page(where.name, result, lines))


def run_each(names: Sequence[str], args: argparse.Namespace) -> bool:
    """Run every part in a process of its own, so that its failure affects no other; whether all succeeded."""
    begin, well = time.perf_counter(), True
    options = [f"--scratch={args.scratch}", f"--vllm-python={args.vllm_python}", *["--quick"] * args.quick]
    for name in names:
        left = 60 * args.minutes - (time.perf_counter() - begin)
        if left < 30:
            print(f"{name}: not run, the {args.minutes:g} minutes are over", flush=True)
            well = False
            continue
        command = [sys.executable, "-m", "bench.gpu", f"--part={name}", f"--out={args.out}", f"--device={args.device}"]
        print(f"# {name}", flush=True)
        try:
            subprocess.run([*command, *options], check=True, timeout=min(left, _PART_SECONDS))
        except subprocess.SubprocessError as error:
            print(f"{name}: {error}", flush=True)
            well = False
    return well


def main() -> int:
    """Entry point of `python -m bench.gpu`."""
    parser = argparse.ArgumentParser(
        prog="bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="JSON files of earlier runs")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a dry run: small shapes, everything in this process")
    parser.add_argument("--quick", action="store_true", help="of models, only some decode steps at 1k and two prefills")
    parser.add_argument("--minutes", type=float, default=120.0, help="of all parts, the most telling ones first")
    scratch = Path(tempfile.gettempdir()) / "octavo-bench-gpu"
    parser.add_argument("--scratch", type=Path, default=scratch, help=f"for checkpoints (default: {scratch})")
    parser.add_argument("--vllm-python", default=sys.executable, help="the Python that has vLLM (default: this one)")
    args = parser.parse_args()
    if args.merge:
        write(args.out / args.merge[-1].stem, merged([read(path) for path in args.merge]))
        return _finish(args.out / args.merge[-1].stem)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA GPU here: --tiny --device cpu is a dry run")
    names = args.part or list(PARTS)
    well = True
    if args.tiny or len(names) == 1:
        for name in names:
            run_part(name, args)
    else:
        well = run_each(names, args)
    _finish(stem(args.out, "tiny" if args.tiny else short_name(torch.device(args.device))))
    return 0 if well else 1


def _finish(where: Path) -> int:
    """Print the table of targets, and draw the plots."""
    result = read(where.with_suffix(".json"))
    plots = report.plots(result, where)
    print(
        "\n".join(map(str, plots)) or "no plots: matplotlib is not installed, or nothing was measured (--merge draws)"
    )
    print("\n".join(report.target_table(targets(result))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
