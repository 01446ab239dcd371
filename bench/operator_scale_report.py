"""Writes the page and the picture of bench/operator_scale.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.load import percentile


def page(title: str, result: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    plan = result["plan"]
    rss = max(sample["rss_mib"] for sample in result["samples"])
    rows = [
        ("from the first apply to all children", f"{result['all_children']:.1f} s"),
        ("until every status reports that the pod finds no node", f"{result['all_reported']:.1f} s"),
        ("one change meanwhile, until its Service has it", _latency(result["changes_in_burst"])),
        ("one change afterwards", _latency(result["changes_after"])),
        (f"writes of the operator in {result['idle_seconds']:.0f} s without a change", f"{result['idle_writes']:.0f}"),
        ("objects with another resourceVersion afterwards", str(result["idle_changed_objects"])),
        ("CPU of the operator meanwhile", f"{result['idle_cpu_percent']:.2f} % of a core"),
        ("resident memory of the operator, most", f"{rss:.0f} MiB"),
        ("a new leader has reconciled all of them", f"{result['takeover_seconds']:.1f} s"),
        ("writes of the new leader meanwhile", f"{result['takeover_writes']:.0f}"),
        ("resident memory of the new leader, most", f"{result['takeover_rss_mib']:.0f} MiB"),
        ("requests of the bench that the API server was too busy for", str(result["repeated_requests"])),
    ]
    machine = f"{result['machine']['cores']} cores ({result['machine']['cpu']})"
    lines = [
        f"# {title}\n",
        f"{plan['services']} LLMServices whose pods find no node; {plan['replicas']} operator as a pod of a real "
        f"control plane; everything and the bench itself on {machine}. Load before: {result['load_before']:.1f}.\n",
        "| figure | measured |",
        "| --- | --- |",
        *(f"| {what} | {value} |" for what, value in rows),
        f"\n![over time]({title}.png)",
        "\n`python -m bench.operator_scale` measures it again.\n",
    ]
    return "\n".join(lines)


def _latency(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    p50, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {max(seconds) * 1000:.0f} ms ({len(seconds)} changes)"


def plot(result: dict[str, Any], file: Path) -> None:
    """Plot children, queue, memory and CPU over time, and the duration of changes."""
    figure = Figure(figsize=(10, 11), layout="constrained")
    FigureCanvasAgg(figure)
    burst, memory, cpu, changes = figure.subplots(4, 1)
    samples = result["samples"]
    seconds = [sample["seconds"] for sample in samples]
    while_made = [sample for sample in samples if sample["seconds"] <= result["all_reported"] + 10]
    at = [sample["seconds"] for sample in while_made]
    burst.plot(at, [sample["children"] for sample in while_made], label="children")
    burst.plot(at, [sample["queue"] for sample in while_made], label="LLMServices in the queue")
    burst.axvline(result["all_children"], color="grey", ls=":")
    burst.set_ylabel("objects")
    memory.plot(seconds, [sample["rss_mib"] for sample in samples], label="resident memory, MiB")
    memory.axhline(250, color="red", ls=":", label="250 MiB")
    memory.set_ylim(bottom=0)
    cpu.plot(seconds, [sample["cpu_seconds"] for sample in samples], label="CPU so far, s")
    cpu.plot(seconds, [sample["writes"] / 100 for sample in samples], label="writes so far, hundreds")
    for panel in (burst, memory, cpu):
        panel.set_xlabel("seconds since the first apply")
    for name in ("changes_in_burst", "changes_after"):
        ordered = sorted(result[name])
        shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
        changes.step([1000 * value for value in ordered], shares, label=name.replace("_", " "))
    changes.set_xlabel("ms until a change has reached the Service")
    changes.set_ylabel("share of changes")
    changes.set_xscale("log")
    for panel in (burst, memory, cpu, changes):
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle(file.stem)
    figure.savefig(file, dpi=100)
