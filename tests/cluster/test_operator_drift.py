"""Manual changes and deletions of children are reverted within ten seconds; repeated ones are reported."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from octavo_operator.reconcile.apply.field_conflicts import PAUSE_SECONDS
from tests.operator.bad_llmservices import GONE, VALID, merged

from .client import Client, CommandError
from .octavo import ONLY_ON_OURS, condition, installed_operator, wait_for_condition

MENDED = 10  # seconds
NOWHERE = {"scheduling": {"nodeSelector": {"no-such": "node"}}}


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide."""
    with installed_operator(cluster) as system:
        yield system


def llmservice(**fields: Any) -> dict[str, Any]:
    return merged(VALID, {"metadata": {"name": "model"}, "spec": {**NOWHERE, **fields}})


def made(client: Client, **fields: Any) -> None:
    client.apply(llmservice(**fields))
    wait_for_condition(client, "model", "Ready", "Unschedulable")


CHANGES = [
    ("service", {"spec": {"selector": {"octavo.dev/llmservice": "other"}}}),
    ("service", {"spec": {"publishNotReadyAddresses": True}}),
    ("service", {"spec": {"internalTrafficPolicy": "Local"}}),
    ("service", {"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}}),
    ("service", {"metadata": {"labels": {"app.kubernetes.io/component": "other"}}}),
    ("service", {"spec": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"],
                          "externalTrafficPolicy": "Local", "sessionAffinity": "None"}}),
    ("deployment", {"spec": {"template": {"spec": {"automountServiceAccountToken": True}}}}),
    ("deployment", {"metadata": {"ownerReferences": None}}),
    ("deployment", {"metadata": {"labels": {"octavo.dev/llmservice": "other"}}}),
    ("deployment", {"spec": {"paused": True}}),
    ("deployment", {"spec": {"template": {"spec": {"schedulerName": "nobody", "hostNetwork": True}}}}),
    ("poddisruptionbudget", {"spec": {"maxUnavailable": 5}}),
    ("poddisruptionbudget", {"metadata": {"labels": {"octavo.dev/llmservice": None}}}),
    ("hpa", {"spec": {"maxReplicas": 99}}),
    ("hpa", {"metadata": {"labels": {"app.kubernetes.io/name": None}}}),
]  # fmt: skip


EXCLUDING = [("poddisruptionbudget", {"spec": {"maxUnavailable": None, "minAvailable": 1}})]
"""The API server refuses our field beside the new one; of another LLMService, since a second change is a conflict."""


@pytest.mark.parametrize("changes", [CHANGES, EXCLUDING], ids=["each", "excluding"])
def test_what_is_changed_by_hand_is_changed_back(
    changes: list[tuple[str, dict[str, Any]]], operator: Client, namespace: Client
) -> None:
    made(namespace, replicas=GONE, autoscaling={"minReplicas": 1, "maxReplicas": 3})
    before = {kind: shape(namespace, kind) for kind in {kind for kind, _ in changes}}
    for kind, change in changes:
        patched = namespace.kubectl("patch", kind, "model", "--type=merge", "-p", json.dumps(change), "-o", "json")
        assert shape_of(json.loads(patched)) != before[kind], f"{change} changes nothing"
        namespace.wait_until(
            lambda kind=kind: shape(namespace, kind) == before[kind],  # type: ignore[misc]
            MENDED,
            lambda kind=kind, change=change: f"{kind} is as before {change}: {shape(namespace, kind)}",  # type: ignore[misc]
        )


def test_replicas_are_changed_back_where_the_spec_says_how_many(operator: Client, namespace: Client) -> None:
    made(namespace, replicas=1)
    namespace.kubectl("scale", "deployment/model", "--replicas=7")
    namespace.wait_until(lambda: namespace.get("deployment", "model")["spec"]["replicas"] == 1, MENDED, "one replica")


def test_what_is_deleted_by_hand_comes_again(operator: Client, namespace: Client) -> None:
    made(namespace, replicas=GONE, autoscaling={"minReplicas": 1, "maxReplicas": 3})
    for kind in ("service", "deployment", "poddisruptionbudget", "hpa"):
        old, before = namespace.get(kind, "model")["metadata"]["uid"], shape(namespace, kind)
        namespace.kubectl("delete", kind, "model")
        namespace.wait_until(lambda kind=kind: namespace.exists(kind, "model"), MENDED, f"the {kind} is there")  # type: ignore[misc]
        assert namespace.get(kind, "model")["metadata"]["uid"] != old
        assert shape(namespace, kind) == before


def test_a_copy_that_another_client_makes_of_a_child_stays(operator: Client, namespace: Client) -> None:
    """With the labels of the child, and in one case with its owner; as for a Service of another type."""
    made(namespace)
    for name, copied in (("labelled", ("labels",)), ("owned", ("labels", "ownerReferences"))):
        live = namespace.get("service", "model")
        kept = {key: live["metadata"][key] for key in copied}
        spec = {key: value for key, value in live["spec"].items() if not key.startswith("clusterIP")}
        namespace.apply({**live, "metadata": {"name": name, **kept}, "spec": {**spec, "type": "NodePort"}})
    namespace.kubectl("delete", "service", "model")
    namespace.wait_until(
        lambda: namespace.exists("service", "model"), MENDED, "the watch of Services has come to what was made later"
    )
    changed = json.dumps({"spec": {"service": {"port": 81}}})
    namespace.kubectl("patch", "llms", "model", "--type=merge", "-p", changed)
    wait_for_pass(namespace)
    assert namespace.get("service", "model")["spec"]["ports"][0]["port"] == 81
    assert namespace.exists("service", "labelled") and namespace.exists("service", "owned")


def wait_for_pass(client: Client) -> None:
    """Wait for the end of a reconcile of the present spec: it writes the status after all children are seen to."""

    def passed() -> bool:
        live = client.get("llms", "model")
        return bool(live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"])

    client.wait_until(passed, MENDED, "a reconcile of the present spec has ended")


def shape(client: Client, kind: str) -> dict[str, Any]:
    """Return what `shape_of` gives for the object as it is now."""
    return shape_of(client.get(kind, "model"))


def shape_of(live: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an object that are ours: its spec, and the metadata that we set."""
    metadata = {name: live["metadata"].get(name) for name in ("labels", "ownerReferences")}
    spec = {name: value for name, value in live["spec"].items() if not name.startswith("clusterIP")}
    return {"metadata": metadata, "spec": spec}


def changing_policy(client: Client) -> list[dict[str, Any]]:
    """Return a policy that changes the Deployments of this namespace, as a webhook of a mesh would, and its binding."""
    ours = {"kubernetes.io/metadata.name": client.namespace}
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    policy = {
        "matchConstraints": {"namespaceSelector": {"matchLabels": ours}, "resourceRules": [rule]},
        "reinvocationPolicy": "IfNeeded",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": ADDS}}],
    }
    metadata, kind = {"name": client.namespace}, "MutatingAdmissionPolicy"
    return [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": made, "metadata": metadata, "spec": spec}
        for made, spec in ((kind, policy), (f"{kind}Binding", {"policyName": client.namespace}))
    ]


ADDS = """Object{metadata: Object.metadata{labels: {"mesh": "yes"}}, spec: Object.spec{template: Object.spec.template{
  spec: Object.spec.template.spec{enableServiceLinks: true, containers: [
    Object.spec.template.spec.containers{name: "engine", imagePullPolicy: "Always"},
    Object.spec.template.spec.containers{name: "mesh", image: "mesh:1"}]}}}}"""


@ONLY_ON_OURS
def test_what_admission_adds_or_changes_is_no_conflict(operator: Client, namespace: Client) -> None:
    namespace.apply(*changing_policy(namespace))
    try:
        namespace.wait_until(lambda: _is_changed(namespace), 90, "the policy acts")
        made(namespace)
        first = namespace.get("deployment", "model")
        assert [each["name"] for each in first["spec"]["template"]["spec"]["containers"]] == ["engine", "mesh"]
        namespace.kubectl("scale", "deployment/model", "--replicas=7")
        namespace.wait_until(lambda: namespace.get("deployment", "model")["spec"]["replicas"] == 1, MENDED, "mended")
        generation = namespace.get("deployment", "model")["metadata"]["generation"]
        time.sleep(5)
        live = namespace.get("deployment", "model")
        assert live["metadata"]["generation"] == generation
        assert live["spec"]["template"] == first["spec"]["template"]
        wait_for_condition(namespace, "model", "Degraded", "AsExpected", MENDED)
    finally:
        namespace.kubectl("delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", namespace.namespace)


def _is_changed(client: Client) -> bool:
    """Return True if a Deployment that is made now would be changed."""
    probe = ["create", "deployment", "probe", "--image=engine", "--dry-run=server", "-o", "json"]
    return "mesh" in json.loads(client.kubectl(*probe))["metadata"]["labels"]


def refusing_policy(client: Client, operator: Client) -> list[dict[str, Any]]:
    """Return a policy and its binding: only the operator may delete this namespace's Services and Deployments."""
    accounts = f"system:serviceaccount:{operator.namespace}:"
    ours = {"kubernetes.io/metadata.name": client.namespace}
    every = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": list(LEFT)}
    policy = {
        "matchConstraints": {"namespaceSelector": {"matchLabels": ours}, "resourceRules": [every]},
        "validations": [{"expression": f"request.userInfo.username.startsWith('{accounts}')"}],
    }
    metadata, kind = {"name": client.namespace}, "ValidatingAdmissionPolicy"
    bound = {"policyName": client.namespace, "validationActions": ["Deny"]}
    return [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": made, "metadata": metadata, "spec": spec}
        for made, spec in ((kind, policy), (f"{kind}Binding", bound))
    ]


LEFT = ("services", "deployments")


@ONLY_ON_OURS
def test_what_a_deleted_namesake_has_left_is_no_hindrance(operator: Client, namespace: Client) -> None:
    """While the garbage collector cannot delete it; what has another owner too is left to that."""
    namespace.apply(*refusing_policy(namespace, operator))
    probe = ("delete", "service", "probe", "--dry-run=server")
    namespace.kubectl("create", "service", "clusterip", "probe", "--tcp=80")
    try:
        namespace.wait_until(lambda: _is_refused(namespace, *probe), 90, "the policy acts")
        made(namespace)
        old = {kind: namespace.get(kind, "model")["metadata"] for kind in LEFT}
        namespace.kubectl("delete", "llms", "model")
        assert {kind: namespace.get(kind, "model")["metadata"]["uid"] for kind in LEFT} == {
            kind: metadata["uid"] for kind, metadata in old.items()
        }
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "shared", "uid": _made_configmap(namespace)}
        owners = {"metadata": {"ownerReferences": [*old["services"]["ownerReferences"], owner]}}
        namespace.kubectl("patch", "service", "model", "--type=merge", "-p", json.dumps(owners))
        namespace.apply(llmservice())
        uid = namespace.get("llms", "model")["metadata"]["uid"]
        namespace.wait_until(lambda: _owner(namespace, "deployment") == uid, MENDED, "the new one's Deployment")
        wait_for_pass(namespace)
        assert namespace.get("service", "model")["metadata"]["uid"] == old["services"]["uid"]
        owners["metadata"]["ownerReferences"].pop()
        namespace.kubectl("patch", "service", "model", "--type=merge", "-p", json.dumps(owners))
        namespace.wait_until(lambda: _owner(namespace, "service") == uid, MENDED, "the new one's Service")
        wait_for_condition(namespace, "model", "Ready", "Unschedulable")
    finally:
        kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding"
        namespace.kubectl("delete", kinds, namespace.namespace)


def _is_refused(client: Client, *command: str) -> bool:
    try:
        client.kubectl(*command)
    except CommandError as error:
        return "denied" in error.output
    return False


def _made_configmap(client: Client) -> str:
    """Return the uid of a new ConfigMap."""
    client.kubectl("create", "configmap", "shared")
    return str(client.get("configmap", "shared")["metadata"]["uid"])


def _owner(client: Client, kind: str) -> str | None:
    """Return the uid of the only owner of the object; None while there is none."""
    found = client.find(kind, "model")
    owners = (found or {}).get("metadata", {}).get("ownerReferences") or []
    return str(owners[0]["uid"]) if len(owners) == 1 else None


def test_the_operator_backs_off_from_a_field_that_another_keeps_changing(operator: Client, namespace: Client) -> None:
    made(namespace)
    change = ("patch", "poddisruptionbudget", "model", "--type=merge", "--field-manager=argocd", "-p")

    def budget() -> int:
        return int(namespace.get("poddisruptionbudget", "model")["spec"]["maxUnavailable"])

    began = time.monotonic()
    namespace.kubectl(*change, json.dumps({"spec": {"maxUnavailable": 5}}))
    namespace.wait_until(lambda: budget() == 1, MENDED, "it is mended the first time")

    def conflict() -> dict[str, Any] | None:
        """Change it once more; and again if an operator that was started meanwhile mends it for its first time."""
        if budget() == 1:
            namespace.kubectl(*change, json.dumps({"spec": {"maxUnavailable": 5}}))
        service = namespace.get("llms", "model")
        return service if condition(service, "Degraded")["reason"] == "FieldConflict" else None

    service = namespace.wait_until(conflict, 10, lambda: namespace.kubectl("describe", "llms", "model"))
    assert "spec.maxUnavailable by argocd" in condition(service, "Degraded")["message"]
    assert condition(service, "Ready")["reason"] == "Unschedulable"
    namespace.kubectl("scale", "deployment/model", "--replicas=7")  # no other manager changes this: it is corrected
    namespace.wait_until(lambda: namespace.get("deployment", "model")["spec"]["replicas"] == 1, MENDED, "one replica")
    assert budget() == 5 or time.monotonic() - began > PAUSE_SECONDS
    # test_field_conflicts.py shows, with its own clock, that it is mended again after a minute, and that the conflict
    # ends after three quiet minutes.
    wanted = json.dumps({"spec": {"disruption": {"maxUnavailable": 2}}})
    namespace.kubectl("patch", "llms", "model", "--type=merge", "-p", wanted)
    namespace.wait_until(lambda: budget() == 2, MENDED, "what the LLMService says anew is written at once")
    wait_for_condition(namespace, "model", "Degraded", "AsExpected", MENDED)


def test_changes_are_reported_as_events_once_each(operator: Client, namespace: Client) -> None:
    engine = {"image": "no-such-image:1", "imagePullPolicy": "Never"}
    namespace.apply(merged(VALID, {"metadata": {"name": "model"}, "spec": {"engine": engine}}))
    wait_for_condition(namespace, "model", "Ready", "PullFailed")

    def events() -> list[tuple[str, str]]:
        found = json.loads(
            namespace.kubectl("get", "events", "--field-selector=involvedObject.kind=LLMService", "-o", "json")
        )
        return sorted((event["type"], event["reason"]) for event in found["items"])

    namespace.wait_until(lambda: ("Warning", "PullFailed") in events(), 10, "an event reports the failure")
    assert events().count(("Warning", "PullFailed")) == 1
    assert "PullFailed" in namespace.kubectl("describe", "llms", "model").partition("Events:")[2]
