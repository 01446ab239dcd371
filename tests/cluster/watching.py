"""Records every state that a value of an object goes through, as the API server's watch reports it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from .api import connect_with
from .client import PATIENCE, Client
from .octavo import condition
from .waiting import wait_until


@dataclass
class Seen:
    """The successive values of one field of an object, from the first on."""

    value: Callable[[dict[str, Any]], Any]
    values: list[Any] = field(default_factory=list)
    version: str = ""
    """The resourceVersion of the last state."""

    def note(self, manifest: dict[str, Any]) -> None:
        """Take down a state of the object."""
        self.version = manifest["metadata"]["resourceVersion"]
        value = self.value(manifest)
        if self.values[-1:] != [value]:
            self.values.append(value)


def watched_replicas(client: Client, name: str) -> contextlib.AbstractContextManager[Seen]:
    """Follow the replicas of the Deployment `name` of the client's namespace, which need not be there yet."""
    path = f"/apis/apps/v1/namespaces/{client.namespace}/deployments"
    return _watched(client, path, name, Seen(lambda deployment: deployment["spec"]["replicas"]))


def watched_reasons(client: Client, name: str, kind: str) -> contextlib.AbstractContextManager[Seen]:
    """Follow the reason of the LLMService's condition `kind`, also where it stands for a moment only."""
    path = f"/apis/octavo.dev/v1alpha1/namespaces/{client.namespace}/llmservices"
    return _watched(client, path, name, Seen(lambda service: condition(service, kind).get("reason")))


def watched_holder(client: Client, name: str) -> contextlib.AbstractContextManager[Seen]:
    """Follow who holds the Lease `name` of the client's namespace; empty while it is released."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{client.namespace}/leases"
    return _watched(client, path, name, Seen(lambda lease: lease["spec"].get("holderIdentity") or ""))


@contextlib.contextmanager
def _watched(client: Client, path: str, name: str, seen: Seen) -> Iterator[Seen]:
    ended = threading.Event()
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
            _catch_up(http, path, query, seen)
        finally:
            ended.set()
    thread.join()


def _catch_up(http: httpx2.Client, path: str, query: dict[str, str], seen: Seen) -> None:
    """Wait until the watch has reported the present state, which a read shows a little earlier."""
    items = http.get(path, params=query).json()["items"]
    versions = [int(item["metadata"]["resourceVersion"]) for item in items]
    wait_until(
        lambda: all(int(seen.version or 0) >= version for version in versions),
        timeout=PATIENCE,
        describe=f"the watch of {path} has caught up",
        every=0.05,
    )


def _follow(http: httpx2.Client, path: str, query: dict[str, str], seen: Seen, ended: threading.Event) -> None:
    """Follow until the connections are closed. Bounded reads would end a watch of something that does not change."""
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
