"""Draws the picture of the Service dashboard from real metrics (`make screens`).

A real Prometheus scrapes a real engine for three minutes while its number of users grows and falls again. Grafana
cannot be installed on the machines that build this repository, so matplotlib draws: panels, queries, units, thresholds
and places are read from the dashboard that Grafana imports, and the look is like Grafana's.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from octavo_operator.dashboards import DASHBOARDS
from tests.api.real_server import RealServer
from tests.monitoring.prometheus import IDENTITY, Prometheus, prometheus

PICTURE = Path(__file__).parent / "how-to" / "dashboard.png"
SECTIONS = ("Now", "Latency", "Throughput")
SERVER = ("--max-model-len=512", "--num-kv-blocks=160", "--max-num-seqs=8", "--max-queued-requests=6")
USERS = (2, 8, 20, 8, 3)
"""Users at once, each number for a fifth of the time."""
SECONDS = 180
STEP = 2
"""Seconds between two points of a line."""
WINDOW = "20s"
PAGE, PANEL, TEXT, GRID = "#111217", "#181b1f", "#ccccdc", "#2c3038"
COLORS = ("#73bf69", "#fade2a", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#8ab8ff", "#ffa6b0", "#c4162a")
LEVELS = {"green": COLORS[0], "orange": COLORS[3], "red": COLORS[4]}
ROWS_PER_INCH = 4

Series = tuple[str, list[float], list[float]]
"""A legend, seconds since the start, and values."""


@contextmanager
def users(url: str) -> Iterator[None]:
    """Users who ask as long as their number is wanted; they end with this context."""
    start, end = time.monotonic(), threading.Event()

    def wanted() -> int:
        return USERS[min(int((time.monotonic() - start) / SECONDS * len(USERS)), len(USERS) - 1)]

    threads = [threading.Thread(target=_ask, args=(url, number, wanted, end)) for number in range(max(USERS))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def _ask(url: str, number: int, wanted: Callable[[], int], end: threading.Event) -> None:
    asked = {"model": "smollm2", "max_tokens": 24 + 8 * (number % 5), "ignore_eos": True}
    lines = "The ship leaves the harbour at dawn. " * (4 + number % 4)
    with suppress(httpx2.TransportError), httpx2.Client(base_url=url, timeout=120, trust_env=False) as http:
        for turn in range(10_000):
            while number >= wanted() and not end.is_set():
                end.wait(0.5)
            if end.is_set():
                return
            prompt = f"{lines} User {number % 3}, story {turn % 7}:"
            if http.post("/v1/completions", json={**asked, "prompt": prompt}).status_code != 200:
                end.wait(1)


class Painter:
    """Draws panels from one Prometheus."""

    def __init__(self, source: Prometheus, start: float, end: float) -> None:
        self._source, self._start, self._end = source, start, end

    def _filled_in(self, expression: str) -> str:
        for name, value in IDENTITY.items():
            expression = expression.replace(f"${name}", value)
        return expression.replace("$__rate_interval", WINDOW)

    def series(self, target: dict[str, Any]) -> list[Series]:
        """Return the series of a query, with their legends as Grafana would write them."""
        asked: dict[str, str | float] = {
            "query": self._filled_in(target["expr"]),
            "start": self._start,
            "end": self._end,
            "step": STEP,
        }
        answer = self._source.http.get("/api/v1/query_range", params=asked).json()
        found = []
        for each in answer["data"]["result"]:
            legend = target["legendFormat"].replace("__auto", "")
            for label, value in each["metric"].items():
                legend = legend.replace("{{" + label + "}}", value)
            points = [(float(when) - self._start, float(value)) for when, value in each["values"]]
            found.append((legend, [when for when, _ in points], [value for _, value in points]))
        return found

    def draw(self, axes: Axes, panel: dict[str, Any]) -> None:
        """One panel, as its kind asks."""
        axes.set_facecolor(PANEL)
        draw = {"stat": self._stat, "timeseries": self._lines, "heatmap": self._heatmap}[panel["type"]]
        draw(axes, panel)

    def _stat(self, axes: Axes, panel: dict[str, Any]) -> None:
        axes.set_xticks([])
        axes.set_yticks([])
        defaults = panel["fieldConfig"]["defaults"]
        values = [value for _, _, found in self.series(panel["targets"][0]) for value in found if math.isfinite(value)]
        steps = defaults["thresholds"]["steps"]
        text, color = "No data", TEXT
        if values:
            reached = [step for step in steps if step["value"] is None or values[-1] >= step["value"]]
            text, color = spelled(values[-1], defaults["unit"]), LEVELS[reached[-1]["color"]]
        axes.text(0.35, 0.45, text, color=color, fontsize=15, ha="center", va="center", transform=axes.transAxes)

    def _lines(self, axes: Axes, panel: dict[str, Any]) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        lines = [line for target in panel["targets"] for line in self.series(target)]
        lines = [line for line in lines if any(line[2])] or lines[:1]
        if defaults["custom"]["stacking"]["mode"] == "normal" and lines:
            axes.stackplot(lines[0][1], *(_on(lines[0][1], line) for line in lines), colors=COLORS, alpha=0.35)
        for (legend, when, values), color in zip(lines, COLORS, strict=False):
            if defaults["custom"]["stacking"]["mode"] != "normal":
                axes.plot(when, values, color=color, linewidth=1)
                axes.fill_between(when, values, color=color, alpha=0.1)
            axes.plot([], [], color=color, linewidth=3, label=legend or panel["title"])
        for step in defaults["thresholds"]["steps"][1:]:
            axes.axhline(step["value"], color=LEVELS[step["color"]], linewidth=0.8, linestyle="--")
        _dress(axes, defaults["unit"])
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])  # room for the legend
        if lines:
            axes.legend(fontsize=6, labelcolor=TEXT, frameon=False, ncols=4, loc="upper left", handlelength=1)

    def _heatmap(self, axes: Axes, panel: dict[str, Any]) -> None:
        """The growth of each bucket; the buckets of a histogram of Prometheus hold those below them too."""
        found = sorted(self.series(panel["targets"][0]), key=lambda line: float(line[0]))
        times = found[0][1]
        below, rows = [0.0] * len(times), []
        for line in found:
            counts = _on(times, line)
            rows.append([max(0.0, count - less) for count, less in zip(counts, below, strict=True)])
            below = counts
        used = [index for index, row in enumerate(rows) if any(row)]
        first, last = used[0], used[-1] + 1
        axes.pcolormesh(times, range(last - first), rows[first:last], cmap="inferno", shading="nearest")
        labels = [spelled(float(line[0]), "s") for line in found[first:last]]
        _dress(axes, "short")
        axes.set_yticks(range(last - first), labels)


def _on(times: Sequence[float], line: Series) -> list[float]:
    """Return a line's values at these times; 0 where it has none."""
    known = dict(zip(line[1], line[2], strict=True))
    return [known.get(when, 0.0) if math.isfinite(known.get(when, 0.0)) else 0.0 for when in times]


def _dress(axes: Axes, unit: str) -> None:
    axes.set_xlim(0, SECONDS)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, color=GRID, linewidth=0.5)
    axes.tick_params(colors=TEXT, labelsize=6, length=0)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{int(seconds) // 60}:{int(seconds) % 60:02}")
    axes.yaxis.set_major_formatter(lambda value, _: spelled(value, unit))


def spelled(value: float, unit: str) -> str:
    """Return a value with its unit, as Grafana abbreviates it."""
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    number = f"{value / 1000:.3g} K" if value >= 1000 else f"{value:.3g}"
    return f"{number} req/s" if unit == "reqps" else number


def picture(painter: Painter) -> Figure:
    """Return the chosen sections of the dashboard, each panel in its place on the grid of 24 columns."""
    dashboard = DASHBOARDS["service"]
    wanted = {panel.title for section in dashboard.sections if section.title in SECTIONS for panel in section.panels}
    wanted |= set(SECTIONS)
    panels = [panel for panel in dashboard.as_object()["panels"] if panel["title"] in wanted]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    height = rows / ROWS_PER_INCH
    figure = Figure(figsize=(13, height), dpi=100, facecolor=PAGE)
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] / 24, place["y"] / rows
        if panel["type"] == "row":
            figure.text(left + 0.008, 1 - top - 0.6 / rows, panel["title"], color=TEXT, fontsize=10)
            continue
        _frame(figure, left, 1 - top - place["h"] / rows, place["w"] / 24, place["h"] / rows)
        box = (left + 0.042, 1 - top - (place["h"] - 0.8) / rows, place["w"] / 24 - 0.054, (place["h"] - 2.2) / rows)
        axes = figure.add_axes(box)
        axes.set_frame_on(False)
        figure.text(left + 0.01, 1 - top - 0.95 / rows, panel["title"], color=TEXT, fontsize=8, fontweight="bold")
        painter.draw(axes, panel)
    return figure


def _frame(figure: Figure, left: float, bottom: float, width: float, height: float) -> None:
    """The area of a panel."""
    box = Rectangle(
        (left + 0.003, bottom + 0.003), width - 0.006, height - 0.006, facecolor=PANEL, edgecolor=GRID, zorder=-1
    )
    figure.add_artist(box)


def main() -> None:
    """Entry point of `python -m docs.dashboard`."""
    mpl.rcParams["font.family"] = "DejaVu Sans"
    with tempfile.TemporaryDirectory() as folder:
        server = RealServer(Path(folder) / "log", "smollm2", *SERVER)
        try:
            server.wait_until(server.is_ready)
            with prometheus(server.url.removeprefix("http://"), Path(folder)) as source:
                start = time.time()
                with users(server.url):
                    time.sleep(SECONDS)
                    picture(Painter(source, start, time.time())).savefig(PICTURE)
        finally:
            server.end()


if __name__ == "__main__":
    main()
