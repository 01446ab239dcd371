"""Kinds that a cluster may lack: created where their CRDs exist, noticed when these come or go, and reported when
missing."""

from __future__ import annotations

import asyncio

import pytest

from octavo_operator.api.names import API_VERSION, PLURAL
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import OPTIONAL
from octavo_operator.reconcile.watching import discovery
from octavo_operator.reconcile.watching.discovery import KindsChangedError, present_kinds, watch_kinds
from octavo_operator.render import OPTIONAL_KINDS, RenderConfig, render
from tests.operator.golden import SAMPLES, llmservice

MONITORING = "monitoring.coreos.com/v1"
NAMES = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
METRICS_SERVICE = "the headless Service"


class Server:
    """Answers with what it is given; None stands for an API server that cannot be reached."""

    def __init__(self, *answers: set[str] | None) -> None:
        self.answers = list(answers)
        self.has_crd = True

    async def plurals(self, api_version: str) -> frozenset[str]:
        if api_version == API_VERSION:
            return frozenset({PLURAL} if self.has_crd else ())
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


async def test_groups_are_asked_for_at_once() -> None:
    """An API server may take seconds for each answer."""
    both = asyncio.Barrier(len({kind.api_version for kind in OPTIONAL}))

    class Slow(Server):
        async def plurals(self, api_version: str) -> frozenset[str]:
            await both.wait()
            return await super().plurals(api_version)

    async with asyncio.timeout(120):
        assert [kind.name for kind in await present_kinds(Slow({"podmonitors"}))] == ["PodMonitor"]


@pytest.mark.parametrize("after", [{"podmonitors", "prometheusrules"}, set()])
async def test_kinds_that_come_or_go_are_noticed_and_an_outage_is_no_change(
    after: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "POLL_SECONDS", 0.001)
    before = {"podmonitors"}
    known = await present_kinds(Server(before))
    async with asyncio.timeout(120):
        with pytest.raises(KindsChangedError, match=r"installed: PrometheusRule; removed: none|removed: PodMonitor"):
            await watch_kinds(Server(before, None, None, before, after), known)


async def test_that_the_crd_itself_goes_is_noticed_also_where_no_watch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf, started in the moment in which it goes, runs without a watch of it."""
    monkeypatch.setattr(discovery, "POLL_SECONDS", 0.001)
    server = Server(set())
    server.has_crd = False
    async with asyncio.timeout(120):
        with pytest.raises(KindsChangedError, match="was removed"):
            await watch_kinds(server, ())


@pytest.mark.parametrize(
    ("kind", "enabled", "alerts", "kinds", "made"),
    [
        ("PodMonitor", "Auto", True, set(), set()),
        ("PodMonitor", "Auto", True, {"PodMonitor"}, {"PodMonitor"}),
        ("PodMonitor", "Auto", True, NAMES, {"PodMonitor", "PrometheusRule"}),
        ("PodMonitor", "Auto", False, NAMES, {"PodMonitor"}),
        ("PodMonitor", "Always", True, set(), {"PodMonitor", "PrometheusRule"}),
        ("PodMonitor", "Never", True, NAMES, set()),
        ("ServiceMonitor", "Auto", True, {"PodMonitor"}, set()),
        ("ServiceMonitor", "Auto", True, NAMES, {"ServiceMonitor", "PrometheusRule", METRICS_SERVICE}),
        ("ServiceMonitor", "Always", False, set(), {"ServiceMonitor", METRICS_SERVICE}),
        ("ServiceMonitor", "Never", True, NAMES, set()),
    ],
)
def test_monitoring_is_made_where_it_is_wanted(
    kind: str, enabled: str, alerts: bool, kinds: set[str], made: set[str]
) -> None:
    service = llmservice(SAMPLES / "smollm2.yaml")
    wanted = {"kind": kind, "enabled": enabled, "alerts": alerts}
    monitoring = service.spec.monitoring.model_copy(update=wanted)
    service = service.model_copy(update={"spec": service.spec.model_copy(update={"monitoring": monitoring})})
    children = render(service, RenderConfig("image:1", frozenset(kinds)))
    named = {METRICS_SERVICE if child["metadata"]["name"] == "smollm2-metrics" else child["kind"] for child in children}
    assert named & {*NAMES, METRICS_SERVICE} == made
