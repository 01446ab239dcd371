"""GET /openapi.json describes the API's requests, so that tools can generate requests from it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from octavo_engine.server.endpoints import openapi_document
from octavo_engine.server.endpoints.openapi import add_document
from octavo_engine.server.endpoints.openapi_document import BODIES
from tests.api.served import Served


def test_the_document_has_every_route_with_its_body(server: Served) -> None:
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path in set(BODIES) - {"/v1/batches"}:  # test_batches.py asks a server that has them
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert "properties" in schemas[body["$ref"].removeprefix("#/components/schemas/")]
    assert {"/v1/models", "/version"} <= set(document["paths"])
    references = set(_references(document))
    assert references and all(each.removeprefix("#/components/schemas/") in schemas for each in references)
    assert "/health/ready" not in document["paths"], "probes are no part of the API"
    assert "422" not in json.dumps(document)


def test_no_route_with_a_body_is_forgotten(server: Served) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    posted = {path for path, operations in paths.items() if "post" in operations}
    assert "/v1/embeddings" in posted
    assert posted <= {*BODIES, "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}


def test_bodies_are_made_for_the_document_alone() -> None:
    check = "import octavo_engine.server.run, sys; sys.exit('octavo_engine.server.openai.protocol' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


async def test_the_document_is_made_once_and_delays_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    second = Barrier(2)  # which no thread passes, as no other comes

    def make(app: FastAPI) -> bytes:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        made.append(app)
        with suppress(BrokenBarrierError):
            second.wait(0.2)
        return b"{}"

    monkeypatch.setattr(openapi_document, "make_document", make)
    app = FastAPI(openapi_url=None)
    add_document(app)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server") as client:
        answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(3)))
    assert [answer.json() for answer in answers] == [{}] * 3
    assert made == [app]


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [each for item in value for each in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [each for item in value.values() for each in _references(item)]
