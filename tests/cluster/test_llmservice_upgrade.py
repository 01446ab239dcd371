"""The life of the chart while a model answers: install, test, upgrade, uninstall, install again."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.operator.bad_llmservices import merged

from .client import Client
from .octavo import (
    CHART,
    CRD,
    IMAGES,
    ONE_REPLICA,
    PATIENT,
    RELEASE,
    SAMPLES,
    installed_operator,
    wait_for_condition,
)

SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
LOADED = 300
# It answers all the while, on a machine of two cores: the other is for operators that come and go.
ONE_THREAD = {"engine": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}, "podTemplate": PATIENT}
OLD, NEW = "An older version says this.", "The desired state (spec)."


@dataclass
class Answers:
    """The answers to a user who never stops asking."""

    good: int = 0
    lost: list[str] = field(default_factory=list)

    def ask(self, client: Client) -> None:
        """One question, through the API server."""
        url = client.service_proxy_url(NAME, "http").rstrip("/") + "/v1/completions"
        body = {"model": NAME, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        try:
            answer = client.http.post(url, json=body)
            assert answer.is_success, answer.text
            assert "Paris" in answer.json()["choices"][0]["text"]
        except (httpx2.TransportError, AssertionError, ValueError, KeyError) as error:
            self.lost.append(f"{type(error).__name__}: {error}")
        else:
            self.good += 1


@contextlib.contextmanager
def asked_all_the_while(client: Client) -> Iterator[Answers]:
    """A client that asks one question after the other until the block ends."""
    answers, stop = Answers(), threading.Event()

    def user() -> None:
        while not stop.wait(0.1):
            answers.ask(client)

    thread = threading.Thread(target=user)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


def older_chart(folder: Path) -> Path:
    """Return the chart with a CRD that says something else, as an earlier version's does."""
    shutil.copytree(CHART, folder / "octavo")
    crd = folder / "octavo" / "files" / "crd.yaml"
    text = crd.read_text()
    assert f"description: {NEW}\n" in text
    crd.write_text(text.replace(f"description: {NEW}\n", f"description: {OLD}\n"))
    return folder / "octavo"


def crd_says(cluster: Client) -> str:
    version = cluster.get("crd", CRD)["spec"]["versions"][0]
    return str(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["description"])


def only_pod(client: Client) -> tuple[str, int]:
    """Return the uid of the model's pod, and how often its container was restarted."""
    (pod,) = client.list("pods", selector=f"octavo.dev/llmservice={NAME}")
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


@pytest.mark.timeout(900)
def test_a_model_answers_while_the_chart_comes_and_goes(cluster: Client, namespace: Client, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with installed_operator(cluster, chart=older_chart(tmp_path)) as system:
            assert crd_says(cluster) == OLD
            namespace.apply(merged(SAMPLE, {"spec": ONE_THREAD}))
            before = wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
            answers = stack.enter_context(asked_all_the_while(namespace))
            namespace.wait_until(lambda: answers.good or answers.lost, 60, "the first answer")
            pod = only_pod(namespace)

            # Another image for engines, too: services that exist keep theirs.
            changes = ("--set", "operator.logLevel=debug", "--set", "engine.image.tag=next")
            system.helm("upgrade", RELEASE, str(CHART), *IMAGES, *ONE_REPLICA, *changes, "--wait", "--timeout=240s")
            assert crd_says(cluster) == NEW
            tested = system.helm("test", RELEASE, "--timeout=240s", "--logs")
            assert "the operator answers" in tested, tested
            assert only_pod(namespace) == pod

        assert not system.list("deployments", selector=f"app.kubernetes.io/instance={RELEASE}")
        after = namespace.get("llms", NAME)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["engineImage"] == before["status"]["engineImage"]
        time.sleep(2)  # without an operator
        assert only_pod(namespace) == pod

        with installed_operator(cluster):
            namespace.kubectl("label", "llms", NAME, "seen=yes")
            namespace.kubectl("patch", "llms", NAME, "--type=merge", "-p", '{"spec": {"service": {"port": 8080}}}')
            wait_for_condition(namespace, NAME, "Ready", "Serving")
            assert namespace.get("service", NAME)["spec"]["ports"][0]["port"] == 8080
            assert only_pod(namespace) == pod
    assert (answers.lost, pod[1]) == ([], 0)
    assert answers.good > 20
