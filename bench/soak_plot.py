"""Draws the memory, file handles, threads and series of the soak's servers over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_PANELS = (
    ("MiB", ("engine MiB", "HTTP MiB", "text workers MiB", "anonymous MiB")),
    ("file handles", ("file handles",)),
    ("threads, series", ("threads", "series")),
)


def plot(lives: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write the picture; the servers, as in the result's JSON, come one after another."""
    figure = Figure(figsize=(10, 9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(_PANELS), 1)
    begin = 0.0
    for number, life in enumerate(lives):
        minutes = [begin + sample["seconds"] / 60 for sample in life["samples"]]
        for panel, (_, names) in zip(panels, _PANELS, strict=True):
            for order, name in enumerate(names):
                values = [sample[name] for sample in life["samples"]]
                panel.plot(minutes, values, color=f"C{order}", label=None if number else name)
        begin = minutes[-1] if minutes else begin
        for panel in panels:
            panel.axvline(begin, color="grey", ls=":")
    for panel, (label, _) in zip(panels, _PANELS, strict=True):
        panel.set_ylabel(label)
        panel.set_xlabel("minutes; a dotted line is the end of a server")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle(file.stem)
    figure.savefig(file, dpi=100)
