"""Handing a Deployment's replicas over between the spec and an autoscaler: no write has a wrong number.

The API server here only records the owners of `replicas`, like server-side apply: a field that its last owner omits
gets its default, 1. tests/cluster/test_llmservice_autoscaling.py tests the same with a real one.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.api.names import FIELD_MANAGER
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.handover import (
    HANDOVER_MANAGER,
    apply_scaled,
    is_scaled,
    is_stopped,
    is_unfinished,
    owns_replicas,
    start_of,
    without_replicas_during_handover,
)
from octavo_operator.reconcile.fields.ownership import owned_fields
from octavo_operator.reconcile.kinds import Kind

MANIFEST: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"namespace": "llm", "name": "model", "labels": {"a": "b"}},
    "spec": {"selector": {}, "template": {}},
}
START = 2


class OutageError(Exception):
    """The operator is killed."""


class Server:
    """One Deployment, of which only the number of replicas and its owners matter."""

    def __init__(self, replicas: int | None = None, *owners: str) -> None:
        self.replicas = replicas
        self.owners = set(owners)
        self.history: list[int] = []
        self.writes_until_outage = -1
        self.meanwhile: int | None = None

    def scale(self, replicas: int) -> None:
        """Set the replicas as an autoscaler does: an update of /scale takes the field from all who applied it."""
        self.replicas, self.owners = replicas, {"kube-controller-manager"}

    def live(self) -> dict[str, Any]:
        fields = {"f:spec": {"f:replicas": {}}}
        managers = [
            {"manager": owner, "operation": "Update" if owner.startswith("kube") else "Apply", "fieldsV1": fields}
            for owner in self.owners
        ]
        return {"metadata": {"managedFields": managers}, "spec": {"replicas": self.replicas}}

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        found = None if self.replicas is None else self.live()
        if self.meanwhile is not None:
            self.scale(self.meanwhile)
            self.meanwhile = None
        return found

    async def apply(
        self,
        manifest: dict[str, Any],
        subresource: str = "",
        dry_run: bool = False,
        manager: str = FIELD_MANAGER,
        force: bool = True,
    ) -> dict[str, Any]:
        if self.writes_until_outage == 0:
            raise OutageError
        self.writes_until_outage -= 1
        wanted = manifest["spec"].get("replicas")
        if wanted is None:
            self.owners.discard(manager)
            if not self.owners:
                self.replicas = 1
        elif wanted == self.replicas:
            self.owners.add(manager)
        elif self.owners - {manager} and not force:
            raise ApiError(409, "Conflict", "another manager owns it")
        else:
            self.replicas, self.owners = wanted, {manager}
        assert self.replicas is not None
        self.history.append(self.replicas)
        return self.live()


def trimmed_of(server: Server) -> dict[str, Any]:
    return {"spec": {"replicas": server.replicas}, "owned": owned_fields(server.live())}


LIVES = [
    ("it is made", Server, (), [START]),
    ("the spec held it", Server, (5, FIELD_MANAGER), [5]),
    ("it was suspended", Server, (0, FIELD_MANAGER), [START]),
    ("half handed over", Server, (5, FIELD_MANAGER, HANDOVER_MANAGER), [5]),
    ("handed over", Server, (5, HANDOVER_MANAGER), [5]),
    ("scaled already", Server, (5, "kube-controller-manager"), [5]),
    ("set to 0 by hand", Server, (0, "kube-controller-manager"), [START]),
]


@pytest.mark.parametrize("outage", [-1, 0, 1, 2, 3], ids=lambda n: f"killed after {n} writes" if n >= 0 else "alive")
@pytest.mark.parametrize(("state", "numbers"), [(row[2], row[3]) for row in LIVES], ids=[row[0] for row in LIVES])
async def test_to_an_autoscaler(state: tuple[Any, ...], numbers: list[int], outage: int) -> None:
    server = Server(*state)
    server.writes_until_outage = outage
    try:
        await apply_scaled(server, MANIFEST, START)
    except OutageError:
        server.writes_until_outage = -1
        if not owns_replicas(server.live(), FIELD_MANAGER):
            assert not is_unfinished(MANIFEST, trimmed_of(server))
        elif server.replicas is not None:
            assert is_unfinished(MANIFEST, trimmed_of(server)), "its digest says that all has been applied"
        await apply_scaled(server, MANIFEST, START)
    assert not is_unfinished(MANIFEST, trimmed_of(server))
    assert sorted(set(server.history)) == numbers
    assert not owns_replicas(server.live(), FIELD_MANAGER)
    assert server.replicas == numbers[-1]


async def test_a_number_that_changes_while_it_is_handed_over_is_kept() -> None:
    server = Server(5, FIELD_MANAGER)
    server.meanwhile = 7
    await apply_scaled(server, MANIFEST, START)
    assert set(server.history) == {7}


async def test_after_the_handover_a_pass_leaves_the_replicas_to_the_autoscaler() -> None:
    server = Server(3, "kube-controller-manager")
    await apply_scaled(server, MANIFEST, START)
    assert (server.history, server.owners) == ([3], {"kube-controller-manager"})


def with_replicas(count: int) -> dict[str, Any]:
    return {**MANIFEST, "spec": {**MANIFEST["spec"], "replicas": count}}


DEPLOYMENT, HPA, SCALED = ("Deployment", "model"), ("HorizontalPodAutoscaler", "model"), ("ScaledObject", "model")
KEDAS_HPA = ("HorizontalPodAutoscaler", "keda-hpa-model")


@pytest.mark.parametrize("leaving", [HPA, SCALED, KEDAS_HPA])
def test_the_spec_sets_the_number_only_when_the_autoscaler_is_gone(leaving: tuple[str, str]) -> None:
    assert is_scaled(without_replicas_during_handover(with_replicas(4), {DEPLOYMENT: {}, leaving: {}}, {DEPLOYMENT}))
    assert without_replicas_during_handover(with_replicas(4), {DEPLOYMENT: {}}, {DEPLOYMENT}) == with_replicas(4)
    assert without_replicas_during_handover(with_replicas(4), {leaving: {}}, {DEPLOYMENT}) == with_replicas(
        4
    )  # it is made anew


def test_suspension_waits_for_no_other_condition() -> None:
    assert without_replicas_during_handover(with_replicas(0), {DEPLOYMENT: {}, HPA: {}}, {DEPLOYMENT}) == with_replicas(
        0
    )


def test_an_autoscaler_does_nothing_with_no_replicas() -> None:
    assert is_stopped(MANIFEST, {"spec": {"replicas": 0}})
    assert not is_stopped(MANIFEST, {"spec": {"replicas": 1}})
    assert not is_stopped(with_replicas(0), {"spec": {"replicas": 0}})
    assert not is_stopped({"kind": "Service", "spec": {"replicas": 1}}, {"spec": {}})


def test_a_deployment_starts_at_the_lower_bound() -> None:
    assert start_of([MANIFEST, {"kind": "HorizontalPodAutoscaler", "spec": {"minReplicas": 3}}]) == 3
    assert start_of([MANIFEST, {"kind": "ScaledObject", "spec": {"minReplicaCount": 4}}]) == 4
    assert start_of([MANIFEST]) == 1
