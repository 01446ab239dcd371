"""Kinds that a cluster may lack: made where they are, noticed when they come or go, and missed with a sentence."""

from __future__ import annotations

import asyncio

import pytest

from octavo_operator.reconcile import discovery
from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.discovery import KindsChangedError, present_kinds, watch_kinds
from octavo_operator.reconcile.kinds import OPTIONAL
from octavo_operator.render import OPTIONAL_KINDS, RenderConfig, render
from tests.operator.golden import SAMPLES, llmservice

MONITORING = "monitoring.coreos.com/v1"
NAMES = {"PodMonitor", "PrometheusRule"}


class Server:
    """Answers with what it is given; None stands for an API server that cannot be reached."""

    def __init__(self, *answers: set[str] | None) -> None:
        self.answers = list(answers)

    async def plurals(self, api_version: str) -> frozenset[str]:
        if api_version != MONITORING:
            return frozenset()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise ApiError(0, "Unreachable", "the API server cannot be reached")
        return frozenset(answer)


def test_every_optional_kind_that_is_rendered_can_be_discovered() -> None:
    assert {kind.name for kind in OPTIONAL} == set(OPTIONAL_KINDS)


async def test_only_what_the_cluster_has_is_present() -> None:
    assert await present_kinds(Server(set())) == ()
    assert [kind.name for kind in await present_kinds(Server({"podmonitors", "podmonitors/status"}))] == ["PodMonitor"]


@pytest.mark.parametrize("after", [{"podmonitors", "prometheusrules"}, set()])
async def test_kinds_that_come_or_go_are_noticed_and_an_outage_is_no_change(
    after: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "POLL_SECONDS", 0.001)
    before = {"podmonitors"}
    known = await present_kinds(Server(before))
    async with asyncio.timeout(10):
        with pytest.raises(KindsChangedError, match=r"installed: PrometheusRule; removed: none|removed: PodMonitor"):
            await watch_kinds(Server(before, None, None, before, after), known)


@pytest.mark.parametrize(
    ("enabled", "alerts", "kinds", "made"),
    [
        ("Auto", True, set(), set()),
        ("Auto", True, {"PodMonitor"}, {"PodMonitor"}),
        ("Auto", True, NAMES, NAMES),
        ("Auto", False, NAMES, {"PodMonitor"}),
        ("Always", True, set(), NAMES),
        ("Never", True, NAMES, set()),
    ],
)
def test_monitoring_is_made_where_it_is_wanted(enabled: str, alerts: bool, kinds: set[str], made: set[str]) -> None:
    service = llmservice(SAMPLES / "smollm2.yaml")
    monitoring = service.spec.monitoring.model_copy(update={"enabled": enabled, "alerts": alerts})
    service = service.model_copy(update={"spec": service.spec.model_copy(update={"monitoring": monitoring})})
    rendered = {child["kind"] for child in render(service, RenderConfig("image:1", frozenset(kinds)))}
    assert rendered & NAMES == made
