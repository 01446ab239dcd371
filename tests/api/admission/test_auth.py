"""Default-deny: every path but the open ones needs a key, however the request's path is written."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import openai
import pytest

from octavo_engine.errors import ConfigurationError
from octavo_engine.server import lifecycle
from octavo_engine.server.admission.auth import KeyRing, read_keys
from octavo_engine.server.admission.key_search import KeySearch
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.served import Served, serve, write_keys

KEY = {"Authorization": "Bearer sk-alice"}
OPEN = ["/health", "/health/startup", "/health/ready", "/health/live", "/health/adapters", "/metrics"]
CLOSED = [
    "//", "/playground", "/playground/x", "/index.html", "/version", "/v1/models", "/v1/models/smollm2",
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/docs", "/openapi.json",
    "/v1/load_lora_adapter", "/nonsense", "//v1/models",
    "/v1//models", "/v1/models/", "/metrics/", "/health/../v1/models", "/health/%2e%2e/v1/models", "/%2f",
    "/metrics%2f",
    "/metrics;/v1/models", "/health/ready/../../v1/models", "/Metrics", "/metrics.", "/health/x", "/v1/models%00",
    "/v1/models?x=/metrics", "/metrics%3f/v1/models", "/v1/models#/metrics",
]  # fmt: skip


@pytest.fixture(scope="module")
def closed(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_keys(tmp_path_factory.mktemp("keys") / "keys.yaml", "alice", "bob")
    with serve(tokenizer, api_key_file=path) as served:
        served.play("Hello")
        yield served


def raw(served: Served, request: str) -> tuple[int, str]:
    """Status and text of the answer to exactly these bytes; clients would tidy the path."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=120) as connection:
        connection.sendall(request.encode("latin-1"))
        text = b""
        while chunk := connection.recv(65536):
            text += chunk
    return int(text.split(b" ", 2)[1]), text.decode()


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "NONSENSE"])
def test_every_path_but_the_open_ones_needs_a_key(closed: Served, path: str, method: str) -> None:
    status, _ = raw(closed, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert status == 401


@pytest.mark.parametrize("host", ["x/?y=", "x/#", "x/metrics?", "127.0.0.1/health", "x:80/metrics#", "", "/metrics"])
def test_the_host_header_opens_nothing(closed: Served, host: str) -> None:
    status, _ = raw(closed, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    assert status in (400, 401)


@pytest.mark.parametrize(
    "header",
    [
        "X-Original-URL: /metrics",
        "X-Forwarded-Prefix: /metrics",
        "X-Rewrite-URL: /health",
        "X-HTTP-Method-Override: GET",
    ],
)
def test_no_header_opens_anything(closed: Served, header: str) -> None:
    status, _ = raw(closed, f"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n\r\n")
    assert status == 401


def test_absolute_request_targets_are_judged_by_what_is_served(closed: Served) -> None:
    status, _ = raw(closed, "GET http://x/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert status in (400, 401)


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_metrics_are_open(closed: Served, path: str) -> None:
    assert closed.http.get(path).status_code == 200


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Bearer sk-alic", "Bearer sk-alicee", "Basic sk-alice", "sk-alice", "Bearer SK-ALICE",
     "Bearer sk-alice sk-bob", "Bearer \x00", "Bearer é"],
)  # fmt: skip
def test_wrong_keys(closed: Served, value: str) -> None:
    request = f"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {value}\r\n\r\n"
    status, text = raw(closed, request)
    assert status in (400, 401)  # 400: the parser refuses the header itself
    assert "sk-" not in text


def test_right_keys_open_everything(closed: Served) -> None:
    assert closed.http.get("/version", headers=KEY).status_code == 200
    assert closed.http.get("/version", headers={"authorization": "bearer  sk-bob"}).status_code == 200
    assert closed.http.get("/nonsense", headers=KEY).status_code == 404
    assert closed.openai(api_key="sk-alice").models.list().data[0].id == "smollm2"


def test_the_sdk_sees_an_authentication_error(closed: Served) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        closed.openai(api_key="sk-eve").models.list()
    assert caught.value.code == "invalid_api_key"


def test_refusals_are_counted(closed: Served) -> None:
    def count() -> float:
        text = closed.http.get("/metrics").text
        line = next(x for x in text.splitlines() if x.startswith("octavo_requests_rejected") and "unauthorized" in x)
        return float(line.split()[-1])

    before = count()
    closed.http.get("/version")
    assert count() == before + 1


def test_tenants_never_share_cached_prefixes(closed: Served) -> None:
    closed.do(closed.engine.requests.clear)
    for key in ("sk-alice", "sk-bob"):
        for extra in ({}, {"cache_salt": "s"}):
            closed.openai(api_key=key).completions.create(model="smollm2", prompt="x", extra_body=extra)
    assert len({request.cache_salt for request in closed.engine.requests}) == 4


def owner(ring: KeyRing, secret: str) -> str | None:
    found = ring.owner_of(secret)
    return found.name if found is not None else None


def test_a_digest_instead_of_the_key(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-secret").hexdigest()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: a, keySha256: {digest.upper()}}}\n")
    assert owner(KeyRing(path), "sk-secret") == "a"
    assert owner(KeyRing(path), digest) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [("/v1/models/Qm9vCg+/x7=", "/v1/models/..."), ("xQm9vCg+/x7=y", "x...y"), ("Qm9vCg+/x7=" * 3, "........."),
     ("/Qm9vCg+/x7=-9k/Qm9vCg+/x7=-9l", "/.../...-9l"),
     ("Qm9vCg+/x8=", "Qm9vCg+/x8="), ("id=dIgEsTeD/1", "id=.../1"), ("a b", "a b"), ("", "")],
)  # fmt: skip
def test_known_keys_are_hidden_in_a_text(text: str, shown: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"dIgEsTeD").hexdigest()
    entries = [{"name": "a", "key": "Qm9vCg+/x7="}, {"name": "b", "keySha256": digest}, {"name": "c", "key": "a"}]
    entries += [{"name": "longer", "key": "Qm9vCg+/x7=-9k"}]
    path = tmp_path / "keys.yaml"
    path.write_text(json.dumps({"keys": entries}))
    assert KeyRing(path).hide(text) == shown


def test_keys_that_begin_with_one_another_are_hidden_as_if_each_was_tried(tmp_path: Path) -> None:
    """Compared with a search that tries every key at every place, the longest first."""
    for seed in range(200):
        draw = random.Random(seed)
        keys = {"".join(draw.choices("ab", k=draw.randint(6, 14))) for _ in range(draw.randint(1, 30))}
        text = "".join(draw.choices("ab-", k=300))
        tried = "|".join(sorted(keys, key=len, reverse=True))
        assert KeySearch(keys).hide(text) == re.sub(tried, "...", text), (seed, keys)


@pytest.mark.parametrize(("begins", "text"), [("sk-pro", "sk-pro" * 340), ("aaaaaa", "a" * 2_040)])
def test_a_text_made_of_the_beginning_of_many_keys_is_searched_in_few_steps(
    begins: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.yaml"
    keys = [begins + "x" * length for length in range(1, 1_001)]
    path.write_text(json.dumps({"keys": [{"name": f"k{at}", "key": key} for at, key in enumerate(keys)]}))
    ring, calls = KeyRing(path), 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        shown = ring.hide(text)
    finally:
        sys.setprofile(None)
    assert shown == text and calls < 60 * len(text), calls


def test_a_folder_as_a_mounted_secret(tmp_path: Path) -> None:
    """The folder has the kubelet's layout: links into a dated folder, switched by renaming `..data`."""
    for date, content in (("..2026_1", "sk-old\n"), ("..2026_2", "sk-new\n")):
        (tmp_path / date).mkdir()
        (tmp_path / date / "alice").write_text(content)
    (tmp_path / "..data").symlink_to("..2026_1")
    (tmp_path / "alice").symlink_to("..data/alice")
    ring = KeyRing(tmp_path)
    assert owner(ring, "sk-old") == "alice"
    (tmp_path / "..next").symlink_to("..2026_2")
    (tmp_path / "..next").rename(tmp_path / "..data")
    ring.reload_if_changed()
    assert (owner(ring, "sk-old"), owner(ring, "sk-new")) == (None, "alice")


def test_changes_are_taken_and_broken_files_are_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_keys(tmp_path / "keys.yaml", "alice")
    ring = KeyRing(path)

    def change(action: Callable[[], Any]) -> None:
        action()
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        ring.reload_if_changed()

    change(lambda: write_keys(path, "alice", "bob"))
    assert owner(ring, "sk-bob") == "bob"
    change(lambda: path.write_text("keys: ["))
    assert owner(ring, "sk-bob") == "bob"
    assert "the old ones stay valid" in caplog.text
    change(lambda: path.write_text("keys: []"))  # every key revoked
    assert owner(ring, "sk-alice") is None


def test_a_priority_that_would_not_act_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n- {name: a, key: k, priority: -5, weight: 2.0}\n")
    KeyRing(path, priorities=True)
    assert not caplog.text
    KeyRing(path, priorities=False)
    assert "the priority of an API key has no effect without --scheduling-policy" in caplog.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("keys: []", "holds no key"),
        ("", "Input should be"),
        ("keys: [{name: a}]", "needs either key or keySha256"),
        ("keys: [{name: a, key: sk-secret, keySha256: x}]", "keySha256"),
        ("keys: [{name: 'a b', key: sk-secret}]", "keys[0].name"),
        ("keys: [{name: a, key: sk-secret}, {name: a, key: k}]", "a appears twice"),
        ("keys: [{name: a, key: sk-secret}, {name: b, key: sk-secret}]", "the same key"),
        ("keys: [{name: a, key: sk-secret, requestsPerMinute: 0}]", "keys[0].requestsPerMinute"),
        ("keys: [{name: a, key: sk-secret, colour: red}]", "keys[0].colour: there is no such field"),
        ("keys: [{nam: a, key: sk-secret}]", "keys[0].nam: there is no such field, did you mean name?"),
        ("key: [{name: a, key: sk-secret}]", "key: there is no such field, did you mean keys?"),
        ("keys: [{name: a, key: 12345}]", "keys[0].key"),
        ("- {sk-secret: [", "not valid YAML"),
        ("!!python/object/apply:os.system [id]", "not valid YAML"),
        ("keys: [{name: a, key: sk-secret, weight: 2026-99-99}]", "not valid YAML"),
        ("keys: [{name: a, key: sk-secret, weight: " + "9" * 5000 + "}]", "not valid YAML"),
        ("keys: [{name: a, key: !!int sk-secret}]", "not valid YAML"),
        ("keys: [{name: a, key: !!timestamp sk-secret}]", "not valid YAML"),
        ("keys: [{name: a, key: !!float }]", "not valid YAML"),
        ("keys: [{name: a, key: !!binary é}]", "not valid YAML"),
        ("{[a]: 1, {b: c}: 2}", "not valid YAML"),
        ('keys: [{name: a, key: "\\ud800sk-secret"}]', "--api-key-file"),
    ],
)
def test_bad_key_files_are_reported_without_showing_keys(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        KeyRing(path)
    assert says in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_key_files_loop_survives_whatever_a_reload_raises(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_RELOAD_INTERVAL", 0.02)
    path = write_keys(tmp_path / "keys.yaml", "alice")
    server = start(api_key_file=path)
    reads = 0
    reload = KeyRing.reload_if_changed

    def breaks_once(ring: KeyRing) -> None:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise MemoryError
        reload(ring)

    monkeypatch.setattr(KeyRing, "reload_if_changed", breaks_once)
    server.wait_until(lambda: reads > 1)
    write_keys(path, "bob", "carol")
    server.wait_until(lambda: server.http.get("/version", headers=KEY).status_code == 401)


def test_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_keys(tmp_path / "none.yaml")
