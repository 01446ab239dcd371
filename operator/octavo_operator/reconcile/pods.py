"""What a pod of the engine is doing, and what is wrong with it, from its status alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.conditions import LoadingPhase, Reason
from octavo_operator.render.container import CONTAINER

_PULL_FAILURES = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}
_EXIT_CODES = {
    2: Reason.CONFIGURATION_ERROR,
    3: Reason.MODEL_NOT_FOUND,
    4: Reason.OUT_OF_MEMORY,
    5: Reason.ENGINE_STALLED,
}
_LAST_WORDS = 400  # characters of a termination message that a condition repeats


@dataclass(frozen=True)
class Finding:
    """A reason and its sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class PodView:
    """One pod as far as a status is concerned. `waits` is no fault (yet); `trouble` is one."""

    name: str
    revision: str
    created: str
    ready: bool
    terminating: bool
    phase: LoadingPhase
    waits: Finding | None = None
    trouble: Finding | None = None


def view(pod: Mapping[str, Any]) -> PodView:
    """The view of one pod object."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    phase, waits, trouble = _state(metadata["name"], status)
    return PodView(
        name=metadata["name"],
        revision=(metadata.get("labels") or {}).get("pod-template-hash", ""),
        created=metadata.get("creationTimestamp") or "",
        ready=_condition(status, "Ready").get("status") == "True",
        terminating=metadata.get("deletionTimestamp") is not None,
        phase=phase,
        waits=waits,
        trouble=trouble,
    )


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((condition for condition in status.get("conditions") or () if condition["type"] == name), {})


def _state(name: str, status: Mapping[str, Any]) -> tuple[LoadingPhase, Finding | None, Finding | None]:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return LoadingPhase.PENDING, _unscheduled(name, scheduled.get("message") or ""), None
    containers = status.get("containerStatuses") or ()
    container = next((c for c in containers if c["name"] == CONTAINER), None)
    if container is None:
        return (LoadingPhase.PULLING if scheduled else LoadingPhase.PENDING), None, None
    state = container.get("state") or {}
    if waiting := state.get("waiting"):
        return LoadingPhase.PULLING, None, _waiting_trouble(name, waiting, container)
    if terminated := state.get("terminated"):
        return LoadingPhase.LOADING, None, _exit_trouble(name, terminated)
    if container.get("ready"):
        return LoadingPhase.SERVING, None, None
    return (
        (LoadingPhase.WARMUP if container.get("started") else LoadingPhase.LOADING),
        None,
        _last_exit(name, container),
    )


def _unscheduled(name: str, message: str) -> Finding:
    reason = Reason.WAITING_FOR_GPU if "Insufficient" in message and "gpu" in message else Reason.UNSCHEDULABLE
    return Finding(reason, f"pod {name} finds no node: {message}")


def _waiting_trouble(name: str, waiting: Mapping[str, Any], container: Mapping[str, Any]) -> Finding | None:
    why, message = waiting.get("reason") or "", waiting.get("message") or ""
    if why in _PULL_FAILURES:
        return Finding(Reason.PULL_FAILED, f"pod {name} cannot pull {container.get('image')}: {message or why}")
    if why == "CreateContainerConfigError":
        return Finding(Reason.SECRET_MISSING, f"pod {name} cannot start: {message}")
    if why in ("CreateContainerError", "RunContainerError"):
        return Finding(Reason.CRASH_LOOP, f"pod {name} cannot start: {message}")
    return _last_exit(name, container)


def _last_exit(name: str, container: Mapping[str, Any]) -> Finding | None:
    terminated = (container.get("lastState") or {}).get("terminated")
    return _exit_trouble(name, terminated) if terminated else None


def _exit_trouble(name: str, terminated: Mapping[str, Any]) -> Finding:
    code, words = terminated.get("exitCode", -1), last_words(terminated.get("message") or "")
    if terminated.get("reason") == "OOMKilled":
        return Finding(
            Reason.OUT_OF_MEMORY,
            f"pod {name} was killed for exceeding its memory limit: raise resources.limits.memory, or lower "
            "engine.maxModelLength or engine.maxConcurrentRequests",
        )
    reason = _EXIT_CODES.get(code, Reason.CRASH_LOOP)
    return Finding(reason, f"pod {name} ended with exit code {code}" + (f": {words}" if words else ""))


def last_words(message: str) -> str:
    """The end of a termination message, in one line."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-_LAST_WORDS:]
