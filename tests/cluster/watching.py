"""Every write to a Deployment's number of replicas, as the API server tells it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from .api import connect_with
from .client import Client


@dataclass
class Replicas:
    """What was written: each number once for as long as it stood, from the first on."""

    numbers: list[int] = field(default_factory=list)

    def note(self, deployment: dict[str, Any]) -> None:
        """Takes down a state of the Deployment."""
        number = deployment["spec"]["replicas"]
        if self.numbers[-1:] != [number]:
            self.numbers.append(number)


@contextlib.contextmanager
def watched_replicas(client: Client, name: str) -> Iterator[Replicas]:
    """Follows the Deployment `name` of the client's namespace, which need not be there yet."""
    seen, ended = Replicas(), threading.Event()
    path = f"/apis/apps/v1/namespaces/{client.namespace}/deployments"
    query = {"fieldSelector": f"metadata.name={name}"}
    with connect_with(client.kubeconfig) as http:
        listed = http.get(path, params=query).json()
        for item in listed["items"]:
            seen.note(item)
        watch = {**query, "watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        thread = threading.Thread(target=_follow, args=[http, path, watch, seen, ended])
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
    thread.join()


def _follow(http: httpx2.Client, path: str, query: dict[str, str], seen: Replicas, ended: threading.Event) -> None:
    """Until the connections are closed. Bounded reads would end a watch of something that does not change."""
    while not ended.is_set():
        with (
            contextlib.suppress(httpx2.HTTPError, RuntimeError),
            http.stream("GET", path, params=query, timeout=5) as response,
        ):
            for line in response.iter_lines():
                event = json.loads(line)
                query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "DELETED":
                    seen.note(event["object"])
