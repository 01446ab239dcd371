"""Octavo's operator in the cluster, installed by its chart as a user would."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from . import load
from .client import Client, Manifest, as_yaml
from .layout import CHECKOUT

CHART = CHECKOUT / "charts" / "octavo"
MANIFESTS = CHECKOUT / "manifests"
SAMPLES = MANIFESTS / "samples"
IMAGES = ("--set", "operator.image.tag=dev", "--set", "engine.image.tag=dev")
ONE_REPLICA = ("--set", "operator.replicas=1,metricsApi.replicas=1")
"""Two cores have enough to do with one; tests of what several do give another number."""
_PREFIX = "octavo-test-"
RELEASE = f"{_PREFIX}{secrets.token_hex(3)}"
"""A release name of the tests' own: on a cluster that others use, their releases are not touched."""
_OWNER = "meta.helm.sh/release-name"
CRD = "llmservices.octavo.dev"
OPERATOR = f"{RELEASE}-operator"

PATIENT = {"spec": {"containers": [{"name": "engine", "readinessProbe": {"failureThreshold": 30}}]}}
"""A podTemplate for tests that count lost answers: where a pod stands still for five seconds, as on a busy machine, its
Service would lead to no pod and refuse connections.
"""

ON_ANOTHERS_CLUSTER = bool(os.environ.get("TEST_KUBECONFIG"))
ONLY_ON_OURS = pytest.mark.skipif(
    ON_ANOTHERS_CLUSTER, reason="is about the cluster that these tests start; TEST_KUBECONFIG names another"
)


@contextlib.contextmanager
def installed_operator(cluster: Client, *settings: str, chart: Path = CHART) -> Iterator[Client]:
    """The operator, ready, in a namespace of its own; yields a client of that namespace. Uninstalled afterwards."""
    refuse_to_disturb(cluster)
    name = f"octavo-system-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    system = cluster.in_namespace(name)
    try:
        # The CRD outlives a release; the next one takes it over, and only from one of these tests.
        system.helm(
            "install",
            RELEASE,
            str(chart),
            *IMAGES,
            *ONE_REPLICA,
            *settings,
            "--take-ownership",
            "--wait",
            "--timeout=240s",
        )
        yield system
    except BaseException:
        print(system.diagnosis())
        raise
    finally:
        system.helm("uninstall", RELEASE, "--ignore-not-found", "--wait")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def refuse_to_disturb(cluster: Client) -> None:
    """Skip the test on a cluster where Octavo was installed before: its operator and CRD belong to others."""
    if not ON_ANOTHERS_CLUSTER or not cluster.exists("crd", CRD):
        return
    owner = cluster.get("crd", CRD)["metadata"].get("annotations", {}).get(_OWNER, "")
    if not owner.startswith(_PREFIX):
        pytest.skip(f"the cluster has Octavo already ({owner or 'not by helm'}); use one without, or delete its CRD")


def install_crd(cluster: Client) -> None:
    """The CRD of manifests/, as it is installed without helm; marked as one of these tests'."""
    refuse_to_disturb(cluster)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(MANIFESTS / "crd.yaml"))
    cluster.kubectl("annotate", "--overwrite", "crd", CRD, f"{_OWNER}={RELEASE}")


def accepted_strictly(client: Client, *manifests: Manifest) -> list[str]:
    """Dry-run the manifests; CommandError if the API server does not know one of their fields."""
    server = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-o", "name")
    return client.kubectl("apply", *server, "-f", "-", input=as_yaml(*manifests)).split()


def condition(service: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return one condition of an LLMService; an empty one while there is none."""
    conditions = service.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})


def sdk(client: Client, name: str) -> openai.OpenAI:
    """Return the SDK as a client outside of the cluster uses it for the LLMService `name`, through the API server."""
    base_url = client.service_proxy_url(name, "http").rstrip("/") + "/v1"
    return openai.OpenAI(base_url=base_url, api_key="none", http_client=client.http)  # type: ignore[arg-type]


def wait_for_condition(client: Client, name: str, kind: str, reason: str, timeout: float = 60) -> dict[str, Any]:
    """Return the LLMService once its condition `kind` has `reason`."""

    def reached() -> dict[str, Any] | None:
        service = client.get("llms", name)
        found = condition(service, kind)
        current = found.get("observedGeneration") == service["metadata"]["generation"]
        return service if current and found.get("reason") == reason else None

    return client.wait_until(
        reached, timeout, lambda: f"{kind} of {name} becomes {reason}:\n{client.kubectl('describe', 'llms', name)}"
    )


def faults(system: Client) -> list[str]:
    """Return the last words of the operator's containers that ended by themselves.

    Except where one stood still for longer than its Lease lasts: then its end is part of the leader election.
    """
    found = []
    for pod in system.list("pods", selector="app.kubernetes.io/name=octavo-operator"):
        if any(status["restartCount"] for status in pod["status"]["containerStatuses"]):
            words = system.kubectl("logs", pod["metadata"]["name"], "--previous", "--tail=5")
            found += [] if "the lease cannot be renewed" in words else [words]
    return found


def start_load(client: Client, url: str, model: str, long_answers: tuple[int, int, int]) -> None:
    """Users of the model in the pod `load`, as load.py says; `long_answers`: tokens or seconds, and users of them.

    The pod asks for CPU: users who get none while engines load do not ask, and there is not the load that a test needs.
    """
    pod = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
        "containers": [
            {
                "name": "main",
                "image": "octavo-engine:dev",
                "command": ["python", "-c", Path(load.__file__).read_text(), url, model, *map(str, long_answers)],
                "resources": {"requests": {"cpu": "500m"}},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "load"}, "spec": pod})
    client.kubectl("wait", "--for=condition=Ready", "pod/load", "--timeout=180s")
