"""Octavo's operator in the cluster, installed by its chart as a user would."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from .client import Client
from .layout import CHECKOUT

CHART = CHECKOUT / "charts" / "octavo"
MANIFESTS = CHECKOUT / "manifests"
SAMPLES = MANIFESTS / "samples"
IMAGES = ("--set", "operator.image=octavo-operator:dev", "--set", "engine.image=octavo-engine:dev")
RELEASE = "octavo"
OPERATOR = "octavo-operator"


@contextlib.contextmanager
def installed_operator(cluster: Client, *settings: str) -> Iterator[Client]:
    """The operator, ready, in a namespace of its own; yields a client of that namespace. Uninstalled afterwards."""
    name = f"octavo-system-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    system = cluster.in_namespace(name)
    try:
        # The CRD outlives a release; the next one takes it over.
        system.helm("install", RELEASE, str(CHART), *IMAGES, *settings, "--take-ownership", "--wait", "--timeout=60s")
        yield system
    except BaseException:
        print(system.diagnosis())
        raise
    finally:
        system.helm("uninstall", RELEASE, "--ignore-not-found", "--wait")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def condition(service: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition of an LLMService; an empty one while there is none."""
    conditions = service.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})


def wait_for_condition(client: Client, name: str, kind: str, reason: str, timeout: float = 60) -> dict[str, Any]:
    """The LLMService once its condition `kind` has `reason`."""

    def reached() -> dict[str, Any] | None:
        service = client.get("llms", name)
        found = condition(service, kind)
        current = found.get("observedGeneration") == service["metadata"]["generation"]
        return service if current and found.get("reason") == reason else None

    return client.wait_until(
        reached, timeout, lambda: f"{kind} of {name} becomes {reason}:\n{client.kubectl('describe', 'llms', name)}"
    )
