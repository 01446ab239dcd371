"""The command `octavo-operator local`: runs an engine until it ends or a signal asks for it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from octavo_operator.api.resource import LLMService
from octavo_operator.local.engine import LocalEngine
from octavo_operator.local.run_local import run_local
from octavo_operator.render import unsupported_fields


def main(service: LLMService, port: int, volumes: Mapping[str, Path]) -> int:
    """Run the engine until it ends or a signal asks for it, and return its exit code."""

    def report(line: str) -> None:
        sys.stderr.write(f"octavo-operator local: {line}\n")
        sys.stderr.flush()

    running: list[LocalEngine] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if not running:
            raise SystemExit(128 + number)
        report(f"{signal.Signals(number).name}: waiting for running answers; a second signal stops at once")
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
        report(f"starting the engine of {service.name} (process {engine.pid})")
        engine.wait_ready(report)
        sys.stdout.write(f"endpoint: {engine.endpoint}\n")
        sys.stdout.flush()
        return engine.supervise()
