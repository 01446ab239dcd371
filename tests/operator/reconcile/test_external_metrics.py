"""The server for external metrics: Octavo's, another or none, and that a change is noticed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from octavo_operator.reconcile import external_metrics, unavailable_metrics_api
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.external_metrics import others_answer, watch_answerer
from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.unavailable_metrics_api import delete_if_unavailable
from octavo_operator.reconcile.watching.discovery import KindsChangedError

URL = "http://octavo-operator-metrics.octavo-system.svc:8080"
FORBIDDEN = ApiError(403, "Forbidden", "may not")
UNREACHABLE = ApiError(0, "Unreachable", "the API server cannot be reached")


def api_service(name: str, namespace: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"service": {"name": name, "namespace": namespace}}}


OURS = api_service("octavo-operator-metrics", "octavo-system")
ANOTHER_RELEASES = api_service("b-metrics", "b", **{"app.kubernetes.io/name": "octavo-metrics-api"})
KEDAS = api_service("keda-operator-metrics-apiserver", "keda", **{"app.kubernetes.io/part-of": "keda-operator"})
LOCAL: dict[str, Any] = {"metadata": {}, "spec": {"service": None}}


class Server:
    """Answers with what it is given, in turn; the last stays."""

    def __init__(self, *answers: dict[str, Any] | ApiError | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
        assert kind.path(namespace, name) == path
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer


CASES = [(OURS, False), (ANOTHER_RELEASES, False), (KEDAS, True), (LOCAL, True), (None, None), (FORBIDDEN, None)]


@pytest.mark.parametrize(("answer", "others"), CASES)
async def test_who_answers(answer: dict[str, Any] | ApiError | None, others: bool | None) -> None:
    assert await others_answer(Server(answer), URL) is others


async def test_without_a_url_no_server_is_asked() -> None:
    server = Server(KEDAS)
    assert await others_answer(server, "") is None
    assert server.asked == 0


@pytest.mark.parametrize(("before", "after", "words"), [(OURS, KEDAS, "by others"), (KEDAS, OURS, "by Octavo")])
async def test_a_change_is_noticed_and_a_gap_is_none(
    before: dict[str, Any], after: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_metrics, "POLL_SECONDS", 0.001)
    server = Server(before, UNREACHABLE, None, FORBIDDEN, before, after)
    async with asyncio.timeout(120):
        with pytest.raises(KindsChangedError, match=words):
            await watch_answerer(server, URL, before is KEDAS)
    assert server.asked == 6


class ApiServiceOf(Server):
    """An API server whose APIService can be changed."""

    def __init__(self, service: dict[str, Any], status: str, since: str | None) -> None:
        condition = {"type": "Available", "status": status, "lastTransitionTime": since}
        super().__init__({**service, "metadata": {"uid": "u7"}, "status": {"conditions": [condition]}})
        self.deleted: list[str] = []

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.deleted.append(uid)


@pytest.mark.parametrize(
    ("service", "status", "since", "released"),
    [
        (OURS, "False", "2026-01-01T11:59:30Z", True),
        (OURS, "False", "2026-01-01T11:59:31Z", False),
        (OURS, "False", None, False),
        (OURS, "True", "2026-01-01T11:00:00Z", False),
        (KEDAS, "False", "2026-01-01T11:00:00Z", False),
        (LOCAL, "False", "2026-01-01T11:00:00Z", False),
    ],
)
async def test_the_apiservice_is_deleted_while_octavos_server_does_not_answer(
    service: dict[str, Any], status: str, since: str | None, released: bool, caplog: pytest.LogCaptureFixture
) -> None:
    api_service = ApiServiceOf(service, status, since)
    assert await delete_if_unavailable(api_service, URL, datetime(2026, 1, 1, 12, tzinfo=UTC)) is released
    assert api_service.deleted == (["u7"] if released else [])
    where = "kubectl describe pods --selector app.kubernetes.io/name=octavo-metrics-api --namespace octavo-system"
    assert caplog.text.endswith(f"{where}\n") is released


async def test_how_long_it_does_not_answer_is_counted_by_the_api_servers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unavailable_metrics_api, "POLL_SECONDS", 0.001)
    api_service = ApiServiceOf(OURS, "False", "2026-01-01T12:00:00Z")
    moments = iter([*["2026-01-01T12:00:29Z"] * 5, "2026-01-01T12:00:30Z"])
    with pytest.raises(RuntimeError):  # the clock ends
        await unavailable_metrics_api.watch_metrics_api(api_service, URL, lambda: next(moments))
    assert api_service.deleted == ["u7"]
