"""Reads the objects and metrics for `why` and `top`; objects that the user may not read are reported, not fatal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from octavo_operator.api.names import COMPONENT_LABEL, ENGINE, SERVICE_LABEL, keda_autoscaler
from octavo_operator.kubectl.client import Kubectl, KubectlError
from octavo_operator.kubectl.top import PodReadings, Reading, read
from octavo_operator.kubectl.why import Facts
from octavo_operator.render.container import PORT

_AT_ONCE = 16
_REQUEST_SECONDS = 10
"""The time that each request of `why` may take: one kind whose server hangs must not hide what is known of the rest."""


def engine_pods(name: str = "") -> str:
    """Return the label selector of the engine's pods, of one LLMService or of all."""
    return f"{SERVICE_LABEL}{'=' + name if name else ''},{COMPONENT_LABEL}={ENGINE}"


def has_started(pod: Mapping[str, Any]) -> bool:
    """Return True if a container of the pod runs or has ended, so that it may have a log."""
    status = pod.get("status", {})
    containers = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    return any(each.get("lastState") or "waiting" not in each.get("state", {"waiting": {}}) for each in containers)


def facts_of(kubectl: Kubectl, name: str) -> Facts:
    """Return all that `why` looks at, read at once. KubectlError: the LLMService itself cannot be read."""
    kubectl = replace(kubectl, flags=[*kubectl.flags, f"--request-timeout={_REQUEST_SECONDS}s"])
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        service = threads.submit(kubectl.get, "llmservices.octavo.dev", name)
        asked: dict[str, Future[Any]] = {
            "pods": threads.submit(kubectl.items, "pods", f"--selector={engine_pods(name)}"),
            "Deployment": threads.submit(kubectl.find, "deployments.apps", name),
            "autoscaler": threads.submit(_autoscaler, kubectl, name),
            "ResourceQuotas": threads.submit(kubectl.items, "resourcequotas"),
            "events": threads.submit(kubectl.items, "events", "--field-selector=type=Warning"),
        }
    found: dict[str, Any] = {}
    unread: list[str] = []
    for what, answer in asked.items():
        try:
            found[what] = answer.result()
        except KubectlError as error:
            unread.append(f"{what}: {error}")
    return Facts(
        service=service.result(),
        pods=found.get("pods", ()),
        deployment=found.get("Deployment"),
        autoscaler=found.get("autoscaler"),
        quotas=found.get("ResourceQuotas", ()),
        events=found.get("events", ()),
        unread=unread,
    )


def _autoscaler(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler of a service, the operator's or KEDA's; empty where there is none."""
    kind = "horizontalpodautoscalers.autoscaling"
    return kubectl.find(kind, name) or kubectl.find(kind, keda_autoscaler(name))


def pod_readings(
    kubectl: Kubectl, pods: Sequence[Mapping[str, Any]], seconds: float
) -> Mapping[tuple[str, str], Sequence[PodReadings | None]]:
    """Return two readings, `seconds` apart, of each pod, by the namespace and name of its LLMService."""
    found: dict[tuple[str, str], list[PodReadings | None]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        first = list(threads.map(lambda pod: _reading(kubectl, pod), pods))
        time.sleep(seconds)
        second = list(threads.map(lambda pod: _reading(kubectl, pod), pods))
    for pod, before, after in zip(pods, first, second, strict=True):
        metadata = pod["metadata"]
        both = PodReadings(before[1], after[1], after[0] - before[0]) if before and after else None
        found.setdefault((metadata["namespace"], metadata["labels"][SERVICE_LABEL]), []).append(both)
    return found


def _reading(kubectl: Kubectl, pod: Mapping[str, Any]) -> tuple[float, Reading] | None:
    """Return a reading with the time of it in seconds; None: the pod does not answer, or the user may not ask it."""
    try:
        return time.monotonic(), read(kubectl.pod_answer(pod, PORT, "/metrics"))
    except (KubectlError, ValueError):
        return None
