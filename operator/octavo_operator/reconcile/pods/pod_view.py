"""The phase and problems of an engine pod, read from its status alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_operator.api.conditions import LoadingPhase, Reason
from octavo_operator.api.names import SPARED, cache_claim
from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.pods.container_problem import (
    ASKED_TO_END,
    UNSTARTED,
    exit_problem,
    last_exit,
    waiting_problem,
)
from octavo_operator.reconcile.pods.engine_container import engine_status, running_engine
from octavo_operator.reconcile.pods.placement import Placement, placement_of
from octavo_operator.reconcile.pods.pod_phase import has_ended
from octavo_operator.reconcile.pods.sidecars import has_started, sidecar_statuses
from octavo_operator.reconcile.pods.unready import first_problem, why_unready
from octavo_operator.reconcile.pods.unschedulable import no_scheduler, why_unschedulable
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.timestamps import seconds_between
from octavo_operator.render.container import PORT_NAME, gpu_resource
from octavo_operator.render.fetch import FETCH

_OLD_SECONDS = 600.0  # a container's failure no longer counts once the container has run for this long since
_LASTING = (
    Reason.CONFIGURATION_ERROR,
    Reason.MODEL_NOT_FOUND,
    Reason.PULL_FAILED,
    Reason.SECRET_MISSING,
    Reason.CONFIG_MAP_MISSING,
)
"""Problems that occur again at each start."""
_MANY_RESTARTS = 2
"""Restarts after which any other problem counts as one that occurs again at each start."""
_UNSTARTED_SECONDS = 30.0
"""Seconds after which a container that its node cannot start is a problem; kubelet tries about every 10 s."""
_USUAL_SECONDS = {Reason.WAITING_FOR_VOLUMES: 10.0, Reason.NO_SCHEDULER: 10.0, Reason.NO_SANDBOX: 30.0}
"""Seconds that these waits take at most, unless a volume, a scheduler or a node has a problem."""


@dataclass(frozen=True)
class PodView:
    """A pod's phase and problems. Times are RFC 3339; empty where there is none."""

    uid: str
    revision: str
    created: str
    ready: bool
    ended: bool
    """It is being deleted, or was ended for good (evicted, refused by its node); its Deployment makes another."""
    phase: LoadingPhase
    waits: Problem | None = None
    """A delay that is not a problem (yet)."""
    problem: Problem | None = None
    waits_since: str = ""
    """Since when it finds no node, or waits for its volumes."""
    placement: Placement = field(default_factory=Placement)
    name: str = ""
    port: int | None = None
    """The number of the port that the Service means; None: it has none."""
    claims: frozenset[str] = frozenset()
    ready_since: str = ""
    stuck: bool = False
    """Whether its `problem` lasts unless a user changes something; a single failure of a container does not."""
    unstarted_since: str = ""
    """Since when, at the latest, its node fails to start one of its containers, for example because a command does not
    exist. `is_stuck` says whether that lasts."""
    failure: str = ""
    """Why its node has refused it or ended it for good, beginning with its name; empty: it has not."""
    failed_at: str = ""
    node: str = ""
    """The name of its node; empty: it has none."""
    is_spared: bool = False
    """Whether it is to end after others, since no new pod may run on its node."""

    @property
    def scheduled(self) -> bool:
        """True if the pod has a node, and with it its GPUs."""
        return bool(self.node) or self.phase != LoadingPhase.PENDING


def view(pod: Mapping[str, Any], gpu_resource: str) -> PodView:
    """Return the view of one pod object, whose GPUs are counted as `gpu_resource`."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    phase, waits, problem = _state(pod, gpu_resource)
    ready = condition_of(pod, "Ready")
    return PodView(
        uid=metadata.get("uid") or "",
        revision=revision_of(pod),
        created=metadata.get("creationTimestamp") or "",
        ready=ready.get("status") == "True",
        ended=metadata.get("deletionTimestamp") is not None or has_ended(pod),
        phase=phase,
        waits=waits,
        problem=problem,
        waits_since=_waits_since(pod),
        placement=placement_of(pod.get("spec") or {}),
        name=metadata.get("name") or "",
        port=_port(pod.get("spec") or {}),
        claims=frozenset(_claims((pod.get("spec") or {}).get("volumes") or ())),
        ready_since=_ready_since(pod, ready),
        stuck=problem is not None and _lasts(status, problem),
        unstarted_since=_unstarted_since(pod, status),
        failure=_failure_of(pod, status),
        failed_at=status_changed(pod),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        is_spared=pod.get("deletionCost") == SPARED and metadata.get("deletionTimestamp") is None,
    )


def revision_of(pod: Mapping[str, Any]) -> str:
    """Return the revision of a pod object, by the label that its Deployment sets; empty: it has none."""
    return str((pod["metadata"].get("labels") or {}).get("pod-template-hash", ""))


def is_stuck(pod: PodView, now: str) -> bool:
    """Return True if the pod's problem lasts, as of `now` (RFC 3339), unless a user changes something."""
    return pod.stuck or bool(pod.unstarted_since and pod.problem and not start_patience_seconds(pod, now))


def start_patience_seconds(pod: PodView, now: str) -> float:
    """Return in how many seconds a pod that its node cannot start will count as stuck; 0: it does, or it starts."""
    if not pod.unstarted_since:
        return 0.0
    return max(0.0, _UNSTARTED_SECONDS - seconds_between(pod.unstarted_since, now))


def _lasts(status: Mapping[str, Any], problem: Problem) -> bool:
    restarts = max((int(each.get("restartCount") or 0) for each in _containers(status)), default=0)
    return problem.reason in _LASTING or restarts >= _MANY_RESTARTS


def _unstarted_since(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return when the status of a pod that its node cannot start last changed; empty: its containers start."""
    waiting = ((each.get("state") or {}).get("waiting") or {} for each in _containers(status))
    return status_changed(pod) if any(each.get("reason") in UNSTARTED for each in waiting) else ""


def status_changed(pod: Mapping[str, Any]) -> str:
    """Return when the status of a trimmed pod last changed (RFC 3339), or else when the pod was made."""
    return pod.get("statusChanged") or pod["metadata"].get("creationTimestamp") or ""


def _failure_of(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    metadata, reason = pod["metadata"], status.get("reason")
    if status.get("phase") != "Failed" or not reason or "deletionTimestamp" in metadata:
        return ""
    node = (pod.get("spec") or {}).get("nodeName")
    where = f" on node {node}" if node else ""
    return f"{metadata['name']}{where} ({reason}): {status.get('message') or 'its node does not say why'}"


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _port(spec: Mapping[str, Any]) -> int | None:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    ports = (port for container in containers for port in container.get("ports") or ())
    return next((port["containerPort"] for port in ports if port.get("name") == PORT_NAME), None)


def _ready_since(pod: Mapping[str, Any], ready: Mapping[str, Any]) -> str:
    """Return since when a trimmed pod has its condition `ready`; empty: it has none.

    Its node says it, whose clock may be wrong; the time of the last change of its status is the API server's.
    """
    since, changed = ready.get("lastTransitionTime") or "", pod.get("statusChanged") or ""
    is_possible = not changed or pod["metadata"].get("creationTimestamp", "") <= since <= changed
    return since if is_possible or not since else str(changed)


def _waits_since(pod: Mapping[str, Any]) -> str:
    """Return since when a trimmed pod has waited for a node, or for its volumes there; empty: it does not wait.

    The scheduler or the node says it, whose clocks may be wrong: it was neither before the pod was made, nor after the
    last change of its status, both of which the API server says.
    """
    created = pod["metadata"].get("creationTimestamp") or ""
    for kind in ("PodScheduled", "PodReadyToStartContainers"):
        condition = condition_of(pod, kind)
        if condition.get("status") == "False":
            since = max(condition.get("lastTransitionTime") or "", created)
            return min(since, pod.get("statusChanged") or since)
    return created if is_unseen(pod) else ""


def usual_wait_seconds(pod: PodView, now: str) -> float:
    """Return the seconds from `now` (RFC 3339) for which the pod's wait is one that each pod has; 0: no longer."""
    if not pod.waits or pod.waits.reason not in _USUAL_SECONDS:
        return 0.0
    return max(0.0, _USUAL_SECONDS[pod.waits.reason] - seconds_between(pod.waits_since, now))


def is_unseen(pod: Mapping[str, Any]) -> bool:
    """Return True if no scheduler has said anything of the pod, and no node has it."""
    status = pod.get("status") or {}
    return not (status.get("conditions") or (pod.get("spec") or {}).get("nodeName") or status.get("containerStatuses"))


def views(service: LLMService, pods: Sequence[Mapping[str, Any]]) -> list[PodView]:
    """Return the views of a service's pods."""
    resource = gpu_resource(service.spec)
    found = [view(pod, resource) for pod in pods]
    holding = [each for each, pod in zip(found, pods, strict=True) if each.claims and not has_ended(pod)]
    return [_beside_other_nodes(each, holding, _shared_claim(service)) for each in found]


def _shared_claim(service: LLMService) -> str:
    """Return the name of the cache's claim if pods on several nodes may have it at a time; empty: they may not."""
    return "" if service.spec.cache.access_mode == "ReadWriteOnce" else cache_claim(service.name)


def _beside_other_nodes(pod: PodView, holding: Sequence[PodView], shared: str) -> PodView:
    """Return a pod that waits for its volumes, with the pod of the `holding` ones that has one on another node.

    Only an event says whether the volume cannot be attached to both ("Multi-Attach error"). The claim `shared` can.
    """
    if pod.waits is None or pod.waits.reason != Reason.WAITING_FOR_VOLUMES or not pod.node:
        return pod
    others = ((each, pod.claims & each.claims - {shared}) for each in holding if each.node not in ("", pod.node))
    first = min(((each.name, each.node, min(claims)) for each, claims in others if claims), default=None)
    if first is None:
        return pod
    name, node, claim = first
    sentence = (
        f"{pod.waits.message}. PersistentVolumeClaim {claim} is in use by pod {name} on node {node}: if its volume "
        "can be attached to one node only (a Multi-Attach error in the pod's events), it waits until that pod has "
        "ended; run all pods on one node (spec.scheduling.nodeSelector), or take a volume of access mode ReadWriteMany"
    )
    return replace(pod, waits=Problem(pod.waits.reason, sentence))


def condition_of(body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition `kind` of a live object; empty while it has none."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _state(pod: Mapping[str, Any], gpu_resource: str) -> tuple[LoadingPhase, Problem | None, Problem | None]:
    if is_unseen(pod):
        return LoadingPhase.PENDING, no_scheduler(pod), None
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return LoadingPhase.PENDING, why_unschedulable(pod, scheduled, gpu_resource), None
    if (first := _unfinished(pod)) is not None:
        return _before_the_engine(pod, first)
    container = engine_status(pod)
    if container is None:
        waits = _waits_for_sandbox(pod)
        return (LoadingPhase.PULLING if scheduled and not waits else LoadingPhase.PENDING), waits, None
    phase, waits, problem = _engine_state(pod, container)
    return phase, waits, problem or first_problem(pod["metadata"]["name"], sidecar_statuses(pod))


def _engine_state(
    pod: Mapping[str, Any], container: Mapping[str, Any]
) -> tuple[LoadingPhase, Problem | None, Problem | None]:
    name = pod["metadata"]["name"]
    state = container.get("state") or {}
    if waiting := state.get("waiting"):
        return _waiting_state(pod, waiting, container)
    if terminated := state.get("terminated"):
        return _phase_of_end(terminated, LoadingPhase.LOADING), None, exit_problem(name, container, terminated)
    if container.get("ready"):
        return _state_of_ready_engine(pod)
    if not container.get("started"):
        return LoadingPhase.LOADING, None, last_exit(name, container)
    if not _was_ready(pod, state):
        return LoadingPhase.WARMUP, None, last_exit(name, container)
    waits = Problem(Reason.NO_READY_REPLICA, f"pod {name} has loaded its model, and is not ready to take requests")
    return LoadingPhase.NOT_READY, waits, None if _is_old(pod, container) else last_exit(name, container)


def _state_of_ready_engine(pod: Mapping[str, Any]) -> tuple[LoadingPhase, Problem | None, Problem | None]:
    ready = condition_of(pod, "Ready")
    if ready.get("status") == "False":
        return LoadingPhase.NOT_READY, *why_unready(pod, ready, condition_of(pod, "ContainersReady"))
    return LoadingPhase.SERVING, None, None


def _was_ready(pod: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return True if a container in this `state`, not ready now, became unready after its start."""
    return seconds_between((state.get("running") or {}).get("startedAt"), _unready_since(pod)) > 0


def _is_old(pod: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Return True if the container's last end is too long ago to explain why it is unready now."""
    ended = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
    return seconds_between(ended, _unready_since(pod)) > _OLD_SECONDS


def _unready_since(pod: Mapping[str, Any]) -> str | None:
    ready = condition_of(pod, "Ready")
    return ready.get("lastTransitionTime") if ready.get("status") == "False" else None


def _unfinished(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the init container for which the engine waits: it has not ended, or, of sidecars, not started; None: none.

    A sidecar that fails later is started again while the engine runs, or is itself started again.
    """
    containers: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("initContainerStatuses") or ()
    sidecars, begun = {each["name"] for each in sidecar_statuses(pod)}, _has_begun(pod)
    for container in containers:
        ended = ((container.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
        goes_on = begun or has_started(container)
        if not (goes_on if container["name"] in sidecars else ended):
            return container
    return None


def _has_begun(pod: Mapping[str, Any]) -> bool:
    """Return True if the engine runs, or ends again and again."""
    waiting = ((engine_status(pod) or {}).get("state") or {}).get("waiting") or {}
    return running_engine(pod) is not None or waiting.get("reason") == "CrashLoopBackOff"


def _before_the_engine(
    pod: Mapping[str, Any], container: Mapping[str, Any]
) -> tuple[LoadingPhase, Problem | None, Problem | None]:
    """Return the state of a pod whose init `container` is at work, or has failed."""
    name, state = pod["metadata"]["name"], container.get("state") or {}
    fetches = container["name"] == FETCH
    if waiting := state.get("waiting"):
        return _waiting_state(pod, waiting, container)
    phase = LoadingPhase.DOWNLOADING if fetches else LoadingPhase.PULLING
    if terminated := state.get("terminated"):
        return _phase_of_end(terminated, phase), None, exit_problem(name, container, terminated)
    waits = None if fetches else Problem(Reason.DEPLOYING, f"pod {name} runs its init container {container['name']}")
    return phase, waits, last_exit(name, container)


def _waiting_state(
    pod: Mapping[str, Any], waiting: Mapping[str, Any], container: Mapping[str, Any]
) -> tuple[LoadingPhase, Problem | None, Problem | None]:
    """Return the state of a pod whose `container` is `waiting` for its image, or to start again after an error."""
    problem = waiting_problem(pod["metadata"]["name"], waiting, container)
    failed, waits = problem is not None and problem.reason != Reason.PULL_FAILED, _waits_for_sandbox(pod)
    begins = LoadingPhase.PENDING if waits and not problem else LoadingPhase.PULLING  # no image is pulled before that
    return (LoadingPhase.FAILED if failed else begins), waits, problem


def _phase_of_end(terminated: Mapping[str, Any], phase: LoadingPhase) -> LoadingPhase:
    """Return the phase of a pod whose container ended in `phase`; one that was asked to end has not failed."""
    return phase if terminated.get("exitCode") in ASKED_TO_END else LoadingPhase.FAILED


def _waits_for_sandbox(pod: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a pod whose sandbox does not start; None if it has started.

    A Secret, ConfigMap or claim may be missing, or the node's network or runtime may fail. The pod's status does not
    say which; only its events do.
    """
    if condition_of(pod, "PodReadyToStartContainers").get("status") != "False":
        return None
    name, spec = pod["metadata"]["name"], pod.get("spec") or {}
    names = mounted_objects(spec.get("volumes") or ())
    if not names:
        what = f"node {spec.get('nodeName')} has not started pod {name} yet: its network, runtime or a volume may fail"
        return Problem(Reason.NO_SANDBOX, f"{what}; kubectl describe pod {name} says which")
    asked = "which is missing" if len(names) > 1 else "whether it is missing"
    message = f"pod {name} waits for its volumes: {', '.join(names)}; kubectl describe pod {name} says {asked}"
    return Problem(Reason.WAITING_FOR_VOLUMES, message)


def mounted_objects(volumes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the Secrets, ConfigMaps and claims among a pod's volumes, as in `Secret keys`."""
    secrets = [f"Secret {volume['secret']['secretName']}" for volume in volumes if "secret" in volume]
    maps = [f"ConfigMap {volume['configMap']['name']}" for volume in volumes if "configMap" in volume]
    return [*secrets, *maps, *(f"PersistentVolumeClaim {claim}" for claim in _claims(volumes))]


def _claims(volumes: Sequence[Mapping[str, Any]]) -> list[str]:
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]
