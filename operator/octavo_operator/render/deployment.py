"""The Deployment of the engine: strategy, pod template, scheduling."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec, Rollout
from octavo_operator.api.names import labels, selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.container import PRE_STOP_SECONDS, engine_container, gpu_resource
from octavo_operator.render.metadata import child_metadata
from octavo_operator.render.volumes import mounts

USER = 10001
DRAIN_SLACK_SECONDS = 20
DEADLINE_SLACK_SECONDS = 60  # for scheduling and pulling, beside loading


def deployment(llmservice: LLMService, default_image: str) -> dict[str, Any]:
    """A Deployment named like the LLMService; `default_image` is used where the spec names none."""
    spec = llmservice.spec
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(llmservice),
        "spec": {
            "replicas": desired_replicas(spec),
            # Never `false`: the API server drops it, and each apply would look like a change.
            **({"paused": True} if spec.rollout.paused else {}),
            "strategy": strategy(spec.rollout),
            "minReadySeconds": 5,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": spec.rollout.startup_timeout_seconds + DEADLINE_SLACK_SECONDS,
            "selector": {"matchLabels": selector(llmservice.name)},
            "template": {
                "metadata": {"labels": labels(llmservice.name)},
                "spec": pod_spec(llmservice, spec.engine.image or default_image),
            },
        },
    }


def desired_replicas(spec: LLMServiceSpec) -> int:
    """How many pods should be. Until autoscaling acts, it holds its lower bound, but never nothing."""
    if spec.suspend:
        return 0
    if spec.autoscaling is not None:
        return max(1, spec.autoscaling.min_replicas)
    return 1 if spec.replicas is None else spec.replicas


def strategy(rollout: Rollout) -> dict[str, Any]:
    """How pods are replaced. Auto surges: going on in place where no GPU is free is not decided here."""
    surge, unavailable = rollout.max_surge, rollout.max_unavailable
    if rollout.strategy == "InPlace":
        surge, unavailable = 0, max(1, unavailable)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def pod_spec(llmservice: LLMService, image: str) -> dict[str, Any]:
    """The pod: restricted, without access to the API server, with time to drain."""
    spec = llmservice.spec
    mounted = mounts(llmservice)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS + spec.rollout.drain_timeout_seconds + DRAIN_SLACK_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **scheduling(llmservice),
        "containers": [engine_container(llmservice, image, mounted)],
        "volumes": [mount.volume() for mount in mounted],
    }
    if spec.engine.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.engine.image_pull_secrets]
    if spec.accelerator.claims:
        pod["resourceClaims"] = [claim.as_object() for claim in spec.accelerator.claims]
    return pod


def scheduling(llmservice: LLMService) -> dict[str, Any]:
    """Where the pod may run; only what is set, since each default belongs to the API server."""
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
    return [{"key": gpu_resource(llmservice), "operator": "Exists", "effect": "NoSchedule"}]


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
