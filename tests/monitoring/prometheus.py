"""Runs a Prometheus that scrapes one engine every second, with the labels that a PodMonitor adds."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from octavo_operator.render.prometheusrule import rule_group
from tests.cluster.waiting import wait_until
from tests.monitoring.programs import program

IDENTITY = {"namespace": "llm", "llmservice": "smollm2"}
TARGET = {**IDENTITY, "pod": "smollm2-6f2c-x7x2p", "container": "engine", "job": "octavo"}


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    http: httpx2.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query; ValueError if Prometheus refuses it."""
        answer = self.http.get("/api/v1/query", params={"query": expression}).json()
        if answer["status"] != "success":
            raise ValueError(f"{expression}: {answer['error']}")
        return list(answer["data"]["result"])

    def values(self, expression: str) -> list[float]:
        """The values of an instant query that are numbers."""
        found = [float(series["value"][1]) for series in self.query(expression)]
        return [value for value in found if math.isfinite(value)]


@contextlib.contextmanager
def prometheus(engine: str, folder: Path) -> Iterator[Prometheus]:
    """Start Prometheus in `folder`; it scrapes `engine` (HOST:PORT) and evaluates its LLMService's rules."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [rule_group(*IDENTITY.values())]}))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [{"job_name": "octavo", "static_configs": [{"targets": [engine], "labels": TARGET}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        str(program("prometheus")),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            with httpx2.Client(base_url=f"http://{address}", timeout=120, trust_env=False) as http:
                wait_until(lambda: _ready(http, process, folder), timeout=240, describe="Prometheus is ready")
                yield Prometheus(http)
        finally:
            process.terminate()


def _ready(http: httpx2.Client, process: subprocess.Popen[bytes], folder: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"Prometheus has ended:\n{(folder / 'log').read_text()}")
    try:
        return http.get("/-/ready").is_success
    except httpx2.TransportError:
        return False
