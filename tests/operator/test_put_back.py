"""A list that another manager has changed is put back whole, and is owned by server-side apply alone afterwards."""

from __future__ import annotations

from typing import Any

from octavo_operator.reconcile.apply import ApiError, Cluster

PORTS = [{"name": "http", "port": 80}]
SERVICE = {"kind": "Service", "metadata": {"namespace": "llm", "name": "good"}, "spec": {"ports": PORTS}}
FIELDS = [
    {"manager": "octavo-operator", "operation": "Apply"},
    {"manager": "octavo-operator", "operation": "Update"},
    {"manager": "argocd", "operation": "Update"},
]


class Recorded(Cluster):
    """Notes what would be sent; the object changes once between the operator's look and its write."""

    def __init__(self, conflicts: int) -> None:
        super().__init__(None)
        self.sent: list[tuple[str, Any]] = []
        self.version, self._conflicts = 1, conflicts

    async def _request(self, method: str, path: str, body: Any = None, query: Any = None, *rest: Any, **_: Any) -> Any:
        self.sent.append((rest[0], body))
        assert ("fieldManager", "octavo-operator") in query
        if "managedFields" in body.get("metadata", {}):
            assert body["metadata"]["resourceVersion"] == str(self.version)
            if self._conflicts:
                self._conflicts, self.version = self._conflicts - 1, self.version + 1
                raise ApiError(409, "Conflict", "the object has been modified")
        return {"metadata": {"managedFields": FIELDS, "resourceVersion": str(self.version)}}


async def test_a_list_is_replaced_and_then_owned_by_apply_alone() -> None:
    cluster = Recorded(conflicts=1)
    await cluster.put_back(SERVICE)
    kinds = [kind.partition("/")[2].partition("-")[0] for kind, _ in cluster.sent]
    assert kinds == ["merge", "apply", "merge", "apply", "merge"]
    assert cluster.sent[0][1] == {"spec": {"ports": PORTS}}
    kept = cluster.sent[-1][1]["metadata"]["managedFields"]
    assert [(each["manager"], each["operation"]) for each in kept] == [
        ("octavo-operator", "Apply"),
        ("argocd", "Update"),
    ]


async def test_fields_that_others_have_added_are_removed_by_the_same_patch() -> None:
    cluster = Recorded(conflicts=0)
    await cluster.put_back({**SERVICE, "spec": {"a": {"ours": 1}}}, [("spec", "a", "theirs"), ("spec", "b", "c")])
    assert cluster.sent[0][1] == {"spec": {"a": {"ours": 1, "theirs": None}, "b": {"c": None}}}


async def test_a_try_writes_nothing() -> None:
    cluster = Recorded(conflicts=0)
    cluster.may_write_for = lambda: 0.0
    await cluster.put_back(SERVICE, dry_run=True)
    assert len(cluster.sent) == 1
