"""`make simulate`: evaluates a scheduling policy without a device: the real scheduler on a simulated clock.

    python -m bench.simulate --trace sharegpt --cost h200-8b --blocks 8000
    python -m bench.simulate --trace sharegpt --blocks 8000 --against max-preemptions=0 --against swap-blocks=20000
    python -m bench.simulate --trace flood --baseline out/before.json

`--against` compares with a run of the same trace with some settings changed; `--baseline` compares with the JSON of an
earlier run, to judge a change of the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from bench.simulation.measures import by_tenant, measures
from bench.simulation.replay import Recording
from bench.simulation.setup import CHOICES, Setup

Report = dict[str, Any]


def report(setup: Setup, recording: Recording) -> Report:
    """Return the results as an object for JSON."""
    table = {
        m.name: {"value": m.value, "unit": m.unit, "digits": m.digits} for m in measures(recording, setup.block_size)
    }
    return {"setup": dataclasses.asdict(setup), "measures": table, "tenants": by_tenant(recording)}


def table(reports: dict[str, Report]) -> str:
    """Return Markdown with a line per measure and a column per run."""
    lines = ["| | " + " | ".join(reports) + " |", "| --- |" + " ---: |" * len(reports)]
    first = next(iter(reports.values()))["measures"]
    for name, measure in first.items():
        cells = [_cell(other["measures"].get(name)) for other in reports.values()]
        lines.append(f"| {name}{', ' + measure['unit'] if measure['unit'] else ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tenant_table(reports: dict[str, Report]) -> str:
    """Return Markdown with a line per tenant and the TTFT of each run."""
    names = sorted({tenant for one in reports.values() for tenant in one["tenants"]})
    if not names:
        return ""
    lines = ["| tenant: TTFT p50 / p90, ms | " + " | ".join(reports) + " |", "| --- |" + " ---: |" * len(reports)]
    for name in names:
        cells = [_tenant_cell(one["tenants"].get(name)) for one in reports.values()]
        lines.append(f"| {name or '(none)'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(measure: Report | None) -> str:
    return "–" if measure is None else f"{measure['value']:,.{measure['digits']}f}"


def _tenant_cell(tenant: Report | None) -> str:
    return "–" if tenant is None else f"{1e3 * tenant['ttft_p50']:,.0f} / {1e3 * tenant['ttft_p90']:,.0f}"


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line; each field of `Setup` is a flag."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench.simulate", description=__doc__, formatter_class=form)
    for field in dataclasses.fields(Setup):
        flag, kind = "--" + field.name.replace("_", "-"), type(field.default)
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(flag, type=kind, default=field.default, choices=CHOICES.get(field.name))
    parser.add_argument("--against", action="append", default=[], metavar="NAME=VALUE,…", help="and with this changed")
    parser.add_argument("--baseline", type=Path, help="the JSON of an earlier run to put beside this one")
    parser.add_argument("--out", type=Path, help="a folder for the table, JSON and PNG")
    return parser.parse_args()


def main() -> None:
    """Entry point of `python -m bench.simulate`."""
    args = arguments()
    setup = Setup(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Setup)})
    name = f"{setup.trace} {setup.policy}"
    try:
        setups = {name: setup} | {change: setup.changed(change) for change in args.against}
    except ValueError as error:
        raise SystemExit(f"bench.simulate: --against: {error}") from None
    recordings: dict[str, Recording] = {}
    for label, one in setups.items():
        started = time.perf_counter()
        recordings[label] = one.run()
        print(f"{label}: simulated in {time.perf_counter() - started:.1f} s", flush=True)
    reports = {label: report(setups[label], recording) for label, recording in recordings.items()}
    if args.baseline:
        reports = {
            f"baseline {args.baseline.stem}": next(iter(json.loads(args.baseline.read_text()).values()))
        } | reports
    print(f"\n{table(reports)}\n\n{tenant_table(reports)}")
    if args.out:
        _write(args.out, f"{setup.trace}-{setup.policy}-{setup.cost}", reports, recordings)


def _write(folder: Path, stem: str, reports: dict[str, Report], recordings: dict[str, Recording]) -> None:
    from bench.simulation.plots import draw

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.json").write_text(json.dumps(reports, indent=1) + "\n")
    (folder / f"{stem}.md").write_text(f"{table(reports)}\n\n{tenant_table(reports)}".rstrip() + "\n")
    draw(recordings, stem, folder / f"{stem}.png")
    print(f"{folder / stem}.json, .md and .png")


if __name__ == "__main__":
    main()
