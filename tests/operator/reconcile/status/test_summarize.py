"""Summaries for `kubectl get llms` of pods and Deployments as Kubernetes reports them: pure functions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.resource import LLMService, parse
from octavo_operator.api.status import Condition, LLMServiceStatus
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.kinds import BY_NAME, POD
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.pods.adapter_report import AdapterReport, ReportedAdapter
from octavo_operator.reconcile.pods.container_problem import last_message
from octavo_operator.reconcile.pods.load_report import LoadReport
from octavo_operator.reconcile.pods.pod_view import view
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.status.adapter_states import MOST_ROWS
from octavo_operator.reconcile.status.summarize import Result, invalid_status, summarize
from octavo_operator.render.adapters import version_of
from tests.operator.bad_llmservices import VALID, merged

NOW = "2026-01-01T00:00:00Z"
IMAGE = "octavo-engine:1"
GPU = "nvidia.com/gpu"


def service(status: dict[str, Any] | None = None, **fields: Any) -> LLMService:
    metadata = {"uid": "u1", "generation": 3, "namespace": "llm"}
    return parse(merged(VALID, {"metadata": metadata, "spec": fields, "status": status or {}}))


def pod(
    name: str = "good-1", *, container: dict[str, Any] | None = None, revision: str = "r1", **status: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {"conditions": [{"type": "PodScheduled", "status": "True"}], **status}
    if container is not None:
        found["containerStatuses"] = [{"name": "engine", "image": "octavo-engine:1", **container}]
        ready = "True" if container.get("ready") else "False"
        found["conditions"] = [*found["conditions"], {"type": "Ready", "status": ready}]
    metadata = {"name": name, "labels": {"pod-template-hash": revision}, "creationTimestamp": NOW}
    return {"metadata": metadata, "status": found}


def fetching(container: dict[str, Any], name: str = "fetch", **status: Any) -> dict[str, Any]:
    """A pod whose init container is `container`, and whose engine waits for it."""
    waiting = {"state": {"waiting": {"reason": "PodInitializing"}}, "started": False, "ready": False}
    first = [{"name": name, "image": "octavo-engine:1", **container}]
    return pod(container=waiting, initContainerStatuses=first, **status)


RUNNING = {"state": {"running": {}}, "started": False, "ready": False}
SERVING = {"state": {"running": {}}, "started": True, "ready": True}
NO_GPU = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                          "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}]}  # fmt: skip


def exited(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    terminated = {"exitCode": code, "message": message, "reason": reason}
    return {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": terminated},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def deployment(
    ready: int = 0, updated: int = 1, total: int = 1, **status: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    counts = {"replicas": total, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready}
    found = {"metadata": {"name": "good", "generation": 2}, "status": {"observedGeneration": 2, **counts, **status}}
    return {("Deployment", "good"): found}


def summary(
    *pods: dict[str, Any],
    of: LLMService | None = None,
    children: dict[tuple[str, str], dict[str, Any]] | None = None,
    problem: Problem | None = None,
) -> LLMServiceStatus:
    return summarize(of or service(), Observation({}, children or {}, pods), IMAGE, Result(problem), NOW)


def condition(status: LLMServiceStatus, kind: ConditionType) -> Condition:
    return next(found for found in status.conditions if found.type == kind)


PHASES = [
    ("no pod", [], "Pending", None),
    ("not looked at by the scheduler", [{"metadata": {"name": "p"}, "status": {}}], "Pending", None),
    ("no GPU", [pod(**NO_GPU)], "Pending", Reason.WAITING_FOR_GPU),
    ("scheduled", [pod()], "Pulling", None),
    ("creating", [pod(container=waiting("ContainerCreating"))], "Pulling", None),
    ("loading", [pod(container=RUNNING)], "Loading", None),
    ("warming up", [pod(container={**RUNNING, "started": True})], "Warmup", None),
    ("serving", [pod(container=SERVING)], "Serving", None),
    ("ended before, and loading again", [pod(container={**exited(4), **RUNNING})], "Loading", None),
    ("does not fit, again and again", [pod(container=exited(4, "needs 16 GiB"))], "Failed", Reason.OUT_OF_MEMORY),
    ("just ended", [pod(container={"state": {"terminated": {"exitCode": 3}}})], "Failed", Reason.MODEL_NOT_FOUND),
    ("cannot be started", [pod(container=waiting("RunContainerError", "no such file"))], "Failed", Reason.CRASH_LOOP),
    ("ended unseen", [pod(container=waiting("CrashLoopBackOff", "back-off"))], "Failed", Reason.CRASH_LOOP),
    ("cannot fetch", [fetching(exited(3, "no such repository"))], "Failed", Reason.MODEL_NOT_FOUND),
    ("no image", [pod(container=waiting("ImagePullBackOff", "back-off"))], "Pulling", Reason.PULL_FAILED),
    ("one fails, one loads", [pod("a", container=exited(5)), pod("b", container=RUNNING)], "Loading", None),
    ("one ahead of the other", [pod("a", container=RUNNING), pod("b", container=SERVING)], "Serving", None),
]


def test_the_phase_is_serving_only_with_a_ready_replica_beside_it() -> None:
    """The Deployment counts a pod a moment after its own condition says that it is ready."""
    status = summary(pod(container=SERVING), children=deployment(ready=0))
    assert (status.ready_replicas, status.loading.phase) == (0, "NotReady")


@pytest.mark.parametrize(("pods", "phase", "reason"), [row[1:] for row in PHASES], ids=[row[0] for row in PHASES])
def test_phase_is_that_of_the_furthest_pod(pods: list[dict[str, Any]], phase: str, reason: Reason | None) -> None:
    status = summary(*pods, children=deployment(ready=int(phase == "Serving")))
    assert status.loading.phase == phase
    if reason:
        assert condition(status, ConditionType.READY).reason == reason
    if reason == Reason.WAITING_FOR_GPU:
        assert condition(status, ConditionType.PROGRESSING).reason == reason


TROUBLES = [
    (exited(2, "octavo-engine serve: unknown flag --x"), Reason.CONFIGURATION_ERROR, "unknown flag --x"),
    (exited(3, "no such repository"), Reason.MODEL_NOT_FOUND, "no such repository"),
    (exited(4, "needs 16.1 GiB, has 8.0 GiB"), Reason.OUT_OF_MEMORY, "needs 16.1 GiB"),
    (
        exited(2, "--max-model-len 9 is too long; lower --max-model-len, or use --device cpu"),
        Reason.CONFIGURATION_ERROR,
        "cpu (--max-model-len is spec.engine.maxModelLength, --device goes into spec.engine.extraArgs)",
    ),
    (
        exited(4, "it needs 2 GiB (--dtype). Try --max-num-seqs 1, or a smaller --swap-space or --kv-cache-memory."),
        Reason.OUT_OF_MEMORY,
        "memory. (--max-num-seqs is spec.engine.maxConcurrentRequests, --swap-space and --kv-cache-memory go into "
        "spec.engine.extraArgs)",
    ),
    (
        exited(3, "set HF_ENDPOINT to a mirror"),
        Reason.MODEL_NOT_FOUND,
        "a mirror (HF_ENDPOINT is spec.model.source.huggingFace.endpoint)",
    ),
    (exited(5), Reason.ENGINE_STALLED, "exit code 5"),
    (exited(0), Reason.PROBE_FAILED, "raise spec.rollout.startupTimeoutSeconds"),
    (exited(143), Reason.PROBE_FAILED, "raise spec.rollout.startupTimeoutSeconds"),
    (exited(139), Reason.CRASH_LOOP, "exit code 139"),
    (exited(137, "GET /health 200"), Reason.CRASH_LOOP, "GET /health 200; something killed it: kubectl describe pod"),
    (exited(137), Reason.CRASH_LOOP, "if none had, its node probably had no memory left (spec.resources.requests.mem"),
    (exited(137, reason="OOMKilled"), Reason.OUT_OF_MEMORY, "memory limit: raise spec.resources.limits.memory"),
    (
        {**exited(137, reason="OOMKilled"), "resources": {"limits": {"memory": "200Mi"}}},
        Reason.OUT_OF_MEMORY,
        "memory limit of 200Mi (where the spec sets none, a LimitRange or an admission webhook does; a pod keeps what "
        "it was created with: after a change, kubectl delete pod good-1): raise",
    ),
    (waiting("ErrImageNeverPull", "image is not present"), Reason.PULL_FAILED, "octavo-engine:1"),
    (waiting("ImagePullBackOff", "back-off pulling"), Reason.PULL_FAILED, "cannot pull"),
    *(
        (waiting("ErrImagePull", f'Back-off pulling image "{image}": not found'), Reason.PULL_FAILED, f"pull {said}:")
        for image, said in (
            ("docker.io/library/octavo-engine:1", "octavo-engine:1"),
            ("octavo-engine@sha256:1f", "octavo-engine:1"),
            ("registry.example.com/weights:1", "registry.example.com/weights:1, which it has as a volume"),
            ("example.com/my-octavo-engine:1", "example.com/my-octavo-engine:1, which it has as a volume"),
        )
    ),
    *(
        (waiting("ErrImagePull", said), Reason.PULL_FAILED, "Secrets in spec.engine.imagePullSecrets")
        for said in (
            "token: 401 Unauthorized",
            "unauthorized: authentication required",
            "denied: requested access to the resource is denied",
        )
    ),
    *(
        (waiting("CreateContainerConfigError", said), reason, said)
        for said, reason in (
            ('secret "configmap" not found', Reason.SECRET_MISSING),
            ('configmap "secret" not found', Reason.CONFIG_MAP_MISSING),
            ("couldn't find key secret in ConfigMap llm/settings", Reason.CONFIG_MAP_MISSING),
            ("container has runAsNonRoot and image will run as root", Reason.CONFIGURATION_ERROR),
        )
    ),
    *(
        (
            container,
            reason,
            "(kubectl get nodes -L kubernetes.io/arch): choose one that is, such as by spec.engine.image",
        )
        for container, reason in (
            (waiting("RunContainerError", 'exec: "/bin/engine": exec format error'), Reason.CRASH_LOOP),
            (exited(128, 'runc create failed: exec: "/bin/engine": exec format error'), Reason.CRASH_LOOP),
            (exited(255, "exec /bin/engine: exec format error"), Reason.CRASH_LOOP),
            (waiting("ErrImagePull", "no match for platform in manifest: not found"), Reason.PULL_FAILED),
        )
    ),
    ({"state": {"terminated": {"exitCode": 3, "message": "gone"}}}, Reason.MODEL_NOT_FOUND, "gone"),
    ({**RUNNING, "lastState": {"terminated": {"exitCode": 4, "message": "too big"}}}, Reason.OUT_OF_MEMORY, "too big"),
]


@pytest.mark.parametrize(
    ("container", "reason", "words"), TROUBLES, ids=[f"{row[1]}-{n}" for n, row in enumerate(TROUBLES)]
)
def test_a_failed_container_says_why(container: dict[str, Any], reason: Reason, words: str) -> None:
    status = summary(pod(container=container), children=deployment())
    for kind, value in ((ConditionType.DEGRADED, "True"), (ConditionType.READY, "False")):
        found = condition(status, kind)
        assert (found.status, found.reason) == (value, reason)
        assert words in found.message


def test_what_has_no_probes_was_killed_by_none() -> None:
    """Neither time to load nor CPU helps the container that fetches the model, or the one that fetches adapters."""
    for name in ("fetch", "adapters"):
        found = condition(summary(fetching(exited(137), name), children=deployment()), ConditionType.DEGRADED).message
        assert found.endswith(
            f"; something killed its container {name}: probably its node had no memory left "
            "(spec.resources.requests.memory), as the node's events say then"
        )


def test_the_memory_limit_of_what_fetches_adapters_is_not_that_of_the_spec() -> None:
    killed = {**exited(137, reason="OOMKilled"), "resources": {"limits": {"memory": "1Gi"}}}
    found = condition(summary(fetching(killed, "adapters"), children=deployment()), ConditionType.DEGRADED)
    assert found.reason == Reason.OUT_OF_MEMORY
    assert found.message == (
        "container adapters of pod good-1 was killed for exceeding its memory limit of 1Gi: raise "
        "resources.limits.memory of the init container adapters in spec.podTemplate"
    )


def unready(finished: str, unready_since: str, started: str = "2026-01-01T00:00:10Z") -> dict[str, Any]:
    """A pod that runs, with an engine that ended once, and is not ready."""
    container = {
        "state": {"running": {"startedAt": started}},
        "lastState": {"terminated": {"exitCode": 139, "finishedAt": finished}},
    }
    found = pod(container={**container, "started": True, "ready": False})
    found["status"]["conditions"][-1]["lastTransitionTime"] = unready_since
    return found


def test_a_pod_that_was_ready_is_not_warming_up_and_an_old_crash_is_no_news() -> None:
    status = summary(unready("2026-01-01T00:00:09Z", "2026-03-01T00:00:00Z"), children=deployment())
    assert condition(status, ConditionType.DEGRADED).status == "False"
    assert status.loading.phase == "NotReady"
    assert condition(status, ConditionType.READY).reason == Reason.NO_READY_REPLICA
    assert "is not ready to take requests" in condition(status, ConditionType.READY).message
    assert condition(status, ConditionType.MODEL_LOADED).status == "True"


@pytest.mark.parametrize("since", ["2026-01-01T00:05:00Z", "2026-01-01T00:00:09Z"])
def test_a_crash_a_moment_ago_is_news(since: str) -> None:
    """Also where the engine runs again, and has become unready once more, or was not ready since."""
    status = summary(unready("2026-01-01T00:00:09Z", since), children=deployment())
    assert condition(status, ConditionType.DEGRADED).reason == Reason.CRASH_LOOP
    assert status.loading.phase == ("NotReady" if since.endswith("05:00Z") else "Warmup")


def held_back(*others: dict[str, Any], **ready: str) -> dict[str, Any]:
    """A pod whose engine is ready and that is not, beside `others`, containers that a podTemplate has added."""
    found = pod(container=SERVING)
    found["spec"] = {"nodeName": "gpu-7"}
    found["status"]["containerStatuses"] += others
    containers = {"type": "ContainersReady", "status": "False" if others else "True"}
    scheduled = found["status"]["conditions"][0]
    found["status"]["conditions"] = [scheduled, containers, {"type": "Ready", "status": "False", **ready}]
    return found


GATES = {"reason": "ReadinessGatesNotReady", "message": 'readiness gate "lb/ready" does not exist'}
PROXY = {"name": "proxy", "image": "proxy:1", "ready": False}
PROXY_CRASHES = {**PROXY, **exited(2, "no such host")}
UNREADY = [
    (held_back(), Reason.NODE_LOST, False, "its node gpu-7 has not answered for a while"),
    (held_back(**GATES), Reason.NO_READY_REPLICA, False, 'readiness gate "lb/ready" does not exist'),
    (held_back(PROXY), Reason.NO_READY_REPLICA, False, "its container proxy is not"),
    (held_back(PROXY_CRASHES), Reason.CRASH_LOOP, True, "proxy of pod good-1 ended with exit code 2: no such"),
    (held_back({**PROXY, **waiting("ImagePullBackOff")}), Reason.PULL_FAILED, True, "cannot pull proxy:1"),
]


@pytest.mark.parametrize(("pod", "reason", "degraded", "words"), UNREADY, ids=[row[3] for row in UNREADY])
def test_a_pod_that_is_not_ready_though_its_engine_is_says_why(
    pod: dict[str, Any], reason: Reason, degraded: bool, words: str
) -> None:
    status = summary(trimmed(POD, pod), children=deployment())
    assert status.loading.phase == "NotReady"
    ready = condition(status, ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", reason)
    assert words in ready.message
    assert condition(status, ConditionType.DEGRADED).status == str(degraded)
    assert condition(status, ConditionType.MODEL_LOADED).status == "True"


def test_a_lost_node_is_named_before_the_pod_that_finds_none() -> None:
    """It is why fewer replicas serve, also while a pod of a newer revision waits, for which the rollout waits."""
    newer = pod("good-2", revision="r2", **NO_GPU)
    newer["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    status = summary(trimmed(POD, held_back()), newer, children=deployment())
    assert condition(status, ConditionType.READY).reason == Reason.NODE_LOST
    assert condition(status, ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_GPU


def test_all_eight_conditions_are_always_there() -> None:
    for status in (
        summary(),
        summary(pod(container=SERVING), children=deployment(ready=1)),
        summary(of=service(suspend=True)),
    ):
        assert [found.type for found in status.conditions] == list(ConditionType)
        assert all(found.observed_generation == 3 and found.message for found in status.conditions)


def test_ready_for_less_than_five_seconds_is_not_called_without_an_answer() -> None:
    status = summary(pod(container=SERVING), children=deployment(ready=1, availableReplicas=0))
    available = condition(status, ConditionType.AVAILABLE)
    assert (available.status, available.message) == (
        "False",
        "1 replica is ready, but Deployment good counts a replica as available only after 5 s",
    )


def test_serving() -> None:
    status = summary(pod(container=SERVING), children=deployment(ready=1))
    assert condition(status, ConditionType.READY).reason == Reason.SERVING
    assert condition(status, ConditionType.AVAILABLE).status == "True"
    assert condition(status, ConditionType.PROGRESSING).reason == Reason.DEPLOYED
    assert condition(status, ConditionType.MODEL_LOADED).status == "True"
    assert condition(status, ConditionType.DEGRADED).status == "False"
    assert (status.ready_replicas, status.replicas, status.url) == (1, 1, "http://good.llm.svc:80/v1")
    assert (status.engine_image, status.selector) == (
        IMAGE,
        "octavo.dev/llmservice=good,app.kubernetes.io/component=engine,octavo.dev/track=stable",
    )


def test_replicas_are_those_that_there_are() -> None:
    status = summary(pod(container=SERVING), of=service(replicas=5), children=deployment(ready=1, updated=3, total=3))
    assert (status.replicas, status.desired_replicas) == (3, 5)
    pods = [pod(name, container=SERVING) for name in ("a", "b", "c")]
    status = summary(*pods, of=service(replicas=1), children=deployment(ready=3, updated=3, total=3))
    assert condition(status, ConditionType.PROGRESSING).message.startswith("1 of 1 replicas of the newest revision")


def test_a_new_pod_that_waits_is_not_counted_as_if_it_served() -> None:
    pods = [pod("old", container=SERVING, revision="r1"), pod("new", revision="r2", **NO_GPU)]
    pods[1]["metadata"]["creationTimestamp"] = "2026-01-01T00:01:00Z"
    ready = condition(summary(*pods, children=deployment(ready=1, updated=1, total=2)), ConditionType.READY)
    assert ready.message == "1 replica serves while 0 of 1 replicas of the newest revision are ready"


def test_ready_stays_true_while_new_pods_come() -> None:
    pods = [pod("old", container=SERVING, revision="r1"), pod("new", container=RUNNING, revision="r2")]
    status = summary(*pods, children=deployment(ready=1, updated=1, total=2))
    assert condition(status, ConditionType.READY).status == "True"
    assert condition(status, ConditionType.READY).reason == Reason.ROLLING_OUT
    assert condition(status, ConditionType.PROGRESSING).status == "True"


PROGRESS = [
    ("0 of 3 replicas of the newest revision are ready; the next one is Pending", 0, 0, []),
    ("0 of 3 replicas of the newest revision are ready; the next one is Loading", 0, 1, [RUNNING]),
    ("1 of 3 replicas of the newest revision are ready; the next one is Pending", 1, 1, [SERVING]),
    ("1 of 3 replicas of the newest revision are ready; the next one is Loading", 1, 2,
     [SERVING, RUNNING]),
    ("3 of 3 replicas of the newest revision are ready", 3, 3, [SERVING] * 3),
]  # fmt: skip


@pytest.mark.parametrize(("message", "ready", "updated", "new"), PROGRESS, ids=[row[0] for row in PROGRESS])
def test_progressing_says_how_far_the_new_pods_are(
    message: str, ready: int, updated: int, new: list[dict[str, Any]]
) -> None:
    """The old pods, which serve, are always further."""
    pods = [pod(f"new-{index}", container=container, revision="r2") for index, container in enumerate(new)]
    for each in pods:
        each["metadata"]["creationTimestamp"] = "2026-01-01T00:01:00Z"
    children = deployment(ready=ready + 1, updated=updated, total=updated + 1)
    status = summary(pod("old", container=SERVING), *pods, of=service(replicas=3), children=children)
    assert condition(status, ConditionType.PROGRESSING).message == message


def test_more_or_fewer_replicas_are_no_rollout() -> None:
    status = summary(pod("old", container=SERVING), children=deployment(ready=1), of=service(replicas=3))
    ready = condition(status, ConditionType.READY)
    assert (ready.reason, ready.message) == (Reason.FEWER_REPLICAS, "1 of 3 replicas serve")
    pods = pod("a", container=SERVING), pod("b", container=SERVING)
    fewer = summary(*pods, children=deployment(ready=2, updated=2, total=2), of=service(replicas=1))
    ready = condition(fewer, ConditionType.READY)
    assert (ready.reason, ready.message) == (Reason.SERVING, "1 of 1 replicas serve good")


def test_ready_is_not_taken_away_by_a_new_pod_that_fails() -> None:
    pods = [pod("old", container=SERVING, revision="r1"), pod("new", container=exited(3, "gone"), revision="r2")]
    status = summary(*pods, children=deployment(ready=1, updated=1, total=2))
    assert condition(status, ConditionType.READY).status == "True"
    assert condition(status, ConditionType.DEGRADED).reason == Reason.MODEL_NOT_FOUND


def test_a_deployment_that_is_ahead_of_the_pods_makes_nothing_ready() -> None:
    """Seen on a busy cluster: Ready was True, ModelLoaded False and the phase Warmup."""
    status = summary(pod(container=RUNNING), children=deployment(ready=1))
    assert condition(status, ConditionType.READY).status == "False"
    assert condition(status, ConditionType.MODEL_LOADED).status == "False"
    assert condition(status, ConditionType.AVAILABLE).status == "False"
    assert (status.ready_replicas, status.available_replicas) == (0, 0)
    assert (
        condition(summary(pod(container=SERVING), children=deployment(ready=1)), ConditionType.READY).status == "True"
    )


def test_pods_that_may_not_be_made() -> None:
    said = "cpu max limit to request ratio per Container is 2, but provided ratio is 10.000000"
    refused = {"type": "ReplicaFailure", "status": "True", "message": said}
    status = summary(children=deployment(total=0, updated=0, conditions=[refused]))
    found = condition(status, ConditionType.DEGRADED)
    assert (found.reason, said in found.message) == (Reason.POLICY_DENIED, True)
    assert "spec.resources.requests.cpu to at least its limit divided by 2" in found.message
    assert condition(status, ConditionType.PROGRESSING).status == "True"  # the API server may accept them next time
    refused["message"] = (
        "forbidden: [cpu max limit to request ratio per Pod is 2, but no limit is specified or limit is 0"
    )
    found = condition(summary(children=deployment(total=0, updated=0, conditions=[refused])), ConditionType.DEGRADED)
    assert "set spec.resources.limits.cpu" in found.message
    unset = 'pods "good-1" is forbidden: failed quota: cores: must specify limits.cpu for: adapters'
    assert advice(unset).endswith("ResourceQuota cores wants in spec.resources, or, for containers adapters and "
                                  "own-cache, in spec.podTemplate")  # fmt: skip


def test_a_replica_set_that_may_not_be_made() -> None:
    said = 'replicasets.apps "good-1" is forbidden: exceeded quota: few, requested: count/replicasets.apps=1, used: '
    refused = {"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": said}
    status = summary(children=deployment(total=0, updated=0, conditions=[refused]))
    for kind in (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.DEGRADED, ConditionType.STALLED):
        found = condition(status, kind)
        assert (found.reason, "in ResourceQuota few" in found.message) == (Reason.POLICY_DENIED, True)


LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
OUT_OF_TIME = {ConditionType.READY: "False", ConditionType.PROGRESSING: "False", ConditionType.DEGRADED: "True"}


@pytest.mark.parametrize("ready", [0, 1])
def test_out_of_time_takes_ready_away_and_names_the_knob(ready: int) -> None:
    pods = [pod("new", container=RUNNING, revision="r2"), *[pod("old", container=SERVING)] * ready]
    status = summary(*pods, children=deployment(ready=ready, total=1 + ready, conditions=[LATE]))
    for kind, value in OUT_OF_TIME.items():
        found = condition(status, kind)
        assert (found.status, found.reason) == (value, Reason.PROGRESS_DEADLINE_EXCEEDED)
        assert "rollout.startupTimeoutSeconds" in found.message


def test_out_of_time_says_what_the_pod_waits_for() -> None:
    status = summary(pod(**NO_GPU), children=deployment(conditions=[LATE]))
    assert condition(status, ConditionType.DEGRADED).reason == Reason.PROGRESS_DEADLINE_EXCEEDED
    assert "Insufficient nvidia.com/gpu" in condition(status, ConditionType.READY).message


def test_out_of_time_with_a_fault_says_the_fault() -> None:
    status = summary(pod(container=exited(3, "gone")), children=deployment(conditions=[LATE]))
    for kind in (ConditionType.READY, ConditionType.DEGRADED):
        assert condition(status, kind).reason == Reason.MODEL_NOT_FOUND


def unmounted(since: str, container: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pod whose only volume, a Secret, is not mounted."""
    found = pod(container=container)
    found["metadata"]["creationTimestamp"] = since or NOW
    waits = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since}
    found["status"]["conditions"].append(waits)
    found["spec"] = {"volumes": [{"name": "api-keys", "secret": {"secretName": "clients"}}]}
    return found


@pytest.mark.parametrize(
    ("since", "reported"), [("2025-12-31T23:59:51Z", False), ("2025-12-31T23:59:50Z", True), ("", False)]
)  # fmt: skip
def test_volumes_are_waited_for_by_every_pod_and_reported_only_where_it_lasts(since: str, reported: bool) -> None:
    ready = condition(summary(unmounted(since), children=deployment()), ConditionType.READY)
    assert (ready.reason == Reason.WAITING_FOR_VOLUMES) is reported
    assert ("volumes: Secret clients; kubectl describe pod good-1 says whether it is" in ready.message) is reported


@pytest.mark.parametrize("since", ["2026-01-01T02:00:00Z", "2025-12-31T20:00:00Z"], ids=["ahead", "behind"])
@pytest.mark.parametrize(("created", "reported"), [("2025-12-31T23:59:51Z", False), ("2025-12-31T23:59:50Z", True)])
def test_a_node_whose_clock_is_wrong_is_not_believed(since: str, created: str, reported: bool) -> None:
    """It says since when its pod waits for its volumes; the API server says when the pod was created and changed."""
    found = unmounted(since) | {"statusChanged": created}
    found["metadata"]["creationTimestamp"] = created
    found["spec"]["nodeName"] = "n1"
    ready = condition(summary(found, children=deployment()), ConditionType.READY)
    assert (ready.reason == Reason.WAITING_FOR_VOLUMES) is reported


def test_a_config_map_that_is_waited_for_is_named_too() -> None:
    waiting = unmounted("2025-12-31T23:59:00Z")
    waiting["spec"]["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
    ready = condition(summary(waiting, children=deployment()), ConditionType.READY)
    assert ready.reason == Reason.WAITING_FOR_VOLUMES and "ConfigMap settings" in ready.message


@pytest.mark.parametrize("container", [None, waiting("ContainerCreating")])
def test_a_missing_volume_is_named(container: dict[str, Any] | None) -> None:
    found = unmounted("2025-12-31T23:59:45Z", container)
    found["spec"] = {
        "containers": [],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "api-keys", "secret": {"secretName": "clients"}},
            {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}},
        ],
    }
    before, after = deployment(), deployment(conditions=[LATE])
    kept = dict(trimmed(POD, found))
    status = summary(kept, children=before)
    assert condition(status, ConditionType.DEGRADED).status == "False"
    for found_in in (
        status.loading,
        *(condition(status, kind) for kind in (ConditionType.READY, ConditionType.PROGRESSING)),
    ):
        assert "Secret clients, PersistentVolumeClaim weights; kubectl describe pod" in found_in.message
        assert found_in.message.endswith("says which is missing")
    assert condition(status, ConditionType.READY).reason == Reason.WAITING_FOR_VOLUMES
    assert status.loading.phase == "Pending", "no image is pulled before its volumes are there"
    assert "Secret clients" in condition(summary(kept, children=after), ConditionType.DEGRADED).message


def with_claim(name: str, node: str, found: dict[str, Any], claim: str = "weights") -> dict[str, Any]:
    """The pod under this name, on this node, with a claim."""
    volumes = [{"name": "weights", "persistentVolumeClaim": {"claimName": claim}}]
    return {
        **found,
        "metadata": {**found["metadata"], "name": name, "uid": name},
        "spec": {"volumes": volumes, "nodeName": node},
    }


@pytest.mark.parametrize(
    ("claim", "mode", "holder", "node", "said"),
    [
        ("weights", None, SERVING, "n1", True),
        ("weights", None, RUNNING, "n1", True),
        ("weights", None, SERVING, "n2", False),
        ("weights", None, SERVING, "", False),
        ("good-cache", None, SERVING, "n1", False),
        ("good-cache", "ReadWriteMany", SERVING, "n1", False),
        ("good-cache", "ReadWriteOnce", SERVING, "n1", True),
    ],
)
def test_a_claim_that_a_pod_on_another_node_has_is_named_unless_both_may_have_it(
    claim: str, mode: str | None, holder: dict[str, Any], node: str, said: bool
) -> None:
    """As where its volume cannot be attached to both nodes, which only an event says (Multi-Attach error)."""
    late = with_claim("good-2", "n2", unmounted("2025-12-31T23:59:00Z"), claim)
    before = with_claim("good-1", node, pod(container=holder), claim)
    cache = {"cache": {"type": "PersistentVolumeClaim", "size": "9Gi", "accessMode": mode}} if mode else {}
    status = summary(before, late, of=service(replicas=2, **cache), children=deployment(total=2, updated=2))
    message = condition(status, ConditionType.PROGRESSING).message
    assert f"pod good-2 waits for its volumes: PersistentVolumeClaim {claim}; kubectl describe pod" in message
    assert (
        f"PersistentVolumeClaim {claim} is in use by pod good-1 on node n1: if its volume can be" in message
    ) is said


def test_a_pod_that_was_ended_holds_no_volume() -> None:
    late = with_claim("good-2", "n2", unmounted("2025-12-31T23:59:00Z"))
    failed = with_claim("good-1", "n1", pod(container=SERVING, phase="Failed"))
    message = condition(summary(failed, late, children=deployment()), ConditionType.PROGRESSING).message
    assert "waits for its volumes" in message and "good-1" not in message


def test_volumes_that_are_there_are_no_matter() -> None:
    found = pod(container=waiting("ContainerCreating"))
    found["status"]["conditions"].append({"type": "PodReadyToStartContainers", "status": "True"})
    found["spec"] = {"volumes": [{"name": "api-keys", "secret": {"secretName": "clients"}}]}
    assert view(found, GPU).waits is None


@pytest.mark.parametrize(
    ("resource", "message", "reason"),
    [
        (GPU, "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu.", Reason.WAITING_FOR_GPU),
        (GPU, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu, 1 Insufficient cpu.", Reason.WAITING_FOR_GPU),
        ("example.com/tpu-v5", "0/1 nodes are available: 1 Insufficient example.com/tpu-v5.", Reason.WAITING_FOR_GPU),
        (GPU, "0/1 nodes are available: 1 cannot allocate all claims.", Reason.WAITING_FOR_GPU),
        (GPU, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu-shared.", Reason.UNSCHEDULABLE),
        (GPU, "0/1 nodes are available: 1 Insufficient memory; no pool gpu-h100.", Reason.UNSCHEDULABLE),
    ],
)  # fmt: skip
def test_lack_of_a_gpu_is_distinguished_from_other_lacks(resource: str, message: str, reason: Reason) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
    waits = view(pod(conditions=[unscheduled]), resource).waits
    assert waits is not None
    assert waits.reason == reason


LACKS_CLAIM = [
    ('persistentvolumeclaim "weights" not found', "create PersistentVolumeClaim weights"),
    ('persistentvolumeclaim "weights" bound to non-existent persistentvolume "pv-1"', "restore PersistentVolume pv-1"),
    ("pod has unbound immediate PersistentVolumeClaims", "spec.cache.storageClassName"),
]


@pytest.mark.parametrize(("said", "help_"), LACKS_CLAIM)
def test_a_claim_without_a_volume_is_waited_for_and_says_what_helps(said: str, help_: str) -> None:
    said = f"0/1 nodes are available: {said}. not found"
    since = "2025-12-31T23:59:00Z"  # volumes that are there are had sooner
    unscheduled = {"type": "PodScheduled", "status": "False", "message": said, "lastTransitionTime": since}
    waits = pod(conditions=[unscheduled])
    waits["metadata"]["creationTimestamp"] = since
    found = condition(summary(waits, children=deployment()), ConditionType.READY)
    assert found.reason == Reason.WAITING_FOR_VOLUMES
    assert said.rstrip(".") in found.message
    assert help_ in found.message


def test_a_pod_without_a_node_says_which_fields_help() -> None:
    said = (
        "0/9 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector, 3 "
        "node(s) had untolerated taint {gpu: only}, 3 node(s) were unschedulable. no new claims to deallocate."
    )
    unscheduled = {"type": "PodScheduled", "status": "False", "message": said}
    found = condition(summary(pod(conditions=[unscheduled]), children=deployment()), ConditionType.READY)
    assert found.reason == Reason.UNSCHEDULABLE
    for words in ("requests", "scheduling.nodeSelector", "scheduling.tolerations", "kubectl uncordon"):
        assert words in found.message


@pytest.mark.parametrize(
    ("refused", "help_"),
    [
        ('Deployment.apps "good" is', "; take annotations of other clients off Deployment good, or make them shorter"),
        ('Service "good" is', "; take annotations of other clients off Service good, or make them shorter"),
        ('Failed to create: ReplicaSet.apps "good-1" is', ""),  # its annotations are the Deployment's
    ],
)
def test_annotations_that_leave_no_room_are_to_be_taken_off_what_has_them(refused: str, help_: str) -> None:
    said = f"{refused} invalid: metadata.annotations: Too long: may not be more than 262144 bytes"
    assert advice(said).startswith(f"{said}{help_}")
    assert (advice(said) == said) == (not help_)


@pytest.mark.parametrize(
    ("who", "binding"),
    [("ValidatingAdmissionPolicy 'teams'", " with binding 'all'"), ('admission webhook "policy.example.com"', "")],
)
def test_what_a_policy_denies_says_who_can_help(who: str, binding: str) -> None:
    said = f'deployments.apps "good" is forbidden: {who}{binding} denied the request: no label team'
    assert advice(said).startswith(f"{said}; change the spec to what {who} allows, or have its administrator exempt")


def test_a_mutating_policy_that_fails_is_to_be_repaired() -> None:
    said = "policy 'requests' with binding 'all' denied request: error applying patch: invalid ApplyConfiguration"
    assert advice(said).startswith(f"{said}; repair MutatingAdmissionPolicy requests, which fails, or have its admin")


@pytest.mark.parametrize(
    ("said", "help_"),
    [
        ("0/2 nodes are available: 2 Too many pods.", "raise maxPods of their kubelets"),
        ("The node was low on resource: pids. Threshold quantity: 4k", "end what starts so many processes on that"),
        (
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict.",
            "its volume can only be used on other",
        ),
        ("0/1 nodes are available: 1 node(s) exceed max volume count.", "as many volumes attached as they can"),
        (
            "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints.",
            "change spec.scheduling.topologySpreadConstraints",
        ),
        ("0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.", "change spec.scheduling.affinity"),
        ("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.", "host port"),
    ],
)
def test_what_helps_a_pod_without_a_node_is_said(said: str, help_: str) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    found = condition(summary(pod(conditions=[unscheduled]), children=deployment()), ConditionType.READY)
    assert found.message.startswith(f"pod good-1 cannot be scheduled: {said.rstrip('.')}; ") and help_ in found.message


@pytest.mark.parametrize(
    ("said", "help_"),
    [
        (
            'persistentvolumeclaim "weights" is being deleted',
            "PersistentVolumeClaim weights is gone once no pod uses it",
        ),
        (
            'pods "good-1" is forbidden: unable to validate against any security context constraint: [provider',
            "set the chart's value openshift to Always",
        ),
        ("etcdserver: mvcc: database space exceeded", "etcd is full"),
    ],
)
def test_what_helps_against_a_refusal_is_said(said: str, help_: str) -> None:
    assert advice(said).startswith(said) and help_ in advice(said)


def test_a_cluster_without_nodes_says_so() -> None:
    said = "no nodes available to schedule pods"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": said}
    found = condition(summary(pod(conditions=[unscheduled]), children=deployment()), ConditionType.READY)
    assert found.message.endswith(f"{said}; add a node: the cluster has none (kubectl get nodes)")


def test_a_cache_whose_volume_is_gone_is_reported_before_its_pods_end() -> None:
    claim = {"metadata": {"name": "good-cache"}, "status": {"phase": "Lost"}}
    children = {**deployment(ready=1), ("PersistentVolumeClaim", "good-cache"): claim}
    status = summary(pod(container=SERVING), children=children)
    assert condition(status, ConditionType.READY).reason == Reason.SERVING
    found = condition(status, ConditionType.DEGRADED)
    assert found.reason == Reason.VOLUME_LOST
    assert "kubectl delete pvc good-cache" in found.message


@pytest.mark.parametrize(("kind", "status"), [("ControllerResizeError", "True"), ("Resizing", "True")])
def test_a_cache_that_cannot_grow_is_reported_while_its_pods_serve(kind: str, status: str) -> None:
    said = {"type": kind, "status": status, "message": "the pool is full"}
    claim = {"metadata": {"name": "good-cache"}, "status": {"phase": "Bound", "conditions": [said]}}
    children = {**deployment(ready=1), ("PersistentVolumeClaim", "good-cache"): claim}
    found = summary(pod(container=SERVING), children=children)
    assert condition(found, ConditionType.READY).reason == Reason.SERVING
    degraded, fails = condition(found, ConditionType.DEGRADED), kind != "Resizing"
    assert degraded.reason == (Reason.RESIZE_FAILED if fails else Reason.AS_EXPECTED)
    assert ("the pool is full" in degraded.message) is fails


REFUSED_PODS = [
    ("no PriorityClass with name urgent was found", "create PriorityClass urgent"),
    ('pod rejected: RuntimeClass "nvidia" not found', "spec.scheduling.runtimeClassName"),
    (
        "exceeded quota: team, requested: pods=1,requests.memory=16Gi, used: pods=4,requests.memory=64Gi, limited: "
        "pods=4,requests.memory=64Gi",
        "make room for pods=1,requests.memory=16Gi in ResourceQuota team",
    ),
    ("maximum memory usage per Container is 1Gi, but limit is 2Gi", "how much memory the spec asks for"),
    ('violates PodSecurity "restricted:latest": hostPath volumes', "pod-security.kubernetes.io/enforce"),
    ('failed calling webhook "a.b.example": timeout', "repair the admission webhook a.b.example"),
    (
        'Deployment.apps "good" is invalid: spec.selector: Invalid value: {"matchLabels":{"app":"x"}}: field is '
        "immutable",
        "kubectl delete deployment good",
    ),
    ("something that no version has said yet", "something that no version has said yet"),
]


@pytest.mark.parametrize(("said", "help_"), REFUSED_PODS, ids=[row[1] for row in REFUSED_PODS])
def test_a_refusal_of_pods_says_what_helps(said: str, help_: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": f'pods "good-1" is forbidden: {said}'}
    status = summary(children=deployment(updated=0, total=0, conditions=[failure]))
    for kind in (ConditionType.READY, ConditionType.DEGRADED, ConditionType.STALLED):
        found = condition(status, kind)
        assert found.reason == Reason.POLICY_DENIED
        assert said in found.message
        assert help_ in found.message


def test_scheduling_gates_are_named() -> None:
    gated = pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}])
    gated["spec"] = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    waits = view(trimmed(POD, gated), GPU).waits
    assert waits is not None
    assert (waits.reason, "kueue.x-k8s.io/admission" in waits.message) == (Reason.SCHEDULING_GATED, True)


SHORT = "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 Insufficient nvidia.com/gpu. "
GPU_TOLD = [
    ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 1 No preemption "
     "victims found for incoming pod, 2 Preemption is not helpful for scheduling.",
     "and all nodes with that many have them in use: free some, or add a node"),
    (SHORT + "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
     "and no node that it may use has that many in total: add such a node"),
    # Nothing is known of what is in use: the scheduler did not look, or another resource may be what it speaks of.
    (SHORT + "preemption: not eligible due to preemptionPolicy=Never.", "has that many free: free some, or add a node"),
    ("0/1 nodes are available: 1 Insufficient memory, 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are "
     "available: 1 Preemption is not helpful for scheduling.", "has that many free: free some, or add a node"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "words"), GPU_TOLD)
def test_lack_of_a_gpu_says_what_is_needed_what_nodes_have_and_what_helps(message: str, words: str) -> None:
    lacking = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])
    lacking["spec"] = {"containers": [{"name": "engine", "resources": {"requests": {GPU: "2"}}}]}
    waits = view(trimmed(POD, lacking), GPU).waits
    assert waits is not None
    assert waits.message.startswith("pod good-1 cannot be scheduled: it needs 2 nvidia.com/gpu on one node, ")
    assert words in waits.message
    assert waits.message.endswith(f". The scheduler: {message}")


CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "h100"}]
GATED = [
    ({"accelerator": {"claims": CLAIMS}}, {"resourceClaims": CLAIMS}, "spec.accelerator.claims"),
    ({"model": {"source": {"image": {"reference": "m:1"}}}}, {"volumes": [{"image": {"reference": "m:1"}}]}, "images"),
]


@pytest.mark.parametrize(("fields", "template", "words"), GATED, ids=["claims", "image"])
def test_what_the_api_server_removes_from_pods_is_reported(
    fields: dict[str, Any], template: dict[str, Any], words: str
) -> None:
    """So it does without a word where a feature gate is off."""
    of = parse({**VALID, "spec": {**VALID["spec"], **fields}})
    for kept in (template, {}):
        ours = {"labels": {"octavo.dev/llmservice": "good"}, "ownerReferences": [{"uid": "u1"}]}
        live = {"metadata": {"name": "good", "uid": "c1", **ours}, "spec": {"template": {"spec": kept}}}
        children = {("Deployment", "good"): trimmed(BY_NAME["Deployment"], live)}
        degraded = condition(summary(of=of, children=children), ConditionType.DEGRADED)
        assert degraded.reason == (Reason.AS_EXPECTED if kept else Reason.FEATURE_GATE_OFF)
        assert kept or words in degraded.message
    problem = Problem(Reason.POLICY_DENIED, "the engine's image is not allowed")
    degraded = condition(summary(of=of, children=children, problem=problem), ConditionType.DEGRADED)
    assert words not in degraded.message, "the operator has written nothing that could be removed"


def test_lack_of_devices_for_claims_names_the_claims() -> None:
    message = "0/1 nodes are available: 1 cannot allocate all claims."
    lacking = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])
    lacking["spec"] = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}, {"name": "nic"}]}
    waits = view(trimmed(POD, lacking), GPU).waits
    assert waits is not None
    assert "it needs devices for its claims (gpu, nic), and no node has them free" in waits.message
    assert "kubectl get resourceslices,resourceclaims" in waits.message


def test_the_resource_is_that_of_the_service() -> None:
    other = service(accelerator={"count": 1, "resourceName": "example.com/tpu"})
    message = "0/1 nodes are available: 1 Insufficient example.com/tpu."
    lacking = {"type": "PodScheduled", "status": "False", "message": message}
    status = summary(pod(conditions=[lacking]), of=other, children=deployment())
    assert condition(status, ConditionType.READY).reason == Reason.WAITING_FOR_GPU


def test_a_service_whose_pod_waits_is_not_reported_as_complete() -> None:
    for fields in ({}, {"rollout": {"paused": True}}):  # then Progressing does not tell of the wait
        said = condition(summary(pod(**NO_GPU), of=service(**fields), children=deployment()), ConditionType.DEGRADED)
        assert (said.status, said.reason) == ("False", Reason.AS_EXPECTED)
        assert said.message.startswith("nothing has failed; pod good-1 cannot be scheduled: ")
    said = condition(summary(pod(container=RUNNING), children=deployment()), ConditionType.DEGRADED)
    assert said.message == "nothing is wrong"


def test_a_replica_that_is_ready_but_not_yet_for_long_enough_serves() -> None:
    status = summary(pod("a", container=SERVING), children=deployment(ready=1, availableReplicas=0))
    ready = condition(status, ConditionType.READY)
    assert (ready.status, ready.reason) == ("True", Reason.SERVING)


def test_a_replica_that_is_missing_is_no_rollout() -> None:
    two = service(replicas=2)
    status = summary(pod("a", container=SERVING), pod("b", container=RUNNING), of=two,
                     children=deployment(ready=1, updated=2, total=2))  # fmt: skip
    assert condition(status, ConditionType.READY).reason == Reason.FEWER_REPLICAS
    assert "1 of 2 replicas" in condition(status, ConditionType.READY).message


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_pods_that_were_ended_for_good_do_not_count(phase: str) -> None:
    evicted = pod("old", container=exited(5), phase=phase, reason="Evicted")
    status = summary(evicted, pod("new", container=RUNNING), children=deployment())
    assert condition(status, ConditionType.DEGRADED).status == "False"
    assert status.loading.phase == "Loading"


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"suspend": True}, Reason.SUSPENDED, "spec.suspend is true"),
        ({"replicas": 0}, Reason.SCALED_TO_ZERO, "spec.replicas is 0"),
        ({"autoscaling": {"maxReplicas": 2}}, Reason.SCALED_TO_ZERO, "another client has set the replicas"),
    ],
)
def test_stopped_on_purpose_is_not_broken(fields: dict[str, Any], reason: Reason, words: str) -> None:
    children = deployment(total=0, updated=0)
    children["Deployment", "good"]["spec"] = {"replicas": 0}
    status = summary(of=service(**fields), children=children)
    assert condition(status, ConditionType.READY).reason == reason
    assert words in condition(status, ConditionType.READY).message
    assert condition(status, ConditionType.DEGRADED).status == "False"
    assert status.replicas == 0


SQL = {"name": "sql", "source": {"huggingFace": {"repository": "owner/sql"}}}


def adapters_of(of: LLMService, **states: str) -> Observation:
    """A pod that serves the model, and says this of the adapters of `of`."""
    reported = [
        ReportedAdapter(
            name=each.name, version=version_of(each), state=states[each.name], message="rank 64 is too much"
        )
        for each in of.spec.adapters
        if each.name in states
    ]
    serving = pod(container=SERVING)
    serving["metadata"]["uid"] = "u1"
    reports = {"u1": AdapterReport(adapters=tuple(reported))}
    return Observation({}, deployment(ready=1), (serving,), adapter_reports=reports)


def test_an_adapter_that_failed_degrades_itself_and_not_the_model() -> None:
    of = service(adapters=[SQL, {**SQL, "name": "fr"}])
    status = summarize(of, adapters_of(of, sql="Loaded", fr="Failed"), IMAGE, Result(), NOW)
    assert condition(status, ConditionType.READY).status == "True"
    for kind, holds in ((ConditionType.ADAPTERS_READY, "False"), (ConditionType.DEGRADED, "True")):
        found = condition(status, kind)
        assert (found.status, found.reason) == (holds, Reason.ADAPTER_FAILED)
        assert found.message == "adapter fr failed in 1 replica: rank 64 is too much"
    assert status.adapters is not None
    assert [(each.name, each.loaded_replicas) for each in status.adapters] == [("sql", 1), ("fr", 0)]
    assert [row.state for row in status.adapters[1].replicas] == ["Failed"]


def test_a_warning_about_a_loaded_adapter_is_in_its_row_and_is_no_failure() -> None:
    """Such as that it was trained on another base model."""
    of = service(adapters=[SQL])
    seen = adapters_of(of, sql="Loaded")
    (report,) = seen.adapter_reports["u1"].adapters
    warned = AdapterReport(adapters=(report.model_copy(update={"message": "it was trained on another model"}),))
    status = summarize(of, replace(seen, adapter_reports={"u1": warned}), IMAGE, Result(), NOW)
    assert status.adapters is not None
    (row,) = status.adapters[0].replicas
    assert (row.state, row.message) == ("Loaded", "it was trained on another model")
    assert condition(status, ConditionType.ADAPTERS_READY).reason == Reason.ADAPTERS_LOADED
    assert condition(status, ConditionType.DEGRADED).status == "False"


@pytest.mark.parametrize(
    ("states", "status", "reason"),
    [
        ({"sql": "Loaded"}, "True", Reason.ADAPTERS_LOADED),
        ({"sql": "Fetching"}, "False", Reason.ADAPTERS_LOADING),
        ({"sql": "of a newer engine"}, "False", Reason.ADAPTERS_LOADING),
        ({}, "False", Reason.ADAPTERS_LOADING),
    ],
)
def test_adapters_are_ready_once_all_replicas_have_them(states: dict[str, str], status: str, reason: Reason) -> None:
    of = service(adapters=[SQL])
    summed = summarize(of, adapters_of(of, **states), IMAGE, Result(), NOW)
    found = condition(summed, ConditionType.ADAPTERS_READY)
    assert (found.status, found.reason) == (status, reason)
    assert condition(summed, ConditionType.DEGRADED).status == "False"
    more = summarize(service(adapters=[SQL], replicas=2), adapters_of(of, **states), IMAGE, Result(), NOW)
    assert condition(more, ConditionType.ADAPTERS_READY).reason == Reason.ADAPTERS_LOADING


def test_weights_of_an_earlier_source_do_not_count() -> None:
    before = service(adapters=[SQL])
    after = service(adapters=[{"name": "sql", "source": {"huggingFace": {"repository": "owner/better"}}}])
    status = summarize(after, adapters_of(before, sql="Loaded"), IMAGE, Result(), NOW)
    assert status.adapters is not None
    assert (status.adapters[0].loaded_replicas, status.adapters[0].replicas[0].state) == (0, "Pending")


def test_an_operator_that_begins_knows_what_was_known_of_ready_pods() -> None:
    of = service(adapters=[SQL])
    before = summarize(of, adapters_of(of, sql="Loaded"), IMAGE, Result(), NOW).as_object()
    unasked = replace(adapters_of(of), adapter_reports={})
    for status, reason in (
        (before, Reason.ADAPTERS_LOADED),
        ({**before, "observedGeneration": 2}, Reason.ADAPTERS_LOADING),
    ):
        summed = summarize(of.model_copy(update={"status": status}), unasked, IMAGE, Result(), NOW)
        assert condition(summed, ConditionType.ADAPTERS_READY).reason == reason
    loading = pod(container=RUNNING)
    loading["metadata"]["uid"] = "u1"
    summed = summarize(
        of.model_copy(update={"status": before}), replace(unasked, pods=(loading,)), IMAGE, Result(), NOW
    )
    assert condition(summed, ConditionType.ADAPTERS_READY).reason == Reason.ADAPTERS_LOADING


def test_without_adapters_or_pods_nothing_is_wrong_with_adapters() -> None:
    assert condition(summary(), ConditionType.ADAPTERS_READY).reason == Reason.NO_ADAPTERS
    assert summary().adapters is None
    stopped = summary(of=service(adapters=[SQL], suspend=True), children=deployment(total=0, updated=0))
    assert condition(stopped, ConditionType.ADAPTERS_READY).reason == Reason.SUSPENDED
    assert condition(stopped, ConditionType.DEGRADED).status == "False"


def test_rows_of_very_many_replicas_are_bounded_and_show_what_is_not_loaded() -> None:
    of = service(adapters=[{**SQL, "name": f"a{n}"} for n in range(64)], replicas=100)
    pods = []
    for n in range(100):
        each = pod(f"p{n:03}", container=SERVING)
        each["metadata"]["uid"] = f"u{n}"
        pods.append(each)
    loaded = tuple(ReportedAdapter(name=a.name, version=version_of(a), state="Loaded") for a in of.spec.adapters)
    reports = {f"u{n}": AdapterReport(adapters=loaded) for n in range(99)}
    status = summarize(of, Observation({}, {}, tuple(pods), adapter_reports=reports), IMAGE, Result(), NOW)
    assert status.adapters is not None
    assert all(each.loaded_replicas == 99 and each.replicas[0].pod == "p099" for each in status.adapters)
    assert sum(len(each.replicas) for each in status.adapters) <= MOST_ROWS


def test_what_stopped_the_operator_comes_first() -> None:
    status = summary(
        pod(container=SERVING), problem=Problem(Reason.NAME_TAKEN, "Service good exists"), children=deployment(ready=1)
    )
    assert condition(status, ConditionType.READY).reason == Reason.NAME_TAKEN
    assert condition(status, ConditionType.DEGRADED).message == "Service good exists"


def test_transition_times_move_with_the_status_only() -> None:
    before = summary(pod(container=SERVING), children=deployment(ready=1)).model_dump(
        by_alias=True, mode="json", exclude_none=True
    )
    later = "2026-01-02T00:00:00Z"
    old = service(status=before)
    same = summarize(old, Observation({}, deployment(ready=1), (pod(container=SERVING),)), IMAGE, Result(), later)
    assert same.as_object() == before
    broken = summarize(old, Observation({}, deployment(), (pod(container=exited(5)),)), IMAGE, Result(), later)
    times = {found.type: found.last_transition_time for found in broken.conditions}
    assert times[ConditionType.READY] == later
    assert times[ConditionType.ROLLOUT_BLOCKED] == NOW


@pytest.mark.parametrize(
    ("container", "phase", "reason"),
    [(SERVING, "Serving", Reason.AS_EXPECTED), (exited(3, "gone"), "Failed", Reason.MODEL_NOT_FOUND)],
    ids=["serves", "fails"],
)
def test_an_engine_whose_container_admission_has_renamed_is_found_by_its_port(
    container: dict[str, Any], phase: str, reason: Reason
) -> None:
    found = pod(container={**container, "name": "renamed"})
    ports = [{"name": "http", "containerPort": 8000}]
    found["spec"] = {"containers": [{"name": "side"}, {"name": "renamed", "ports": ports}]}
    kept = trimmed(POD, {**found, "metadata": {**found["metadata"], "uid": "u2", "namespace": "llm"}})
    status = summary(kept, children=deployment(ready=int(container is SERVING)))
    assert (status.loading.phase, condition(status, ConditionType.DEGRADED).reason) == (phase, reason)


def test_terminating_pods_do_not_count() -> None:
    ending = pod(container=exited(5))
    ending["metadata"]["deletionTimestamp"] = NOW
    assert condition(summary(ending, children=deployment()), ConditionType.DEGRADED).status == "False"


def test_an_object_that_is_no_longer_valid_is_reported() -> None:
    raw = merged(VALID, {"metadata": {"generation": 4}, "spec": {"replicas": -1}, "status": {"engineImage": IMAGE}})
    status = invalid_status(raw, "spec.replicas: must be greater", NOW)
    assert (status["engineImage"], status["observedGeneration"]) == (IMAGE, 4)
    assert {found["reason"] for found in status["conditions"]} == {"Invalid"}


def test_the_last_message_is_the_end_of_the_log_in_one_line() -> None:
    assert last_message("one\n\n two \nthree\nfour\n") == "two / three / four"
    assert len(last_message("x" * 5000)) == 800


def test_the_last_message_is_the_engines_own_sentence_where_it_left_one() -> None:
    log = "2026-11-22 01:00:21 INFO octavo.server: model: starting, 0%\noctavo-engine: there is no CUDA GPU here\n"
    assert last_message(log) == "octavo-engine: there is no CUDA GPU here"


def test_a_pod_that_ended_well_is_seen_ending_not_serving() -> None:
    assert view(pod(container={"state": {"terminated": {"exitCode": 0}}}), GPU).phase == "Loading"


FETCHED = {"state": {"terminated": {"exitCode": 0}}, "ready": True}
REPORT = LoadReport(phase="pulling", detail="1.0 GiB of 4.0 GiB", bytesLoaded=1 << 30, bytesTotal=4 << 30)


def with_report(report: LoadReport, found: dict[str, Any]) -> LLMServiceStatus:
    found["metadata"]["uid"] = "u"
    return summarize(service(), Observation({}, deployment(), (found,), {"u": report}), IMAGE, Result(), NOW)


def test_a_download_is_reported_in_bytes() -> None:
    status = with_report(REPORT, fetching(RUNNING))
    assert (status.loading.phase, status.loading.message) == ("Downloading", "1.0 GiB of 4.0 GiB")
    assert (status.loading.bytes_loaded, status.loading.bytes_total) == (1 << 30, 4 << 30)
    assert condition(status, ConditionType.MODEL_LOADED).message.endswith("the model yet (Downloading)")
    assert condition(status, ConditionType.DEGRADED).status == "False"


def test_without_a_report_the_phase_is_reported_all_the_same() -> None:
    loading = summary(fetching(RUNNING), children=deployment()).loading
    assert (loading.phase, loading.message, loading.bytes_total) == ("Downloading", "", None)


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("pulling", "Downloading"),
        ("sizing", "Loading"),
        ("loading", "Loading"),
        ("warmup", "Warmup"),
        ("ready", "Warmup"),
        ("?", "Loading"),
    ],
)
def test_an_engine_says_its_phase_itself(said: str, phase: str) -> None:
    assert with_report(LoadReport(phase=said), pod(container=RUNNING)).loading.phase == phase


def test_an_old_report_does_not_outlive_loading() -> None:
    loading = with_report(REPORT, pod(container=SERVING)).loading
    assert (loading.phase, loading.message, loading.bytes_loaded) == ("NotReady", "", None)


@pytest.mark.parametrize(
    ("code", "reason"), [(3, Reason.MODEL_NOT_FOUND), (4, Reason.OUT_OF_MEMORY), (2, Reason.CONFIGURATION_ERROR)]
)
def test_a_download_that_fails_says_why(code: int, reason: Reason) -> None:
    status = summary(fetching(exited(code, "the hub says no")), children=deployment())
    ready = condition(status, ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", reason)
    assert "the hub says no" in ready.message


def test_a_secret_that_a_download_lacks_is_named() -> None:
    lacks = waiting("CreateContainerConfigError", 'secret "bucket" not found')
    status = summary(fetching(lacks), children=deployment())
    assert condition(status, ConditionType.DEGRADED).reason == Reason.SECRET_MISSING
    assert 'secret "bucket" not found' in condition(status, ConditionType.DEGRADED).message


def test_another_init_container_is_waited_for_by_name() -> None:
    status = summary(fetching(RUNNING, name="their-own"), children=deployment())
    assert status.loading.phase == "Pulling"
    assert "init container their-own" in status.loading.message


def beside_the_engine(container: dict[str, Any], sidecar: dict[str, Any]) -> dict[str, Any]:
    """A pod with a native `sidecar` (restartPolicy Always), as a mesh injects it, whose model was fetched."""
    statuses = [{"name": "mesh", "image": "mesh:1", **sidecar}, {"name": "fetch", **FETCHED}]
    found = pod(container=container, initContainerStatuses=statuses)
    containers = [{"name": "mesh", "restartPolicy": "Always"}, {"name": "fetch"}]
    found["spec"] = {"nodeName": "gpu-7", "initContainers": containers}
    unready = {"status": "False", "reason": "ContainersNotReady"}
    found["status"]["conditions"][1:] = [{"type": kind, **unready} for kind in ("ContainersReady", "Ready")]
    return found


STARTED = {"state": {"running": {}}, "started": True, "ready": False}
BESIDE = [
    ("not started", waiting("PodInitializing"), RUNNING, "Pulling", "runs its init container mesh", False),
    ("ready", RUNNING, SERVING, "Loading", "", False),
    ("started, not ready", RUNNING, STARTED, "Loading", "", False),
    ("crashes while the engine loads", RUNNING, exited(7, "no token"), "Loading", "exit code 7: no token", True),
    ("not ready", SERVING, STARTED, "NotReady", "good-1 is ready, but its container mesh is not", False),
    ("crashes", SERVING, exited(7, "no token"), "NotReady", "mesh of pod good-1 ended with exit code 7", True),
    ("both crash", exited(2, "no flag --x"), exited(7, "no token"), "Failed", "exit code 2: no flag --x", True),
    ("starts again", exited(2, "no flag --x"), {**STARTED, "started": False}, "Failed", "no flag --x", True),
]


@pytest.mark.parametrize(("engine", "sidecar", "phase", "words", "degraded"), [row[1:] for row in BESIDE],
                         ids=[row[0] for row in BESIDE])  # fmt: skip
def test_a_native_sidecar_is_waited_for_only_until_it_has_started(
    engine: dict[str, Any], sidecar: dict[str, Any], phase: str, words: str, degraded: bool
) -> None:
    status = summary(trimmed(POD, beside_the_engine(engine, sidecar)), children=deployment())
    assert status.loading.phase == phase
    assert words in status.loading.message
    assert condition(status, ConditionType.DEGRADED).status == str(degraded)
    assert condition(status, ConditionType.MODEL_LOADED).status == str(phase == "NotReady")


WRONG_VALUES: list[Any] = [None, "text", -1, [], {}, [{}], {"a": 1}, True]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that a status holds."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, each in inner for found in places(each, (*path, name)))]


def test_a_status_that_another_version_has_written_otherwise_stops_nothing() -> None:
    """Any value of any field is survived: the next status is written over it."""
    before = summary(of=service(adapters=[{"name": "sql", "source": {"s3": {"bucket": "models", "prefix": "sql"}}}]))
    known = before.as_object()
    known["model"]["memory"] = {"subject": "x", "weightBytes": 1, "stepBytes": 2, "kvBytesPerToken": 3, "totalBytes": 4}
    known["loading"]["lastLoadSeconds"] = 3
    known["adapters"] = [{"name": "sql", "loadedReplicas": 1, "replicas": [{"pod": "p", "state": "Loaded"}]}]
    del known["conditions"]  # of a shape that all of Kubernetes has agreed on
    for *way, last in places(known)[1:]:
        for wrong in WRONG_VALUES:
            odd = json.loads(json.dumps(known))
            holder = odd
            for name in way:
                holder = holder[name]
            holder[last] = wrong
            written = summary(of=service(status=odd))
            assert [each.type for each in written.conditions] == [each.type for each in before.conditions]


def test_the_refusal_of_pods_is_said_to_be_the_first_one() -> None:
    """A ReplicaSet keeps the message of its first refusal, though a quota has been raised since and a webhook fails."""
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": NOW}
    found = condition(summary(children=deployment(total=0, conditions=[failure])), ConditionType.DEGRADED)
    assert "exceeded quota" in found.message
    assert f"the first refusal, of {NOW}; kubectl get events shows whether others followed" in found.message
