"""GET /openapi.json describes the API's requests, so that tools can generate requests from it."""

from __future__ import annotations

import json
from typing import Any

from octavo_engine.server.endpoints.openapi import BODIES
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


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [each for item in value for each in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [each for item in value.values() for each in _references(item)]
