"""Reconciliation in a real Kubernetes, with pods that are never scheduled, so that no engine has to load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from octavo_operator.api.names import selector
from tests.operator.bad_llmservices import GONE, VALID, merged

from .client import Client, CommandError
from .cluster import GPUS
from .layout import NODE
from .octavo import (
    CHART,
    IMAGES,
    MANIFESTS,
    ONE_REPLICA,
    OPERATOR,
    RELEASE,
    condition,
    installed_operator,
    wait_for_condition,
)
from .programs import PAUSE_IMAGE
from .watching import watched_reasons

NOWHERE = {"scheduling": {"nodeSelector": {"no-such": "node"}}}
CHILDREN = ("deployment", "service", "poddisruptionbudget")
DRA = "resource.k8s.io/v1"


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide."""
    with installed_operator(cluster) as system:
        yield system


def llmservice(name: str = "model", **fields: Any) -> dict[str, Any]:
    return merged(VALID, {"metadata": {"name": name}, "spec": {**NOWHERE, **fields}})


def converged(client: Client, name: str = "model") -> dict[str, Any]:
    return wait_for_condition(client, name, "Ready", "Unschedulable")


def versions(client: Client, name: str = "model") -> dict[str, str]:
    return {kind: client.get(kind, name)["metadata"]["resourceVersion"] for kind in (*CHILDREN, "llms")}


def restart(operator: Client) -> None:
    operator.kubectl("rollout", "restart", f"deployment/{OPERATOR}")
    operator.kubectl("rollout", "status", f"deployment/{OPERATOR}", "--timeout=180s")


def test_children_are_made_and_owned_and_columns_are_filled(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice())
    service = converged(namespace)
    for kind in CHILDREN:
        child = json.loads(namespace.kubectl("get", kind, "model", "-o", "json", "--show-managed-fields"))
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (service["metadata"]["uid"], True)
        assert {manager["manager"] for manager in child["metadata"]["managedFields"]} >= {"octavo-operator"}
    assert "finalizers" not in service["metadata"]
    assert set(service["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    header, row = namespace.kubectl("get", "llms", "model", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "DESIRED", "STATUS", "PHASE", "URL", "GPU", "AGE"]
    url = f"http://model.{namespace.namespace}.svc:80/v1"
    assert row.split()[:-1] == ["model", "model", "0", "1", "Unschedulable", "Pending", url, "0"]


def test_no_gpu_is_reported(operator: Client, namespace: Client) -> None:
    accelerator = {"count": 1, "resourceName": "example.com/npu"}
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": {"accelerator": accelerator}}))
    service = wait_for_condition(namespace, "model", "Ready", "WaitingForGPU")
    message = condition(service, "Progressing")["message"]
    assert "it needs 1 example.com/npu on one node, and no node that it may use has that many in total" in message
    assert "The scheduler: 0/1 nodes are available: 1 Insufficient example.com/npu" in message
    assert condition(service, "Degraded")["status"] == "False"


def test_gpus_that_others_have_are_distinguished_from_gpus_that_no_node_has(
    operator: Client, namespace: Client
) -> None:
    all_gpus = {"name": "main", "image": PAUSE_IMAGE, "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}}}
    namespace.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": {"containers": [all_gpus]}}
    )
    namespace.kubectl("wait", "--for=condition=PodScheduled", "pod/other", "--timeout=180s")
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": {"accelerator": {"count": 1}}}))
    service = wait_for_condition(namespace, "model", "Ready", "WaitingForGPU")
    message = condition(service, "Progressing")["message"]
    assert "it needs 1 nvidia.com/gpu on one node, and all nodes with that many have them in use" in message


DRIVER = "gpu.example.com"
CLAIMED = {
    "accelerator": {"count": GONE, "claims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]},
}


def test_devices_of_claims_are_waited_for_and_had(cluster: Client, operator: Client, namespace: Client) -> None:
    """No driver runs: the scheduler gives the device away, and no more is shown."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    template = {"apiVersion": DRA, "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
                "spec": {"spec": {"devices": {"requests": [request]}}}}  # fmt: skip
    of_driver = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    kind = {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": [of_driver]}}
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    devices = {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": DRIVER},
               "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-0"}]}}  # fmt: skip
    try:
        namespace.apply(template, kind)
        namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": CLAIMED}))
        service = wait_for_condition(namespace, "model", "Ready", "WaitingForGPU")
        message = condition(service, "Progressing")["message"]
        assert "it needs devices for its claims (gpu), and no node has them free" in message
        namespace.apply(devices)
        wait_for_condition(namespace, "model", "Ready", "Deploying")
        (claim,) = json.loads(namespace.kubectl("get", "resourceclaims", "-o", "json"))["items"]
        assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    finally:
        cluster.kubectl("delete", "resourceslice,deviceclass", DRIVER, "--ignore-not-found")


def test_an_image_of_weights_is_a_folder_of_the_pod(operator: Client, namespace: Client) -> None:
    """The image at hand holds no model: what is in it is seen, and that the engine finds no model there is said."""
    image = {"reference": PAUSE_IMAGE, "pullPolicy": "Never"}
    look = "import os, time; print(os.listdir('/weights'), flush=True); time.sleep(3600)"
    beside = {"name": "beside", "image": "octavo-engine:dev", "command": ["python", "-c", look],
              "volumeMounts": [{"name": "weights", "mountPath": "/weights"}]}  # fmt: skip
    spec = {"model": {"source": {"demo": GONE, "image": image}}, "podTemplate": {"spec": {"containers": [beside]}}}
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": spec}))
    service = wait_for_condition(namespace, "model", "Ready", "ModelNotFound", 120)
    assert "/models" in condition(service, "Degraded")["message"]
    namespace.wait_until(lambda: "busybox" in logs_of_the_second(namespace), 60, "the second container has looked")


def logs_of_the_second(client: Client) -> str:
    """Return the log of the container `beside`; empty while it does not run, since it starts after the engine."""
    (pod,) = client.list("pods")
    answer = client.http.get(f"{client.path('pods', pod['metadata']['name'])}/log", params={"container": "beside"})
    return answer.text if answer.is_success else ""


def test_an_image_that_is_not_there_is_reported(operator: Client, namespace: Client) -> None:
    engine = {"image": "no-such-image:1", "imagePullPolicy": "Never"}
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": {"engine": engine}}))
    service = wait_for_condition(namespace, "model", "Ready", "PullFailed")
    assert "no-such-image:1" in condition(service, "Degraded")["message"]


def test_a_missing_secret_is_reported(operator: Client, namespace: Client) -> None:
    hub = {"repository": "a/b", "tokenSecretRef": {"name": "not-there", "key": "token"}}
    namespace.apply(
        merged(
            VALID, {"metadata": {"name": "model"}, "spec": {"model": {"source": {"demo": GONE, "huggingFace": hub}}}}
        )
    )
    service = wait_for_condition(namespace, "model", "Ready", "SecretMissing")
    assert 'secret "not-there" not found' in condition(service, "Degraded")["message"]


def test_a_missing_secret_that_is_a_volume_is_named(operator: Client, namespace: Client) -> None:
    auth = {"apiKeysSecretRef": {"name": "not-there"}}
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": {"auth": auth}}))
    service = wait_for_condition(namespace, "model", "Ready", "WaitingForVolumes")
    assert "Secret not-there" in condition(service, "Ready")["message"]


def test_a_claim_that_cannot_grow_keeps_no_service_from_stopping(operator: Client, namespace: Client) -> None:
    cache = {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": "no-such-class"}
    namespace.apply(llmservice(cache=cache))
    wait_for_condition(namespace, "model", "Ready", "WaitingForVolumes")
    namespace.apply(llmservice(cache={**cache, "size": "2Gi"}, suspend=True))
    service = wait_for_condition(namespace, "model", "Degraded", "ApplyFailed")
    assert "model-cache" in condition(service, "Degraded")["message"]
    assert condition(service, "Ready")["reason"] == "Suspended"
    assert namespace.get("deployment", "model")["spec"]["replicas"] == 0


def test_drift_is_mended(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice())
    converged(namespace)
    old = namespace.get("service", "model")["metadata"]["uid"]
    namespace.kubectl("delete", "service", "model")
    namespace.kubectl("scale", "deployment/model", "--replicas=3")
    namespace.kubectl("label", "poddisruptionbudget/model", "octavo.dev/llmservice-")
    namespace.wait_until(lambda: namespace.exists("service", "model"), 10, "the Service is made again")
    assert namespace.get("service", "model")["metadata"]["uid"] != old
    namespace.wait_until(lambda: namespace.get("deployment", "model")["spec"]["replicas"] == 1, 10, "one replica")
    namespace.wait_until(
        lambda: "octavo.dev/llmservice" in namespace.get("poddisruptionbudget", "model")["metadata"]["labels"],
        10,
        "the label is back",
    )


def test_objects_of_other_owners_are_left_alone(operator: Client, namespace: Client) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "model"},
              "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 1234}]}}  # fmt: skip
    namespace.apply(theirs)
    namespace.apply(llmservice())
    service = wait_for_condition(namespace, "model", "Ready", "NameTaken")
    assert "Service model exists and does not belong to this LLMService" in condition(service, "Degraded")["message"]
    assert namespace.get("service", "model")["spec"]["selector"] == {"app": "theirs"}
    namespace.kubectl("delete", "service", "model")
    converged(namespace)
    assert namespace.get("service", "model")["spec"]["selector"] == selector("model")


CACHED = {"cache": {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": "no-such-class"}}


def test_no_autoscaler_and_no_pod_uses_an_object_of_another_owner(operator: Client, namespace: Client) -> None:
    pod = {"metadata": {"labels": {"app": "theirs"}}, "spec": {"containers": [{"name": "theirs", "image": "none"}]}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "model"},
                  "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "theirs"}}, "template": pod}}  # fmt: skip
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cached-cache"},
             "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "no-such-class",
                      "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    namespace.apply(deployment, claim)
    namespace.apply(llmservice(autoscaling={"maxReplicas": 3}), llmservice("cached", **CACHED))
    for name in ("model", "cached"):
        wait_for_condition(namespace, name, "Ready", "NameTaken")
        assert namespace.exists("service", name)
    assert not namespace.exists("hpa", "model")
    assert not namespace.exists("deployment", "cached")


def test_a_cache_whose_volume_was_deleted_is_reported(operator: Client, namespace: Client) -> None:
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "no-such-class",
        "hostPath": {"path": "/tmp"},
        "claimRef": {"namespace": namespace.namespace, "name": "model-cache"},
    }
    name = namespace.namespace
    namespace.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    namespace.apply(llmservice(**CACHED))
    namespace.wait_until(lambda: namespace.exists("pvc", "model-cache"), 60, "the claim is made")
    namespace.wait_until(lambda: namespace.get("pvc", "model-cache")["status"]["phase"] == "Bound", 60, "it is bound")
    namespace.kubectl("delete", "pv", name, "--wait=false")
    namespace.kubectl("patch", "pv", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    service = wait_for_condition(namespace, "model", "Degraded", "VolumeLost")
    assert "kubectl delete pvc model-cache" in condition(service, "Degraded")["message"]


def test_what_is_no_longer_wanted_goes(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice())
    converged(namespace)
    # Replaced, since `kubectl apply` on the client's side takes null for "delete", and the default comes back.
    namespace.kubectl("replace", "-f", "-", input=yaml.safe_dump(llmservice(disruption=None, suspend=True)))
    wait_for_condition(namespace, "model", "Ready", "Suspended")
    namespace.wait_until(lambda: not namespace.exists("poddisruptionbudget", "model"), 10, "the budget goes")
    assert namespace.get("deployment", "model")["spec"]["replicas"] == 0


def test_scaling_by_hand_reaches_the_pods(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice())
    converged(namespace)
    namespace.kubectl("scale", "llms/model", "--replicas=2")
    namespace.wait_until(lambda: namespace.get("deployment", "model")["spec"]["replicas"] == 2, 10, "two replicas")


# Stands in for an engine: serves at once, and ends at once when it is asked to.
SERVES = """
import http.server, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


QUICK_PROBES = {
    "startupProbe": {"periodSeconds": 1},
    "readinessProbe": {"periodSeconds": 1, "failureThreshold": 30},  # a pod that stands still for seconds serves on
}


def test_a_rollout_is_in_place_or_with_a_surge_or_held_back_as_the_spec_says(
    operator: Client, namespace: Client
) -> None:
    engine = {"name": "engine", "command": ["python", "-c", SERVES], "args": [], **QUICK_PROBES}

    def apply(number: int, **rollout: Any) -> None:
        env = [{"name": "NUMBER", "value": str(number)}]
        spec = {"podTemplate": {"spec": {"containers": [engine]}}, "engine": {"env": env}, "rollout": rollout}
        namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": spec}))

    def reasons(number: int, **rollout: Any) -> list[str]:
        """Return the reasons of condition Available while the change is rolled out."""
        with watched_reasons(namespace, "model", "Available") as seen:
            apply(number, **rollout)
            wait_for_condition(namespace, "model", "Progressing", "Deployed")
        return seen.values

    apply(0, strategy="InPlace")
    wait_for_condition(namespace, "model", "Progressing", "Deployed")
    assert reasons(1, strategy="InPlace") == ["Serving", "NoReadyReplica", "Serving"]
    assert reasons(2, strategy="Surge") == ["Serving"]

    apply(3, strategy="Surge", paused=True)
    wait_for_condition(namespace, "model", "Progressing", "Paused")
    before = {pod["metadata"]["uid"] for pod in namespace.list("pods")}
    time.sleep(2)
    assert {pod["metadata"]["uid"] for pod in namespace.list("pods")} <= before
    apply(3, strategy="Surge")
    wait_for_condition(namespace, "model", "Progressing", "Deployed")
    (pod,) = [pod for pod in namespace.list("pods") if "deletionTimestamp" not in pod["metadata"]]
    assert {"name": "NUMBER", "value": "3"} in pod["spec"]["containers"][0]["env"]
    assert pod["metadata"]["uid"] not in before


def test_a_field_without_which_no_pod_could_run_and_that_does_not_act_yet_makes_none(
    operator: Client, namespace: Client
) -> None:
    namespace.apply(llmservice(engine={"extraArgs": ["--speculative-config={}"]}))
    service = wait_for_condition(namespace, "model", "Ready", "FieldsNotYetActedOn")
    assert "--speculative-config" in condition(service, "Degraded")["message"]
    assert not namespace.exists("deployment", "model")


def test_what_the_api_server_refuses_is_reported_in_its_words(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice(scheduling={"affinity": {"nodeAffinity": {"wrong": 1}}}))
    service = wait_for_condition(namespace, "model", "Ready", "ApplyFailed")
    assert "wrong" in condition(service, "Degraded")["message"]
    namespace.apply(llmservice())
    converged(namespace)


def test_an_object_made_under_an_older_crd_learns_that_it_is_invalid(operator: Client, namespace: Client) -> None:
    spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
    adapter = f"{spec}/properties/adapters/items/properties/source/properties/huggingFace/properties/repository"
    rules = [f"{each}/x-kubernetes-validations" for each in (spec, adapter)]
    without_rules = json.dumps([{"op": "remove", "path": path} for path in rules])
    operator.kubectl("patch", "crd", "llmservices.octavo.dev", "--type=json", "-p", without_rules)
    both = llmservice(replicas=2, autoscaling={"maxReplicas": 3})

    def created() -> bool:
        try:
            return bool(namespace.apply(both))
        except CommandError:
            return False

    try:
        namespace.wait_until(created, 30, "the API server has forgotten the rule")
        service = wait_for_condition(namespace, "model", "Ready", "Invalid")
        assert "set replicas or autoscaling, not both" in condition(service, "Degraded")["message"]
        assert not namespace.exists("deployment", "model")
        namespace.kubectl("delete", "llms", "model")
        tagged = {"name": "tuned", "source": {"huggingFace": {"repository": "owner/name:Q4"}}}
        namespace.apply(llmservice(name="adapted", adapters=[tagged]))
        service = wait_for_condition(namespace, "adapted", "Degraded", "AdapterFailed")
        assert "adapter tuned failed in 1 replica: its repository" in condition(service, "Degraded")["message"]
        namespace.kubectl("delete", "llms", "adapted")
    finally:
        operator.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(MANIFESTS / "crd.yaml"))


def test_a_restart_of_the_operator_writes_nothing(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice(suspend=True))  # a pod without a node would count as stalled some time later
    wait_for_condition(namespace, "model", "Ready", "Suspended")
    namespace.wait_until(lambda: all(namespace.exists(kind, "model") for kind in CHILDREN), 60, "it has its children")
    before = _settled(namespace)
    restart(operator)
    namespace.apply(llmservice("witness"))
    converged(namespace, "witness")  # made by the new operator, after it has looked at all that was there
    assert versions(namespace) == before


def is_observed(child: dict[str, Any]) -> bool:
    """Return True if the child's controller, which may be behind, has written its status."""
    return bool(child["status"]["observedGeneration"] == child["metadata"]["generation"])


def _settled(client: Client) -> dict[str, str]:
    """Return the versions once they have stayed the same for two seconds."""

    def unchanged() -> dict[str, str] | None:
        before = versions(client)
        if not all(is_observed(client.get(kind, "model")) for kind in ("deployment", "poddisruptionbudget")):
            return None
        time.sleep(2)
        return before if versions(client) == before else None

    return client.wait_until(unchanged, 30, "nothing changes any more")


def test_an_upgrade_of_the_operator_changes_no_pod_template(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice())
    converged(namespace)
    before = namespace.get("deployment", "model")
    upgrade = ("--set", "engine.image.tag=next", "--wait", "--timeout=240s")
    operator.helm("upgrade", RELEASE, str(CHART), *IMAGES, *ONE_REPLICA, *upgrade)
    namespace.apply(llmservice("newer"))
    converged(namespace, "newer")
    assert namespace.get("deployment", "newer")["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":next")
    after = namespace.get("deployment", "model")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert namespace.get("llms", "model")["status"]["engineImage"] == "octavo-engine:dev"
    operator.helm("upgrade", RELEASE, str(CHART), *IMAGES, *ONE_REPLICA, "--wait", "--timeout=240s")


def test_an_llmservice_made_again_under_the_same_name_gets_children_of_its_own(
    operator: Client, namespace: Client
) -> None:
    namespace.apply(llmservice())
    old = converged(namespace)["metadata"]["uid"]
    namespace.kubectl("delete", "llms", "model")
    namespace.apply(llmservice())

    def owned_anew() -> bool:
        if not all(namespace.exists(kind, "model") for kind in CHILDREN):
            return False
        owners = [namespace.get(kind, "model")["metadata"]["ownerReferences"][0]["uid"] for kind in CHILDREN]
        return owners == [namespace.get("llms", "model")["metadata"]["uid"]] * len(CHILDREN) and old not in owners

    namespace.wait_until(owned_anew, 60, "all children belong to the new LLMService")


def test_deletion_needs_no_operator(operator: Client, namespace: Client) -> None:
    namespace.apply(llmservice())
    converged(namespace)
    operator.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=0")
    try:
        operator.kubectl(
            "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=octavo-operator", "--timeout=180s"
        )
        namespace.kubectl("delete", "llms", "model", "--timeout=180s")
        for kind in CHILDREN:
            namespace.wait_until(lambda kind=kind: not namespace.exists(kind, "model"), 30, f"the {kind} goes")
        namespace.wait_until(lambda: not namespace.list("pods"), 30, "the pods go")
    finally:
        operator.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=1")
        operator.kubectl("rollout", "status", f"deployment/{OPERATOR}", "--timeout=180s")


def test_the_operator_may_do_what_it_needs_and_no_more(operator: Client) -> None:
    account = f"system:serviceaccount:{operator.namespace}:{OPERATOR}"

    def may(*words: str) -> bool:
        try:
            return operator.kubectl("auth", "can-i", *words, "--as", account, "-A").strip() == "yes"
        except CommandError:
            return False

    assert may("patch", "deployments.apps")
    assert may("patch", "llmservices.octavo.dev", "--subresource=status")
    forbidden = [
        ("get", "secrets"),
        ("list", "secrets"),
        ("get", "configmaps"),
        ("list", "nodes"),
        ("create", "pods"),
        ("delete", "pods"),
        ("patch", "llmservices.octavo.dev"),
        ("delete", "llmservices.octavo.dev"),
    ]
    for words in forbidden:
        assert not may(*words), words
