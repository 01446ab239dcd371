"""Clusters with problems: other managers change the operator's objects; quotas leave no room for a rolling update."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.operator.bad_llmservices import VALID, merged

from .client import Client, as_yaml
from .octavo import CRD, condition, faults, installed_operator, wait_for_condition
from .test_llmservice_autoscaling import ONE_LOADED, QUICK, TWO_EACH, told, wait_for_message
from .watching import watched_reasons

MENDED = 10  # seconds
MODEL = "octavo.dev/llmservice=model"
LISTENS = ["-m", "http.server", "8000", "--directory", "/tmp"]
BY_TCP = {"$patch": "replace", "tcpSocket": {"port": "http"}, "periodSeconds": 1}
NO_ENGINE = {
    "name": "engine",
    "command": ["python3"],
    "args": LISTENS,
    **dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), BY_TCP),
}
"""In the engine's place something that is ready at once: these tests send no request."""
READY_AT_ONCE = merged(
    VALID,
    {
        "metadata": {"name": "model"},
        "spec": {
            "engine": {"image": "octavo-engine:dev", "imagePullPolicy": "Never"},
            "accelerator": {"count": 0},
            "podTemplate": {"spec": {"terminationGracePeriodSeconds": 11, "containers": [NO_ENGINE]}},
        },
    },
)


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide, without a metrics API: it scales by itself."""
    with installed_operator(cluster, "--set", "autoscaling.direct=true") as system:
        yield system


@pytest.fixture
def served(operator: Client, namespace: Client) -> Client:
    """A client of a namespace in which an LLMService is ready."""
    namespace.apply(READY_AT_ONCE)
    wait_for_condition(namespace, "model", "Ready", "Serving", 90)
    return namespace


def changed_service(client: Client, spec: dict[str, Any], manager: str = "kubectl-patch") -> None:
    patch = json.dumps({"spec": spec})
    client.kubectl("patch", "service", "model", "--type=merge", f"--field-manager={manager}", "-p", patch)


def ports(client: Client) -> list[dict[str, Any]]:
    return list(client.get("service", "model")["spec"]["ports"])


def test_a_port_that_another_manager_puts_in_the_place_of_ours_is_gone_again(served: Client) -> None:
    before = ports(served)
    changed_service(served, {"ports": [{"name": "http", "port": 81, "targetPort": 1}]})
    served.wait_until(lambda: ports(served) == before, MENDED, lambda: f"the ports are as before: {ports(served)}")
    wait_for_condition(served, "model", "Ready", "Serving", MENDED)

    def managers() -> list[tuple[str, str]]:
        fields = served.http.get(served.path("service", "model")).json()["metadata"]["managedFields"]
        return [(each["manager"], each["operation"]) for each in fields]

    served.wait_until(lambda: ("octavo-operator", "Update") not in managers(), MENDED, "only its apply owns fields")
    wait_for_condition(served, "model", "Degraded", "AsExpected", MENDED)


def test_a_rolling_update_for_which_a_quota_has_no_room_goes_on_in_place(served: Client) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    served.apply(quota)
    served.wait_until(
        lambda: served.get("resourcequota", "one")["status"].get("used", {}).get("pods") == "1", 90, "used"
    )
    change = {"rollout": {"surgeTimeoutSeconds": 3600}, "engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}
    soon = {"rollout": {"surgeTimeoutSeconds": 10}}
    with watched_reasons(served, "model", "RolloutBlocked") as reasons:
        served.kubectl("patch", "llms", "model", "--type=merge", "-p", json.dumps({"spec": change}))
        # With ten seconds from the start, an operator that stood still for so long would not say it.
        wait_for_condition(served, "model", "RolloutBlocked", "NoQuotaForSurge")
        served.kubectl("patch", "llms", "model", "--type=merge", "-p", json.dumps({"spec": soon}))
        # Perhaps it is only said for a moment.
        served.wait_until(lambda: "WentInPlace" in reasons.values, 120, "it goes on in place")
        wait_for_condition(served, "model", "Progressing", "Deployed", 180)
        wait_for_condition(served, "model", "RolloutBlocked", "NotBlocked", 30)
    assert reasons.values == ["NotBlocked", "NoQuotaForSurge", "WentInPlace", "NotBlocked"]


def test_a_rollout_that_cannot_end_is_stalled_while_old_pods_serve(served: Client) -> None:
    before = wait_for_condition(served, "model", "Reconciling", "Deployed", 30)
    assert condition(before, "Stalled")["reason"] == "AsExpected"
    missing = {"spec": {"engine": {"image": "octavo-engine:none", "imagePullPolicy": "Never"}}}
    served.kubectl("patch", "llms", "model", "--type=merge", "-p", json.dumps(missing))
    stalled = wait_for_condition(served, "model", "Stalled", "PullFailed", 60)
    assert condition(stalled, "Reconciling")["status"] == "False"
    assert condition(stalled, "Ready")["status"] == "True"
    assert condition(stalled, "RolloutBlocked")["reason"] == "NewPodFails"


def test_a_pod_that_has_the_label_of_a_service_by_mistake_gets_no_requests(served: Client) -> None:
    stray = {"octavo.dev/llmservice": "model"}
    container = {"name": "engine", "image": "octavo-engine:dev", "imagePullPolicy": "Never", "command": ["python3"],
                 "args": LISTENS, "ports": [{"name": "http", "containerPort": 8000}]}  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stray", "labels": stray},
           "spec": {"containers": [container]}}  # fmt: skip
    served.apply(pod)
    served.kubectl("wait", "--for=condition=Ready", "pod/stray", "--timeout=180s")
    slices = served.list("endpointslices", selector="kubernetes.io/service-name=model")
    pods = [endpoint["targetRef"]["name"] for each in slices for endpoint in each["endpoints"]]
    (own,) = served.list("pods", selector="octavo.dev/track=stable")
    assert pods == [own["metadata"]["name"]]
    assert own["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"
    assert served.get("llms", "model")["status"]["readyReplicas"] == 1


def test_what_acts_for_a_service_without_being_part_of_it_is_named_and_stays(served: Client) -> None:
    """An EndpointSlice of another manager, and a pod that left its Deployment."""
    (own,) = served.list("pods", selector=MODEL)
    name = own["metadata"]["name"]
    theirs = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "theirs", "labels": {"kubernetes.io/service-name": "model"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    }
    served.apply(theirs)
    served.kubectl("label", "pod", name, "octavo.dev/llmservice-")

    def said() -> str:
        return str(condition(served.get("llms", "model"), "Degraded")["message"])

    served.wait_until(lambda: "EndpointSlice theirs" in said() and f"pod {name} runs" in said(), 60, said)
    wait_for_condition(served, "model", "Ready", "ForeignEndpoints", 60)
    assert served.exists("endpointslice", "theirs") and served.exists("pod", name)


def test_ready_is_what_a_client_reaches(operator: Client, served: Client) -> None:
    nobody = {"selector": {"nobody": "has-this"}}
    selector = served.get("service", "model")["spec"]["selector"]
    changed_service(served, nobody, "argocd")
    served.wait_until(lambda: served.get("service", "model")["spec"]["selector"] == selector, MENDED, "it is put back")

    def conflict() -> dict[str, Any] | None:
        """Change it again until it is a conflict, in which the operator waits for a minute."""
        if served.get("service", "model")["spec"]["selector"] == selector:
            changed_service(served, nobody, "argocd")
        service = served.get("llms", "model")
        return service if condition(service, "Ready")["reason"] == "NoEndpoints" else None

    service = served.wait_until(conflict, 30, lambda: served.kubectl("describe", "llms", "model"))
    assert (service["status"]["replicas"], service["status"]["readyReplicas"]) == (1, 1)
    assert condition(service, "Available")["reason"] == "NoEndpoints"
    shown = (
        f'octavo_llmservice_condition{{name="model",namespace="{served.namespace}",status="False",type="Ready"}} 1.0'
    )
    (pod,) = operator.list("pods", selector="app.kubernetes.io/name=octavo-operator")
    metrics = f"{operator.path('pods', pod['metadata']['name'])}:8080/proxy/metrics"
    operator.wait_until(lambda: shown in operator.http.get(metrics).text, 10, f"the operator shows {shown}")


def test_a_native_sidecar_that_is_not_ready_is_named_and_hides_no_phase(operator: Client, namespace: Client) -> None:
    """As a mesh injects it: the engine starts beside it, and no request reaches the pod until both are ready."""
    never = {"tcpSocket": {"port": 1}, "periodSeconds": 1}
    mesh = {"name": "mesh", "image": "octavo-engine:dev", "imagePullPolicy": "Never", "restartPolicy": "Always",
            "command": ["sleep", "infinity"], "readinessProbe": never}  # fmt: skip
    namespace.apply(at_once("model", podTemplate={"spec": {"initContainers": [mesh], "containers": [NO_ENGINE]}}))

    def said() -> str:
        return str(condition(namespace.get("llms", "model"), "Ready")["message"])

    namespace.wait_until(lambda: said().endswith("is ready, but its container mesh is not"), 90, said)
    service = namespace.get("llms", "model")
    assert service["status"]["loading"]["phase"] == "NotReady"
    assert condition(service, "ModelLoaded")["status"] == "True"


def test_replicas_follow_the_load_without_an_aggregated_api(operator: Client, namespace: Client) -> None:
    engine = {"name": "engine", "command": ["python", "-c", ONE_LOADED], "args": []}
    spec = merged(TWO_EACH, {"podTemplate": {"spec": {"containers": [engine]}}, "autoscaling": {"behavior": QUICK}})
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": spec}))
    told(namespace, "serves")
    wait_for_condition(namespace, "model", "Ready", "Serving")
    told(namespace, "busy")
    wait_for_message(namespace, "at 3 (2 are still loading), as many as the load asks for", 60, "model")
    assert namespace.get("deployment", "model")["spec"]["replicas"] == 3
    assert not namespace.exists("hpa", "model")
    assert not operator.exists("apiservice", "v1beta1.external.metrics.k8s.io")


def test_replicas_hold_again_once_an_autoscaler_of_others_is_deleted(operator: Client, served: Client) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "model"}
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    scaler = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 2}
    served.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "theirs"},
            "spec": {**scaler, "metrics": [{"type": "Resource", "resource": metric}]},
        }
    )
    service = wait_for_condition(served, "model", "Degraded", "FieldConflict", 60)
    assert "spec.replicas by HorizontalPodAutoscaler theirs" in condition(service, "Degraded")["message"]
    served.kubectl("delete", "hpa", "theirs")
    wait_for_condition(served, "model", "Degraded", "AsExpected", 90)
    assert served.get("deployment", "model")["spec"]["replicas"] == 1


def test_a_quota_on_replica_sets_and_a_scheduler_that_does_not_run_are_said(
    operator: Client, namespace: Client
) -> None:
    none = {"spec": {"hard": {"count/replicasets.apps": "0"}}}
    namespace.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, **none})
    namespace.wait_until(lambda: "used" in namespace.get("resourcequota", "none").get("status", {}), 90, "it acts")
    namespace.apply(NOWHERE)
    refused = wait_for_condition(namespace, "model", "Stalled", "PolicyDenied", 90)
    assert condition(refused, "Ready")["reason"] == "PolicyDenied"
    assert "in ResourceQuota none" in condition(refused, "Degraded")["message"]
    namespace.kubectl("delete", "resourcequota", "none")
    wait_for_condition(namespace, "model", "Ready", "Unschedulable", 90)
    nobody = {"podTemplate": {"spec": {"schedulerName": "nobody"}}}
    namespace.apply(merged(NOWHERE, {"metadata": {"name": "unseen"}, "spec": nobody}))
    service = wait_for_condition(namespace, "unseen", "Ready", "NoScheduler", 90)
    assert "change schedulerName in spec.podTemplate" in condition(service, "Ready")["message"]


NOWHERE = merged(VALID, {"metadata": {"name": "model"}, "spec": {"scheduling": {"nodeSelector": {"no-such": "node"}}}})


def test_where_a_policy_denies_statuses_children_are_made(operator: Client, namespace: Client) -> None:
    name, metadata = namespace.namespace, {"name": namespace.namespace}
    rule = {"apiGroups": ["octavo.dev"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["*/status"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    policy = {
        "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no status here"}],
    }
    binding, api = {"policyName": name, "validationActions": ["Deny"]}, "admissionregistration.k8s.io/v1"
    for kind, spec in (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)):
        namespace.apply({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})
    probe = merged(NOWHERE, {"metadata": {"name": "probe"}, "spec": {"suspend": True}})
    namespace.apply(probe)
    written = {"status": {"readyReplicas": 0}}
    path, headers = f"{namespace.path('llms', 'probe')}/status", {"Content-Type": "application/merge-patch+json"}
    namespace.wait_until(
        lambda: "no status here" in namespace.http.patch(path, json=written, headers=headers).text, 90, "it acts"
    )
    namespace.apply(NOWHERE)
    for kind in ("service", "deployment", "poddisruptionbudget"):
        namespace.wait_until(lambda kind=kind: namespace.exists(kind, "model"), MENDED, f"the {kind} is made")  # type: ignore[misc]
    assert "status" not in namespace.get("llms", "model")
    namespace.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", name)
    wait_for_condition(namespace, "model", "Ready", "Unschedulable", 90)


def test_a_mutating_policy_that_fails_is_named_until_it_is_repaired(operator: Client, namespace: Client) -> None:
    """Such as one that writes a pod's requests in a type that they do not have."""
    name, wrong = namespace.namespace, "Object.spec.containers.resources{requests: {'memory': quantity('33Mi')}}"
    engine = f"Object.spec.containers{{name: 'engine', resources: {wrong}}}"
    changed = f"Object{{spec: Object.spec{{containers: [{engine}]}}}}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    matched = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}, "resourceRules": [rule]}
    mutation = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": changed}}
    policy = {"matchConstraints": matched, "reinvocationPolicy": "Never", "mutations": [mutation]}
    try:
        for kind, spec in (
            ("MutatingAdmissionPolicy", policy),
            ("MutatingAdmissionPolicyBinding", {"policyName": name}),
        ):
            namespace.apply(
                {
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": kind,
                    "metadata": {"name": name},
                    "spec": spec,
                }
            )
        dry = {"restartPolicy": "Never", "containers": [{"name": "engine", "image": "octavo-engine:dev"}]}
        pod = {"metadata": {"name": "tried"}, "spec": dry}
        namespace.wait_until(
            lambda: namespace.http.post(namespace.path("pods"), params={"dryRun": "All"}, json=pod).is_error,
            30,
            "the policy is in force",
        )
        namespace.apply(READY_AT_ONCE)
        service = wait_for_condition(namespace, "model", "Ready", "PolicyDenied", 60)
        assert f"repair MutatingAdmissionPolicy {name}" in condition(service, "Ready")["message"]
    finally:
        kinds = "mutatingadmissionpolicy,mutatingadmissionpolicybinding"
        namespace.kubectl("delete", kinds, name, "--ignore-not-found")
    wait_for_condition(namespace, "model", "Ready", "Serving", 90)


def test_a_claim_that_another_client_enlarges_stays_as_large(operator: Client, namespace: Client) -> None:
    name = namespace.namespace
    growing = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.com/none",
               "metadata": {"name": name}, "allowVolumeExpansion": True}  # fmt: skip
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": name,
            "hostPath": {"path": f"/tmp/{name}"}}  # fmt: skip
    namespace.apply(growing, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    try:
        cache = {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": name}
        namespace.apply(merged(NOWHERE, {"spec": {"cache": cache}}))
        namespace.wait_until(
            lambda: (namespace.find("pvc", "model-cache") or {})["status"]["phase"] == "Bound", 60, "bound"
        )
        larger = json.dumps({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
        namespace.kubectl("patch", "pvc", "model-cache", "--type=merge", "-p", larger)
        changed = json.dumps({"spec": {"service": {"port": 81}}})
        namespace.kubectl("patch", "llms", "model", "--type=merge", "-p", changed)
        namespace.wait_until(lambda: ports(namespace)[0]["port"] == 81, MENDED, "a reconcile of all children")
        wait_for_condition(namespace, "model", "Degraded", "AsExpected", MENDED)
        claim = namespace.get("pvc", "model-cache")
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    finally:
        namespace.kubectl("delete", f"pv/{name}", f"storageclass/{name}", "--wait=false")


def test_an_llmservice_that_anothers_finalizer_holds_says_so(operator: Client, namespace: Client) -> None:
    namespace.apply(NOWHERE)
    wait_for_condition(namespace, "model", "Ready", "Unschedulable")
    held = ("patch", "llms", "model", "--type=merge", "-p")
    namespace.kubectl(*held, json.dumps({"metadata": {"finalizers": ["example.com/hold"]}}))
    namespace.kubectl("delete", "llms", "model", "--wait=false")
    service = wait_for_condition(namespace, "model", "Stalled", "BeingDeleted", MENDED)
    assert "example.com/hold holds it" in condition(service, "Degraded")["message"]
    namespace.kubectl(*held, json.dumps({"metadata": {"finalizers": None}}))
    namespace.wait_until(lambda: not namespace.exists("llms", "model"), MENDED, "it is gone")


def test_a_crd_that_goes_back_changes_nothing_for_what_serves(
    cluster: Client, operator: Client, served: Client
) -> None:
    """To one without a field of the spec, one of the status, and then without statuses at all, as after a bad edit."""
    (pod,) = served.list("pods", selector="octavo.dev/track=stable")
    served.kubectl("patch", "llms", "model", "--type=merge", "-p", '{"spec": {"disruption": {"maxUnavailable": 2}}}')
    served.wait_until(
        lambda: served.get("poddisruptionbudget", "model")["spec"]["maxUnavailable"] == 2, 90, "the field acts"
    )
    (version,) = cluster.get("crd", CRD)["spec"]["versions"]
    older = json.loads(json.dumps(version))
    parts = older["schema"]["openAPIV3Schema"]["properties"]
    del parts["spec"]["properties"]["disruption"], parts["status"]["properties"]["availableReplicas"]

    def change(to: dict[str, Any], port: int) -> None:
        patch = json.dumps([{"op": "replace", "path": "/spec/versions", "value": [to]}])
        cluster.kubectl("patch", "crd", CRD, "--type=json", "-p", patch)
        served.wait_until(lambda: cluster.get("crd", CRD)["spec"]["versions"] == [to], 90, "it is that one")
        patch = json.dumps({"spec": {"service": {"port": port}}})
        served.kubectl("patch", "llms", "model", "--type=merge", "-p", patch)
        served.wait_until(lambda: ports(served)[0]["port"] == port, 90, "the operator acts on the LLMService")

    try:
        change(older, 81)
        wait_for_condition(served, "model", "Ready", "Serving", 30)
        assert "disruption" not in served.get("llms", "model")["spec"]
        change({**older, "subresources": {}}, 82)
        log = ("logs", "--selector=app.kubernetes.io/name=octavo-operator", "--tail=-1")
        served.wait_until(lambda: "has no subresource status" in operator.kubectl(*log), 90, "the operator says so")
    finally:
        change(version, 83)
    wait_for_condition(served, "model", "Degraded", "AsExpected", 90)
    assert [each["metadata"]["uid"] for each in served.list("pods", selector="octavo.dev/track=stable")] == [
        pod["metadata"]["uid"]
    ]


def stored_as(cluster: Client, versions: list[dict[str, Any]]) -> None:
    """Serves LLMServices in these versions, rewrites all objects, and forgets other versions that were stored."""
    crd = cluster.get("crd", CRD)
    patch = json.dumps({"spec": {"versions": versions}})  # two versions are longer than an argument may be
    cluster.kubectl("patch", "crd", CRD, "--type=merge", "--patch-file=/dev/stdin", input=patch)
    (stored,) = [version["name"] for version in versions if version["storage"]]
    path = f"/apis/octavo.dev/{stored}/llmservices"
    cluster.wait_until(lambda: cluster.http.get(path).is_success, 30, f"{stored} is served")

    def rewritten() -> bool:
        items = cluster.http.get(path).json()["items"]
        own = ({"apiVersion": f"octavo.dev/{stored}", "kind": "LLMService", **item} for item in items)
        answers = [
            cluster.http.put(
                f"/apis/octavo.dev/{stored}/namespaces/{each['metadata']['namespace']}/llmservices/"
                f"{each['metadata']['name']}",
                json=each,
            )
            for each in own
        ]
        return all(answer.status_code in (200, 404) for answer in answers)

    cluster.wait_until(rewritten, 90, "all are rewritten: the operator may write a status meanwhile")
    assert stored in cluster.get("crd", CRD)["status"]["storedVersions"]
    status = {"status": {"storedVersions": [stored]}}
    cluster.kubectl("patch", "crd", CRD, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    assert crd["metadata"]["uid"] == cluster.get("crd", CRD)["metadata"]["uid"]


def test_a_second_version_of_the_api_changes_nothing_for_what_serves(cluster: Client, served: Client) -> None:
    """A v1beta1 of this test's: it becomes the version that is stored, and the first one again."""
    (alpha,) = cluster.get("crd", CRD)["spec"]["versions"]
    (pod,) = served.list("pods", selector="octavo.dev/track=stable")
    beta = {**alpha, "name": "v1beta1"}
    try:
        stored_as(cluster, [{**alpha, "storage": False}, {**beta, "storage": True}])
        path = f"/apis/octavo.dev/v1beta1/namespaces/{served.namespace}/llmservices/model"
        patch = {"spec": {"service": {"port": 8080}}}
        headers = {"Content-Type": "application/merge-patch+json"}
        cluster.http.patch(path, json=patch, headers=headers).raise_for_status()
        served.wait_until(lambda: ports(served)[0]["port"] == 8080, 90, "the operator acts on what v1beta1 says")
    finally:
        stored_as(cluster, [{**alpha, "storage": True}, {**beta, "storage": False}])
        stored_as(cluster, [alpha])
    assert served.get("llms", "model")["spec"]["service"]["port"] == 8080
    assert [each["metadata"]["uid"] for each in served.list("pods", selector="octavo.dev/track=stable")] == [
        pod["metadata"]["uid"]
    ]


def test_an_older_crd_and_the_present_one_again_lose_no_service_and_restart_no_pod(
    cluster: Client, served: Client
) -> None:
    """The older one has neither a field of the spec nor one of the status that the present one has."""
    uids, generation = own_uids(served), served.get("deployment", "model")["metadata"]["generation"]
    (version,) = cluster.get("crd", CRD)["spec"]["versions"]
    older = copy.deepcopy(version)
    fields = older["schema"]["openAPIV3Schema"]["properties"]
    del fields["spec"]["properties"]["networkPolicy"], fields["status"]["properties"]["revision"]
    try:
        for port, versions in ((8081, older), (8082, version)):
            cluster.kubectl("patch", "crd", CRD, "--type=merge", "-p", json.dumps({"spec": {"versions": [versions]}}))
            changed = json.dumps({"spec": {"service": {"port": port}}})
            served.kubectl("patch", "llms", "model", "--type=merge", "-p", changed)
            served.wait_until(lambda port=port: ports(served)[0]["port"] == port, 90, "a reconcile of all children")
            wait_for_condition(served, "model", "Ready", "Serving", 30)
            assert own_uids(served) == uids
    finally:  # the tests after this one need it too
        cluster.kubectl("patch", "crd", CRD, "--type=merge", "-p", json.dumps({"spec": {"versions": [version]}}))
    assert served.get("deployment", "model")["metadata"]["generation"] == generation


def test_a_crd_that_is_deleted_and_made_again_is_noticed_by_the_operator_as_it_runs(
    cluster: Client, operator: Client, served: Client
) -> None:
    """As by the uninstallation of another release, or by Argo CD: twice, the first time at once."""
    crd = cluster.get("crd", CRD)
    kept = {name: crd["metadata"][name] for name in ("name", "labels", "annotations")}
    again = {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "metadata": kept, "spec": crd["spec"]}
    pods = operator.list("pods")
    for away in (False, True):
        cluster.kubectl("delete", "crd", CRD)
        if away:
            served.wait_until(lambda: not served.list("deployments"), 60, "nothing is left of what it served")
            served.wait_until(lambda: "waiting for the CRD" in words(operator), 60, "the operator says so")
        cluster.kubectl("create", "-f", "-", input=as_yaml(again))
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
        served.wait_until(lambda: served.http.get(served.path("llms")).is_success, 60, "LLMServices are served")
        served.apply(READY_AT_ONCE)
        wait_for_condition(served, "model", "Ready", "Serving", 90)
        owner = served.get("deployment", "model")["metadata"]["ownerReferences"][0]["uid"]
        assert owner == served.get("llms", "model")["metadata"]["uid"]
    assert [pod["metadata"]["uid"] for pod in operator.list("pods")] == [pod["metadata"]["uid"] for pod in pods]
    assert not faults(operator)


def words(system: Client) -> str:
    """The operator's log."""
    return system.kubectl("logs", "--selector=app.kubernetes.io/name=octavo-operator", "--tail=-1")


def own_uids(client: Client) -> list[str]:
    """The LLMService, and all its pods."""
    objects = [client.get("llms", "model"), *client.list("pods", selector=MODEL)]
    return [each["metadata"]["uid"] for each in objects]


def at_once(name: str, **fields: Any) -> dict[str, Any]:
    """An LLMService of this name whose pods are ready as soon as they may start."""
    return merged(READY_AT_ONCE, {"metadata": {"name": name}, "spec": fields})


def pods_of(client: Client, name: str) -> list[dict[str, Any]]:
    return client.list("pods", selector=f"octavo.dev/llmservice={name}")


MOMENTS: dict[str, Callable[[Client, str], object]] = {
    "applied": lambda client, name: client.find("llms", name),
    "deployed": lambda client, name: client.find("deployment", name),
    "pending": pods_of,
    "running": lambda client, name: any(pod["status"]["phase"] == "Running" for pod in pods_of(client, name)),
    "serving": lambda client, name: condition(client.get("llms", name), "Ready").get("reason") == "Serving",
}


def test_what_is_deleted_at_any_moment_of_its_creation_leaves_nothing(operator: Client, namespace: Client) -> None:
    namespace.apply(*map(at_once, MOMENTS))
    for name, reached in MOMENTS.items():
        namespace.wait_until(lambda name=name, reached=reached: reached(namespace, name), 60, f"{name} is {name}")
        namespace.kubectl("delete", "llms", name, "--wait=false")
    kinds = ("llms", "deployments", "replicasets", "pods", "services", "endpointslices", "poddisruptionbudgets")

    def left() -> list[str]:
        return namespace.kubectl("get", ",".join(kinds), "-o", "name").split()

    namespace.wait_until(lambda: not left(), 90, lambda: f"nothing is left; there are {left()}")


def test_a_namespace_is_deleted_with_what_it_serves_and_with_what_is_being_made(
    operator: Client, cluster: Client, namespace: Client
) -> None:
    other = cluster.in_namespace(f"{namespace.namespace[:50]}-gone")
    cluster.kubectl("create", "namespace", other.namespace)
    other.wait_until(lambda: other.exists("serviceaccount", "default"), 90, "its service account", every=0.05)
    other.apply(at_once("served"))
    wait_for_condition(other, "served", "Ready", "Serving")
    other.apply(at_once("begun"))
    cluster.kubectl("delete", "namespace", other.namespace, "--timeout=240s")
    namespace.apply(NOWHERE)
    wait_for_condition(namespace, "model", "Ready", "Unschedulable")


MISSING: dict[str, tuple[dict[str, Any], str, str]] = {
    "secret": ({"auth": {"apiKeysSecretRef": {"name": "keys"}}}, "WaitingForVolumes", "Secret keys"),
    "map": ({"configMap": {"name": "settings"}}, "WaitingForVolumes", "ConfigMap settings"),
    "claim": ({"persistentVolumeClaim": {"claimName": "weights"}}, "WaitingForVolumes", "weights"),
    "image": ({"engine": {"image": "no-such-image:1"}}, "PullFailed", "no-such-image:1"),
}
"""What each service lacks: fields of its spec, or a volume of its pods; the reason, and words of its message."""


def with_missing(name: str) -> dict[str, Any]:
    fields = MISSING[name][0]
    if fields.keys() & {"auth", "engine"}:
        return at_once(name, **fields)
    engine = {**NO_ENGINE, "volumeMounts": [{"name": "more", "mountPath": "/more"}]}
    return at_once(name, podTemplate={"spec": {"volumes": [{"name": "more", **fields}], "containers": [engine]}})


def test_what_is_missing_is_named_and_when_it_is_there_the_same_pod_serves(operator: Client, namespace: Client) -> None:
    volume_class = namespace.namespace
    namespace.apply(*map(with_missing, MISSING))
    for name, (_, reason, words) in MISSING.items():
        service = wait_for_condition(namespace, name, "Ready", reason)
        assert words in condition(service, "Ready")["message"] + condition(service, "Degraded")["message"]
    before = {name: [pod["metadata"]["uid"] for pod in pods_of(namespace, name)] for name in MISSING}
    namespace.kubectl("create", "secret", "generic", "keys", "--from-literal=keys.yaml=keys: []")
    namespace.kubectl("create", "configmap", "settings", "--from-literal=a=b")
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": volume_class}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/tmp"}, **spec}  # there already: nothing is left
    claim = {"resources": {"requests": {"storage": "1Gi"}}, **spec}
    namespace.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume_class}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"}, "spec": claim},
        at_once("image"),
    )
    try:
        for name in MISSING:
            wait_for_condition(namespace, name, "Ready", "Serving")
        after = {name: [pod["metadata"]["uid"] for pod in pods_of(namespace, name)] for name in MISSING}
        assert {name: uids for name, uids in after.items() if name != "image"} == {
            name: uids for name, uids in before.items() if name != "image"
        }
        assert all(len(uids) == 1 for uids in before.values())
        assert len({*before["image"], *after["image"]}) == 2, "one pod of each image, the first of which may be ending"
    finally:
        namespace.kubectl("delete", f"pv/{volume_class}", "--wait=false")
