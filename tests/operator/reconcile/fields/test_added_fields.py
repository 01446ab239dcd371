"""Fields that other managers have added to a child, found by managed fields as a real API server writes them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.reconcile.fields.added_fields import added_fields, is_shared, nulls

ENGINE = {"name": "engine", "env": [{"name": "OURS", "value": "1"}], "ports": [{"containerPort": 8000}]}
OURS = {"kind": "Deployment", "spec": {"replicas": 1, "template": {"spec": {"containers": [ENGINE]}}}}
PORT = 'k:{"containerPort":8000,"protocol":"TCP"}'


def live(fields: dict[str, Any], manager: str = "kubectl", **more: Any) -> dict[str, Any]:
    """The Deployment with a node selector, a variable and a sidecar of others, who own `fields` of the pods' spec."""
    theirs = {**ENGINE, "env": [{"name": "THEIRS", "value": "2"}, *ENGINE["env"]], "imagePullPolicy": "Always"}
    theirs["ports"] = [{"containerPort": 8000, "protocol": "TCP"}]
    pod = {"nodeSelector": {"a": "b"}, "containers": [{"name": "mesh"}, theirs]}
    owned = {"f:spec": {"f:replicas": {}, "f:template": {"f:metadata": {"f:annotations": {}}, "f:spec": fields}}}
    entry = {"manager": manager, "operation": "Update", "fieldsV1": owned, **more}
    metadata = {"managedFields": [entry]}
    return {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 3, "template": {"spec": pod}}}


def test_only_what_a_manager_owns_and_we_do_not_say_is_added() -> None:
    engine = {".": {}, "f:env": {".": {}, 'k:{"name":"THEIRS"}': {".": {}}, 'k:{"name":"OURS"}': {"f:value": {}}}}
    fields = {
        "f:nodeSelector": {},
        "f:schedulerName": {},
        "f:containers": {'k:{"name":"engine"}': {**engine, "f:ports": {PORT: {"f:containerPort": {}}}}},
    }
    pods = ("spec", "template", "spec")
    assert added_fields(OURS, live(fields)) == [(*pods, "containers", 1, "env", 0), (*pods, "nodeSelector")]
    assert added_fields(OURS, live({"f:containers": {'k:{"name":"mesh"}': {}}})) == [(*pods, "containers", 0)]


def test_a_label_by_which_kube_proxy_ignores_the_service_is_added_and_other_labels_are_not() -> None:
    proxy = "service.kubernetes.io/service-proxy-name"
    labels = {"octavo.dev/llmservice": "model"}
    entry = {"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{proxy}": {}, "f:team": {}}}}}
    theirs = {"labels": {**labels, proxy: "other", "team": "a"}, "managedFields": [entry]}
    ours = {"kind": "Service", "metadata": {"labels": labels}, "spec": {}}
    assert added_fields(ours, {**ours, "metadata": theirs}) == [("metadata", "labels", proxy)]
    assert is_shared("Service", {**ours, "metadata": theirs})


@pytest.mark.parametrize(("policy", "is_added"), [("Local", True), ("Cluster", False)])
def test_a_default_that_whoever_created_a_service_owns_is_not_added(policy: str, is_added: bool) -> None:
    """As after a restore from a backup: no write changes it, and each new leader would try."""
    entry = {"manager": "velero-server", "operation": "Update", "fieldsV1": {"f:spec": {"f:internalTrafficPolicy": {}}}}
    there = {"metadata": {"managedFields": [entry]}, "spec": {"internalTrafficPolicy": policy}}
    assert is_shared("Service", there) is is_added
    found = added_fields({"kind": "Service", "metadata": {}, "spec": {}}, there)
    assert found == ([("spec", "internalTrafficPolicy")] if is_added else [])


def test_fields_without_a_manager_are_defaults_or_a_webhooks() -> None:
    assert added_fields(OURS, live({})) == []
    assert added_fields(OURS, live({"f:nodeSelector": {}}, manager="octavo-operator")) == []
    assert added_fields(OURS, live({"f:nodeSelector": {}}, subresource="status")) == []


def test_a_takeover_looks_closer_only_where_others_own_a_part() -> None:
    assert is_shared("Deployment", live({"f:nodeSelector": {}}))
    assert not is_shared("Deployment", live({"f:nodeSelector": {}}, manager="octavo-operator"))
    assert not is_shared("PersistentVolumeClaim", live({"f:nodeSelector": {}}))


def test_a_patch_removes_fields_and_leaves_lists_to_be_replaced() -> None:
    assert nulls([("spec", "a", "b"), ("spec", "c"), ("spec", "d", 0, "e")]) == {"spec": {"a": {"b": None}, "c": None}}
