"""One LLMService's engine as a process on this machine: the rendered container without a cluster.

What a kubelet would do is done here in small: arguments, environment, volumes as folders, the three probes, SIGTERM and
the time to drain. What differs from a pod: it listens on 127.0.0.1, there is no image, no resource limit and no preStop
pause (no Service has to forget the process first); what Secrets hold is read from the environment; of other containers
only those are run that fetch the model, before the engine, and adapters, beside it; what fails is not started again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any

from octavo_operator.api.resource import LLMService
from octavo_operator.render import RenderConfig, unsupported_fields
from octavo_operator.render.adapters import CREDENTIALS_VOLUME, LIST_KEY, LIST_VOLUME, SIDECAR, adapter_list
from octavo_operator.render.children import render
from octavo_operator.render.container import CONTAINER, PRE_STOP_SECONDS
from octavo_operator.render.fetch import FETCH

HOST = "127.0.0.1"
_POLL_SECONDS = 0.25
_HEARTBEAT_SECONDS = 5.0
_MADE_HERE = ("cache", LIST_VOLUME, CREDENTIALS_VOLUME)
"""Volumes whose folders are empty at first here, whatever they are in a cluster."""

Report = Callable[[str], None]


class LocalError(Exception):
    """The engine could not be run here; `exit_code` is what the program should end with."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Command:
    """The container as a process: what to execute, with which environment."""

    argv: list[str]
    env: dict[str, str]


class LocalEngine:
    """A running engine. `endpoint` is the base URL of its OpenAI API."""

    def __init__(self, process: subprocess.Popen[bytes], container: Mapping[str, Any], port: int, grace: float) -> None:
        self._process = process
        self._container = container
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
        startup = self._container["startupProbe"]
        timeout = startup["periodSeconds"] * startup["failureThreshold"]
        started = time.monotonic()
        self._wait_for("startupProbe", report, started + timeout, f"; the startup timeout is {timeout} s")
        report(f"model loaded after {time.monotonic() - started:.1f} s; waits for the readiness probe")
        self._wait_for("readinessProbe", report, None)

    def _wait_for(self, probe: str, report: Report, deadline: float | None, limit: str = "") -> None:
        began = last_report = time.monotonic()
        while not self._passes(probe):
            self._raise_if_ended()
            now = time.monotonic()
            if deadline is not None and now > deadline:
                raise LocalError(f"not started within {now - began:.0f} s; raise spec.rollout.startupTimeoutSeconds", 1)
            if now - last_report >= _HEARTBEAT_SECONDS and not sys.stderr.isatty():  # there the engine draws a bar
                last_report = now
                report(f"{self._progress()}; {now - began:.0f} s so far{limit}")
            time.sleep(_POLL_SECONDS)

    def supervise(self) -> int:
        """Wait for the engine to end, watching its liveness; return its exit code (128 + n for signal n)."""
        probe = self._container["livenessProbe"]
        failures, next_probe = 0, time.monotonic() + probe["periodSeconds"]
        while self._process.poll() is None:
            time.sleep(_POLL_SECONDS)
            self._kill_if_overdue()
            if self._stop_deadline is None and time.monotonic() >= next_probe:
                failures = 0 if self._passes("livenessProbe") else failures + 1
                next_probe = time.monotonic() + probe["periodSeconds"]
                if failures >= probe["failureThreshold"]:
                    self.stop()
        if failures >= probe["failureThreshold"]:
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
        check = self._container[probe]
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            url = f"http://{HOST}:{self._port}{check['httpGet']['path']}"
            with self._opener.open(url, timeout=check["timeoutSeconds"]) as response:
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


@contextlib.contextmanager
def run_local(service: LLMService, port: int = 0, volumes: Mapping[str, Path] | None = None) -> Iterator[LocalEngine]:
    """Run the engine of `service` while the block runs; afterwards no process and no folder is left.

    `port` 0 takes any free one. `volumes` gives folders to volumes of the pod that cannot be made here. To be called
    from a thread that lives as long as the engine: the kernel ends the engine with it. LocalError says what is missing.
    """
    if missing := unsupported_fields(service.spec):
        raise LocalError("; ".join(map(str, missing)))
    manifests = render(service, RenderConfig(engine_image="local"))
    pod = next(m for m in manifests if m["kind"] == "Deployment")["spec"]["template"]["spec"]
    container = next(container for container in pod["containers"] if container["name"] == CONTAINER)
    before = {container["name"]: container for container in pod.get("initContainers") or ()}
    port = _claim_port(port)
    with contextlib.ExitStack() as left:
        root = left.enter_context(tempfile.TemporaryDirectory(prefix="octavo-local-"))
        folders = _folders(pod["volumes"], Path(root), volumes or {})
        if SIDECAR in before:
            _list_adapters(service, pod["volumes"], container, folders)
            left.enter_context(_beside(translate(before[SIDECAR], port, folders, os.environ), root))
        if FETCH in before:
            _run_to_the_end(translate(before[FETCH], port, folders, os.environ), root)
        process = _start(translate(container, port, folders, os.environ), root)
        engine = LocalEngine(process, container, port, pod["terminationGracePeriodSeconds"] - PRE_STOP_SECONDS)
        left.callback(engine.close)
        yield engine


def _list_adapters(
    service: LLMService, volumes: Sequence[Mapping[str, Any]], engine: Mapping[str, Any], folders: Mapping[str, Path]
) -> None:
    """Write the list of adapters that a pod has as an annotation.

    Credentials come from the environment, which the sidecar's processes inherit.
    """
    here, wanted = _places(engine, folders), json.loads(adapter_list(service.spec, volumes))
    for adapter in wanted["adapters"]:
        adapter.pop("files", None)
        if "path" in adapter:
            adapter["path"] = here(adapter["path"])
    (folders[LIST_VOLUME] / LIST_KEY).write_text(json.dumps(wanted))


def _start(command: Command, root: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.argv, env=command.env, cwd=root, stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - one system call, no locks
    )  # fmt: skip


@contextlib.contextmanager
def _beside(command: Command, root: str) -> Iterator[None]:
    """Run a native sidecar, and whatever it starts, while the block runs."""
    process = _start(command, root)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run_to_the_end(command: Command, root: str) -> None:
    """Run an init container, which reports its own progress on standard error."""
    done = subprocess.run(
        command.argv, env=command.env, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
        preexec_fn=_end_with_parent,
    )  # fmt: skip
    if done.returncode:
        code = done.returncode if done.returncode > 0 else 128 - done.returncode
        raise LocalError(f"the model could not be fetched: exit code {code}", code)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def translate(
    container: Mapping[str, Any], port: int, folders: Mapping[str, Path], environ: Mapping[str, str]
) -> Command:
    """Return the process for `container`: its places become `folders` (by volume name), its port becomes `port`."""
    here = _places(container, folders)

    def argument(text: str) -> str:
        if text.startswith("--host="):
            return f"--host={HOST}"
        if text.startswith(("--port=", "--progress-port=")):
            return f"{text.partition('=')[0]}={port}"
        flag, equals, value = text.partition("=")
        return f"{flag}={here(value)}" if equals else here(text)

    env = {name: value for name, value in environ.items() if not name.startswith("OCTAVO_")}
    env["TMPDIR"] = str(folders["tmp"])
    for variable in container["env"]:
        value = here(variable["value"]) if "value" in variable else _referenced(variable, environ)
        if value is not None:
            env[variable["name"]] = value
    arguments = [argument(text) for text in container["args"]]
    return Command([_executable(container["command"][0]), *arguments], env)


def _places(container: Mapping[str, Any], folders: Mapping[str, Path]) -> Callable[[str], str]:
    """Return a function that maps a path of the container to this machine; other texts stay as they are."""
    places = [(mount["mountPath"], str(folders[mount["name"]])) for mount in container["volumeMounts"]]
    places.sort(key=lambda place: len(place[0]), reverse=True)

    def here(value: str) -> str:
        for path, folder in places:
            if value == path or value.startswith(f"{path}/"):
                return folder + value[len(path) :]
        return value

    return here


def _referenced(variable: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    name, source = variable["name"], variable.get("valueFrom") or {}
    if name in environ:
        return environ[name]
    ((kind, reference),) = source.items() or [("value", {"optional": True})]
    if reference.get("optional"):
        return None
    raise LocalError(f"the variable {name} comes from a {kind} ({reference}); set {name} in the environment")


def _executable(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise LocalError(f"{name} is not installed beside this program; install octavo[engine]")
    return found


def _folders(volumes: Sequence[Mapping[str, Any]], root: Path, given: Mapping[str, Path]) -> dict[str, Path]:
    """Return a folder for each volume: the one given, or a new one for what is empty at first anyway."""
    names = {volume["name"] for volume in volumes}
    if unknown := set(given) - names:
        raise LocalError(f"--volume {min(unknown)}: the pod has no such volume; it has {', '.join(sorted(names))}")
    folders = {}
    for volume in volumes:
        name = volume["name"]
        if name in given:
            folders[name] = given[name]
        elif "emptyDir" in volume or name in _MADE_HERE:
            folders[name] = root / name
            folders[name].mkdir()
        else:
            (kind,) = set(volume) - {"name"}
            raise LocalError(
                f"the volume {name} is a {kind} ({json.dumps(volume[kind])}), which exists only in a cluster; give "
                f"--volume {name}=DIR"
            )
    return folders


def parse_volumes(values: Sequence[str]) -> dict[str, Path]:
    """Return volumes by name from NAME=DIR; LocalError if one is written otherwise or is no folder."""
    volumes = {}
    for value in values:
        name, _, folder = value.partition("=")
        if not folder or not Path(folder).is_dir():
            raise LocalError(f"--volume {value}: write NAME=DIR, where DIR is a folder of this machine")
        volumes[name] = Path(folder).resolve()
    return volumes


def _claim_port(port: int) -> int:
    """Return `port`, or a free one for 0; LocalError if another program has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LocalError(f"port {port} of {HOST}: {error.strerror}; choose another, or --port 0 for any") from None
        return int(probe.getsockname()[1])


def main(service: LLMService, port: int, volumes: Mapping[str, Path]) -> int:
    """Run the engine until it ends or a signal asks for it, and return its exit code."""

    def report(line: str) -> None:
        sys.stderr.write(f"octavo-operator local: {line}\n")
        sys.stderr.flush()

    running: list[LocalEngine] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if not running:
            raise SystemExit(128 + number)
        report(f"{signal.Signals(number).name}: waits for running answers; again to end at once")
        running[0].stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    for row in unsupported_fields(service.spec):
        report(f"note: {row}")
    if service.spec.engine.env_from:
        report(
            "note: spec.engine.envFrom: a cluster's Secrets and ConfigMaps cannot be read here; set their variables "
            "in the environment of this command"
        )
    with run_local(service, port, volumes) as engine:
        running.append(engine)
        report(f"starts the engine of {service.name} (process {engine.pid})")
        engine.wait_ready(report)
        sys.stdout.write(f"endpoint: {engine.endpoint}\n")
        sys.stdout.flush()
        return engine.supervise()
