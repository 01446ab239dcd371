"""The Deployment of the engine: strategy, pod template, scheduling."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec, Rollout
from octavo_operator.api.names import GROUP, pod_labels, selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.adapters import own_mounts
from octavo_operator.render.container import PRE_STOP_SECONDS, engine_container, gpu_resource
from octavo_operator.render.fetch import init_containers
from octavo_operator.render.metadata import child_metadata
from octavo_operator.render.pod_template import merge_pod_template
from octavo_operator.render.scaler import is_autoscaled
from octavo_operator.render.volumes import USER, mounts

DRAIN_SLACK_SECONDS = 20
MIN_READY_SECONDS = 5
"""The time for which a pod must be ready to count as available."""
DEADLINE_SLACK_SECONDS = 60  # for scheduling and pulling, beside loading


def deployment(
    llmservice: LLMService,
    default_image: str,
    in_place: bool = False,
    fixed_user: bool = True,
    tried: str | None = None,
) -> dict[str, Any]:
    """Return a Deployment named like the LLMService; `default_image` is used where the spec names none.

    `in_place`: a rollout of strategy Auto found no GPU for a surge and goes on without. `fixed_user`: pods run as the
    image's user, else as one that the cluster chooses. `tried`: the value of an annotation; when it changes, the
    ReplicaSet tries at once to make the pods that it was refused.
    """
    spec = llmservice.spec
    replicas = desired_replicas(spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            **child_metadata(llmservice),
            **({"annotations": {f"{GROUP}/tried": tried}} if tried else {}),
        },
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            # Never `false`: the API server drops it, and each apply would look like a change.
            **({"paused": True} if spec.rollout.paused else {}),
            "strategy": strategy(spec.rollout, in_place),
            "minReadySeconds": MIN_READY_SECONDS,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": progress_deadline(spec.rollout),
            "selector": {"matchLabels": selector(llmservice.name)},
            "template": pod_template(llmservice, spec.engine.image or default_image, fixed_user),
        },
    }


def desired_replicas(spec: LLMServiceSpec) -> int | None:
    """Return the number of pods that the spec asks for; None: an autoscaler decides."""
    if spec.suspend:
        return 0
    if is_autoscaled(spec):
        return None
    return spec.replicas


def strategy(rollout: Rollout, in_place: bool = False) -> dict[str, Any]:
    """Return the Deployment's strategy; `in_place`: old pods are stopped first, also without strategy InPlace."""
    surge, unavailable = rollout.max_surge, rollout.max_unavailable
    if in_place or rollout.strategy == "InPlace":
        surge, unavailable = 0, max(1, unavailable)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def progress_deadline(rollout: Rollout) -> int:
    """Return after how many seconds without progress a rollout has failed: all it may wait for, and some slack.

    A pod loads; where old pods end first they may drain before it; with Auto it may have waited for a GPU before that.
    """
    seconds = rollout.startup_timeout_seconds + DEADLINE_SLACK_SECONDS
    if rollout.strategy != "Surge":
        seconds += grace_period(rollout)
    if rollout.strategy == "Auto":
        seconds += rollout.surge_timeout_seconds
    return seconds


def grace_period(rollout: Rollout) -> int:
    """Return the seconds that a pod has to end: preStop, draining, and some slack."""
    return PRE_STOP_SECONDS + rollout.drain_timeout_seconds + DRAIN_SLACK_SECONDS


def pod_template(llmservice: LLMService, image: str, fixed_user: bool = True) -> dict[str, Any]:
    """Return the template of the pods, with the spec's own `podTemplate` over it."""
    template = {"metadata": {"labels": pod_labels(llmservice.name)}, "spec": pod_spec(llmservice, image, fixed_user)}
    patch = llmservice.spec.pod_template
    return merge_pod_template(template, patch.as_patch()) if patch else template


def pod_spec(llmservice: LLMService, image: str, fixed_user: bool = True) -> dict[str, Any]:
    """Return the pod: restricted, without access to the API server, with time to drain."""
    spec = llmservice.spec
    mounted = mounts(llmservice)
    before = init_containers(llmservice, image, mounted)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period(spec.rollout),
        "securityContext": {
            "runAsNonRoot": True,
            **({"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER} if fixed_user else {}),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **scheduling(llmservice),
        **({"initContainers": before} if before else {}),
        "containers": [engine_container(llmservice, image, mounted)],
        "volumes": [mount.volume() for mount in (*mounted, *own_mounts(llmservice))],
    }
    if spec.engine.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.engine.image_pull_secrets]
    if spec.accelerator.claims:
        pod["resourceClaims"] = [claim.as_object() for claim in spec.accelerator.claims]
    return pod


def scheduling(llmservice: LLMService) -> dict[str, Any]:
    """Return the pod's scheduling fields, only those that are set, since each default belongs to the API server."""
    wanted = llmservice.spec.scheduling
    fields = {
        "nodeSelector": dict(wanted.node_selector),
        "tolerations": [*_gpu_toleration(llmservice), *(toleration.as_object() for toleration in wanted.tolerations)],
        "affinity": wanted.affinity,
        "topologySpreadConstraints": _topology_spread(llmservice),
        "priorityClassName": wanted.priority_class_name,
        "runtimeClassName": wanted.runtime_class_name,
        "schedulerName": wanted.scheduler_name,
    }
    return {name: value for name, value in fields.items() if value}


def _gpu_toleration(llmservice: LLMService) -> list[dict[str, Any]]:
    accelerator = llmservice.spec.accelerator
    if accelerator.claims or accelerator.count == 0:
        return []
    return [{"key": gpu_resource(llmservice.spec), "operator": "Exists", "effect": "NoSchedule"}]


def _topology_spread(llmservice: LLMService) -> list[dict[str, Any]]:
    own_pods = {"matchLabels": selector(llmservice.name)}
    constraints = llmservice.spec.scheduling.topology_spread_constraints
    if constraints is not None:
        return [{"labelSelector": own_pods, **constraint.as_object()} for constraint in constraints]
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": own_pods,
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
