"""Attacks one real server with a real model, one attack after another, while another tenant uses it.

The attacker has an API key without limits of its own; the honest tenant streams answers one after another and probes
/health/live ten times a second. Before each attack both are measured alone for some seconds. Attacker, honest tenant
and server share the cores, and so does everything else on the machine: the columns "before" show how busy it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch
import uvloop

from bench.hostile.attacks import ATTACKS
from bench.hostile.claims import RANKED
from bench.hostile.honest import Honest
from bench.hostile.leftover import State, settled, state_of
from bench.hostile.secrets import PLAIN_KEY, PROMPT
from bench.hostile.several_keys import KEYS
from bench.hostile.tenants import FORBIDDEN
from bench.report import save
from bench.server import Serving, octavo

GAP_MS, PROBE_MS, GROWTH_MIB, LOG_KIB = 1500, 500, 256, 512
"""The targets during an attack: the longest gap between two tokens of the honest tenant, the longest probe, the largest
growth of memory, and the most log lines in KiB."""
_LOOP = uvloop.new_event_loop
_SPARE_SERIES = 16
"""More series after an attack that are no sign of labels that clients choose: some appear with their first event."""
_KEY = "sk-rude-oT4zq9Wm"
_KEYS = f"keys:\n- {{name: honest, key: sk-honest}}\n- {{name: rude, key: {_KEY}, rights: [adapters]}}\n"
_KEYS += "".join(f"- {{name: rude{number}, key: {_KEY}-{number}}}\n" for number in range(KEYS))
_KEYS += f"- {{name: plain, key: {PLAIN_KEY}}}\n"
_NEVER_LOGGED = (_KEY.removeprefix("sk-rude-"), PLAIN_KEY, PROMPT, "Traceback")


@dataclass(frozen=True)
class Line:
    """One attack's figures."""

    attack: str
    outcomes: dict[str, int]
    """Statuses of the attacker's requests, or how its connections ended."""
    slowest_s: float
    """The seconds that the slowest answer to the attacker took."""
    before: dict[str, float | int]
    during: dict[str, float | int]
    failures: list[str]
    """Failures that the honest tenant saw, and that of the attack itself if it broke off."""
    growth_mib: float
    """The most memory of all the server's processes during the attack, minus that before it."""
    series: tuple[int, int]
    """The number of series in /metrics before and after the attack."""
    log_kib: float
    """The size of the log lines that were written during the attack."""
    logged: list[str]
    """Texts in the log that no log may hold, such as the key."""
    left: tuple[State, State]
    """The state of the server before the attack, and some seconds after it."""

    @property
    def missed(self) -> list[str]:
        """The targets that were not met."""
        found = ["gap"] * (not self.during["gap_max_ms"] <= GAP_MS)
        found += ["probe"] * (not self.during["probe_max_ms"] <= PROBE_MS)
        found += ["memory"] * (self.growth_mib > GROWTH_MIB) + ["failures"] * bool(self.failures)
        found += ["log"] * (bool(self.logged) or self.log_kib > LOG_KIB)
        found += sorted(FORBIDDEN & self.outcomes.keys())
        found += ["series"] * (self.series[1] > self.series[0] + _SPARE_SERIES)
        return found + ["500"] * ("500" in self.outcomes) + ["leak"] * self.left[1].exceeds(self.left[0])


def memory(serving: Serving) -> float:
    """Return the memory of all the server's processes in MiB.

    Pages that processes share count once: text workers check grammars in forks of themselves, each of which has 80 MiB
    of the worker's own pages. The others share nearly nothing, and the kernel takes long to tell that of the engine.
    """
    total = 0
    for process in (serving.http, *serving.http.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
            forks = "octavo_engine.server.text_worker" in process.cmdline()
            total += process.memory_full_info().pss if forks else process.memory_info().rss
    return total / (1 << 20)


async def most_memory(serving: Serving) -> float:
    """Return the most memory that was seen until the task is cancelled."""
    most = 0.0
    try:
        while True:
            most = max(most, memory(serving))
            await asyncio.sleep(0.2)
    except asyncio.CancelledError:
        return most


async def measure(serving: Serving, honest: Honest, name: str, args: argparse.Namespace) -> Line:
    """Run one attack, and return its figures."""
    before = await honest.begin()
    await asyncio.sleep(args.quiet)
    state, series = await state_of(serving), await asyncio.to_thread(serving.num_series)
    memory_before, watching = memory(serving), asyncio.create_task(most_memory(serving))
    during = await honest.begin()
    serving.new_log()
    attacker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hostile.attacker", str(serving.port), _KEY, str(args.seconds), name,
        *["alone"] * args.alone,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await attacker.communicate()
    watching.cancel()
    await honest.begin()
    growth = await watching - memory_before
    result = json.loads(said or b'{"outcomes": {}, "slowest": 0}')
    outcomes, all_series = (
        dict(sorted(result["outcomes"].items())),
        (series, await asyncio.to_thread(serving.num_series)),
    )
    log = serving.new_log()
    logged = [each for each in _NEVER_LOGGED if each.encode() in log]
    figures = before.figures(), during.figures()
    left = state, await settled(serving, state)
    failures, log_kib = during.failures[:5], len(log) / 1024
    if attacker.returncode:  # else an attack that does nothing would meet all targets
        failures.append(f"the attack ended with exit code {attacker.returncode}")
    return Line(name, outcomes, result["slowest"], *figures, failures, growth, all_series, log_kib, logged, left)


async def attack_all(serving: Serving, names: Sequence[str], args: argparse.Namespace) -> list[Line]:
    """Run these attacks."""
    honest, lines = Honest(serving.port, "sk-honest"), []
    async with honest.run():
        await asyncio.sleep(5)  # warm-up
        for name in names:
            lines.append(await measure(serving, honest, name, args))
            print(json.dumps(asdict(lines[-1]), ensure_ascii=False), flush=True)
    return lines


def selected(only: str, part: int, parts: int) -> list[str]:
    """Return the names of the attacks in one of some equal parts that a regular expression is found in."""
    names = list(ATTACKS)
    begin, end = (len(names) * each // parts for each in (part - 1, part))
    return [name for name in names[begin:end] if re.search(only, name)]


def page(title: str, args: argparse.Namespace, lines: list[Line]) -> str:
    """Return the results as Markdown."""
    alone = " One user sends each body after the answer to the last, and answers have one token." * args.alone
    text = [
        f"# {title}\n",
        f"`make hostile` on {psutil.cpu_count()} cores, attacker and honest tenant included, load "
        f"{os.getloadavg()[0]:.1f} at the end: smollm2, Python {platform.python_version()}, torch {torch.__version__}. "
        f"{args.seconds:g} s an attack, {args.quiet:g} s before it. The honest tenant's gaps between tokens (the first "
        f"token's wait included) and its probes of /health/live, in ms. Targets: gaps of at most {GAP_MS} ms, probes "
        f"{PROBE_MS} ms, memory {GROWTH_MIB} MiB, log {LOG_KIB} KiB without secrets, no failures, no new series of "
        f"/metrics, and no open file or request more than before, some seconds later.{alone}\n",
        "| attack | answers | slowest s | gap p99 before | during | longest | probe p99 before | during | longest | "
        "memory MiB | missed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        outcomes = ", ".join(f"{count} × {outcome}" for outcome, count in line.outcomes.items()) or "–"
        figures = (
            line.before["gap_p99_ms"], line.during["gap_p99_ms"], line.during["gap_max_ms"],
            line.before["probe_p99_ms"], line.during["probe_p99_ms"], line.during["probe_max_ms"],
        )  # fmt: skip
        cells = " | ".join(f"{value:.0f}" for value in figures)
        missed = ", ".join(line.missed) or "–"
        text.append(
            f"| {line.attack} | {outcomes} | {line.slowest_s:.1f} | {cells} | {line.growth_mib:+.0f} | {missed} |"
        )
    series = {count for line in lines for count in line.series}
    text.append(f"\nSeries of /metrics: {min(series)} to {max(series)}.\n")
    return "\n".join(text)


def main() -> int:
    """Entry point of `python -m bench.hostile`: exit code 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="bench.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="of each attack")
    parser.add_argument("--quiet", type=float, default=3, help="seconds before each attack")
    parser.add_argument("--only", default="", help="attacks in whose name this regular expression is found")
    parser.add_argument(
        "--alone", action="store_true",
        help="one user in place of several, and answers of one token: how long a request takes to be checked, and its "
        "grammar to be compiled, without waits for other requests. Acts on attacks that post bodies one after another",
    )  # fmt: skip
    parser.add_argument("--part", default="1/1", help="part of all attacks, such as 2/6")
    parser.add_argument("--name", default="hostile", help="of the result files, after the date")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text(_KEYS)
        flags = (f"--api-key-file={keys}", "--kv-cache-memory=1GiB", f"--batch-storage={folder}/files", "--enable-lora",
                 "--allowed-origins=https://a.example")  # fmt: skip
        names, lines = selected(args.only, *map(int, args.part.split("/"))), list[Line]()
        for more, some in (
            ((), [name for name in names if name not in RANKED]),
            (("--scheduling-policy=priority",), [name for name in names if name in RANKED]),
        ):
            if some:
                with octavo("smollm2", *flags, *more) as serving, asyncio.Runner(loop_factory=_LOOP) as runner:
                    lines += runner.run(attack_all(serving, some, args))
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cores": psutil.cpu_count()}
    result = {"machine": versions, "arguments": vars(args), "attacks": [asdict(line) for line in lines]}
    save(args.name, result, lambda title: page(title, args, lines))
    return int(any(line.missed for line in lines))


if __name__ == "__main__":
    sys.exit(main())
