"""Draws the figures of benchmarks as a PNG or an HTML page without other files. Needs matplotlib, an optional extra."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_client.errors import UsageError
from octavo_client.figures import Level, Load, Percentiles, Report
from octavo_client.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELP = "draw the figures: FILE ends in .png, or in .html for a page without other files (needs matplotlib)"
_PERCENTILES = ("p50", "p90", "p99")
_STYLES = ("solid", "dashed", "dotted")
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse }}
td, th {{ padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }}
</style>
<h1>{title}</h1>
{picture}
{tables}
</html>
"""


def check(files: Iterable[Path]) -> None:
    """Raise UsageError if one of the files cannot be drawn: an unknown ending, or matplotlib is missing."""
    for file in files:
        if file.suffix not in {".png", ".html"}:
            raise UsageError(f"--plot {file}: must end in .png or .html")
        if find_spec("matplotlib") is None:
            raise UsageError(f"--plot {file}: needs matplotlib, which is not installed: pip install matplotlib")


def write(file: Path, reports: Mapping[str, Report]) -> None:
    """Draw reports, by the names that the legend gives them, into a .png or .html file. Call `check` before."""
    figure = _draw(reports)
    if file.suffix == ".png":
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        write_whole(file, image.getvalue())
        return
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    svg = picture.getvalue()
    title = html.escape(" and ".join(f"{name}: {report.model}" for name, report in reports.items()))
    tables = "\n".join(_table(name, report) for name, report in reports.items())
    page = _PAGE.format(title=title, picture=svg[svg.index("<svg") :], tables=tables)
    write_whole(file, page.encode())


def _draw(reports: Mapping[str, Report]) -> Figure:
    """Return a figure of tokens/s and of the percentiles of TTFT, ITL and E2E, each over the load."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    throughput, first, between, total = figure.subplots(2, 2).flat
    unit = next((level.load.unit for report in reports.values() for level in report.levels), Load(users=1).unit)
    for number, (name, report) in enumerate(reports.items()):
        levels = sorted((level for level in report.levels if level.load.unit == unit), key=lambda each: each.load.value)
        loads = [level.load.value for level in levels]
        throughput.plot(loads, [level.output_tokens_per_s for level in levels], "o-", color=f"C{number}", label=name)
        if (found := report.saturation) is not None and found.value is not None and found.unit == unit:
            throughput.axvline(found.value, color=f"C{number}", linestyle="dotted", label="saturation point")
        for axes, times in (
            (first, [level.ttft_ms for level in levels]),
            (between, [level.itl_ms for level in levels]),
            (total, [level.e2e_ms for level in levels]),
        ):
            _lines(axes, loads, times, name if len(reports) > 1 else "", f"C{number}")
    for axes, title in ((throughput, "output tokens/s"), (first, "TTFT, ms"), (between, "ITL, ms"), (total, "E2E, ms")):
        axes.set_title(title)
        axes.set_xlabel(unit)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def _lines(axes: Axes, loads: list[float], times: list[Percentiles], name: str, color: str) -> None:
    for percentile, style in zip(_PERCENTILES, _STYLES, strict=True):
        values = [getattr(each, percentile) for each in times]
        axes.plot(loads, values, marker="o", linestyle=style, color=color, label=f"{name} {percentile}".strip())


def _table(name: str, report: Report) -> str:
    columns = (
        "load",
        "tokens/s",
        "req/s",
        *(f"{kind} {p} ms" for kind in ("TTFT", "ITL", "E2E") for p in _PERCENTILES),
    )
    head = "".join(f"<th>{column}</th>" for column in (*columns, "failed"))
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(level))}</tr>" for level in report.levels)
    text = html.escape(f"{name}: {report.model}, {report.workload}, {report.time}")
    return f"<p>{text}</p><table><tr>{head}</tr>{rows}</table>"


def _cells(level: Level) -> list[str]:
    times = (getattr(kind, p) for kind in (level.ttft_ms, level.itl_ms, level.e2e_ms) for p in _PERCENTILES)
    rates = f"{level.output_tokens_per_s:.1f}", f"{level.requests_per_s:.2f}"
    return [str(level.load), *rates, *(f"{time:.1f}" for time in times), str(level.failed)]
