"""Writes results for people: a page of tables, and plots if matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.result import Figure, Part, Result
from bench.gpu.targets import Target


def page(title: str, result: Result, targets: Sequence[Target]) -> str:
    """Return Markdown: the targets, then each part with its machine."""
    lines = [
        f"# {title}",
        "",
        "`make bench-gpu`. Random weights of the named shapes; medians, with the lowest and the",
        "highest round. *Roofline* is what the rates measured in the same run allow (bench/gpu/floors.py).",
        "",
    ]
    lines += target_table(targets)
    for name, part in result.parts.items():
        lines += ["", f"## {name}", "", _machine(part), "", *_table(part.figures)]
    return "\n".join(lines) + "\n"


def target_table(targets: Sequence[Target]) -> list[str]:
    """Return the rows of a table with all targets."""
    lines = ["| target | wanted | measured | | note |", "| --- | ---: | ---: | --- | --- |"]
    said = {True: "met", False: "**missed**", None: ""}
    for target in targets:
        wanted = f"{'<' if target.unit == 's' else '≥'} {_amount(target.target, target.unit)}"
        measured = "not measured" if target.measured is None else _amount(target.measured, target.unit)
        lines.append(f"| {target.name} | {wanted} | {measured} | {said[target.met]} | {target.note} |")
    return lines


def _amount(value: float, unit: str) -> str:
    if unit == "fraction":
        return f"{100 * value:.1f} %"
    return f"{value:.2f}×" if unit == "times" else f"{value:.1f} {unit}"


def _machine(part: Part) -> str:
    machine = part.machine
    versions = ", ".join(f"{name} {value}" for name, value in machine.get("versions", {}).items())
    clocks = "; ".join(f"{name} {value}" for name, value in machine.get("now", {}).items())
    rates = ", ".join(f"{name} {value}" for name, value in machine.get("rates", {}).items())
    ended = "" if part.ended == "in time" else f" **{part.ended}**: what follows is what was measured until then."
    return f"{machine.get('name', '?')}: {rates}. {versions}. {clocks}. {part.seconds:.0f} s.{ended}"


def _table(figures: Sequence[Figure]) -> list[str]:
    lines = ["| model | what | case | median | lowest – highest | of roofline | note |", "| --- " * 7 + "|"]
    for figure in figures:
        if figure.value is None:
            lines.append(f"| {figure.model} | {figure.what} | {figure.case} | – | – | – | {figure.note} |")
            continue
        spread = (
            "–" if figure.rounds < 2 else f"{_number(figure.low)} – {_number(figure.high)} ({figure.rounds} rounds)"
        )
        part = "–" if figure.fraction is None else f"{100 * figure.fraction:.1f} %"
        value = f"{_number(figure.value)} {figure.unit}"
        lines.append(
            f"| {figure.model} | {figure.what} | {figure.case} | {value} | {spread} | {part} | {figure.note} |"
        )
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def plots(result: Result, where: Path) -> list[Path]:
    """Draw `<where>-fractions.png` and `<where>-throughput.png`; no files without matplotlib or without figures."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    fractions = [figure for figure in result.matching("") if figure.fraction is not None]
    rates = [figure for figure in result.matching("") if figure.unit == "tokens/s"]
    made = []
    if fractions:
        values = [100 * (figure.fraction or 0.0) for figure in fractions]
        made.append(_bars(fractions, values, "% of what the machine's measured rates allow", where, "fractions"))
    if rates:
        values = [figure.value or 0.0 for figure in rates]
        made.append(_bars(rates, values, "tokens of answers a second", where, "throughput"))
    return made


def _bars(figures: Sequence[Figure], values: Sequence[float], label: str, where: Path, name: str) -> Path:
    from matplotlib import pyplot

    figure: Any
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(figures)), layout="constrained")
    bars = axes.barh([each.key for each in figures], values, color="#4477aa")
    axes.bar_label(bars, labels=[_number(value) for value in values], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    path = where.with_name(f"{where.name}-{name}.png")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
