"""Records requests of the soak that got no complete answer, with all that may tell why.

A disturbance is recorded with its beginning and its end, a request with the last lines that its client read. The log of
the server is kept from the request's beginning until some seconds after its end, as a cause may be logged late.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

_LINES_SEEN, _LONGEST = 4, 300
"""Lines of the answer that are kept, the last ones, and characters of each."""
_LATER = 2.0
"""Seconds after a request's end until which the log is kept."""
_MOST_LOG = 12_000
"""Characters of the log that are kept: the lines of the access log are many, so that all others come first."""
_ACCESS = " octavo.access: "


def _now() -> str:
    seconds = time.time()
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"


@dataclass
class Client:
    """What the client of one request has seen so far."""

    began: str
    log_from: int
    """The size of the server's log, in bytes, when the request began."""
    port: int = 0
    """The client's own port, which the server's log names; 0 if it was not connected."""
    seen: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_SEEN))

    def see(self, line: str) -> None:
        """Note a line of the answer, or what ended it."""
        if line.strip():
            self.seen.append(f"{_now()} {line.strip()[:_LONGEST]}")


@dataclass
class Event:
    """A disturbance."""

    name: str
    began: str
    ended: str = ""


@dataclass(frozen=True)
class Loss:
    """One request without a complete answer."""

    end: str
    began: str
    ended: str
    port: int
    seen: list[str]
    events: list[Event]
    """The last disturbances, the very last one at the end."""
    log: str


class LossRecorder:
    """Notes the disturbances of one server, and records in `losses` the requests that were lost meanwhile."""

    def __init__(self, log: Path, losses: list[Loss]) -> None:
        self._log, self._losses = log, losses
        self._events: deque[Event] = deque(maxlen=2)

    def begin_event(self, name: str) -> None:
        """Note that a disturbance begins."""
        self._events.append(Event(name, _now()))

    def end_event(self) -> None:
        """Note that the last disturbance has ended."""
        self._events[-1].ended = self._events[-1].ended or _now()

    def begin(self) -> Client:
        """Return the record of a request that begins now."""
        return Client(_now(), self._log.stat().st_size)

    async def record(self, client: Client, end: str) -> None:
        """Record a request without a complete answer, some seconds after its end."""
        ended, events = _now(), list(self._events)
        await asyncio.sleep(_LATER)
        with self._log.open("rb") as log:
            log.seek(client.log_from)
            lines = log.read().decode(errors="replace").splitlines()
        ours = [line for line in lines if _ACCESS not in line or f":{client.port} " in line]
        others = [line for line in lines if _ACCESS in line]
        kept = "\n".join([*ours, f"({len(others)} lines of the access log, of which the last:)", *others[-10:]])
        loss = Loss(end, client.began, ended, client.port, list(client.seen), events, kept[-_MOST_LOG:])
        self._losses.append(loss)
        print(f"{ended} {end}, after {[event.name for event in events]}: {loss.seen}", flush=True)


def losses_page(losses: list[Loss]) -> str:
    """Return the requests without a complete answer as Markdown; an empty text if there are none."""
    if not losses:
        return ""
    rows = [
        f"| {loss.began} to {loss.ended} | {loss.end} | {' … '.join(loss.seen[-2:])} | "
        f"{'; '.join(f'{event.began} to {event.ended} {event.name}' for event in loss.events)} |"
        for loss in losses
    ]
    head = "| time (UTC) | end | last lines that the client read | last disturbances |\n| --- | --- | --- | --- |"
    return "\n".join(["\nRequests without a complete answer:\n", head, *rows, ""])
