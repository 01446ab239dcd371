"""`kubectl octavo`: its reports about objects as a cluster shows them, and its calls of kubectl."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.engine.client import EngineState
from octavo_engine.server.telemetry.metrics import Metrics
from octavo_operator import cli as operator_cli
from octavo_operator.api.resource import parse
from octavo_operator.help_examples import KUBECTL_EXAMPLES, OPERATOR_EXAMPLES
from octavo_operator.kubectl import cli
from octavo_operator.kubectl.client import Kubectl, KubectlError
from octavo_operator.kubectl.forward import forwarded
from octavo_operator.kubectl.run import ProgressWriter, manifest, wait_until_ready
from octavo_operator.kubectl.status import replicas_sentence
from octavo_operator.kubectl.top import PodReadings, Reading, read, top_table
from octavo_operator.kubectl.why import Facts, obstacles, report
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.status.summarize import Result, summarize
from tests.cluster.waiting import wait_until
from tests.operator.bad_llmservices import VALID, merged

NOW = "2026-01-01T00:00:00Z"
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pod(name: str, ready: bool = False, **status: Any) -> dict[str, Any]:
    found = {"conditions": [{"type": "PodScheduled", "status": "True"}], **status}
    if ready:
        found["conditions"] = [*found["conditions"], {"type": "Ready", "status": "True"}]
        found["containerStatuses"] = [{"name": "engine", "state": {"running": {}}, "started": True, "ready": True}]
    labels = {"octavo.dev/llmservice": "good", "app.kubernetes.io/component": "engine", "octavo.dev/track": "stable"}
    metadata = {"name": name, "namespace": "llm", "labels": labels, "creationTimestamp": NOW}
    return {"metadata": metadata, "spec": {}, "status": found}


WITHOUT_GPU = pod("good-1", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                         "message": NO_GPU}])  # fmt: skip


def service(*pods: dict[str, Any], ready: int = 0, **metadata: Any) -> dict[str, Any]:
    """An LLMService with the status that the operator gives it for these pods."""
    asked = merged(VALID, {"metadata": {"uid": "u1", "generation": 3, "namespace": "llm", **metadata}})
    counts = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": len(pods)}
    live = {"metadata": {"name": "good", "generation": 2}, "status": {"observedGeneration": 2, **counts}}
    status = summarize(parse(asked), Observation({}, {("Deployment", "good"): live}, pods), "image", Result(None), NOW)
    return {**asked, "status": status.as_object()}


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def named(name: str, *conditions: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": conditions}}


def warning(kind: str, name: str, message: str, when: str = NOW) -> dict[str, Any]:
    return {"involvedObject": {"kind": kind, "name": name}, "reason": "Failed", "message": message,
            "lastTimestamp": when}  # fmt: skip


def test_nothing_is_in_the_way_of_a_service_that_serves() -> None:
    serving = pod("good-1", ready=True)
    facts = Facts(service(serving, ready=1), [serving], events=[warning("Pod", "good-1", "an old failure")])
    assert obstacles(facts) == []
    assert report(facts, []) == (
        "good serves: 1 of 1 replicas ready, phase Serving; nothing keeps it from serving or scaling\n"
    )


def test_an_event_whose_full_stop_gave_way_to_advice_is_not_repeated() -> None:
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    lost = pod("good-1", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                      "message": message}])  # fmt: skip
    (only,) = obstacles(Facts(service(lost), [lost], events=[warning("Pod", "good-1", message)]))
    assert "selector; change spec.scheduling.nodeSelector" in only.text


def test_what_is_true_of_several_pods_is_said_once() -> None:
    conditions = WITHOUT_GPU["status"]["conditions"]
    pods = [WITHOUT_GPU, pod("good-2", conditions=conditions)]
    events = [warning("Pod", name, "no such Secret") for name in ("good-1", "good-2")]
    first, second = obstacles(Facts(service(*pods), pods, events=events))
    assert first.about == "condition Ready=False" and "pod good-1 cannot be scheduled" in first.text
    assert second.text == "no such Secret"


def test_pods_that_could_not_be_created_are_no_obstacle_each() -> None:
    refused = 'pods "good-7d9f-{}" is forbidden: no pods on Sundays'
    deployment = named("good", condition("ReplicaFailure", "True", "FailedCreate", refused.format("zzzzz")))
    prefixes = ["Error creating: "] * 12 + ["(combined from similar events): Error creating: "]
    names = [*"bcdfghjklmnp", ""]
    events = [
        warning("ReplicaSet", "good-7d9f", "no such Secret"),
        *(
            warning("ReplicaSet", "good-7d9f", prefix + refused.format(name * 5))
            for prefix, name in zip(prefixes, names, strict=True)
        ),
    ]
    found = obstacles(Facts(service(), deployment=deployment, events=events))
    assert [each.about for each in found if "Sundays" in each.text] == ["Deployment good"]
    assert found[-1].text == "no such Secret"


def test_objects_that_are_named_like_the_service_are_told_apart() -> None:
    """Their names were taken for those of its pods, and so for one obstacle."""
    claims = ["good-model-cache", "good-lora-cache", "good-kv-cache", "good-kv-77"]
    events = [warning("Pod", "good-1", f'claim "{claim}" not found') for claim in claims]
    found = obstacles(Facts(service(WITHOUT_GPU), [WITHOUT_GPU], events=events))
    assert [each.text for each in found[1:]] == [f'claim "{claim}" not found' for claim in claims]


def test_an_event_comes_with_what_helps() -> None:
    message = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) good-0'
    events = [warning("Pod", "good-1", message)]
    *_, last = obstacles(Facts(service(WITHOUT_GPU), [WITHOUT_GPU], events=events))
    assert last.text.startswith(message) and "take a volume of access mode ReadWriteMany" in last.text


def test_a_missing_gpu_is_one_obstacle_and_events_that_repeat_it_are_none() -> None:
    facts = Facts(
        service(WITHOUT_GPU),
        [WITHOUT_GPU],
        events=[
            warning("Pod", "good-1", NO_GPU),
            warning("Pod", "other-1", "another service's pod"),
            warning("PersistentVolumeClaim", "other", "another service's claim"),
            warning("ReplicaSet", "good-b-5f9c", "another service's replicas"),
        ],
    )
    (only,) = obstacles(facts)
    assert (only.about, only.reason) == ("condition Ready=False", "WaitingForGPU")
    assert "pod good-1" in only.text and NO_GPU in only.text
    assert report(facts, [only]).startswith("good does not serve: 0 of 1 replicas ready, phase Pending\n1. condition")


def test_the_startup_probe_of_a_model_that_loads_is_no_obstacle() -> None:
    loads = pod("good-1")
    probe, killed = (
        warning("Pod", "good-1", f"{kind} probe failed: statuscode: 503") for kind in ("Startup", "Liveness")
    )
    events = [{**probe, "reason": "Unhealthy"}, {**killed, "reason": "Unhealthy"}]
    text = report(facts := Facts(service(loads), [loads], events=events), obstacles(facts))
    assert "Startup probe" not in text and "Liveness probe failed" in text


def test_an_event_that_the_operator_wrote_of_a_condition_does_not_repeat_it() -> None:
    repeated, other = (
        {**warning("LLMService", "good", f"needs {need} GiB"), "reason": reason}
        for need, reason in ((8, "WaitingForGPU"), (9, "RolloutBlocked"))
    )
    text = report(facts := Facts(service(WITHOUT_GPU), [WITHOUT_GPU], events=[repeated, other]), obstacles(facts))
    assert "needs 8 GiB" not in text and "needs 9 GiB" in text


def test_a_pod_that_loads_is_named_once() -> None:
    loads = pod("good-1")
    (only,) = obstacles(Facts(service(loads), [loads]))
    assert (only.about, only.reason) == ("pod good-1", "Pulling")


def test_why_says_how_far_loading_is_and_does_not_repeat_what_the_autoscaler_says() -> None:
    loads = pod("good-1")
    asked = service(loads)
    asked["status"]["loading"] |= {"phase": "Loading", "bytesLoaded": 2**30, "bytesTotal": 4 * 2**30}
    raw = condition("ScalingActive", "False", "FailedGetExternalMetric", "unable to get external metric llm/queue")
    for status in ("False", "True"):
        ours = condition("ScalingActive", status, "AutoscalerPending", "at maxReplicas 2: raise spec.autoscaling")
        asked["status"]["conditions"] = [ours]
        limited = condition("ScalingLimited", "True", "TooManyReplicas", "the desired count is more than the maximum")
        facts = Facts(asked, [loads], autoscaler=named("good", raw if status == "False" else limited))
        text = report(facts, obstacles(facts))
        assert "0 of 1 replicas ready, phase Loading, 25 % of 4.0 GiB" in text
        assert "unable to get" not in text and "the desired count" not in text
        assert ("at maxReplicas 2" in text) is (status == "True")


def test_obstacles_come_in_the_order_in_which_one_looks_at_them() -> None:
    image = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    broken = pod("good-2", containerStatuses=[{"name": "engine", "image": "x", **image}])
    quota = {
        "metadata": {"name": "team"},
        "status": {
            "hard": {
                "memory": "0",
                "requests.nvidia.com/gpu": "2",
                "pods": "10",
                "services.nodeports": "0",
                "limits.cpu": "0",
            },
            "used": {"requests.nvidia.com/gpu": "2"},
        },
    }
    taken = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"memory": "1Gi"}}  # and so 1Gi of requests in its pods
    deployment = named("good", condition("ReplicaFailure", "True", "FailedCreate", "exceeded quota: team"))
    asked = service()
    asked["status"] |= {"replicas": 1, "desiredReplicas": 2}
    facts = Facts(
        asked,
        [WITHOUT_GPU, broken],
        {**deployment, "spec": {"template": {"spec": {"containers": [{"resources": taken}]}}}},
        named(
            "good",
            condition("AbleToScale", "True", "SucceededRescale", "fine"),
            condition("ScalingLimited", "True", "TooManyReplicas", "the desired count is more than the maximum"),
        ),
        [quota],
        [warning("Pod", "good-2", "later", "2026-01-01T00:00:02Z"), warning("LLMService", "good", "earlier")],
        ["events: forbidden"],
    )
    found = obstacles(facts)
    assert [(each.about, each.reason) for each in found] == [
        ("condition Ready=False", "Deploying"),
        ("Deployment good", "FailedCreate"),
        ("pod good-1", "WaitingForGPU"),
        ("pod good-2", "PullFailed"),
        ("HorizontalPodAutoscaler good", "TooManyReplicas"),
        ("ResourceQuota team", "UsedUp"),
        ("ResourceQuota team", "UsedUp"),
        ("event of LLMService good", "Failed"),
        ("event of Pod good-2", "Failed"),
    ]
    assert found[5].text.startswith("0 of 0 memory are used")
    assert found[6].text.startswith("2 of 2 requests.nvidia.com/gpu are used")
    assert report(facts, found).endswith("not looked at: events: forbidden\n")
    asked["spec"]["accelerator"] = {"count": 1}
    unread = obstacles(replace(facts, deployment=None))
    assert found[6] in unread, "what its pods take is in the LLMService too"


def test_a_service_that_no_operator_has_seen_says_where_to_look() -> None:
    found = obstacles(Facts(merged(VALID, {"metadata": {"generation": 1}})))
    assert [(each.reason, "octavo-operator" in each.text) for each in found] == [("NotReconciled", True)]
    found = obstacles(Facts(service(generation=4) | {"metadata": {"name": "good", "generation": 5}}))
    assert "only generation 4 of 5" in found[0].text


def test_top_reads_what_an_engine_serves() -> None:
    metrics = Metrics("good", EngineState, lambda: 0, vllm_names=False)
    for reason in ("queued_requests", "invalid", "unauthorized"):  # the others are errors of clients, and no load
        metrics.reject(reason)
    reading = read(metrics.render().decode())
    assert set(reading.values) == {
        "octavo_requests_running",
        "octavo_requests_waiting",
        "octavo_kv_cache_usage_ratio",
        "octavo_generation_tokens_total",
        "octavo_prefix_cache_queried_tokens_total",
        "octavo_prefix_cache_hit_tokens_total",
        "octavo_requests_rejected_total",
    }
    assert reading.values["octavo_requests_rejected_total"] == 1
    assert float("inf") in reading.buckets
    for text in ("<html>\n", 'octavo_requests_waiting{a="b",\t="y"} 2e3 # aa="b"} 1\n'):
        with pytest.raises(ValueError):
            read(text)


def test_top_shows_what_happened_between_two_readings() -> None:
    gauges = {"octavo_requests_running": 3.0, "octavo_requests_waiting": 2.0, "octavo_kv_cache_usage_ratio": 0.5}
    infinite = float("inf")
    before = Reading({"octavo_generation_tokens_total": 100.0}, {0.1: 5.0, 0.5: 9.0, infinite: 9.0})
    after = Reading({**gauges, "octavo_generation_tokens_total": 150.0}, {0.1: 7.0, 0.5: 12.0, infinite: 13.0})
    restarted = Reading({**gauges, "octavo_generation_tokens_total": 10.0}, {0.1: 0.0, 0.5: 0.0, infinite: 0.0})
    pods = [PodReadings(before, after, 2.0), PodReadings(before, restarted, 2.0), None]
    shown = top_table({("llm", "good"): pods, ("llm", "new"): [None]})
    rows = [line.split("   ") for line in shown.splitlines()[1:]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["llm", "good", "2 of 3", "6", "4", "50", "30.0", "-", "<0.1s", ">0.5s", "0.0"],
        ["llm", "new", "0 of 1", *["-"] * 8],
    ]


@pytest.mark.parametrize(
    ("model", "name", "gpus"),
    [("smollm2", "smollm2", 0), ("Qwen/Qwen3-8B", "qwen3-8b", 1), ("a/01.Yi_6", "m-01-yi-6", 1)],
)
def test_run_makes_an_llmservice_that_the_api_takes(model: str, name: str, gpus: int) -> None:
    made = parse(manifest(model, None, None))
    assert (made.name, made.spec.accelerator.count) == (name, gpus)


def test_the_start_is_reported_once_for_each_phase_and_ends_where_the_operator_gives_up() -> None:
    loading = service(pod("good-1"))
    stalled = service(WITHOUT_GPU)
    for each in stalled["status"]["conditions"]:
        each["status"] = "True" if each["type"] == "Stalled" else each["status"]
    serving = service(pod("good-1", ready=True), ready=1)
    ticks = iter(range(100))
    for last, good in ((serving, True), (stalled, False)):
        states, out = iter([loading, last]), io.StringIO()
        progress = ProgressWriter(out, clock=lambda: float(next(ticks)))
        assert wait_until_ready(lambda: next(states), progress, timeout=100, sleep=lambda _: None) is good  # noqa: B023
        assert [line.partition("phase ")[2].split(":")[0] for line in out.getvalue().splitlines()] == [
            loading["status"]["loading"]["phase"],
            last["status"]["loading"]["phase"],
        ]


def test_a_start_whose_phase_lasts_is_reported_from_time_to_time() -> None:
    loading, seconds, out = service(pod("good-1")), iter(range(0, 100, 4)), io.StringIO()
    assert not wait_until_ready(
        lambda: loading, ProgressWriter(out, clock=lambda: float(next(seconds))), timeout=50, sleep=lambda _: None
    )
    assert 3 <= len(out.getvalue().splitlines()) <= 5


def test_the_line_that_changes_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    ProgressWriter(out, clock=lambda: 0.0).write(service(pod("good-1")))
    assert out.getvalue() == "\r\x1b[K" + "   0 s 0 of 1 replicas ready, phase Pulling"[:29]


KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
while case "$1" in --*) ;; *) false;; esac; do shift; done
[ "$1" = port-forward ] && {{ echo "Forwarding from 127.0.0.1:1234 -> 8000"; exec sleep 60; }}
[ "$2" = --raw ] && {{ cat {folder}/metrics; exit; }}
[ -f {folder}/$2.json ] || {{ echo "Error from server (Forbidden): $2" >&2; exit 1; }}
cat {folder}/$2.json
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH, whose `kubectl` answers from files named by kind, and writes its arguments to `calls`."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_why_reads_all_objects_at_once_and_says_so_if_that_takes_long(
    cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read ends before all have begun, and the notice has been written."""
    began, noticed = cluster / "began", cluster / "noticed"
    all_began = f'[ -f {noticed} ] && [ "$(wc -l < {began})" -ge 6 ]'
    wait = f"echo >> {began}; for i in $(seq 500); do {all_began} && break; [ $i = 500 ] && exit 1; sleep 0.05; done\n"
    head, rest = (cluster / "kubectl").read_text().split("\n", 1)
    (cluster / "kubectl").write_text(f"{head}\n{wait}{rest}")
    (cluster / "llmservices.octavo.dev.json").write_text(json.dumps(service(WITHOUT_GPU)))
    written = sys.stderr.write

    def write(text: str) -> int:
        noticed.touch()
        return written(text)

    monkeypatch.setattr(cli, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "write", write)
    assert cli.main(["why", "good"]) == cli.IN_THE_WAY
    said = capsys.readouterr()
    assert "the cluster is slow to answer; still reading" in said.err
    assert "not looked at: pods" in said.out


def test_the_commands_ask_kubectl_with_its_own_flags(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(kind: str, body: Any) -> None:
        (cluster / f"{kind}.json").write_text(json.dumps(body))

    serving = pod("good-1", ready=True)
    write("llmservices.octavo.dev", service(WITHOUT_GPU))
    write("pods", {"items": [WITHOUT_GPU]})
    assert cli.main(["why", "good", "-n", "llm", "--context", "there"]) == cli.IN_THE_WAY
    text = capsys.readouterr().out
    assert "WaitingForGPU" in text
    assert "not looked at: ResourceQuotas: Error from server (Forbidden): resourcequotas" in text
    bounded = "--namespace=llm --context=there --request-timeout=10s get "
    assert all(call.startswith(bounded) for call in calls(cluster))

    (cluster / "horizontalpodautoscalers.autoscaling.json").write_text("")  # KEDA calls it otherwise
    (cluster / "pods.json").unlink()
    assert cli.main(["why", "good"]) == cli.IN_THE_WAY
    of_keda = "get horizontalpodautoscalers.autoscaling keda-hpa-good --output=json --ignore-not-found"
    assert f"--request-timeout=10s {of_keda}" in calls(cluster)
    text = capsys.readouterr().out
    assert "condition Ready=False: WaitingForGPU" in text
    assert "not looked at: pods: Error from server (Forbidden): pods" in text

    write("llmservices.octavo.dev", {"items": [service(WITHOUT_GPU), service(serving, ready=1)]})
    assert cli.main(["status", "-A"]) == 0
    _, waits, serves = capsys.readouterr().out.splitlines()
    assert NO_GPU in waits and serves.split() == ["llm", "good", "good", "1/1", "Serving", "-", "-"]
    assert calls(cluster)[-1] == "get llmservices.octavo.dev --all-namespaces --output=json"

    write("llmservices.octavo.dev", {"items": []})
    for where, said in (["-A"], "in this cluster"), (["-n", "llm"], "in the namespace llm"), ([], "the context's"):
        assert cli.main(["status", *where]) == 0  # also where the user may not get namespaces
        assert "no LLMServices found in" in (error := capsys.readouterr().err) and said in error
    assert cli.main([]) == 0
    assert "kubectl octavo why llama-8b" in capsys.readouterr().out

    write("llmservices.octavo.dev", service(serving, ready=1))
    assert cli.main(["status", "good"]) == 0
    assert [row.split()[1] for row in capsys.readouterr().out.splitlines()] == ["NAME", "good"]
    assert calls(cluster)[-1] == "get llmservices.octavo.dev good --output=json"
    assert cli.main(["status", "good", "-A"]) == cli.USAGE_ERROR
    assert "not both" in capsys.readouterr().err

    queued = service(serving, ready=1)
    for depth in (0, 3):
        queued["status"]["autoscaling"] = {"queueDepth": depth}
        write("llmservices.octavo.dev", {"items": [queued]})
        assert cli.main(["status"]) == 0
        assert capsys.readouterr().out.split()[-1] == str(depth)

    write("pods", {"items": [serving]})
    (cluster / "metrics").write_bytes(Metrics("good", EngineState, lambda: 0, vllm_names=False).render())
    assert cli.main(["top", "--seconds", "0.1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == ["llm", "good", "1", "0", "0"]
    assert calls(cluster)[-1] == "get --raw /api/v1/namespaces/llm/pods/good-1:8000/proxy/metrics"


def test_logs_and_top_of_one_service_say_why_there_is_nothing_to_show(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(kind: str, body: Any) -> None:
        (cluster / f"{kind}.json").write_text(json.dumps(body))

    write("llmservices.octavo.dev", service(WITHOUT_GPU))
    why = "0 of 1 replicas ready, phase Pending; why: kubectl octavo why good\n"
    for pods, command, said in (
        ([], ["logs", "good"], "good has no pods"),
        ([], ["top", "good"], "good has no pods"),
        ([WITHOUT_GPU], ["logs", "good", "-f"], "good has no logs, as no container has started"),
    ):
        write("pods", {"items": pods})
        assert cli.main(command) == cli.USAGE_ERROR
        assert capsys.readouterr().err == f"kubectl octavo: {said}: {why}"
    assert cli.main(["top", "good", "-A"]) == cli.USAGE_ERROR
    write("pods", {"items": [pod("good-1", ready=True)]})
    cli.main(["logs", "good"])
    assert calls(cluster)[-1].startswith("logs --selector=octavo.dev/llmservice=good,")


def test_a_cluster_that_cannot_be_read_is_reported_in_one_line(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == cli.USAGE_ERROR
    assert capsys.readouterr().err == "kubectl octavo: Error from server (Forbidden): llmservices.octavo.dev\n"


def test_top_finds_no_pods_where_octavo_is_not_installed(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cluster / "pods.json").write_text('{"items": []}')
    assert cli.main(["top"]) == 0  # a user without rights to LLMServices
    assert "no pods of LLMServices found" in capsys.readouterr().err
    program = (cluster / "kubectl").read_text()
    (cluster / "kubectl").write_text(program.replace("(Forbidden): ", 'does not have a resource type \\"'))
    assert cli.main(["top"]) == cli.USAGE_ERROR
    assert "Octavo is not installed in this cluster" in capsys.readouterr().err


def test_chat_talks_through_a_forwarded_port_if_a_replica_is_ready(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = cluster / "engine"
    engine.write_text(f'#!/bin/sh\necho "$@" > {cluster}/chat\nexit 7\n')
    engine.chmod(0o755)
    monkeypatch.setattr(cli, "_engine", lambda: str(engine))
    (cluster / "services.json").write_text(json.dumps({"spec": {"ports": [{"port": 80}]}}))
    (cluster / "llmservices.octavo.dev.json").write_text(json.dumps(service(WITHOUT_GPU)))
    assert cli.main(["chat", "good"]) == cli.USAGE_ERROR
    assert capsys.readouterr().err == (
        "kubectl octavo: good does not serve: 0 of 1 replicas ready, phase Pending; why: kubectl octavo why good\n"
    )
    assert not any("port-forward" in call for call in calls(cluster))
    (cluster / "llmservices.octavo.dev.json").write_text(json.dumps(service(pod("good-1", ready=True), ready=1)))
    for flags, passed in (([], ""), (["--temperature", "0.2"], "--temperature=0.2 ")):
        assert cli.main(["chat", "good", *flags]) == 7
        assert (cluster / "chat").read_text() == f"chat {passed}http://127.0.0.1:1234/v1\n"
    assert calls(cluster)[-1] == "port-forward service/good :80 --address=127.0.0.1"


def test_a_forwarded_port_outlives_any_number_of_connections(cluster: Path) -> None:
    """kubectl writes a line for each; a pipe takes 64 KiB."""
    (cluster / "services.json").write_text(json.dumps({"spec": {"ports": [{"port": 80}]}}))
    forwards = f"""#!/bin/sh
    [ "$1" = get ] && exec cat {cluster}/services.json
    echo "Forwarding from 127.0.0.1:1234 -> 8000"
    head -c 200000 /dev/zero | tr "\\0" "\\n"
    touch {cluster}/written
    exec sleep 60
    """
    (cluster / "kubectl").write_text(textwrap.dedent(forwards))
    with forwarded(Kubectl(), "good") as url:
        assert url == "http://127.0.0.1:1234/v1"
        wait_until((cluster / "written").exists, timeout=60, describe="kubectl has written all lines", every=0.01)
    refuses = '[ "$1" = get ] && exec cat ' + f'{cluster}/services.json; echo "error: unable to forward port" >&2'
    (cluster / "kubectl").write_text(f"#!/bin/sh\n{refuses}\nexit 1\n")
    with pytest.raises(KubectlError, match=r"^error: unable to forward port$"), forwarded(Kubectl(), "good"):
        pass


def test_a_chat_ends_though_what_a_wrapper_of_kubectl_has_started_does_not(cluster: Path) -> None:
    (cluster / "services.json").write_text(json.dumps({"spec": {"ports": [{"port": 80}]}}))
    wrapper = f"""#!/bin/sh
    [ "$1" = get ] && exec cat {cluster}/services.json
    (for _ in $(seq 6000); do [ -e {cluster}/ended ] && exit; sleep 0.05; done; touch {cluster}/late) &
    echo "Forwarding from 127.0.0.1:1234 -> 8000"
    exec sleep 60
    """
    (cluster / "kubectl").write_text(textwrap.dedent(wrapper))
    with forwarded(Kubectl(), "good"):
        pass
    (cluster / "ended").touch()
    assert not (cluster / "late").exists()


def test_chat_gets_its_key_from_a_secret_and_not_in_its_command(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = cluster / "engine"
    engine.write_text(f'#!/bin/sh\necho "$@ $OCTAVO_API_KEY" > {cluster}/chat\n')
    engine.chmod(0o755)
    monkeypatch.setattr(cli, "_engine", lambda: str(engine))
    (cluster / "services.json").write_text(json.dumps({"spec": {"ports": [{"port": 80}]}}))
    (cluster / "llmservices.octavo.dev.json").write_text(json.dumps(service(pod("good-1", ready=True), ready=1)))
    one, two = ({"data": {name: base64.b64encode(f"sk-{name}\n".encode()).decode() for name in names.split()}}
                for names in ("alice", "alice bob"))  # fmt: skip
    (cluster / "secret.json").write_text(json.dumps(one))
    assert cli.main(["chat", "good", "--api-key-secret", "clients"]) == 0
    assert (cluster / "chat").read_text() == "chat http://127.0.0.1:1234/v1 sk-alice\n"
    (cluster / "secret.json").write_text(json.dumps(two))
    assert cli.main(["chat", "good", "--api-key-secret", "clients/bob"]) == 0
    assert (cluster / "chat").read_text().endswith(" sk-bob\n")
    assert cli.main(["chat", "good", "--api-key-secret", "clients"]) == cli.USAGE_ERROR
    assert "name one entry of the Secret clients, as SECRET/ENTRY; it has alice, bob" in capsys.readouterr().err
    (cluster / "secret.json").write_text(json.dumps({"data": {"alice": "/w=="}}))
    assert cli.main(["run", "smollm2", "--api-key-secret", "clients"]) == cli.USAGE_ERROR
    assert "the entry alice is not text" in capsys.readouterr().err
    assert not any(call.startswith("create") for call in calls(cluster))


def calls(cluster: Path) -> list[str]:
    return (cluster / "calls").read_text().splitlines()


REFUSED = """E1123 17:43:53.627065 29354 memcache.go:265] "Unhandled Error" err="connection refused"
E1123 17:43:53.628476 29354 memcache.go:265] "Unhandled Error" err="connection refused"
The connection to the server localhost:8080 was refused - did you specify the right host or port?
"""


NO_CONNECTION = "kubectl has no connection to a cluster: check that"


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (REFUSED, ["The connection to the server localhost:8080 was refused", NO_CONNECTION]),
        (
            'error: the server doesn\'t have a resource type "llmservices"\n',
            ['have a resource type "llmservices"', "Octavo is not installed in this cluster"],
        ),
        (
            'Error from server (NotFound): llmservices.octavo.dev "good" not found\n',
            ["NotFound", "kubectl octavo status -A"],
        ),
        (
            'Error from server (AlreadyExists): llmservices.octavo.dev "good" already exists\n',
            ["already exists", "kubectl octavo chat, or give another --name"],
        ),
        (
            'error: error validating "STDIN": error validating data: failed to download openapi: Get "http://localhost"\n',
            ["failed to download openapi", NO_CONNECTION],
        ),
        (
            'error: resource mapping not found: no matches for kind "LLMService" in version "octavo.dev/v1alpha1"\n',
            ["no matches for kind", "Octavo is not installed in this cluster"],
        ),
        (
            "Unable to connect to the server: dial tcp: lookup cluster.invalid: no such host\n",
            ["no such host", NO_CONNECTION],
        ),
        (
            "Unable to connect to the server: tls: failed to verify certificate: x509: certificate has expired\n",
            [
                "x509",
                "the address, certificate and credentials in the kubeconfig are right; --kubeconfig or KUBECONFIG",
            ],
        ),
        (
            "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout\n",
            ["i/o timeout", "check that the cluster answers from here"],
        ),
        ('E1123 17:43:53.627065 1 x.go:1] "only this"\n', ["only this"]),
        ("", ["kubectl ended with code 1"]),
    ],
)
def test_what_kubectl_says_is_reported_without_its_log_and_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], stderr: str, said: list[str]
) -> None:
    (tmp_path / "said").write_text(stderr)
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert cli.main(["status"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said) and all(part in line for part, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    ("main", "words", "line"),
    [
        (cli.main, ["stauts"], "kubectl octavo: there is no command stauts, did you mean status? See kubectl octavo "),
        (cli.main, ["top", "--seconds", "x"], "kubectl octavo top: argument --seconds: 'x' is not a number of seconds"),
        (cli.main, ["why"], "kubectl octavo why: the following arguments are required: NAME; see kubectl octavo why "),
        (
            operator_cli.main,
            ["chek", "x"],
            "octavo-operator: there is no command chek, did you mean check? See octavo-",
        ),
        (
            cli.main,
            ["status", "-n", "x", "--all-namespace"],
            "kubectl octavo status: unknown flag --all-namespace, did ",
        ),
        (cli.main, ["run", "smollm2", "x"], "kubectl octavo run: unknown argument x; see kubectl octavo run --help"),
        (
            cli.main,
            ["--context=b", "why"],
            "kubectl octavo: flags come after the command, as in kubectl octavo st",
        ),
        (
            cli.main,
            ["-n", "a", "status"],
            "kubectl octavo: flags come after the command, as in kubectl octavo st",
        ),
        (cli.main, ["--wide", "status"], "kubectl octavo: unknown flag --wide; see kubectl octavo --help"),
        (
            operator_cli.main,
            ["check", "x", "--wide"],
            "octavo-operator check: unknown flag --wide; see octavo-operator",
        ),
        (
            cli.main,
            ["run", "smollm2", "--gpus=x"],
            "kubectl octavo run: argument --gpus: 'x' is not a whole number from 0",
        ),
        (
            operator_cli.main,
            ["local", "service.yaml", "--port=70000"],
            "octavo-operator local: argument --port: '70000' is not a whole number from 0 to 65,535; see octavo-",
        ),
        (operator_cli.main, ["render"], "octavo-operator render: the following arguments are required: FILE; see "),
    ],
)
def test_what_is_typed_wrong_gets_one_line(
    capsys: pytest.CaptureFixture[str], main: Any, words: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    [said] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and said.startswith(line)


PAGES = [(cli, "kubectl octavo", name) for name in KUBECTL_EXAMPLES]
PAGES += [(operator_cli, "octavo-operator", name) for name in OPERATOR_EXAMPLES]


@pytest.mark.parametrize(("module", "program", "command"), PAGES)
def test_each_command_says_what_it_does_and_has_examples(
    module: Any, program: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        module.build_parser().parse_args([command, "--help"])
    page, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    assert re.search(r"^[A-Z][^\n]*\.$", page, re.MULTILINE)
    for line in page.partition("positional arguments:\n")[2].partition("\n\n")[0].splitlines():
        assert re.search(r"\S  +\S|^ {8}", line) or line.startswith("  {"), line
    for line in filter(None, examples.splitlines()):
        written = re.split(r" {2,}| > ", line.strip())[0]
        assert written.startswith(f"{program} {command}"), line
        module.build_parser().parse_args(shlex.split(written.removeprefix(program)))


def test_a_service_that_no_operator_has_seen_is_said_to_be_so() -> None:
    assert replicas_sentence({"metadata": {"name": "new"}}) == "the operator has not reported on it yet"
