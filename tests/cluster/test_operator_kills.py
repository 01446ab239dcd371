"""The operator is killed at random, again and again, while services are made, changed and deleted: nothing is lost.

It runs as a process of this machine, so that it is there again at once: a container would wait longer and longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.resource import parse
from octavo_operator.render import RenderConfig, render
from tests.operator.bad_llmservices import VALID, merged

from .client import Client, CommandError
from .octavo import SAMPLES, install_crd, wait_for_condition
from .reapplied import reapplied

KILLS = 12
NAMES = [f"model-{number}" for number in range(6)]
SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
STEADY = "smollm2"
IMAGE = "octavo-engine:dev"
BUSY = ("etcdserver: ", "(Timeout)", "(ServiceUnavailable)", "(TooManyRequests)", "TLS handshake timeout")
"""Words of kubectl where the API server or its etcd has no time for a request."""
CHILDREN = ("deployment", "service", "poddisruptionbudget", "horizontalpodautoscaler")


class Operator:
    """`octavo-operator run`, for one namespace."""

    def __init__(self, client: Client, log: Path) -> None:
        self._command = [sys.executable, "-m", "octavo_operator.cli", "run", f"--engine-image={IMAGE}",
                         f"--namespace={client.namespace}", "--health-port=0"]  # fmt: skip
        self._env = {**os.environ, "KUBECONFIG": str(client.kubeconfig)}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._env, stderr=log)

    def kill(self) -> None:
        """Kill the process, as a node's loss of power would."""
        if self._process:
            self._process.kill()
            self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def operator(cluster: Client, namespace: Client, tmp_path: Path) -> Iterator[Operator]:
    install_crd(cluster)
    cluster.kubectl("wait", "--for=condition=Established", "crd/llmservices.octavo.dev", "--timeout=180s")
    operator = Operator(namespace, tmp_path / "operator.log")
    operator.start()
    try:
        yield operator
    finally:
        operator.kill()
        with contextlib.suppress(OSError):
            print(operator.log[-20_000:])


def llmservice(name: str, chance: random.Random) -> dict[str, Any]:
    """Return a service of this name with some settings or others, so that replicas change hands too.

    Its pods find no node.
    """
    spec: dict[str, Any] = {
        "scheduling": {"nodeSelector": {"no-such": "node"}},
        "replicas": chance.randint(0, 2),
        "engine": {"maxModelLength": chance.choice([512, 1024])},
        "service": {"port": chance.choice([80, 8080])},
        "suspend": chance.random() < 0.2,
    }
    if chance.random() < 0.3:
        spec["cache"] = {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": "none"}
    if chance.random() < 0.3:
        least = spec.pop("replicas") + 1
        spec["autoscaling"] = {"minReplicas": least, "maxReplicas": least + 2, "metricsSource": "Builtin"}
    return merged(VALID, {"metadata": {"name": name}, "spec": spec})


def disturb(client: Client, chance: random.Random) -> None:
    """Make, replace or delete one of the services at random, or delete one of its children.

    That a busy API server has no time for it says nothing about the operator; any other refusal fails the test.
    """
    name, what = chance.choice(NAMES), chance.random()
    try:
        if what < 0.6:
            client.apply(llmservice(name, chance))
        elif what < 0.8:
            client.kubectl("delete", "llms", name, "--ignore-not-found", "--wait=false")
        else:
            client.kubectl("delete", chance.choice(CHILDREN), name, "--ignore-not-found", "--wait=false")
    except CommandError as error:
        if not any(words in error.output for words in BUSY):
            raise
        print(error)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_twelve_deaths_change_nothing_in_the_end(seed: int, operator: Operator, namespace: Client) -> None:
    chance = random.Random(seed)
    namespace.apply(SAMPLE)
    wait_for_condition(namespace, STEADY, "Ready", "Serving", 300)
    (served,) = namespace.list("pods", selector=f"octavo.dev/llmservice={STEADY}")
    for _ in range(KILLS):
        until = time.monotonic() + chance.uniform(0, 4)
        while time.monotonic() < until:
            disturb(namespace, chance)
        operator.kill()
        disturb(namespace, chance)
        operator.start()
    namespace.wait_until(
        lambda: not wrong(namespace), 300, lambda: f"{wrong(namespace)}\n{operator.log[-5000:]}", every=2
    )
    (still,) = namespace.list("pods", selector=f"octavo.dev/llmservice={STEADY}")
    assert still["metadata"]["uid"] == served["metadata"]["uid"], (served, still)
    assert still["status"]["containerStatuses"][0]["restartCount"] == 0, still
    assert "Traceback" not in operator.log, operator.log


def wrong(client: Client) -> list[str]:
    """Return what differs from an undisturbed run: children, owners, finalizers, conditions."""
    services = {service["metadata"]["name"]: service for service in client.list("llms")}
    found = [
        f"{name} is being deleted forever" for name, each in services.items() if each["metadata"].get("finalizers")
    ]
    expected: set[tuple[str, str]] = set()
    for service in services.values():
        found += missing_status(service)
        for manifest in render(parse(service), RenderConfig(IMAGE)):
            expected.add((manifest["kind"], manifest["metadata"]["name"]))
            found += reapplied(client, manifest)
    there = {
        (child["kind"], child["metadata"]["name"])
        for kind in (*CHILDREN, "persistentvolumeclaim")
        for child in client.list(kind, selector="octavo.dev/llmservice")
    }
    return found + [f"{kind} {name} is left over" for kind, name in there - expected]


def missing_status(service: dict[str, Any]) -> list[str]:
    status, metadata = service.get("status", {}), service["metadata"]
    is_complete = status.get("observedGeneration") == metadata["generation"] and len(status["conditions"]) == len(
        ConditionType
    )
    return [] if is_complete else [f"{metadata['name']} has the status {json.dumps(status)}"]
