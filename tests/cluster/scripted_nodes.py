"""Nodes without a kubelet: a thread of the test says that they are ready, and that the pods on them run.

A node that is `lost` says nothing any more, and its pods stay as they are.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2

from .api import connect_with
from .client import Client

LABEL = "octavo.dev/scripted"
EVERY = 1.0
"""Seconds between two looks at the nodes' pods."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_MERGE = {"Content-Type": "application/merge-patch+json"}


class ScriptedNodes:
    """The nodes of these names, each with some GPUs, and a label and a taint by which only chosen pods get there."""

    def __init__(self, http: httpx2.Client, names: Sequence[str], gpus: int) -> None:
        self._http, self._names, self._gpus = http, names, gpus
        self._alive = set(names)
        self._changing = threading.Lock()
        """Held while `run` speaks for a node: otherwise its word of a moment before would undo what `lose` said."""
        self._numbers = itertools.count()
        self._ended = threading.Event()

    def create(self) -> None:
        """Make the nodes, ready."""
        taint = {"key": LABEL, "effect": "NoSchedule"}
        for name in self._names:
            metadata = {"name": name, "labels": {LABEL: "true", "kubernetes.io/hostname": name}}
            node = {"metadata": metadata, "spec": {"taints": [taint]}}
            self._http.post("/api/v1/nodes", json=node).raise_for_status()
            lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}}
            self._http.post(_LEASES, json=lease).raise_for_status()
            self._say_ready(name)

    def lose(self, name: str) -> None:
        """From now on, the node is not heard of; Kubernetes' node controller would note it after 50 s."""
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": _now()}
        with self._changing:
            self._alive.discard(name)
            self._patch_status(name, {"conditions": [unknown]})

    def find(self, name: str) -> None:
        """The node is heard of again."""
        self._alive.add(name)

    def run(self) -> None:
        """Keep the nodes and their pods alive, until `end`; an API server that is away for a moment is asked again."""
        while not self._ended.wait(EVERY):
            for name in self._names:
                with self._changing, contextlib.suppress(httpx2.HTTPError):
                    if name in self._alive:
                        self._say_ready(name)
                        self._run_pods(name)

    def end(self) -> None:
        """Let `run` return."""
        self._ended.set()

    def remove(self) -> None:
        """Delete the nodes and what is left of their pods."""
        for name in self._names:
            with contextlib.suppress(httpx2.HTTPStatusError):  # without its node, Kubernetes deletes a pod
                for pod in self._pods(name):
                    self._http.delete(_path(pod), params={"gracePeriodSeconds": 0})
            self._http.delete(f"/api/v1/nodes/{name}")
            self._http.delete(f"{_LEASES}/{name}")

    def _say_ready(self, name: str) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(self._gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "Scripted", "lastHeartbeatTime": _now()}
        self._patch_status(name, {"capacity": amounts, "allocatable": amounts, "conditions": [ready]})
        renewed = {"spec": {"renewTime": _now(".%fZ")}}
        self._http.patch(f"{_LEASES}/{name}", json=renewed, headers=_MERGE)

    def _patch_status(self, name: str, status: dict[str, Any]) -> None:
        path = f"/api/v1/nodes/{name}/status"
        self._http.patch(path, json={"status": status}, headers=_MERGE).raise_for_status()

    def _run_pods(self, name: str) -> None:
        for pod in self._pods(name):
            if "deletionTimestamp" in pod["metadata"]:
                self._http.delete(_path(pod), params={"gracePeriodSeconds": 0})
            elif pod["status"].get("phase") == "Pending":
                self._http.patch(
                    f"{_path(pod)}/status", json={"status": _running(pod, self._address())}, headers=_MERGE
                )

    def _pods(self, name: str) -> list[dict[str, Any]]:
        found = self._http.get("/api/v1/pods", params={"fieldSelector": f"spec.nodeName={name}"})
        return list(found.raise_for_status().json().get("items") or ())

    def _address(self) -> str:
        """An address that no other pod has."""
        number = next(self._numbers)
        return f"10.99.{number // 250}.{number % 250 + 1}"


@contextlib.contextmanager
def scripted_nodes(client: Client, *names: str, gpus: int = 1) -> Iterator[ScriptedNodes]:
    """Nodes of these names while the test runs; they go with their pods."""
    with connect_with(client.kubeconfig) as http:
        nodes = ScriptedNodes(http, names, gpus)
        thread = threading.Thread(target=nodes.run)
        try:
            nodes.create()
            thread.start()
            yield nodes
        finally:
            nodes.end()
            if thread.ident:
                thread.join()
            nodes.remove()


def _path(pod: dict[str, Any]) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _running(pod: dict[str, Any], address: str) -> dict[str, Any]:
    """The status of a pod whose containers run and are ready."""
    now = _now()
    kinds = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": True,
            "started": True,
            "state": {"running": {"startedAt": now}},
        }
        for each in pod["spec"]["containers"]
    ]
    status = {"phase": "Running", "startTime": now, "podIP": address, "podIPs": [{"ip": address}]}
    return {**status, "conditions": conditions, "containerStatuses": containers}


def _now(fraction: str = "Z") -> str:
    return datetime.datetime.now(datetime.UTC).strftime(f"%Y-%m-%dT%H:%M:%S{fraction}")
