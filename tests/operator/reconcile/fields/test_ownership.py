"""An operator that takes over sees from a child alone whether it was changed since it was applied."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo_operator.reconcile.apply.field_conflicts import others
from octavo_operator.reconcile.apply.handover import owns_replicas
from octavo_operator.reconcile.fields.ownership import digest_of, is_as_applied, marked, owned_fields
from octavo_operator.reconcile.kinds import BY_NAME
from octavo_operator.reconcile.observation.trimmed import trimmed

MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {
        "name": "good",
        "namespace": "llm",
        "labels": {"app.kubernetes.io/name": "octavo"},
        "ownerReferences": [{"uid": "u1", "controller": True}],
    },
    "spec": {"selector": {"a": "b"}, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
}
DIGEST = digest_of(MANIFEST)
FIELDS: dict[str, Any] = {
    "f:metadata": {
        "f:annotations": {"f:octavo.dev/applied": {}},
        "f:labels": {"f:app.kubernetes.io/name": {}},
        "f:ownerReferences": {'k:{"uid":"u1"}': {}},
    },
    "f:spec": {
        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}}},
        "f:selector": {},
    },
}
"""As an API server counts them after the apply of MANIFEST."""


def live(fields: dict[str, Any] = FIELDS, digest: str = DIGEST, **entry: Any) -> dict[str, Any]:
    found = copy.deepcopy(marked(MANIFEST, digest))
    managed = {"manager": "octavo-operator", "operation": "Apply", "fieldsV1": fields, **entry}
    found["metadata"].update(uid="c1", managedFields=[managed])
    return found


def judged(body: dict[str, Any]) -> bool:
    return is_as_applied(marked(MANIFEST, DIGEST), DIGEST, trimmed(BY_NAME["Service"], body))


def without(*path: str) -> dict[str, Any]:
    """FIELDS, without one that another manager has taken over or removed."""
    fields = copy.deepcopy(FIELDS)
    while path:  # the API server keeps no empty sets
        *way, last = path
        place = fields
        for step in way:
            place = place[step]
        del place[last]
        if place:
            break
        path = tuple(way)
    return fields


PORT = ("f:spec", "f:ports", 'k:{"port":80,"protocol":"TCP"}')
LOST = [
    without("f:metadata", "f:labels", "f:app.kubernetes.io/name"),
    without("f:metadata", "f:ownerReferences"),
    without("f:metadata", "f:annotations"),
    without("f:spec", "f:selector"),
    without(*PORT),
    without(*PORT, "f:name"),
]


def test_a_child_that_is_as_it_was_applied_is_known_for_it() -> None:
    assert judged(live())


@pytest.mark.parametrize("fields", LOST)
def test_a_field_that_another_manager_changed_is_seen(fields: dict[str, Any]) -> None:
    assert not judged(live(fields))


def test_another_manifest_and_another_way_to_write_do_not_count() -> None:
    assert not judged(live(digest="another"))
    assert not judged(live(operation="Update"))
    assert not judged(live(manager="kubectl"))


def test_children_of_all_services_share_one_text_of_their_fields() -> None:
    other = copy.deepcopy(FIELDS)
    other["f:metadata"]["f:ownerReferences"] = {'k:{"uid":"u2"}': {}}
    assert owned_fields(live()) is owned_fields(live(other))


def test_a_manager_without_a_name_is_another_one() -> None:
    """As of a client that sends no User-Agent: its entry has no `manager` at all."""
    live = {**MANIFEST, "metadata": {**MANIFEST["metadata"], "uid": "c1"}}
    live["metadata"]["managedFields"] = [
        {"operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": {"f:publishNotReadyAddresses": {}}}}
    ]
    kept = trimmed(BY_NAME["Service"], live)
    assert (kept["owned"], kept["shared"]) == ("", True)
    assert others(live, ("spec", "publishNotReadyAddresses")) == "a client without a name"
    assert not owns_replicas(live, "octavo-operator")
