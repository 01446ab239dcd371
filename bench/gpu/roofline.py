"""Writes the computed floors and the measured figures of each target into bench/results/ROOFLINE.md.

    python -m bench.gpu.roofline              the floors, and the newest results of a GPU
    python -m bench.gpu.roofline --builds     the kernels' builds as well, which takes a minute or two
    python -m bench.gpu.roofline --check      changes nothing; exit code 1 if the page is not up to date

The text between `<!-- KEY -->` and `<!-- end -->` is replaced; the rest of the page stays as it is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from bench.gpu import floors
from bench.gpu.floors import H200_NOMINAL, H200_SEEN, Floor, Rates
from bench.gpu.report import target_table
from bench.gpu.result import Result, merged, read
from bench.gpu.shapes import LLAMA_8B
from bench.gpu.targets import AIMS, targets

_RESULTS = Path(__file__).parents[1] / "results"
PAGE = _RESULTS / "ROOFLINE.md"
_NOT_MEASURED = "**Measured:** not measured: that part of the bench has not run on an H200."
_MARKED = "<!-- {} -->\n{}\n<!-- end -->"

_CASES: dict[str, tuple[tuple[str, Callable[[Rates], Floor]], ...]] = {
    "decode-1": (("a step", lambda rates: floors.decode(LLAMA_8B, 1, 1024, rates)),),
    "decode-256": (("a step", lambda rates: floors.decode(LLAMA_8B, 256, 1024, rates)),),
    "prefill-8k": (("8192 tokens", lambda rates: floors.prefill(LLAMA_8B, 8192, rates)),),
    "paged-decode": tuple(
        (
            f"batch {batch}, context {context}",
            lambda rates, b=batch, c=context: floors.paged_decode(LLAMA_8B, b, c, rates),
        )
        for batch, context in ((16, 4096), (64, 8192), (256, 4096))
    ),
    "generate": (("512 requests, 256 at a time", lambda rates: floors.offline(LLAMA_8B, 512, 1000, 1000, 256, rates)),),
}
_WANTED = {aim.key: aim.target for aim in AIMS}


def floor_table(key: str) -> str:
    """Return Markdown: bytes, operations and shortest times of a target's cases, and the target's own limit."""
    part = _WANTED[key] if key != "generate" else None
    wanted = "" if part is None else f" at the target's {part:.0%}, seen rates |"
    lines = [
        f"| | bytes | operations | floor, {H200_NOMINAL.name} | floor, {H200_SEEN.name} |{wanted}",
        "| --- " * (5 + bool(part)) + "|",
    ]
    for name, floor in _CASES[key]:
        nominal, seen = floor(H200_NOMINAL), floor(H200_SEEN)
        allowed = "" if part is None else f" {_time(seen.seconds / part)} |"
        lines.append(
            f"| {name} | {seen.bytes / 1e9:,.2f} GB | {seen.operations / 1e12:,.3f} T | {_time(nominal.seconds)} | "
            f"{_time(seen.seconds)}, {seen.bound} |{allowed}"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} µs"


def _busy() -> str:
    """Return the share of the time that the target leaves for gaps."""
    cases = [(batch, floors.decode(LLAMA_8B, batch, 1024, H200_SEEN).seconds) for batch in (1, 256)]
    gaps = ", ".join(f"{_time(0.03 / 0.97 * seconds)} a step at batch {batch}" for batch, seconds in cases)
    return f"No bytes and no operations of its own. With kernels at their floor (seen rates), 97 % leaves {gaps}."


def _rates() -> str:
    """Return the tokens per second at the nominal and at the measured rates."""
    floor = _CASES["generate"][0][1]
    said = [f"{512 * 1000 / floor(rates).seconds:,.0f} tokens/s ({rates.name})" for rates in (H200_NOMINAL, H200_SEEN)]
    return f"That is {' or '.join(said)}: no engine can be quicker with 256 requests at a time in bfloat16."


def _start() -> str:
    """Return the time of reading the weights, at the rates of local disks."""
    size = 2 * (LLAMA_8B.layers * (floors.layer_weights(LLAMA_8B) + 2 * LLAMA_8B.hidden))
    size += 2 * (2 * LLAMA_8B.vocab * LLAMA_8B.hidden + LLAMA_8B.hidden)
    times = ", ".join(f"{size / rate / 1e9:.1f} s at {rate} GB/s" for rate in (1, 2, 4, 8))
    return f"{size / 1e9:.2f} GB of weights: {times}. The lent machines' disks have not been measured."


def sections(result: Result) -> dict[str, str]:
    """Return the content between the marks, by key."""
    found = {key: floor_table(key) for key in _CASES}
    found |= {"busy": _busy(), "vllm": _rates(), "start": _start()}
    measured = {aim.key: line for aim, line in zip(AIMS, targets(result), strict=True)}
    for key, line in measured.items():
        said = _NOT_MEASURED
        if line.measured is not None:
            gap = "" if line.unit == "s" else f", {line.target / line.measured:.2f} × to go" * (not line.met)
            said = f"**Measured:** {line.measured:.3g} ({line.unit}; wanted {line.target:g}{gap}). {line.note}"
        found[key] += f"\n\n{said}"
    return found | {"targets": "\n".join(target_table(targets(result)))}


def results() -> Result:
    """Return the results of all committed runs on an H200, which the targets are for; later runs take precedence."""
    return merged([read(path) for path in sorted(_RESULTS.glob("*-h200.json"))])


def updated(page: str, found: dict[str, str]) -> str:
    """Return the page with everything between marks replaced; KeyError if a mark is missing."""
    for key, text in found.items():
        mark = re.compile(rf"<!-- {re.escape(key)} -->\n.*?\n<!-- end -->", re.S)
        if not mark.search(page):
            raise KeyError(f"{PAGE.name} has no mark {key}")
        page = mark.sub(lambda _, key=key, text=text: _MARKED.format(key, text), page)
    return page


def main() -> None:
    """Entry point of `python -m bench.gpu.roofline`."""
    parser = argparse.ArgumentParser(
        prog="bench.gpu.roofline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--builds", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    found = sections(results())
    if args.builds:
        from tests.kernels.hopper import compile_all, section

        found["builds"] = section(compile_all())
    page = PAGE.read_text()
    new = updated(page, found)
    if args.check:
        sys.exit(int(new != page))
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
