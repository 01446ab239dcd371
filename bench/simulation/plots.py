"""Plots of one or several runs over time: queue, KV usage, preemptions, TTFT percentiles."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.simulation.measures import ttft
from bench.simulation.replay import Recording

_BINS = 60


def draw(recordings: dict[str, Recording], title: str, file: Path) -> None:
    """Write a PNG with four panels that share the time axis; each run has its colour."""
    figure = Figure(figsize=(10, 12), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(4, 1, sharex=True)
    for (name, recording), colour in zip(recordings.items(), mpl.color_sequences["tab10"], strict=False):
        times = [now for now, _ in recording.series]
        states = [state for _, state in recording.series]
        panels[0].plot(times, [state.waiting for state in states], color=colour, label=f"{name}: waiting")
        panels[0].plot(times, [state.running for state in states], color=colour, ls=":", label=f"{name}: running")
        usage = [100 * state.kv_blocks_used / state.kv_blocks_total for state in states]
        panels[1].plot(times, usage, color=colour, label=name)
        panels[2].plot(times, [state.preemptions for state in states], color=colour, label=name)
        _draw_ttft(panels[3], recording, name, colour)
    labels = ("requests", "KV blocks used, %", "preemptions so far", "TTFT by arrival, s: p50 .. p90 – p99 --")
    for panel, label in zip(panels, labels, strict=True):
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    panels[1].set_ylim(0, 105)
    panels[3].set_yscale("log")
    panels[3].set_xlabel("simulated seconds")
    figure.suptitle(title)
    figure.savefig(file, dpi=100)


def _draw_ttft(panel: Axes, recording: Recording, name: str, colour: object) -> None:
    arrivals = np.asarray([timeline.arrival for timeline in recording.timelines])
    seconds = ttft(recording.timelines)
    edges = np.linspace(0, arrivals.max(), _BINS + 1)
    places = np.digitize(arrivals, edges[1:-1])
    filled = [place for place in range(_BINS) if (places == place).any()]
    times = [(edges[place] + edges[place + 1]) / 2 for place in filled]
    for percent, style in ((50, ":"), (90, "-"), (99, "--")):
        values = [np.percentile(seconds[places == place], percent) for place in filled]
        panel.plot(times, values, style, color=colour, lw=1, label=name if percent == 90 else None)
