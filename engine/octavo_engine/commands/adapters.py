"""`octavo-engine adapters`: downloading the LoRA adapters of a list, and writing their paths to a file for the server.

In a pod this command is a sidecar of the engine, and the only container with credentials. It reads a list that may
change at any time, downloads each new adapter in a process of its own (`octavo-engine pull --adapter`), and writes the
file that the engine reads as --lora-modules-file. An adapter that cannot be downloaded is listed in that file with the
reason, and is tried again later.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from octavo_engine.errors import ConfigurationError
from octavo_engine.process_setup import logs
from octavo_engine.retry_pause import retry_pause

log = logging.getLogger(__name__)

_INTERVAL = 0.5
_AT_ONCE = 4
_FIRST_PAUSE = 10.0
"""Seconds after which an adapter is tried again that has failed once; the pause doubles at each further failure."""
_TIME_LIMIT = 3600.0
"""Seconds that fetching one adapter may take."""
_MAX_BYTES = 4 << 20
_LONGEST_MESSAGE = 1000
_OWN_PREFIX = "octavo-engine: "

Text = Annotated[str, Field(max_length=4096)]


class Wanted(BaseModel):
    """One adapter of the list: `source` is to be fetched, `path` exists already; with neither, `message` says why."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Text
    version: Text = ""
    """A text that changes whenever the adapter's source changes."""
    path: Text | None = None
    source: Text | None = None
    """A Hugging Face id, or s3://bucket/prefix."""
    revision: Text | None = None
    message: Text = ""
    variables: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of the fetching process, such as endpoints."""
    files: dict[str, Text] = Field(default_factory=dict)
    """Variables whose values are in files SECRET/KEY below --credentials; the files are read again at each try."""
    optional: list[str] = Field(default_factory=list)
    """Names in `files` whose file may be missing."""

    def environment(self, credentials: Path) -> dict[str, str]:
        """Return the environment of the fetching process; ConfigurationError if a file of credentials is missing."""
        found = {**os.environ, **self.variables}
        for name, file in self.files.items():
            try:
                found[name] = (credentials / file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                if name not in self.optional:
                    secret, _, key = file.rpartition("/")
                    raise ConfigurationError(f"there is no Secret {secret} with the key {key}") from None
        return found


class WantedList(BaseModel):
    """The content of the list's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    adapters: Annotated[list[Wanted], Field(max_length=1024)]


Start = Callable[[Wanted, Mapping[str, str]], "Running"]


class Running:
    """A process that fetches one adapter."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object lives
        self._place: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "octavo_engine.cli", *arguments]
        self._process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=self._place, stderr=self._errors
        )

    def ended(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def last_message(self) -> str:
        """Return the last message that the process wrote to standard error: its progress, or why it failed."""
        text = _content(self._errors).decode(errors="replace")
        messages = [line.removeprefix(_OWN_PREFIX) for line in text.splitlines() if line.startswith(_OWN_PREFIX)]
        return messages[-1][:_LONGEST_MESSAGE] if messages else ""

    def place(self) -> str:
        """Return the path of the adapter, which the process printed to standard output at its end."""
        return _content(self._place).decode().strip()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()


def _content(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), _MAX_BYTES, 0)


@dataclass(slots=True)
class _Fetch:
    """The state of fetching one adapter of the list."""

    wanted: Wanted
    path: str | None = None
    running: Running | None = None
    began: float = 0.0
    failures: int = 0
    problem: str = ""
    again_at: float = 0.0

    def entry(self) -> dict[str, Any]:
        """Return the adapter's entry in the file for the engine."""
        wanted = self.wanted
        if self.path is not None:
            return {"name": wanted.name, "version": wanted.version, "path": self.path}
        message = (
            self.problem
            or wanted.message
            or (self.running.last_message() if self.running else "")
            or "it is about to be fetched"
        )
        return {"name": wanted.name, "version": wanted.version, "failed": bool(self.problem), "message": message}


@dataclass(slots=True)
class Fetcher:
    """Fetches the adapters of the list at `wanted`, and keeps the file at `output` up to date."""

    wanted: Path
    output: Path
    credentials: Path
    start: Start
    clock: Callable[[], float] = time.monotonic
    _fetches: dict[str, _Fetch] = field(default_factory=dict)
    _list: list[Wanted] | None = None
    _read: bytes = b""
    _problem: str = ""
    _written: str = ""
    _known: dict[tuple[str, str], str] = field(init=False)
    """Paths by name and version, from the file that an earlier process wrote."""

    def __post_init__(self) -> None:
        self._known = _known_paths(self.output)

    def step(self) -> None:
        """Read the list if it changed, look at the running processes, start new ones, and write the file."""
        self._read_list()
        if self._list is None:
            return
        for fetch in self._fetches.values():
            self._advance(fetch)
        self._write()

    def close(self) -> None:
        """Kill the running processes."""
        for fetch in self._fetches.values():
            if fetch.running is not None:
                fetch.running.kill()

    def _read_list(self) -> None:
        try:
            with self.wanted.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if data == self._read:
                return
            self._read = data
            if not data.strip():
                return  # the annotation that the list comes from is about to be written
            wanted = WantedList.model_validate_json(data).adapters
        except (OSError, ValidationError) as error:
            problem = _first_line(error)
            if problem != self._problem:
                log.error("the list of adapters is not changed: %s cannot be used: %s", self.wanted, problem)
            self._problem = problem
            return
        self._list, self._problem = wanted, ""
        for name in self._fetches.keys() - {each.name for each in wanted}:
            self._forget(name)
        for each in wanted:
            if (known := self._fetches.get(each.name)) is None or known.wanted != each:
                self._forget(each.name)
                self._fetches[each.name] = _Fetch(each, each.path or self._known.get((each.name, each.version)))

    def _forget(self, name: str) -> None:
        fetch = self._fetches.pop(name, None)
        if fetch is not None and fetch.running is not None:
            fetch.running.kill()

    def _advance(self, fetch: _Fetch) -> None:
        if fetch.running is not None:
            self._check(fetch, fetch.running)
        elif (
            fetch.path is None
            and not fetch.wanted.message
            and self.clock() >= fetch.again_at
            and self._num_running < _AT_ONCE
        ):
            self._begin(fetch)

    @property
    def _num_running(self) -> int:
        return sum(fetch.running is not None for fetch in self._fetches.values())

    def _begin(self, fetch: _Fetch) -> None:
        wanted = fetch.wanted
        try:
            if wanted.source is None:
                raise ConfigurationError("the list has neither a path nor a source for it")
            fetch.running = self.start(wanted, wanted.environment(self.credentials))
            fetch.began = self.clock()
        except (ConfigurationError, OSError) as error:
            self._fail(fetch, str(error))
        except ValueError as error:  # a NUL byte, which neither arguments nor variables of a process can have
            self._fail(fetch, f"its source or a credential of it cannot be given to a process: {error}")

    def _check(self, fetch: _Fetch, running: Running) -> None:
        code = running.ended()
        if code is None:
            if self.clock() - fetch.began > _TIME_LIMIT:
                running.kill()
                fetch.running = None
                self._fail(fetch, f"fetching it took more than {_TIME_LIMIT:.0f} s")
            return
        fetch.running = None
        if code == 0 and (place := running.place()):
            fetch.path, fetch.problem, fetch.failures = place, "", 0
            log.info("adapter %s was fetched to %s", fetch.wanted.name, place)
            return
        self._fail(fetch, running.last_message() or f"fetching it ended with exit code {code}")

    def _fail(self, fetch: _Fetch, problem: str) -> None:
        pause = retry_pause(_FIRST_PAUSE, fetch.failures)
        fetch.again_at = self.clock() + pause
        fetch.failures += 1
        if problem != fetch.problem:
            log.error("adapter %s cannot be fetched: %s", fetch.wanted.name, problem)
        fetch.problem = problem

    def _write(self) -> None:
        text = json.dumps({"adapters": [fetch.entry() for fetch in self._fetches.values()]}, indent=1)
        if text == self._written:
            return
        making = self.output.with_name(f"{self.output.name}.new")
        making.write_text(text)
        making.replace(self.output)
        self._written = text


def _known_paths(output: Path) -> dict[tuple[str, str], str]:
    """Return, by name and version, the paths of adapters that an earlier process fetched and that still exist."""
    try:
        entries = json.loads(output.read_text())["adapters"]
        return {
            (entry["name"], entry["version"]): entry["path"]
            for entry in entries
            if "path" in entry and Path(entry["path"]).is_dir()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _first_line(error: OSError | ValidationError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return error.strerror or str(error)


def pull_process(max_size: str | None) -> Start:
    """Return a function that starts `octavo-engine pull --adapter` for an adapter."""

    def start(wanted: Wanted, environment: Mapping[str, str]) -> Running:
        revision = [f"--revision={wanted.revision}"] if wanted.revision is not None else []
        limit = [f"--max-size={max_size}"] if max_size is not None else []
        return Running(["pull", "--adapter", *revision, *limit, "--", wanted.source or ""], environment)

    return start


def run(args: argparse.Namespace) -> int:
    """Fetch adapters until SIGTERM or SIGINT, then return 0."""
    logs.set_up("text")
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    fetcher = Fetcher(args.list, args.output, args.credentials, pull_process(args.max_size))
    try:
        while not ended:
            try:
                fetcher.step()
            except Exception:  # one failed step must not end the container, as that would make the pod unready
                log.exception("checking the adapters failed; trying again")
            time.sleep(_INTERVAL)
    finally:
        fetcher.close()
    return 0
