"""Bodies with random fields of /openapi.json set to odd values: each gets an answer or an error of the API, no 500."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.served import Served

BODIES_OF_EACH = 40
HI = [{"role": "user", "content": "Hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/score": {"text_1": "Hi", "text_2": "Ho"},
    "/v1/rerank": {"query": "Hi", "documents": ["Ho"]},
    "/v1/batches": {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "\x00", "\ud800", "\U0010ffff", "auto", "required", "x" * 5000, [], [None], ["x"], [5], [[5]], [1.5],
    ["a", 5], [[]], {}, {"": None}, {"5": 1}, {"type": "function"}, {"type": "json_object"}, {"x": {"y": [{}]}},
    [{}], [HI], HI, [{"role": "assistant", "content": None}], [{"type": "function", "function": FUNCTION}],
    [{"type": "function", **FUNCTION}], {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}},
    {"format": {"type": "json_schema", "name": "x", "schema": {"allOf": [{}, {"not": {}}]}}}, {"include_usage": True},
]  # fmt: skip


def test_no_body_is_an_internal_error(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    server.play("Hello there.")
    document = server.http.get("/openapi.json").json()
    draws = random.Random(19)
    statuses = set()
    for path, good in GOOD.items():
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        names = sorted(document["components"]["schemas"][schema.rpartition("/")[2]]["properties"])
        names = [name for name in names if name != "timeout"]  # a short one is exceeded on a busy machine, which is 504
        for _ in range(BODIES_OF_EACH):
            body = {**good, **{draws.choice(names): draws.choice(ODD) for _ in range(draws.randint(1, 3))}}
            statuses.add(_status(server, path, json.dumps(body)))
    assert statuses == {200, 400, 404}


def _status(server: Served, path: str, body: str) -> int:
    answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, (path, body, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"], (path, body)
    return answer.status_code


def test_no_query_is_an_internal_error(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    for path in ("/v1/files", "/v1/batches", "/v1/files/x", "/v1/files/..%2f..%2fx/content", "/v1/batches/%00"):
        for name in ("limit", "after", "order", "purpose"):
            for value in ("", "0", "-1", "٣", "9" * 500, "x", "desc", "\x00"):
                answer = server.http.get(path, params={name: value})
                assert answer.status_code in (200, 400, 404), (path, name, value, answer.text)
