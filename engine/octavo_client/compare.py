"""`octavo-engine compare BEFORE AFTER`: the ratio of each figure in two files of `octavo-engine bench --json`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from octavo_client import plots
from octavo_client.errors import UsageError
from octavo_client.figures import Level, Percentiles, Report

_TIMES = {"ttft_ms": "TTFT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_WORSE = 1
"""The exit code if a figure is worse, like that of `diff`."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure in both files, and whether it became worse by more than the tolerance."""

    load: str
    figure: str
    before: float
    after: float
    worse: bool

    @property
    def ratio(self) -> float:
        """The figure after divided by the figure before; NaN if one of them is missing."""
        return self.after / self.before if self.before else math.nan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `octavo-engine compare`."""
    parser.add_argument("before", type=Path, metavar="BEFORE", help="a file that bench --json wrote")
    parser.add_argument("after", type=Path, metavar="AFTER", help="the file to compare with it")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="mark figures that are worse by more than this (default: 5)",
    )
    parser.add_argument("--plot", type=Path, action="append", default=[], metavar="FILE", help=plots.HELP)


def read_report(path: Path) -> Report:
    """Read a file that `bench --json` wrote; UsageError if it is not such a file. Unmeasured figures are NaN."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        levels = [_level(level) for level in content["levels"]]
        target, model, time, workload = (str(content.get(name, "")) for name in ("target", "model", "time", "workload"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: is not a result of octavo-engine bench --json") from None
    return Report(target, model, time, workload, levels)


def _level(content: Mapping[str, Any]) -> Level:
    values: dict[str, Any] = {field.name: content.get(field.name) for field in fields(Level)}
    values |= {name: _number(content[name]) for name in ("output_tokens_per_s", "requests_per_s")}
    values["failed"] = int(content["failed"])
    for name in _TIMES:
        numbers = content[name]
        values[name] = Percentiles(*(_number(numbers[field.name]) for field in fields(Percentiles)))
    return Level(**values)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def ratios(before: Report, after: Report, tolerance: float) -> Iterator[Ratio]:
    """Yield each figure of the loads that both reports have; `tolerance` is in percent."""
    others = {level.load: level for level in after.levels}
    for old in before.levels:
        if (new := others.get(old.load)) is None:
            continue
        for name, ours, theirs, more_is_better in _figures(old, new):
            change = (theirs - ours) / ours * 100 if ours else 0.0
            worse = (-change if more_is_better else change) > tolerance
            yield Ratio(str(old.load), name, ours, theirs, worse)
        if old.failed or new.failed:
            yield Ratio(str(old.load), "failed", old.failed, new.failed, new.failed > old.failed)


def _figures(old: Level, new: Level) -> Iterator[tuple[str, float, float, bool]]:
    yield "tokens/s", old.output_tokens_per_s, new.output_tokens_per_s, True
    yield "requests/s", old.requests_per_s, new.requests_per_s, True
    for field, name in _TIMES.items():
        for percentile in ("p50", "p90", "p99"):
            ours, theirs = (getattr(getattr(level, field), percentile) for level in (old, new))
            yield f"{name} {percentile} ms", ours, theirs, False


def table(found: list[Ratio]) -> str:
    """Return a row for each figure; worse ones end with a mark."""
    lines = [f"{'load':<18} {'figure':<12} {'before':>10} {'after':>10} {'ratio':>7}"]
    for each in found:
        ratio = "-" if math.isnan(each.ratio) else f"{each.ratio:.3f}"
        mark = "  worse" if each.worse else ""
        before, after = _shown(each.before), _shown(each.after)
        lines.append(f"{each.load:<18} {each.figure:<12} {before:>10} {after:>10} {ratio:>7}{mark}")
    return "\n".join(lines) + "\n"


def _shown(value: float) -> str:
    """Return a figure as text, a small one with three digits: a slow server answers 0.042 requests a second."""
    if math.isnan(value):
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _name(path: Path) -> str:
    """Return the last two parts of a path, which fit into a legend and usually differ between files."""
    return "/".join(path.parts[-2:])


def run(args: argparse.Namespace) -> int:
    """Print the comparison; 1 if a figure is worse by more than the tolerance, 0 otherwise."""
    plots.check(args.plot)
    before, after = read_report(args.before), read_report(args.after)
    found = list(ratios(before, after, args.tolerance))
    if not found:
        loads = (", ".join(str(level.load) for level in report.levels) or "none" for report in (before, after))
        raise UsageError("the files have no load in common: {} and {}".format(*loads))
    if before.workload != after.workload:
        sys.stdout.write(f"the workloads differ: {before.workload or 'not stated'}; {after.workload or 'not stated'}\n")
    sys.stdout.write(table(found))
    for file in args.plot:
        plots.write(file, {_name(args.before): before, _name(args.after): after})
    worse = sum(each.worse for each in found)
    sys.stdout.write(f"{worse} of {len(found)} figures are worse by more than {args.tolerance:g} %\n")
    return _WORSE if worse else 0
