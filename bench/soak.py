"""`make soak`: users record the outcome of each request, while every 20 s a disturbance happens.

The records of the users are judged (`outcomes`), by code that shares nothing with the server: a request is lost if it
ended neither in a complete answer nor in an explicit error, or if its connection was cut although its server lived on.
Each request without a complete answer is reported with its time, what the client saw, the disturbances around it, and
what the server logged meanwhile (bench/soak_losses.py).
A disturbance is an attack of bench/hostile, the end of a text worker, a stop of the engine for a second, or, less
often, the end of the engine, after which the server has to end with exit code 5 and another one is started. Memory of
each process (its RSS), the memory of all without pages of files (bench/process_memory.py), file handles, threads and
series of one server have to stay flat: slopes are fitted to their least values of each minute, since an attack may hold
hundreds of connections for a moment. The first minutes of a server's life are not judged, because caches fill and each
kind of attack happens for the first time; the page says which minutes of which server are judged. With `--one-server`
no engine is ended: each attack runs once as a warm-up, and then a single server has to stay flat for all the minutes.
With `--only kill --users 64 --pause 4` engines are ended one after the other, at any step of 64 streams.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.hostile.attacks import ATTACKS
from bench.hostile.several_keys import KEYS
from bench.process_memory import anonymous_mib
from bench.report import save
from bench.server import Serving, octavo
from bench.soak_client import PROMPTS, ask
from bench.soak_losses import Loss, LossRecorder, losses_page
from bench.soak_plot import plot

_KEYS = "keys:\n- {name: honest, key: sk-honest}\n- {name: rude, key: sk-rude, rights: [adapters]}\n"
_KEYS += "".join(f"- {{name: rude{number}, key: sk-rude-{number}}}\n" for number in range(KEYS))
_DISTURBANCES = {"attack": 30, "worker": 10, "pause": 10, "kill": 1}
"""How often each kind happens. An end of the engine ends the server: so seldom that servers live long enough to be
judged (`_JUDGED_SECONDS`)."""
_WARM_SECONDS, _JUDGED_SECONDS = 600.0, 600.0
"""The first seconds of a server's life, which are not judged, and the least after them of a server that is judged."""


@dataclass(frozen=True)
class Record:
    """A user's record of one request."""

    server: int
    """Number of the server, from 0."""
    prompt: int
    tokens: int
    """The number of tokens that were asked for, and that a complete answer has."""
    seconds: float
    end: str
    """complete, error CODE, cut or refused."""
    text: str = ""
    killed: bool = False
    """Whether the engine had been ended by then."""


@dataclass
class Life:
    """One server, from ready to its end."""

    killed: bool = False
    samples: list[dict[str, float]] = field(default_factory=list)
    """Seconds of its life, and the figures of `_MOST_GROWTH`."""
    warm_after: float = _WARM_SECONDS
    """The seconds of its life after which it is judged."""

    @property
    def judged(self) -> bool:
        """True if the server lived for long enough after its warm-up."""
        return bool(self.samples) and self.samples[-1]["seconds"] >= self.warm_after + _JUDGED_SECONDS


@dataclass
class Soak:
    """The whole run."""

    args: argparse.Namespace
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    records: list[Record] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)

    async def run(self) -> None:
        """Serve until the time is over, with another server whenever one was killed."""
        until = time.monotonic() + self.args.minutes * 60
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys.yaml"
            keys.write_text(_KEYS)
            while time.monotonic() < until:
                storage = f"--batch-storage={folder}/files{len(self.lives)}"
                flags = (f"--api-key-file={keys}", "--kv-cache-memory=1GiB", "--max-model-len=2048", storage)
                with octavo("smollm2", *flags) as serving:
                    self.lives.append(Life())
                    await self._live(serving, until)

    async def _live(self, serving: Serving, until: float) -> None:
        life, ended = self.lives[-1], asyncio.Event()
        self._recorder = LossRecorder(Path(serving.log.name), self.losses)
        users = [asyncio.create_task(self._user(serving, ended)) for _ in range(self.args.users)]
        sampling = asyncio.create_task(self._sample(serving, life))
        if self.args.one_server and self.args.warm_up:
            started = time.monotonic()
            for name in ATTACKS:
                await self._attack(serving, name, self.args.warm_up)
            life.warm_after = time.monotonic() - started
            until += life.warm_after
        while time.monotonic() < until and not (life.killed or serving.has_ended() or sampling.done()):
            await asyncio.sleep(self.args.pause / 2)
            with contextlib.suppress(psutil.NoSuchProcess):  # its engine has ended; the loop's condition sees it
                await self._disturb(serving, life)
            await asyncio.sleep(self.args.pause / 2)
        ended.set()
        await asyncio.gather(*users)
        if not life.killed and serving.has_ended():
            self.problems.append("a server ended that no disturbance had killed")
        if life.killed:
            code = await asyncio.to_thread(serving.http.wait, 30)
            if code not in (5, None):
                self.problems.append(f"the server ended with exit code {code}, not 5, after its engine was killed")
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling

    async def _user(self, serving: Serving, ended: asyncio.Event) -> None:
        server = len(self.lives) - 1
        while not ended.is_set():
            prompt, tokens = self.chance.randrange(len(PROMPTS)), self.chance.choice((8, 24, 60))
            started, client = time.monotonic(), self._recorder.begin()
            end, text = await ask(serving.port, prompt, tokens, client)
            self.records.append(
                Record(server, prompt, tokens, time.monotonic() - started, end, text, self.lives[server].killed)
            )
            if end != "complete":
                await self._recorder.record(client, end)

    async def _disturb(self, serving: Serving, life: Life) -> None:
        weights = _DISTURBANCES | ({"kill": 0} if self.args.one_server else {})
        weights = {self.args.only: 1} if self.args.only else weights
        name = self.chance.choices(tuple(weights), tuple(weights.values()))[0]
        if name != "attack":
            self._recorder.begin_event(name)
        if name == "attack":
            attack = self.chance.choice(list(ATTACKS))
            await self._attack(serving, attack, self.args.pause / 3)
            name = f"attack: {attack}"
        elif name == "worker":
            if workers := text_workers(serving.http):
                self.chance.choice(workers).kill()
        elif name == "pause":
            serving.engine.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1)
            serving.engine.send_signal(signal.SIGCONT)
        else:
            life.killed = True
            serving.engine.kill()
        self._recorder.end_event()
        self.events[name] += 1
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)

    async def _attack(self, serving: Serving, name: str, seconds: float) -> None:
        self._recorder.begin_event(f"attack: {name}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.hostile.attacker", str(serving.port), "sk-rude", str(seconds), name,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()
        self._recorder.end_event()

    async def _sample(self, serving: Serving, life: Life) -> None:
        started = time.monotonic()
        while True:
            with contextlib.suppress(psutil.Error, OSError):
                processes = [serving.http, *serving.http.children(recursive=True)]
                life.samples.append({
                    "seconds": time.monotonic() - started,
                    "engine MiB": _mib([serving.engine]),
                    "HTTP MiB": _mib([serving.http]),
                    "text workers MiB": _mib(text_workers(serving.http)),
                    "anonymous MiB": anonymous_mib(processes),
                    "file handles": sum(each.num_fds() for each in processes),
                    "threads": sum(each.num_threads() for each in processes),
                    "series": await asyncio.to_thread(serving.num_series),
                })  # fmt: skip
            await asyncio.sleep(5)


def text_workers(http: psutil.Process) -> list[psutil.Process]:
    """Return the text workers that run; one that an attack has just ended may still be there as a zombie."""
    running = []
    for child in http.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "octavo_engine.server.text_worker" in child.cmdline():
                running.append(child)
    return running


def _mib(processes: Sequence[psutil.Process]) -> float:
    return sum(each.memory_info().rss for each in processes) / (1 << 20)


_MOST_GROWTH = {
    "engine MiB": 1.0,
    "HTTP MiB": 1.0,
    "text workers MiB": 1.0,
    "anonymous MiB": 1.0,
    "file handles": 0.5,
    "threads": 0.2,
    "series": 1.0,
}
"""The most growth a minute of a server that is judged."""


def growing(lives: Sequence[Life]) -> list[str]:
    """Return a sentence about each figure that grew more than it may."""
    return [
        f"server {number}: {what} grew by {grown:.2f} a minute, and {most:g} are allowed"
        for number, life in enumerate(lives)
        if life.judged
        for what, most in _MOST_GROWTH.items()
        if (grown := slope(life, what)) > most
    ]


def sample_rows(lives: Sequence[Life]) -> str:
    """Return the rows of a table with one sample a minute of each server."""
    rows = []
    for number, life in enumerate(lives):
        for before, sample in zip([None, *life.samples], life.samples, strict=False):
            if before is None or sample["seconds"] // 60 > before["seconds"] // 60:
                figures = " | ".join(f"{sample[what]:.0f}" for what in _MOST_GROWTH)
                rows.append(f"| {number} | {sample['seconds'] / 60:.0f} | {figures} |")
    return "\n".join(rows)


def slope(life: Life, what: str) -> float:
    """Return the growth a minute of the least value of each minute of one server; 0 if there are too few minutes.

    The minutes before `warm_after` are left out.
    """
    least: dict[int, float] = {}
    for sample in life.samples:
        if sample["seconds"] >= life.warm_after:
            minute = int(sample["seconds"] // 60)
            least[minute] = min(sample[what], least.get(minute, sample[what]))
    return statistics.linear_regression(list(least), list(least.values())).slope if len(least) > 3 else 0.0


def outcomes(records: Sequence[Record], lives: Sequence[Life]) -> dict[str, Any]:
    """Return the outcomes of the requests.

    Different answers to equal greedy requests are counted but not judged: in bfloat16 they may come from the sizes of
    the batches in which they were computed.
    """
    ends = Counter(record.end for record in records)
    answers: dict[tuple[int, int], Counter[str]] = {}
    for record in records:
        if record.end == "complete":
            answers.setdefault((record.prompt, record.tokens), Counter())[record.text] += 1
    judged = [life for life in lives if life.judged]
    lost = [record for record in records if record.end in ("cut", "refused") and not record.killed]
    return {
        "requests": len(records),
        "ends": dict(ends),
        "lost": len(lost),
        "cut by a killed server": ends["cut"] + ends["refused"] - len(lost),
        "different answers to equal requests": sum(len(each) - 1 for each in answers.values()),
        "growth a minute": {what: max(slope(life, what) for life in judged) for what in _MOST_GROWTH} if judged else {},
    }


def page(title: str, soak: Soak, found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    ends = "\n".join(f"| {end} | {count} |" for end, count in sorted(found["ends"].items()))
    events = "\n".join(f"| {event} | {count} |" for event, count in sorted(soak.events.items()))
    growth = ", ".join(f"{what} {value:+.2f}" for what, value in found["growth a minute"].items())
    judged = "; ".join(
        f"server {number}, minutes {life.warm_after / 60:.0f} to {life.samples[-1]['seconds'] / 60:.0f}"
        for number, life in enumerate(soak.lives)
        if life.judged
    )
    flat = f"Growth a minute, the largest of {judged}: {growth}." if judged else "No server lived long enough to judge."
    return (
        f"# {title}\n\n`make soak` on {psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end: smollm2, "
        f"{soak.args.minutes:g} minutes, {soak.args.users} users, something every {soak.args.pause:g} s; "
        f"servers: {len(soak.lives)}{_warmed(soak.lives)}.\n\n{found['requests']} requests: {found['lost']} lost, "
        f"{found['cut by a killed server']} cut when a server ended, "
        f"{found['different answers to equal requests']} different answers to equal requests. {flat} Problems: "
        f"{'; '.join(soak.problems) or 'none'}.\n\n"
        f"| end of a request | count |\n| --- | --- |\n{ends}\n\n| what happened | count |\n| --- | --- |\n{events}\n\n"
        f"| server | minute | {' | '.join(_MOST_GROWTH)} |\n|{' --- |' * (2 + len(_MOST_GROWTH))}\n"
        f"{sample_rows(soak.lives)}\n\n![over time]({title}.png)\n{losses_page(soak.losses)}"
    )


def _warmed(lives: Sequence[Life]) -> str:
    """Say how long a warm-up with all attacks took, if there was one."""
    if lives[0].warm_after == _WARM_SECONDS:
        return ""
    return f", after {lives[0].warm_after / 60:.1f} minutes with each attack once"


def main() -> int:
    """Entry point of `python -m bench.soak`: exit code 1 if a request was lost, or a server grew or ended wrongly."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--pause", type=float, default=20, help="seconds between two events")
    parser.add_argument("--one-server", action="store_true", help="run each attack once first, and end no engine")
    parser.add_argument("--only", choices=tuple(_DISTURBANCES), help="the one kind of disturbance, such as kill")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds of each attack before that; 0: none")
    parser.add_argument("--name", default="soak", help="of the result files, after the date")
    soak = Soak(parser.parse_args())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(soak.run())
    soak.problems += growing(soak.lives)
    found = outcomes(soak.records, soak.lives)
    machine = {"cores": psutil.cpu_count(), "python": platform.python_version()}
    result = {"machine": machine, "arguments": vars(soak.args), "events": soak.events, "verdict": found,
              "problems": soak.problems, "losses": [asdict(loss) for loss in soak.losses],
              "lives": [asdict(life) for life in soak.lives]}  # fmt: skip
    stem = save(soak.args.name, result, lambda title: page(title, soak, found))
    plot([asdict(life) for life in soak.lives], stem.with_suffix(".png"))
    return int(bool(found["lost"] or soak.problems))


if __name__ == "__main__":
    sys.exit(main())
