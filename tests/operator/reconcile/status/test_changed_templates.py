"""Pod templates that another client changes before any rollout has ended are reported; single changes are not."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.status.changed_templates import ChangedTemplates
from tests.operator.api_server import CHILD, KEY, SERVING_POD, Server, settled
from tests.operator.bad_llmservices import merged

BEGAN = "2026-01-01T00:00:00Z"


def seen(template: str, generation: int = 1, available: int = 0, updated: int = 1) -> Observation:
    counts = {"replicas": 1, "updatedReplicas": updated, "availableReplicas": available, "observedGeneration": 1}
    live = {"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": counts, "template": template}
    return Observation({"metadata": {"generation": generation}}, {("Deployment", KEY[1]): live})


@pytest.mark.parametrize("available", [0, 1])
def test_a_template_that_changes_before_each_rollout_has_ended_is_reported_until_one_has(available: int) -> None:
    """Also where an old pod serves all the time."""
    known = ChangedTemplates()
    for number in range(9):
        since = known.note(KEY, seen(f"t{number}", available=available, updated=0), f"2026-01-01T00:0{number}:00Z")
        assert since == (BEGAN if number >= 3 else "")
        assert known.note(KEY, seen(f"t{number}", updated=0), f"2026-01-01T00:0{number}:30Z") == since
    assert known.note(KEY, seen("t9", available=1), "2026-01-01T00:09:00Z") == ""
    assert known.note(KEY, seen("t10"), "2026-01-01T00:09:30Z") == ""


@pytest.mark.parametrize(
    ("what", "observed"),
    [
        ("of a spec that changes", [seen(f"t{number}", generation=number) for number in range(9)]),
        ("that is put back each time", [seen(f"t{number % 2}") for number in range(9)]),
        ("of rollouts that end", [seen(f"t{number}", available=number % 2) for number in range(9)]),
    ],
)
def test_a_template_is_no_fault(what: str, observed: list[Observation]) -> None:
    known = ChangedTemplates()
    assert [known.note(KEY, each, BEGAN) for each in observed] == [""] * 9, what


def test_changes_that_have_ended_do_not_count() -> None:
    known = ChangedTemplates()
    for number in range(4):
        since = known.note(KEY, seen(f"t{number}"), BEGAN)
    assert since == BEGAN
    assert known.note(KEY, seen("t3"), "2026-01-01T00:10:00Z") == BEGAN
    assert known.note(KEY, seen("t3"), "2026-01-01T00:10:01Z") == "", "its pods take long to load"


async def test_a_client_that_sets_another_label_each_time_stalls_the_rollout() -> None:
    """A label that it adds is not ours: `kubectl rollout restart` adds such an annotation."""
    server = Server()
    operator = await settled(server)
    loading = {"status": {"containerStatuses": [{"name": "engine", "state": {"running": {}}, "ready": False}]}}
    for number in range(4):
        live = server.live["Deployment"]
        label: dict[str, Any] = {"spec": {"template": {"metadata": {"labels": {"stamp": f"{number}"}}}}}
        server.live["Deployment"] = merged(live, label)
        server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
        server.indexes[POD.plural][KEY] = [trimmed(POD, merged(SERVING_POD, loading))]
        await operator.reconcile(KEY)
    for kind in ("Degraded", "Progressing", "Reconciling", "Stalled"):
        assert server.reason(kind) == "FieldConflict"
        assert "the pod template of Deployment good keeps being changed since 20" in server.condition(kind)["message"]
    assert "Deployment" not in server.writes
