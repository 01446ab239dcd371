"""A running engine: its probes, its liveness and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from octavo_operator.local.command import HOST
from octavo_operator.local.errors import LocalError

_POLL_SECONDS = 0.25
_HEARTBEAT_SECONDS = 5.0

Report = Callable[[str], None]
STARTUP, READINESS, LIVENESS = PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass(frozen=True)
class Probe:
    """One probe of the engine: the path that is asked, and the times in seconds."""

    path: str
    period: float
    failures: int
    timeout: int

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Probe:
        """Read a container's probe; LocalError if it is none that can be asked here, by HTTP and with its times."""
        try:
            path = "/" + given["httpGet"]["path"].lstrip("/")
            times = [int(given[each]) for each in ("periodSeconds", "failureThreshold", "timeoutSeconds")]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise LocalError(
                f"spec.podTemplate changes the {name} to one that cannot be asked here: it needs httpGet with a path, "
                "periodSeconds, failureThreshold and timeoutSeconds"
            ) from error
        return cls(path, *times)


class LocalEngine:
    """A running engine. `endpoint` is the base URL of its OpenAI API."""

    def __init__(self, process: subprocess.Popen[bytes], probes: Mapping[str, Probe], port: int, grace: float) -> None:
        self._process = process
        self._probes = probes
        self._port = port
        self._grace_seconds = grace
        self._stop_deadline: float | None = None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def endpoint(self) -> str:
        """Base URL for an OpenAI client."""
        return f"http://{HOST}:{self._port}/v1"

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def wait_ready(self, report: Report) -> None:
        """Return when the readiness probe passes; LocalError if the engine ends or exceeds its startup timeout."""
        timeout = self._probes[STARTUP].period * self._probes[STARTUP].failures
        started = time.monotonic()
        self._wait_for(STARTUP, report, started + timeout, f"; the startup timeout is {timeout} s")
        report(f"model loaded after {time.monotonic() - started:.1f} s; waiting for the readiness probe")
        self._wait_for(READINESS, report, None)

    def _wait_for(self, probe: str, report: Report, deadline: float | None, limit: str = "") -> None:
        began = last_report = time.monotonic()
        while not self._passes(probe):
            self._raise_if_ended()
            now = time.monotonic()
            if deadline is not None and now > deadline:
                raise LocalError(f"not ready within {now - began:.0f} s; raise spec.rollout.startupTimeoutSeconds", 1)
            if now - last_report >= _HEARTBEAT_SECONDS and not sys.stderr.isatty():  # there the engine draws a bar
                last_report = now
                report(f"{self._progress()}; {now - began:.0f} s so far{limit}")
            time.sleep(_POLL_SECONDS)

    def supervise(self) -> int:
        """Wait for the engine to end, watching its liveness; return its exit code (128 + n for signal n)."""
        probe = self._probes[LIVENESS]
        failures, next_probe = 0, time.monotonic() + probe.period
        while self._process.poll() is None:
            time.sleep(_POLL_SECONDS)
            self._kill_if_overdue()
            if self._stop_deadline is None and time.monotonic() >= next_probe:
                failures = 0 if self._passes(LIVENESS) else failures + 1
                next_probe = time.monotonic() + probe.period
                if failures >= probe.failures:
                    self.stop()
        if failures >= probe.failures:
            raise LocalError(f"the engine failed its liveness probe {failures} times in a row and was ended", 1)
        return self._exit_code()

    def stop(self) -> None:
        """Ask the engine to drain and end; asked a second time, end it at once."""
        if self._process.poll() is not None:
            return
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._grace_seconds
            self._process.terminate()
        else:
            self._process.kill()

    def close(self) -> None:
        """End the engine and whatever it started; interrupted meanwhile, at once."""
        try:
            if self._stop_deadline is None:
                self.stop()
            while self._process.poll() is None:
                self._kill_if_overdue()
                time.sleep(_POLL_SECONDS / 5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _kill_if_overdue(self) -> None:
        if self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
            self._process.kill()

    def _raise_if_ended(self) -> None:
        self._kill_if_overdue()
        if self._process.poll() is not None:
            code = self._exit_code()
            message = (
                "ended while loading" if code == 0 else f"the engine ended with exit code {code} before it was ready"
            )
            raise LocalError(message, code)

    def _exit_code(self) -> int:
        code = self._process.returncode
        return 128 - code if code < 0 else code

    def _passes(self, probe: str) -> bool:
        check = self._probes[probe]
        with contextlib.suppress(OSError, HTTPException):
            url = f"http://{HOST}:{self._port}{check.path}"
            with self._opener.open(url, timeout=check.timeout) as response:
                return bool(200 <= response.status < 400)
        return False

    def _progress(self) -> str:
        """Return what the engine does, as its startup probe says: `loading, 40%, 5 MiB of 12 MiB`."""
        with contextlib.suppress(OSError, HTTPException, ValueError, KeyError, TypeError):
            state = json.loads(self._startup_state())
            return ", ".join(filter(None, (state["phase"], f"{state['progress']:.0%}", state["detail"])))
        return "the engine does not answer yet"

    def _startup_state(self) -> bytes:
        try:
            with self._opener.open(f"http://{HOST}:{self._port}/health/startup", timeout=1) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as loading:  # 503, with the same body
            return loading.read()
