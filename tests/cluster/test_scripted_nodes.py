"""The scripted nodes themselves, without a cluster."""

from __future__ import annotations

import threading
from typing import Any

import httpx2
import pytest

from . import scripted_nodes
from .client import PATIENCE
from .scripted_nodes import ScriptedNodes


def test_a_node_that_is_lost_while_it_says_that_it_is_ready_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last word would otherwise come after `lose`, and Kubernetes would find the node silent only 50 s later."""
    monkeypatch.setattr(scripted_nodes, "EVERY", 0.001)
    speaking, answered, said = threading.Event(), threading.Event(), list[str]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/api/v1/nodes/one/status":
            word = "Unknown" if b"NodeStatusUnknown" in request.content else "True"
            if word == "True":
                speaking.set()
                assert answered.wait(PATIENCE)
            said.append(word)
        return httpx2.Response(200, json={})

    with httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://cluster") as http:
        nodes = ScriptedNodes(http, ["one"], gpus=1)
        threads = [threading.Thread(target=each) for each in (nodes.run, lambda: nodes.lose("one"))]
        threads[0].start()
        assert speaking.wait(PATIENCE)
        threads[1].start()
        threads[1].join(0.1)  # it waits for its turn
        answered.set()
        threads[1].join(PATIENCE)
        nodes.end()
        threads[0].join(PATIENCE)
    assert said[-1] == "Unknown"


def test_an_api_server_that_is_away_for_a_moment_keeps_no_node_from_being_removed() -> None:
    removed: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            removed.append(request.url.path.rpartition("/")[2])
        return httpx2.Response(503 if request.method == "GET" else 200, json={})

    with httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://cluster") as http:
        ScriptedNodes(http, ["one", "two"], gpus=1).remove()
    assert removed == ["one", "one", "two", "two"]


def test_no_two_pods_have_the_same_address() -> None:
    """Names that have the same letters in another order had one."""
    statuses: dict[str, Any] = {}

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/api/v1/pods":
            names = ("model-ab", "model-ba")
            pod = {"spec": {"containers": []}, "status": {"phase": "Pending"}}
            found = [{**pod, "metadata": {"name": name, "namespace": "x"}} for name in names]
            return httpx2.Response(200, json={"items": found})
        statuses[request.url.path] = request.content
        return httpx2.Response(200, json={})

    with httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://cluster") as http:
        ScriptedNodes(http, ["one"], gpus=1)._run_pods("one")
    assert len(statuses) == len({content.partition(b'"podIP"')[2] for content in statuses.values()}) == 2
