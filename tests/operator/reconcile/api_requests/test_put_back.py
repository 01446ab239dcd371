"""A list that another manager has changed is restored completely, and then belongs to the operator alone."""

from __future__ import annotations

from typing import Any

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.api_server import ApiServer
from octavo_operator.reconcile.api_requests.cluster import Cluster

PORTS = [{"name": "http", "port": 80}]
SERVICE = {"kind": "Service", "metadata": {"namespace": "llm", "name": "good"}, "spec": {"ports": PORTS}}
FIELDS = [
    {"manager": "octavo-operator", "operation": "Apply"},
    {"manager": "octavo-operator", "operation": "Update"},
    {"manager": "argocd", "operation": "Update"},
]


class Recorded(ApiServer):
    """Notes what would be sent; the object changes once between the operator's look and its write."""

    def __init__(self, conflicts: int) -> None:
        super().__init__(None)
        self.sent: list[tuple[str, Any]] = []
        self.version, self._conflicts = 1, conflicts

    async def _answer(self, request: Any, seconds: float) -> Any:
        body = request.body
        self.sent.append((request.content_type, body))
        assert ("fieldManager", "octavo-operator") in request.query
        if "managedFields" in body.get("metadata", {}):
            assert body["metadata"]["resourceVersion"] == str(self.version)
            if self._conflicts:
                self._conflicts, self.version = self._conflicts - 1, self.version + 1
                raise ApiError(409, "Conflict", "the object has been modified")
        return {"metadata": {"managedFields": FIELDS, "resourceVersion": str(self.version)}}


async def test_a_list_is_replaced_and_then_owned_by_apply_alone() -> None:
    server = Recorded(conflicts=1)
    await Cluster(server).put_back(SERVICE)
    kinds = [kind.partition("/")[2].partition("-")[0] for kind, _ in server.sent]
    assert kinds == ["merge", "apply", "merge", "apply", "merge"]
    assert server.sent[0][1] == {"spec": {"ports": PORTS}}
    kept = server.sent[-1][1]["metadata"]["managedFields"]
    assert [(each["manager"], each["operation"]) for each in kept] == [
        ("octavo-operator", "Apply"),
        ("argocd", "Update"),
    ]


async def test_fields_that_others_have_added_are_removed_by_the_same_patch() -> None:
    server = Recorded(conflicts=0)
    await Cluster(server).put_back(
        {**SERVICE, "spec": {"a": {"ours": 1}}}, [("spec", "a", "theirs"), ("spec", "b", "c")]
    )
    assert server.sent[0][1] == {"spec": {"a": {"ours": 1, "theirs": None}, "b": {"c": None}}}


async def test_a_label_that_another_has_added_is_removed_too() -> None:
    server, label = Recorded(conflicts=0), "service.kubernetes.io/service-proxy-name"
    for dry_run in (True, False):
        await Cluster(server).put_back(SERVICE, [("metadata", "labels", label)], dry_run)
    for _, patch in server.sent[:2]:
        assert patch == {"metadata": {"labels": {label: None}}, "spec": {"ports": PORTS}}


async def test_a_try_writes_nothing() -> None:
    server = Recorded(conflicts=0)
    server.may_write_for = lambda: 0.0
    await Cluster(server).put_back(SERVICE, dry_run=True)
    assert len(server.sent) == 1
