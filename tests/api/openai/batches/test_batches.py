"""Files and batches through the real openai SDK: answers, refusals, and the state after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import openai
import psutil
import pytest
from openai.types import Batch

from octavo_engine.errors import ConfigurationError
from octavo_engine.server.connections import connection
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.batches import (
    batches,
    file_content,
    input_file,
    job,
    line_answers,
    results,
    storage,
    upload,
)
from octavo_engine.server.openai.batches.input_file import check_input
from octavo_engine.server.openai.batches.objects import BatchObject, LineError, RequestCounts
from octavo_engine.server.openai.batches.protocol import BatchBody
from octavo_engine.server.openai.batches.storage import Storage, append
from tests.api.served import PATIENCE, Served, write_keys

CHAT = "/v1/chat/completions"
Start = Callable[..., Served]


def line(name: str, **body: Any) -> bytes:
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": CHAT, "body": asked}).encode() + b"\n"


def begin(client: openai.OpenAI, *lines: bytes, **fields: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", b"".join(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **fields)


def ended(server: Served, client: openai.OpenAI, batch: Batch) -> Batch:
    done = {"completed", "failed", "expired", "cancelled"}
    server.wait_until(lambda: client.batches.retrieve(batch.id).status in done)
    return client.batches.retrieve(batch.id)


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    read = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    assert len({each["id"] for each in read}) == len(read)
    return {each["custom_id"]: each for each in read}


def test_a_batch_is_answered_in_the_lowest_class(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    server.serving.unread.total = 4000
    server.play("Hello there.")
    client = server.openai()
    good = [line(f"a{n}", max_tokens=5) for n in range(5)]
    bad = line("bad", temperature=9), b"\n", line("gone", model="nope"), line("long", n=100)
    batch = begin(client, *good, *bad, metadata={"a": "b"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"a": "b"})
    batch = ended(server, client, batch)
    counts = batch.request_counts
    assert counts is not None and (counts.total, counts.completed, counts.failed) == (8, 5, 3)
    assert batch.status == "completed" and batch.completed_at and batch.in_progress_at and batch.finalizing_at
    answers = lines_of(client, batch.output_file_id)
    assert set(answers) == {f"a{n}" for n in range(5)}
    response = answers["a0"]["response"]
    assert response["status_code"] == 200 and response["body"]["choices"][0]["message"]["content"] == "Hello there."
    errors = lines_of(client, batch.error_file_id)
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["gone"]["response"]["status_code"] == 404
    assert errors["long"]["response"]["body"]["error"]["code"] == "answer_too_large"  # at any time, so never again
    assert {request.priority for request in server.engine.requests} == {1000}
    used = [each["response"]["body"]["usage"] for each in answers.values()]
    assert batch.model == "smollm2" and batch.usage is not None
    assert batch.usage.input_tokens == sum(each["prompt_tokens"] for each in used)
    assert batch.usage.output_tokens == sum(each["completion_tokens"] for each in used) == 20
    assert batch.usage.total_tokens == sum(each["total_tokens"] for each in used)
    assert batch.usage.input_tokens_details.cached_tokens == 16 * 5
    foreign = server.http.get("/v1/files", headers={"anthropic-version": "2023-06-01"})
    assert (foreign.status_code, foreign.json()["error"]["type"]) == (404, "not_found_error")

    file = client.files.retrieve(batch.output_file_id or "")
    assert (file.purpose, file.bytes) == ("batch_output", len(client.files.content(file.id).content))
    assert [each.id for each in client.batches.list(limit=1)] == [batch.id]
    assert len(list(client.files.list())) == 3
    assert [each.id for each in client.files.list(purpose="batch")] == [batch.input_file_id]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError, match="completed and cannot"):
        client.batches.cancel(batch.id)
    body = server.http.get("/openapi.json").json()["paths"]["/v1/batches"]["post"]["requestBody"]
    assert "BatchBody" in json.dumps(body)


@pytest.mark.parametrize(("finish", "code"), [("memory", "out_of_memory_retry"), ("timeout", "deadline_exceeded")])
def test_a_line_that_cannot_succeed_is_not_tried_for_ever(start: Start, tmp_path: Path, finish: str, code: str) -> None:
    server = start(batch_storage=tmp_path)
    server.play("Hello there.", finish=finish)
    client = server.openai()
    batch = ended(server, client, begin(client, line("a", max_tokens=5)))
    assert batch.status == "completed"
    response = lines_of(client, batch.error_file_id)["a"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (503, code)


def test_a_line_that_waited_too_long_is_tried_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_answers, "_LONGEST_PAUSE", 0.01)
    server = start(batch_storage=tmp_path)
    server.play(tokens=[], finish="timeout")
    client = server.openai()
    batch = begin(client, line("a", max_tokens=5))
    server.wait_until(lambda: server.do(lambda: len(server.engine.requests)) > 1)
    server.play("Hello there.")
    batch = ended(server, client, batch)
    assert lines_of(client, batch.output_file_id)["a"]["response"]["status_code"] == 200


def test_a_restart_repeats_nothing_and_loses_nothing(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    client = server.openai()
    lines = [line(f"a{n}", max_tokens=n + 1) for n in range(6)]
    server.play("one two three four five six seven eight", hold_after=2)  # answers of up to 2 tokens end
    batch = begin(client, *lines)
    server.wait_until(lambda: len(server.do(lambda: [r for r in server.engine.requests if r.sampling.max_tokens == 3])))
    server.wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="used by another server"):
        Storage(tmp_path, 1 << 30, lambda: False)
    server.stop()
    assert server.outcome == 0
    written = next(path for path in (tmp_path / "anyone" / "files").iterdir() if b"response" in path.read_bytes())
    with written.open("ab") as file:
        file.write(b'{"id":"batch_req_half a li')  # what a server leaves that is killed while it writes

    again = start(batch_storage=tmp_path)
    again.play("one two three four five six seven eight")
    client = again.openai()
    done = ended(again, client, batch)
    assert done.status == "completed" and set(lines_of(client, done.output_file_id)) == {f"a{n}" for n in range(6)}
    assert sorted(request.sampling.max_tokens for request in again.engine.requests) == [3, 4, 5, 6]
    used = [each["response"]["body"]["usage"] for each in lines_of(client, done.output_file_id).values()]
    assert done.usage is not None and done.usage.output_tokens == sum(each["completion_tokens"] for each in used)
    assert done.usage.input_tokens == sum(each["prompt_tokens"] for each in used) == 6 * used[0]["prompt_tokens"]


def test_a_batch_that_is_cancelled_or_expires_says_so(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    client = server.openai()
    server.play("one two three", hold_after=1)
    cancelled = begin(client, line("short", max_tokens=1), line("long"))
    server.wait_until(lambda: client.batches.retrieve(cancelled.id).request_counts.completed == 1)  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        client.files.delete(cancelled.input_file_id)
    assert client.batches.cancel(cancelled.id).status in ("cancelling", "cancelled")
    cancelled = ended(server, client, cancelled)
    assert cancelled.status == "cancelled" and cancelled.cancelling_at and cancelled.cancelled_at
    assert client.batches.cancel(cancelled.id) == cancelled  # a client may try again after its connection broke
    assert set(lines_of(client, cancelled.output_file_id)) == {"short"} and cancelled.error_file_id is None
    server.wait_until(lambda: server.do(lambda: len(server.serving.running)) == 0)

    storage = server.server._storage
    assert storage is not None
    server.do(lambda: setattr(storage, "clock", lambda: time.time() - 25 * 3600))
    batch = begin(client, line("short", max_tokens=1), line("long"))
    server.wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 1)  # type: ignore[union-attr]
    server.stop()
    again = start(batch_storage=tmp_path)
    client = again.openai()
    expired = ended(again, client, batch)
    assert expired.status == "expired" and expired.expired_at
    assert set(lines_of(client, expired.output_file_id)) == {"short"}
    assert lines_of(client, expired.error_file_id)["long"]["error"]["code"] == "batch_expired"


def test_others_come_first(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines in half of the slots give way to another request, but for the oldest one, and are asked again after it."""
    monkeypatch.setattr(line_answers, "QUIET_SECONDS", 0.0)
    server = start(batch_storage=tmp_path)
    server.play("one two", hold_after=1)
    client = server.openai()
    batch = begin(client, *[line(f"a{n}") for n in range(4)])
    server.wait_until(lambda: server.do(lambda: len(server.engine.requests)) == 2)
    own = psutil.Process()  # sixteen batches of each key may wait, and a process may have few open files
    server.wait_until(lambda: not any(file.path.startswith(f"{tmp_path}/anyone") for file in own.open_files()))
    lines = {request.request_id for request in server.do(lambda: list(server.engine.requests))}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        server.wait_until(
            lambda: server.do(lambda: (len(server.engine.aborted), len(server.engine.requests))) == (1, 3)
        )
        assert set(server.engine.aborted) < lines
        assert [request.priority for request in server.do(lambda: list(server.engine.requests))] == [1000, 1000, 0]
        server.do(server.engine.release.set)
        assert other.result().status_code == 200
    done = ended(server, client, batch)
    assert done.status == "completed" and set(lines_of(client, done.output_file_id)) == {f"a{n}" for n in range(4)}
    assert len(server.engine.aborted) == 1


def test_no_line_begins_while_a_request_waits(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    server.play("one two", hold_after=0)
    client = server.openai()
    batches = server.server._batches
    assert batches is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        server.wait_until(lambda: server.do(lambda: len(server.engine.requests)) == 1)
        batch = begin(client, line("a"))
        server.wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
        assert not server.do(batches.answers.gate.has_room)
        assert len(server.do(lambda: list(server.engine.requests))) == 1
        server.do(server.engine.release.set)
        assert waiting.result().status_code == 200
    assert ended(server, client, batch).status == "completed"


def test_lines_are_read_from_the_file_when_their_turn_comes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the waiting lines of sixteen batches would take half a gigabyte."""
    reads: list[int] = []

    def counted(path: Path, place: input_file.LinePlace) -> input_file.InputLine:
        reads.append(place.number)
        return input_file.read_request(path, place)

    monkeypatch.setattr(job, "read_request", counted)
    server = start(batch_storage=tmp_path)
    server.play("one two", hold_after=1)
    client = server.openai()
    batch = begin(client, b"\xef\xbb\xbf" + line("a0"), b"\n", *[line(f"a{n}") for n in range(1, 8)])
    server.wait_until(lambda: server.do(lambda: len(server.engine.requests)) == 2)
    assert sorted(reads) == [1, 3]
    server.do(server.engine.release.set)
    batch = ended(server, client, batch)
    assert set(lines_of(client, batch.output_file_id)) == {f"a{n}" for n in range(8)}


async def test_one_input_file_is_checked_at_a_time_and_keys_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is cancelled meanwhile ends at once. Many checks would keep the threads from other requests."""
    checked: list[str] = []
    first, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def check(path: Path, endpoint: str) -> tuple[int, list[LineError]]:
        checked.append(path.parent.parent.name)
        loop.call_soon_threadsafe(first.set)
        going_on.wait(PATIENCE)
        return 0, [LineError("empty_file", "")]

    monkeypatch.setattr(job, "check_input", check)
    kept = Storage(tmp_path, 1 << 20, lambda: True)
    running = batches.Batches(kept, Mock())
    made = []
    for name in ("rude", "rude", "rude", "rude", "other"):
        file = await kept.add(kept.of(name), storage.new_file_id(), "x", 0, "batch", None)
        body = BatchBody(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        made.append(await running.create(kept.of(name), body))
        await first.wait()
    async with asyncio.timeout(PATIENCE):
        while sum(map(len, running._checks._waiting.values())) < 4:
            await asyncio.sleep(0.01)
        await running.cancel(made[3])
        while made[3].status != "cancelled":
            await asyncio.sleep(0.01)
    assert checked == ["key-rude"]
    going_on.set()
    async with asyncio.timeout(PATIENCE):
        while not all(each.status in ("failed", "cancelled") for each in made):
            await asyncio.sleep(0.01)
    assert checked == ["key-rude", "key-rude", "key-other", "key-rude"]
    assert [each.status for each in made] == ["failed", "failed", "failed", "cancelled", "failed"]
    await running.stop()
    kept.close()


def test_a_key_with_many_batches_leaves_every_second_turn_to_another(start: Start, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.yaml", "rude", "other")
    server = start(batch_storage=tmp_path / "files", api_key_file=keys, max_key_share=1.0)
    server.play("one two", hold_after=0)
    rude, other = (server.openai(api_key=f"sk-{name}") for name in ("rude", "other"))
    first = [begin(rude, *[line(f"{batch}-{n}") for n in range(6)]) for batch in range(3)]
    server.wait_until(lambda: server.do(lambda: len(server.engine.requests)) == 2)
    last = begin(other, *[line(f"o{n}") for n in range(3)])
    batches = server.server._batches
    assert batches is not None
    server.wait_until(lambda: server.do(lambda: "other" in batches.answers.gate._turns._waiting))
    server.do(server.engine.release.set)
    for client, batch in ((other, last), *((rude, each) for each in first)):
        assert ended(server, client, batch).status == "completed"
    tenants = [request.tenant for request in server.do(lambda: list(server.engine.requests))]
    assert [index for index, tenant in enumerate(tenants) if tenant == "other"][-1] <= 12
    assert len(tenants) == 21


def test_keys_see_only_their_own(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path / "kept", api_key_file=write_keys(tmp_path / "keys.yaml", "ann", "bob"))
    server.play("Hello.")
    ann, bob = server.openai(api_key="sk-ann"), server.openai(api_key="sk-bob")
    batch = ended(server, ann, begin(ann, line("a")))
    assert {request.tenant for request in server.engine.requests} == {"ann"}
    assert list(bob.files.list()) == [] and list(bob.batches.list()) == []
    for act in (
        lambda: bob.files.retrieve(batch.input_file_id),
        lambda: bob.files.content(batch.output_file_id or ""),
        lambda: bob.files.delete(batch.input_file_id),
        lambda: bob.batches.retrieve(batch.id),
        lambda: bob.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            act()
    with pytest.raises(openai.BadRequestError, match="no input file"):
        bob.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert server.http.get("/v1/files").status_code == 401


BAD_LINES: dict[str, tuple[bytes, str, int | None]] = {
    "no JSON": (b"nonsense\n", "invalid_json_line", 1),
    "not UTF-8": (b'{"custom_id": "\xff"}\n', "invalid_json_line", 1),
    "deeply nested": (line("a") + b'{"custom_id": "b", "body": ' + b"[" * 100_000 + b"\n", "invalid_json_line", 2),
    "no object": (b"[]\n", "invalid_request", 1),
    "no custom_id": (b'{"method": "POST", "url": "/v1/chat/completions", "body": {}}\n', "invalid_request", 1),
    "another method": (line("a").replace(b"POST", b"GET"), "invalid_request", 1),
    "a body of no kind": (b'{"custom_id":"a","method":"POST","url":"/v1","body":[]}', "invalid_request", 1),
    "another endpoint": (line("a").replace(b"/chat", b""), "mismatched_endpoint", 1),
    "twice the same": (line("a") + line("b") + line("a"), "duplicate_custom_id", 3),
    "a stream": (line("a", stream=True), "unsupported_parameter", 1),
    "too long": (line("a", user="x" * (1 << 20)), "line_too_long", 1),
    "nothing": (b"\n\n", "empty_file", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["z", "method"])
def test_what_a_bad_line_has_is_not_kept_as_a_whole(tmp_path: Path, kind: str) -> None:
    """A line has up to a megabyte, and a key may have a thousand batches of fifty errors each."""
    name, value = ("z" * 100_000, "") if kind == "z" else ("method", "z" * 100_000)
    path = tmp_path / "in.jsonl"
    path.write_bytes(json.dumps(json.loads(line("a")) | {name: value}).encode())
    [error] = check_input(path, CHAT)[1]
    assert error.code == "invalid_request" and 100 < len(error.message) < 1000


async def test_records_of_batches_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest that have ended are removed, also from the disk; those that have not ended stay."""
    monkeypatch.setattr(storage, "MAX_RECORD_BYTES", 5_000)
    kept = Storage(tmp_path, 1 << 20, lambda: True)
    owner, saved = kept.of("ann"), []
    for number in range(8):
        saved.append(
            BatchObject(
                id=storage.new_batch_id(),
                endpoint=CHAT,
                input_file_id="x",
                completion_window="24h",
                created_at=number,
                expires_at=9,
                request_counts=RequestCounts(),
                metadata={"a": "x" * 600},
                status="completed" if number else "in_progress",
            )
        )
        await kept.save(owner, saved[-1])
    names = list(owner.batches)
    assert names == [each.id for each in (saved[0], *saved[-len(names) + 1 :])] and 2 < len(names) < 6
    assert {path.stem for path in (owner.folder / "batches").iterdir()} == set(names)
    kept.close()
    again = Storage(tmp_path, 1 << 20, lambda: True)
    assert list(again.of("ann").record_bytes) == names and sum(again.of("ann").record_bytes.values()) <= 5_000
    again.close()


def test_ends_of_batches_do_not_fill_the_log(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client may create batches that fail at once, without a pause."""
    caplog.set_level("INFO", "octavo.server")
    monkeypatch.setattr(batches, "LINES_AT_ONCE", 2.0)
    monkeypatch.setattr(batches, "LINES_PER_SECOND", 0.0)
    server = start(batch_storage=tmp_path)
    client = server.openai()
    first = ended(server, client, begin(client, b"x"))
    for _ in range(5):
        batch = client.batches.create(input_file_id=first.input_file_id, endpoint=CHAT, completion_window="24h")
        ended(server, client, batch)
    assert sum("is failed" in message for message in caplog.messages) == 2


@pytest.mark.parametrize("name", BAD_LINES)
def test_lines_that_are_no_requests_are_named(tmp_path: Path, name: str) -> None:
    content, code, number = BAD_LINES[name]
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    [error] = check_input(path, CHAT)[1]
    assert (error.code, error.line) == (code, number) and error.message


def test_an_input_of_endless_lines_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"nonsense\n" * 10_000)
    assert len(check_input(path, CHAT)[1]) == 50
    monkeypatch.setattr(input_file, "MAX_LINES", 100)
    path.write_bytes(b"".join(line(str(n)) for n in range(200)))
    total, [error] = check_input(path, CHAT)
    assert (total, error.code) == (100, "too_many_requests")
    path.write_bytes(b"\n" * 200)
    assert check_input(path, CHAT)[1][0].code == "too_many_requests"


def test_a_batch_of_bad_lines_fails(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    client = server.openai()
    batch = ended(server, client, begin(client, line("a"), line("a"), b"x"))
    assert batch.status == "failed" and batch.failed_at and batch.output_file_id is None
    assert batch.errors is not None and batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "duplicate_custom_id"), (3, "invalid_json_line"),
    ]  # fmt: skip
    assert server.engine.requests == []
    file = client.files.create(file=("in.jsonl", line("a")), purpose="batch")
    for fields in ({"endpoint": "/v1/moderations"}, {"completion_window": "1h"}, {"input_file_id": "file-x"}, {"x": 1}):
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **fields}
        answer = server.http.post("/v1/batches", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))


def test_the_error_for_a_part_of_a_form_without_a_name_says_so(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    for disposition in ("form-data", "form-data; name*=utf-8''file; filename=a", "form-data; name="):
        form = f"--b\r\nContent-Disposition: {disposition}\r\n\r\nx\r\n--b--\r\n"
        answer = server.http.post(
            "/v1/files", content=form.encode(), headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, None), disposition
        assert error["message"] == 'a part of the form has no name; give each its own, as in name="file"'


def test_uploads_are_bounded_and_leave_nothing(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(batch_storage=tmp_path, batch_storage_size=1 << 20)
    client = server.openai()
    content = b"x" * 300_000
    for form, status, param in (
        ({"files": {"file": ("a", content)}, "data": {"purpose": "fine-tune"}}, 400, "purpose"),
        ({"files": {"file": ("a", content)}}, 400, "purpose"),
        ({"files": {"x": ("a", content)}, "data": {"purpose": "batch"}}, 400, "x"),
        ({"files": {"purpose": (None, b"batch")}}, 400, "file"),
        *(({"files": {"file": ("a", content)}, "data": {"purpose": "batch", "expires_after[anchor]": "created_at",
                                                        "expires_after[seconds]": seconds}}, 400,
           "expires_after[seconds]") for seconds in ("5", "x", "2592001")),
        ({"files": {"file": ("a", content)}, "data": {"purpose": "batch", "expires_after[seconds]": "3600"}}, 400,
         "expires_after[anchor]"),
        ({"json": {"purpose": "batch"}}, 400, None),
        ({"content": b"--b\r\nnonsense", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, None),
        ({"content": b"--b--", "headers": {"Content-Type": f"multipart/form-data; boundary={'b' * 5000}"}}, 400, None),
        ({"content": b"--b\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, None),
        ({"files": [(f"p{n}", (None, b"")) for n in range(2000)]}, 400, None),
        ({"files": {"file": ("a", content)}, "headers": {"Content-Encoding": "gzip"}}, 415, None),
    ):  # fmt: skip
        answer = server.http.post("/v1/files", **form)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), form.keys()
    for _ in range(3):
        kept = client.files.create(file=("a", content), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="--batch-storage-size") as full:
        client.files.create(file=("a", content), purpose="batch")
    assert full.value.status_code == 413 and full.value.code == "storage_full"
    client.files.delete(kept.id)
    client.files.create(file=("a", content), purpose="batch")
    monkeypatch.setattr(upload, "MAX_FILE_BYTES", 1000)
    with pytest.raises(openai.APIStatusError, match="more than 1000 bytes"):
        client.files.create(file=("a", content), purpose="batch")
    assert len([path for path in (tmp_path / "anyone" / "files").iterdir() if not path.suffix]) == 3


def test_files_expire(start: Start, tmp_path: Path) -> None:
    """Those of a client and of a batch; one that a batch reads stays until that has ended."""
    server = start(batch_storage=tmp_path)
    client = server.openai()
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    kept = client.files.create(file=("in.jsonl", line("a", max_tokens=1)), purpose="batch")
    file = client.files.create(file=("in.jsonl", line("a") + line("b")), purpose="batch", expires_after=expiry)
    assert file.expires_at == file.created_at + 3600
    server.play("one two", hold_after=0)
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", output_expires_after=expiry
    )
    server.wait_until(lambda: server.do(lambda: len(server.serving.running)))
    storage = server.server._storage
    assert storage is not None
    server.do(lambda: setattr(storage, "clock", lambda: time.time() + 3601))
    assert client.files.retrieve(file.id).id == file.id
    server.do(server.engine.release.set)
    batch = ended(server, client, batch)
    assert batch.status == "completed"
    output = client.files.retrieve(batch.output_file_id or "")
    assert output.expires_at == output.created_at + 3600 and len(lines_of(client, output.id)) == 2
    assert {each.id for each in client.files.list()} == {kept.id, output.id}
    server.do(lambda: setattr(storage, "clock", lambda: time.time() + 7300))
    with pytest.raises(openai.NotFoundError):
        client.files.content(output.id)
    assert [each.id for each in client.files.list()] == [kept.id]
    assert {path.name for path in (tmp_path / "anyone" / "files").iterdir()} == {kept.id, f"{kept.id}.json"}


@pytest.mark.parametrize(("limit", "error"), [("MAX_TRANSFERS", 429), ("MAX_ALL_TRANSFERS", 503)])
def test_few_files_are_uploaded_or_read_at_a_time(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, error: int
) -> None:
    """2,600 uploads that dripped held up the server's loop for two seconds, each with an open file."""
    server = start(batch_storage=tmp_path)
    kept = server.openai().files.create(file=("in.jsonl", line("a")), purpose="batch").id
    monkeypatch.setattr(storage, limit, 1)
    head = b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head + b"Content-Length: 9000\r\n\r\n--x\r\n")
        owner = server.server._storage.of("")
        server.wait_until(lambda: owner.transfers == 1)
        with pytest.raises(openai.APIStatusError, match="are being uploaded or read") as refused:
            server.openai(max_retries=0).files.create(file=("in.jsonl", line("a")), purpose="batch")
        assert refused.value.status_code == error
        assert server.http.get(f"/v1/files/{kept}/content").status_code == error
    server.wait_until(lambda: owner.transfers == 0)
    assert server.openai().files.create(file=("in.jsonl", line("a")), purpose="batch").bytes
    assert server.http.get(f"/v1/files/{kept}/content").status_code == 200


def test_a_file_must_be_read_in_time(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that read 3 KB a second could keep all places of uploads and reads."""
    monkeypatch.setattr(connection, "STALL_SECONDS", PATIENCE)
    monkeypatch.setattr(file_content, "READ_SECONDS", 0.2)
    monkeypatch.setattr(file_content, "LEAST_RATE", float("inf"))
    server = start(batch_storage=tmp_path)
    kept = server.openai().files.create(file=("in.jsonl", line("a")), purpose="batch").id
    owner = server.server._storage.of("")
    with owner.path(kept).open("r+b") as file:
        file.truncate(8 << 30)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        client.sendall(f"GET /v1/files/{kept}/content HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        with contextlib.suppress(ConnectionResetError):
            assert sum(map(len, iter(lambda: client.recv(1 << 16), b""))) < 8 << 30
    server.wait_until(lambda: owner.transfers == 0)


def test_two_keys_that_transfer_all_they_may_leave_places_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Storage(tmp_path, 100, lambda: True)
    with contextlib.ExitStack() as held:
        for name in ("a", "b"):
            for _ in range(storage.MAX_TRANSFERS):
                held.enter_context(kept.transfer(kept.of(name)))
        for _ in range(storage.RESERVED_TRANSFERS):
            held.enter_context(kept.transfer(kept.of("c")))
        with pytest.raises(APIError, match="132 files are being uploaded or read"), kept.transfer(kept.of("c")):
            pass
        monkeypatch.setattr(storage, "MOST_OPEN", 132)
        with pytest.raises(APIError, match="132 files are being uploaded or read"), kept.transfer(kept.of("d")):
            pass
    with kept.transfer(kept.of("c")):
        assert kept._transfers == 1
    kept.close()


def test_thirty_keys_that_transfer_all_they_may_leave_places_for_others(tmp_path: Path) -> None:
    """Ten keys whose uploads dripped kept those of all others away for ten minutes."""
    kept = Storage(tmp_path, 100, lambda: True)
    with contextlib.ExitStack() as held:
        for name in range(30):
            with contextlib.suppress(APIError):
                while True:
                    held.enter_context(kept.transfer(kept.of(str(name))))
        with kept.transfer(kept.of("other")):
            pass
    kept.close()


def test_lists_count_until_they_are_read_and_files_of_batches_count_among_a_keys_files(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 unread lists of 100 batches had 8 MB each in memory, and batches of one wrong line left files without end."""
    server = start(batch_storage=tmp_path)
    client = server.openai(max_retries=0)
    batch = ended(server, client, begin(client, line("a", max_tokens=-1)))
    assert batch.error_file_id
    server.serving.unread.total = 100
    for path in ("/v1/files", "/v1/batches"):
        refused = server.http.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "answer_too_large")
    assert server.serving.unread.used == 0
    monkeypatch.setattr(storage, "MAX_FILES", 2)
    with pytest.raises(openai.RateLimitError, match="2 files, those that batches have written included"):
        client.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.RateLimitError) as full:
        client.files.create(file=("a", line("a")), purpose="batch")
    assert full.value.code == "too_many_files"
    client.files.delete(batch.error_file_id)
    client.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")


async def test_writes_under_way_end_before_a_server_gives_the_folder_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server could otherwise read half a line."""
    begun, going_on, written = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def write(*_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        going_on.wait(PATIENCE)
        written.append(True)

    monkeypatch.setattr(results, "_append_to", write)
    monkeypatch.setattr(results, "_LAST_WRITES", 0)
    kept = Storage(tmp_path, 1 << 20, lambda: False)
    file_id, content = storage.new_file_id(), line("a")
    kept.take(kept.of(""), len(content))
    with await kept.create(kept.of(""), file_id) as file:
        file.write(content)
    await kept.add(kept.of(""), file_id, "x", len(content), "batch")
    answered = line_answers.Answer(200, "x", b"{}", 0)
    running = batches.Batches(kept, Mock(ask=AsyncMock(return_value=answered)))
    await running.create(kept.of(""), BatchBody(input_file_id=file_id, endpoint=CHAT, completion_window="24h"))
    await begun.wait()
    stopping = asyncio.create_task(running.stop())
    done, _ = await asyncio.wait((stopping,), timeout=0.1)
    assert not done
    going_on.set()
    await stopping
    assert written
    kept.close()


async def test_a_server_that_stops_changes_nothing_that_the_next_one_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose upload ended meanwhile was answered 200, and the next server did not have it."""
    begun, going_on, write = asyncio.Event(), threading.Event(), storage._write
    loop = asyncio.get_running_loop()

    def wait_and_write(path: Path, data: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        going_on.wait(PATIENCE)
        write(path, data)

    kept, owner = await kept_files(tmp_path)
    running = batches.Batches(kept, Mock())
    body = BatchBody(input_file_id="file-2", endpoint=CHAT, completion_window="24h")
    monkeypatch.setattr(storage, "_write", wait_and_write)
    creating = asyncio.create_task(running.create(owner, body))
    await begun.wait()
    await running.stop()
    stopping = asyncio.create_task(kept.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    going_on.set()
    await stopping
    batch = await creating
    for change in (
        kept.create(owner, "file-3"), kept.add(owner, "file-3", "a", 0, "batch"), kept.discard(owner, "file-1", 10),
        running.create(owner, body), running.cancel(batch),
    ):  # fmt: skip
        with pytest.raises(APIError, match="shutting down"):
            await change
    with pytest.raises(APIError, match="shutting down"):
        kept.take(owner, 1)
    await kept.expire(owner)
    await kept.discard(owner, "file-3", 0)  # nothing is left of an upload
    kept.close()
    following = Storage(tmp_path, 100, lambda: False)
    assert set(following.of("").files) == set(owner.files) == {"file-0", "file-1", "file-2"}
    assert [each.id for each in following.of("").active] == [batch.id] and not running._jobs
    following.close()


async def kept_files(folder: Path) -> tuple[Storage, storage.Owned]:
    """Files of 10 bytes whose time is over, and another."""
    kept, now = Storage(folder, 100, lambda: False), time.time()
    owner = kept.of("")
    for number, lifetime in enumerate((3600, 3600, None)):
        kept.take(owner, 10)
        with await kept.create(owner, f"file-{number}") as file:
            file.write(b"x" * 10)
        await kept.add(owner, f"file-{number}", "a", 10, "batch", lifetime)
    kept.clock = lambda: now + 3601
    return kept, owner


async def test_files_that_two_requests_find_expired_give_back_their_bytes_once(tmp_path: Path) -> None:
    kept, owner = await kept_files(tmp_path)
    await asyncio.gather(*(kept.expire(owner) for _ in range(3)))
    assert (list(owner.files), owner.bytes) == (["file-2"], 10)


async def test_a_file_that_a_batch_begins_to_read_while_another_is_removed_is_kept(tmp_path: Path) -> None:
    kept, owner = await kept_files(tmp_path)
    expiring = asyncio.create_task(kept.expire(owner))
    await asyncio.sleep(0)
    owner.batches["batch"] = Mock(status="validating", input_file_id="file-1")
    await expiring
    assert list(owner.files) == ["file-1", "file-2"]


async def test_a_file_that_the_disk_did_not_remove_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, owner = await kept_files(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(storage, "_remove", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(storage.StorageError):
            await kept.expire(owner)
    assert (len(owner.files), owner.bytes) == (3, 30)
    await kept.expire(owner)
    assert (list(owner.files), owner.bytes) == (["file-2"], 10)


def test_a_file_that_the_disk_does_not_remove_stops_no_other_request(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(batch_storage=tmp_path)
    client = server.openai()
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    client.files.create(file=("in.jsonl", line("a")), purpose="batch", expires_after=expiry)
    kept = client.files.create(file=("in.jsonl", line("b")), purpose="batch")
    server.do(lambda: setattr(server.server._storage, "clock", lambda: time.time() + 3601))
    monkeypatch.setattr(storage, "_remove", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    assert client.files.content(kept.id).text == line("b").decode()
    assert client.batches.list().data == []


def test_a_file_that_is_gone_from_the_disk_is_not_found(start: Start, tmp_path: Path) -> None:
    """This also happens to a file that expires between the look at the list and the look at the disk."""
    client = start(batch_storage=tmp_path).openai()
    file = client.files.create(file=("in.jsonl", line("a")), purpose="batch")
    (tmp_path / "anyone" / "files" / file.id).unlink()
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.content(file.id)
    assert caught.value.code == "file_not_found"


async def test_what_goes_wrong_with_one_keys_files_keeps_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_EXPIRY_SECONDS", 0.01)
    kept = Mock(owners=[Mock(active=[]), Mock(active=[])], expire=AsyncMock(side_effect=[ValueError("odd"), None] * 99))
    under_way = batches.Batches(kept, Mock())
    under_way.start()
    async with asyncio.timeout(PATIENCE):
        while kept.expire.await_count < 4:
            await asyncio.sleep(0.01)
    await under_way.stop()


def test_ranges_of_a_file(start: Start, tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    file = server.openai().files.create(file=("in.jsonl", b"0123456789"), purpose="batch")
    path = f"/v1/files/{file.id}/content"
    for wanted, status, content in (
        ("bytes=2-4", 206, b"234"), ("bytes=-3", 206, b"789"), ("bytes=x", 200, b"0123456789"),
        ("bytes=5-1", 200, b"0123456789"), ("lines=1-2", 200, b"0123456789"),
    ):  # fmt: skip
        answer = server.http.get(path, headers={"Range": wanted})
        assert (answer.status_code, answer.content) == (status, content)
    beyond = server.http.get(path, headers={"Range": "bytes=10-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")
    assert beyond.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/classify", {"input": "a"}),
    ],
)
def test_scores_ranks_and_classes_in_a_batch(start: Start, tmp_path: Path, endpoint: Any, body: Any) -> None:
    server = start(batch_storage=tmp_path)
    client = server.openai()
    lines = json.dumps({"custom_id": "a", "method": "POST", "url": endpoint, "body": body}).encode()
    file = client.files.create(file=("in.jsonl", lines), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    batch = ended(server, client, batch)
    assert batch.status == "completed"
    if endpoint == "/v1/classify":  # which this model does not do
        assert lines_of(client, batch.error_file_id)["a"]["response"]["status_code"] == 400
    else:
        answer = lines_of(client, batch.output_file_id)["a"]["response"]["body"]
        assert answer["usage"]["prompt_tokens"] == 2


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_503_and_leaves_nothing(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(batch_storage=tmp_path)
    client = server.openai(max_retries=0)
    file = client.files.create(file=("a", line("a")), purpose="batch")
    monkeypatch.setattr(upload, "append", full_disk)
    monkeypatch.setattr(storage, "_write", full_disk)
    for ask in (
        lambda: client.files.create(file=("a", line("a")), purpose="batch"),
        lambda: client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"),
    ):
        with pytest.raises(openai.APIStatusError, match="No space left") as full:
            ask()
        assert (full.value.status_code, full.value.code) == (503, "storage_unavailable")
        assert full.value.response.headers["retry-after"]
    assert not list(client.batches.list()) and [each.id for each in client.files.list()] == [file.id]
    assert [path.name for path in (tmp_path / "anyone" / "files").iterdir() if not path.suffix] == [file.id]
    assert client.files.delete(file.id).deleted


def test_a_batch_whose_disk_is_full_goes_on_when_there_is_room(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(batch_storage=tmp_path)
    server.play("Hello there.")
    client = server.openai()
    monkeypatch.setattr(storage, "PAUSE", 0.01)
    failures = {results: iter([True] * 5), storage: iter([False] * 3 + [True] * 5)}  # all but the upload and create
    for module, name in ((results, "append"), (storage, "_write")):
        work = getattr(module, name)

        def sometimes(*args: Any, work: Any = work, fails: Any = failures[module]) -> None:
            (full_disk if next(fails, False) else work)(*args)

        monkeypatch.setattr(module, name, sometimes)
    batch = ended(server, client, begin(client, *[line(f"a{n}") for n in range(9)]))
    assert batch.status == "completed" and len(lines_of(client, batch.output_file_id)) == 9
    assert not any(next(fails, False) for fails in failures.values())


@pytest.mark.parametrize("failing", ["answers", "records"])
def test_a_batch_whose_disk_fails_for_good_is_failed_until_a_restart(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """It was validating, or in progress, for ever."""
    server = start(batch_storage=tmp_path)
    server.play("Hello there.")
    monkeypatch.setattr(storage, "PAUSE", 0.01)
    client = server.openai()
    write = storage._write

    def create_only(path: Path, data: bytes) -> None:
        (full_disk if path.parent.name == "batches" and path.exists() else write)(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "GIVE_UP", 0.1)
        if failing == "answers":
            patched.setattr(results, "append", full_disk)
        else:
            patched.setattr(storage, "_write", create_only)
        batch = ended(server, client, begin(client, *[line(f"a{n}") for n in range(40)]))
    assert (batch.status, batch.errors.data[0].code) == ("failed", "storage_unavailable")
    assert batch.failed_at and "No space left" in batch.errors.data[0].message
    server.stop()
    again = start(batch_storage=tmp_path)
    again.play("Hello there.")
    batch = ended(again, again.openai(), batch)
    assert batch.status == "completed" and len(lines_of(again.openai(), batch.output_file_id)) == 40


def test_a_batch_whose_disk_cannot_be_read_goes_on_when_it_can(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(batch_storage=tmp_path)
    server.play("Hello there.")
    monkeypatch.setattr(storage, "PAUSE", 0.01)
    reads = {
        name: Mock(side_effect=[OSError(errno.EMFILE, "Too many open files")])
        for name in ("check_input", "requests_after")
    }
    for name, failing in reads.items():
        work = getattr(job, name)

        def at_second(*args: Any, work: Any = work, failing: Mock = failing) -> Any:
            return work(*args) if failing.called else failing()

        monkeypatch.setattr(job, name, at_second)
    batch = ended(server, server.openai(), begin(server.openai(), line("a")))
    assert batch.status == "completed" and all(failing.called for failing in reads.values())


def test_a_batch_whose_input_file_is_gone_fails_and_says_so(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(batch_storage=tmp_path)

    def check_without_file(path: Path, endpoint: str) -> Any:
        path.unlink()
        return check_input(path, endpoint)

    monkeypatch.setattr(job, "check_input", check_without_file)
    batch = ended(server, server.openai(), begin(server.openai(), line("a")))
    assert batch.status == "failed" and batch.errors.data[0].code == "file_not_found"


def test_a_line_that_does_not_fit_leaves_no_part_of_it(tmp_path: Path) -> None:
    class Small(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[: 40 - self.tell()]) or full_disk() or 0

    with Small(tmp_path / "a", "ab") as file:
        append(file, b"a" * 30)
        with pytest.raises(OSError, match="No space left"):
            append(file, b"b" * 30)
        append(file, b"c" * 5)
    assert (tmp_path / "a").read_bytes() == b"a" * 30 + b"c" * 5


def test_without_a_folder_the_flag_is_named(server: Served) -> None:
    for method, path in (("GET", "/v1/files"), ("POST", "/v1/batches"), ("POST", "/v1/batches/batch_x/cancel")):
        answer = server.http.request(method, path)
        assert answer.status_code == 404 and "--batch-storage" in answer.json()["error"]["message"]


def test_a_batch_that_cannot_go_on_says_why(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key is revoked; its answers do not fit into the folder. What was answered before is kept."""
    monkeypatch.setattr(batches, "MAX_ACTIVE", 1)
    keys = write_keys(tmp_path / "keys.yaml", "ann")
    server = start(batch_storage=tmp_path / "kept", batch_storage_size=1 << 20, api_key_file=keys)
    client = server.openai(api_key="sk-ann")
    server.play("one two", hold_after=1)
    batch = begin(client, *[line(f"a{n}") for n in range(9)])
    with pytest.raises(openai.RateLimitError, match="have not ended"):
        begin(client, line("b"))
    server.wait_until(lambda: server.do(lambda: len(server.engine.requests)) == 2)
    write_keys(keys, "ann", "bob")
    keys.write_text(keys.read_text().replace("name: ann", "name: ann-again"))
    known = server.serving.keys
    assert known is not None
    server.do(known.reload_if_changed)
    server.do(server.engine.release.set)
    storage = server.server._storage
    assert storage is not None
    server.wait_until(lambda: storage.of("ann").batches[batch.id].status == "failed")
    failed = storage.of("ann").batches[batch.id]
    assert failed.errors is not None and failed.errors.data[0].code == "key_removed"
    assert 1 <= failed.request_counts.completed < 9 and failed.output_file_id is not None

    other = start(batch_storage=tmp_path / "small", batch_storage_size=1 << 20)
    other.play("one two")
    small = [line(f"a{n}") for n in range(9)]
    padding = (1 << 20) - sum(map(len, small)) - len(line("big", user="")) - 1000
    batch = ended(other, other.openai(), begin(other.openai(), *small, line("big", user="x" * padding)))
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert batch.errors.data[0].code == "storage_full" and "--batch-storage-size" in (
        batch.errors.data[0].message or ""
    )
    assert len(lines_of(other.openai(), batch.output_file_id)) >= 1
