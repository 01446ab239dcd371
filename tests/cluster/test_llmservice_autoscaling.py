"""Autoscaling with nothing installed but Octavo; the replicas' ownership moves between spec and autoscaler without a
wrong number."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.operator.bad_llmservices import GONE, VALID, merged

from .client import Client, CommandError
from .octavo import OPERATOR, PATIENT, SAMPLES, condition, installed_operator, start_load, wait_for_condition
from .watching import Seen, watched_replicas

SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
METRICS = f"{OPERATOR}-metrics"
LOADED = 300  # seconds that three engines may take to load on a machine that does much else
DRAINED = 600  # seconds that a pod's answers may take to end on such a machine
QUICK = {
    "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
    "scaleDown": {"stabilizationWindowSeconds": 10, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
}
SCALED = {
    "engine": {
        "maxConcurrentRequests": 4,
        # While two more replicas load on two cores, requests may wait longer than a server should let its clients wait.
        "extraArgs": ["--max-queue-seconds=7200", "--request-timeout=7200"],
        # Three engines share two cores: threads that wait must not spin.
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    },
    # Under load they would take all CPU time from the tests that compute meanwhile.
    "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m"}},
    # Two cores may serve the answers of three engines for longer than the default of 120 s when other tests run too.
    "rollout": {"drainTimeoutSeconds": DRAINED},
    "podTemplate": PATIENT,
    "autoscaling": {"maxReplicas": 3, "targetQueueDepth": 2, "metricsSource": "Builtin", "behavior": QUICK},
}
# With two users of short answers, twice what two replicas should have in flight; so long that a user's own work between
# two answers, on the same two cores, does not count.
LONG_ANSWERS = (800, 12, 12)  # tokens or seconds, and users of such answers; seconds decide, however quick the CPU


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide, and with it the metrics API."""
    with installed_operator(cluster) as system:
        yield system


def message(client: Client, name: str = NAME) -> str:
    return str(client.get("llms", name)["status"].get("autoscaling", {}).get("message"))


def wait_for_message(client: Client, words: str, timeout: float, name: str = NAME) -> None:
    client.wait_until(lambda: words in message(client, name), timeout, lambda: f"{words}: {message(client, name)}")


def wait_for_replicas(client: Client, count: int, timeout: float, name: str = NAME) -> None:
    client.wait_until(
        lambda: client.get("deployment", name)["spec"]["replicas"] == count,
        timeout,
        lambda: f"{count} replicas: {client.kubectl('describe', 'hpa', name)}",
    )


@pytest.mark.timeout(1800)
def test_replicas_follow_the_load_and_no_answer_is_lost(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(SAMPLE, {"spec": {"replicas": GONE, **SCALED}}))
    service = wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
    wait_for_condition(namespace, NAME, "ScalingActive", "ValidMetricFound")
    assert service["status"]["loading"]["lastLoadSeconds"] > 0
    with watched_replicas(namespace, NAME) as replicas:
        start_load(namespace, service["status"]["url"], NAME, LONG_ANSWERS)
        wait_for_replicas(namespace, 3, 60)
        namespace.wait_until(lambda: namespace.get("llms", NAME)["status"]["readyReplicas"] == 3, LOADED, "all serve")
        namespace.wait_until(lambda: asks_for_three(namespace), 60, "status says how many the load asks for")

        one_pod_after_the_other_leaves_a_drained_node(namespace)
        nothing_flaps_without_metrics(operator, namespace, replicas)
        wait_for_replicas(namespace, 1, 120)
        pods_left(namespace, 1)
        rests = ("at 1, as many as the load asks for", "at minReplicas 1: the load asks for no more")
        namespace.wait_until(lambda: message(namespace) in rests, 30, lambda: message(namespace))
    assert sorted(set(replicas.values)) == sorted(replicas.values[:-1])  # up to 3 without a way back, then down once
    assert (replicas.values[0], max(replicas.values), replicas.values[-1]) == (1, 3, 1)
    assert [answer["lost"] for answer in stop_load(namespace) if answer["lost"]] == []


def asks_for_three(client: Client) -> bool:
    """Return True if the status has the load and what it asks for: it has no load while no pod answers in time."""
    status = client.get("llms", NAME)["status"]["autoscaling"]
    return bool(status["desiredReplicas"] == 3 and status["concurrencyPercent"] > 0)


def one_pod_after_the_other_leaves_a_drained_node(client: Client) -> None:
    """As `kubectl drain` asks for it: the first pod may go, and the others stay until another serves in its place."""

    def one_may_go() -> bool:
        return client.get("poddisruptionbudget", NAME)["status"].get("disruptionsAllowed") == 1

    client.wait_until(one_may_go, LOADED, "one pod may go")
    pods = client.list("pods", selector=f"octavo.dev/llmservice={NAME}")
    pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    # The oldest served alone while the others loaded, and so has most answers to finish.
    oldest, *others = [pod["metadata"]["name"] for pod in pods]
    assert [evicted(client, pod) for pod in (oldest, *others)] == [201, 429, 429]
    client.wait_until(lambda: not client.exists("pod", oldest), DRAINED, "it has finished its answers")
    client.wait_until(one_may_go, LOADED, "another serves")


def evicted(client: Client, pod: str) -> int:
    """Return the status of the API server's answer to the eviction of a pod."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    return client.http.post(f"{client.path('pod', pod)}/eviction", json=eviction).status_code


def touch(client: Client, name: str) -> None:
    client.kubectl("exec", "load", "--", "python", "-c", f"open('/tmp/{name}', 'w')")


def stop_load(client: Client) -> list[dict[str, Any]]:
    touch(client, "stop")
    ended = ("Succeeded", "Failed")
    client.wait_until(lambda: client.get("pod", "load")["status"]["phase"] in ended, 300, "the load ends")
    return [json.loads(line) for line in client.kubectl("logs", "load").splitlines()]


def nothing_flaps_without_metrics(operator: Client, client: Client, replicas: Seen) -> None:
    """Most users leave while the load is unknown: replicas stay, the status says why, and later they go."""
    with without_metrics(operator):
        stays_as_it_is(operator, client, replicas)


@contextlib.contextmanager
def without_metrics(operator: Client) -> Iterator[None]:
    """The metrics API has no pods meanwhile; later tests need it again, however this one ends."""
    operator.kubectl("scale", f"deployment/{METRICS}", "--replicas=0")
    try:
        yield
    finally:
        operator.kubectl("scale", f"deployment/{METRICS}", "--replicas=1")


def stays_as_it_is(operator: Client, client: Client, replicas: Seen) -> None:
    before = list(replicas.values)
    wait_for_message(client, "held at 3: the load is not known", 60)
    service = client.get("llms", NAME)
    assert condition(service, "ScalingActive")["reason"] == "FailedGetExternalMetric"
    touch(client, "stop-long")
    client.wait_until(lambda: long_users_gone(client) == LONG_ANSWERS[-1], 600, "each has its last answer", every=1)
    assert condition(client.get("llms", NAME), "Ready")["status"] == "True"
    operator.kubectl("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=octavo-metrics-api", "--timeout=180s")
    time.sleep(12)  # the autoscaler looks every second here, and its window is ten
    assert replicas.values == before


def long_users_gone(client: Client) -> int:
    answers = [json.loads(line) for line in client.kubectl("logs", "load").splitlines()]
    return sum(answer["user"] == "long" and answer["last"] for answer in answers)


def pods_left(client: Client, count: int) -> None:
    label = f"octavo.dev/llmservice={NAME}"
    client.wait_until(lambda: len(client.list("pods", selector=label)) == count, 180, f"{count} pods are left")


# Stands in for engines: one loads until its pod has /tmp/serves, which the later ones never get, and is busy once there
# is /tmp/busy.
ONE_LOADED = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        metrics = self.path == "/metrics"
        self.send_response(200 if metrics or os.path.exists("/tmp/serves") else 503)
        self.end_headers()
        running = 6 if os.path.exists("/tmp/busy") else 0
        self.wfile.write(b"octavo_requests_waiting 0\\noctavo_requests_running %d\\n" % running if metrics else b"{}")
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


def told(client: Client, file: str) -> None:
    """Make a file in the pod of the LLMService `model`, once it runs, while there is only one."""
    (pod,) = client.wait_until(lambda: running_pods(client), 60, "its pod runs")
    name = pod["metadata"]["name"]
    client.kubectl("exec", name, "-c", "engine", "--", "python", "-c", f"open('/tmp/{file}', 'w')")


def running_pods(client: Client) -> list[dict[str, Any]]:
    pods = client.list("pods", selector="octavo.dev/llmservice=model")
    return [pod for pod in pods if pod["status"]["phase"] == "Running"]


TWO_EACH = {"engine": {"maxConcurrentRequests": 4}, "autoscaling": {"targetConcurrencyPercent": 50, "maxReplicas": 8}}


def test_replicas_that_load_long_neither_dilute_nor_multiply_the_load(operator: Client, namespace: Client) -> None:
    engine = {"name": "engine", "command": ["python", "-c", ONE_LOADED], "args": []}
    quick = {"behavior": QUICK, "metricsSource": "Builtin"}
    spec = merged(TWO_EACH, {"podTemplate": {"spec": {"containers": [engine]}}, "autoscaling": quick})
    with watched_replicas(namespace, "model") as replicas:
        namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": spec}))
        told(namespace, "serves")
        wait_for_condition(namespace, "model", "Ready", "Serving")
        told(namespace, "busy")
        wait_for_message(namespace, "at 3 (2 are still loading), as many as the load asks for", 90, "model")
        time.sleep(8)  # the autoscaler looks every second here, and may add more at each look
        wait_for_message(namespace, "at 3 (2 are still loading)", 30, "model")
    assert replicas.values == [1, 3]


PROBE = """
import ssl, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context()).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_the_metrics_api_answers_users_through_the_api_server_alone(operator: Client, namespace: Client) -> None:
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace.namespace}/octavo_requests_waiting"
    operator.kubectl(
        "wait", "--for=condition=Available", "apiservice/v1beta1.external.metrics.k8s.io", "--timeout=180s"
    )
    answer = json.loads(namespace.kubectl("get", "--raw", path))
    assert (answer["kind"], answer["items"]) == ("ExternalMetricValueList", [])
    past = f"https://{METRICS}.{operator.namespace}.svc{path}"
    assert namespace.run_pod("octavo-operator:dev", ["python", "-c", PROBE, past]).logs.strip() == "401"


def test_while_the_metrics_api_does_not_answer_discovery_works_and_namespaces_end(
    operator: Client, namespace: Client
) -> None:
    """The operator deletes the APIService, and the metrics API creates it when it starts."""
    name = "v1beta1.external.metrics.k8s.io"
    operator.kubectl("scale", f"deployment/{METRICS}", "--replicas=0")
    operator.wait_until(lambda: not operator.exists("apiservice", name), 60, "it is deleted")
    doomed = f"{namespace.namespace[:50]}-doomed"
    namespace.kubectl("create", "namespace", doomed)
    namespace.kubectl("delete", "namespace", doomed, "--timeout=180s")
    operator.kubectl("scale", f"deployment/{METRICS}", "--replicas=2")
    operator.kubectl("rollout", "status", f"deployment/{METRICS}", "--timeout=180s")
    operator.kubectl("wait", "--for=condition=Available", f"apiservice/{name}", "--timeout=180s")

    trusted = base64.b64decode(operator.get("apiservice", name)["spec"]["caBundle"])
    assert trusted.count(b"BEGIN CERTIFICATE") == 2
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace.namespace}/octavo_requests_waiting"
    for _ in range(10):  # by either replica
        namespace.kubectl("get", "--raw", path)
    operator.kubectl("scale", f"deployment/{METRICS}", "--replicas=1")


# Pods that find no node: no load is reported, and an autoscaler only keeps its bounds.
NOWHERE = {"scheduling": {"nodeSelector": {"no-such": "node"}}}


def held(**spec: Any) -> dict[str, Any]:
    return merged(VALID, {"metadata": {"name": "model"}, "spec": {"replicas": GONE, **NOWHERE, **spec}})


def autoscaled(least: int, most: int, source: str = "Builtin") -> dict[str, Any]:
    return held(autoscaling={"minReplicas": least, "maxReplicas": most, "metricsSource": source})


def replace(client: Client, service: dict[str, Any]) -> None:
    """Replace the LLMService, including fields that another manager or an older manifest has set."""

    def replaced() -> bool:
        try:
            return bool(client.kubectl("replace", "-f", "-", input=yaml.safe_dump(service)))
        except CommandError as error:
            if "Conflict" not in str(error):  # the operator has written the status meanwhile
                raise
            return False

    client.wait_until(replaced, 30, "the LLMService is replaced", every=0.2)


def owners(client: Client) -> set[str]:
    """Return the managers that own the Deployment's replicas."""
    found = json.loads(client.kubectl("get", "deployment", "model", "-o", "json", "--show-managed-fields"))
    entries = found["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}


def test_replicas_change_hands_without_a_wrong_number(operator: Client, namespace: Client) -> None:
    """Each step's number is one that its owner wants; the list has every number that was ever written."""
    with watched_replicas(namespace, "model") as replicas:
        namespace.apply(autoscaled(3, 8))
        namespace.wait_until(lambda: namespace.exists("hpa", "model"), 30, "the autoscaler is made")
        assert owners(namespace) == {"octavo-operator-handover"}

        replace(namespace, held(replicas=5))
        wait_for_replicas(namespace, 5, 30, "model")
        assert not namespace.exists("hpa", "model")
        namespace.wait_until(lambda: "octavo-operator" in owners(namespace), 10, "the spec owns them")

        replace(namespace, autoscaled(1, 8))
        namespace.wait_until(lambda: owners(namespace) == {"octavo-operator-handover"}, 30, "the operator lets go")

        replace(namespace, autoscaled(1, 4))  # the autoscaler's own write: five are more than it may have
        namespace.wait_until(
            lambda: "octavo-operator-handover" not in owners(namespace), 30, "the autoscaler owns them"
        )
        assert "octavo-operator-handover" not in owners(namespace)
        operator.kubectl("rollout", "restart", f"deployment/{OPERATOR}")
        operator.kubectl("rollout", "status", f"deployment/{OPERATOR}", "--timeout=180s")

        def scale() -> tuple[int, int]:
            found = namespace.http.get(f"{namespace.path('llms', 'model')}/scale").json()
            return found["spec"]["replicas"], found["status"]["replicas"]

        namespace.wait_until(lambda: scale() == (1, 4), 30, lambda: f"its scale is told: {scale()}")
        with pytest.raises(CommandError, match="set replicas or autoscaling, not both"):
            namespace.kubectl("scale", "llms/model", "--replicas=7")

        replace(namespace, held(replicas=6))
        wait_for_replicas(namespace, 6, 30, "model")
        replace(namespace, autoscaled(2, 8))
        namespace.wait_until(lambda: namespace.exists("hpa", "model"), 30, "the autoscaler is made")

        replace(namespace, merged(autoscaled(2, 8), {"spec": {"suspend": True}}))
        wait_for_replicas(namespace, 0, 30, "model")
        replace(namespace, autoscaled(2, 8))
        wait_for_replicas(namespace, 2, 30, "model")
    assert replicas.values == [3, 5, 4, 6, 0, 2]


def test_replicas_change_hands_to_keda_and_back(operator: Client, namespace: Client, keda_crds: None) -> None:
    """KEDA itself does not run here: the objects that it would read are there, and nothing else touches the number."""
    with watched_replicas(namespace, "model") as replicas:
        namespace.apply(held(replicas=4))
        wait_for_condition(namespace, "model", "Ready", "Unschedulable")
        replace(namespace, autoscaled(1, 8, "KEDA"))
        namespace.wait_until(lambda: namespace.exists("scaledobject", "model"), 60, "the ScaledObject is made")
        namespace.wait_until(lambda: owners(namespace) == {"octavo-operator-handover"}, 30, "the operator lets go")
        wait_for_message(namespace, "KEDA has not created its HorizontalPodAutoscaler yet", 30, "model")
        url = namespace.get("scaledobject", "model")["spec"]["triggers"][0]["metadata"]["url"]
        assert url.startswith(f"http://{METRICS}.{operator.namespace}.svc:8080/")

        replace(namespace, autoscaled(1, 8))
        namespace.wait_until(lambda: namespace.exists("hpa", "model"), 30, "the autoscaler is made")
        namespace.wait_until(lambda: not namespace.exists("scaledobject", "model"), 30, "the ScaledObject goes")
        replace(namespace, held(replicas=7))
        wait_for_replicas(namespace, 7, 30, "model")
    assert replicas.values == [4, 7]


def test_without_a_pod_that_reports_its_load_the_message_says_that_replicas_are_held(
    operator: Client, namespace: Client
) -> None:
    namespace.apply(autoscaled(2, 8))
    words = f"held at 2: the load is not known: no pod of LLMService {namespace.namespace}/model is running"
    wait_for_message(namespace, words, 60, "model")
    assert condition(namespace.get("llms", "model"), "ScalingActive")["status"] == "False"


def test_a_schedule_comes_into_force_at_its_time(operator: Client, namespace: Client) -> None:
    schedule = {"name": "always", "start": "* * * * *", "duration": "1h", "minReplicas": 3, "maxReplicas": 5}
    wanted = autoscaled(1, 8)
    wanted["spec"]["autoscaling"]["schedules"] = [schedule]
    namespace.apply(wanted)
    namespace.wait_until(lambda: namespace.exists("hpa", "model"), 30, "the autoscaler is made")
    wait_for_message(namespace, "schedule always sets 3 to 5 until ", 60, "model")
    spec = namespace.get("hpa", "model")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (3, 5)
    assert namespace.get("deployment", "model")["spec"]["replicas"] == 3
