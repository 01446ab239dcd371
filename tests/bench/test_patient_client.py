"""The bench's client repeats requests to an API server that is too busy or restarts."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

from bench import patient_client
from bench.patient_client import PatientClient


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_client, "_PAUSE_SECONDS", 0.0)


def answering(*codes: int, seconds: float = 60) -> PatientClient:
    """A client of a server that answers with these codes, one after the other; 0: it closes the connection."""
    left = iter(codes)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if not (code := next(left)):
            raise httpx2.ReadError("closed", request=request)
        return httpx2.Response(code, json={})

    return PatientClient(httpx2.Client(base_url="http://server", transport=httpx2.MockTransport(answer)), seconds)


def test_a_busy_server_is_asked_again() -> None:
    client = answering(503, 0, 429, 200)
    assert client.get("/x").is_success
    assert client.repeated == 3


@pytest.mark.parametrize("call", [lambda c: c.create("/x", {}), lambda c: c.merge("/x", {}), lambda c: c.get("/x")])
def test_a_refusal_is_an_error(call: Callable[[PatientClient], object]) -> None:
    for client in (answering(422), answering(409), answering(503, seconds=0)):
        with pytest.raises(httpx2.HTTPStatusError):
            call(client)


def test_what_a_lost_answer_has_created_is_created() -> None:
    answering(0, 409).create("/x", {})
    assert answering(404).get("/x").status_code == 404
