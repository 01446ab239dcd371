"""`octavo-engine bench` and `octavo-engine chat` against a running server."""

from __future__ import annotations

import argparse
import errno
import io
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from octavo_client import bench, chat, completions, top
from octavo_client.api import through_proxy
from octavo_client.completions import Client
from octavo_client.errors import ClientError, UsageError
from octavo_client.figures import Load, Report, Timing, percentiles, summarize, to_json
from octavo_client.whole_file import write_whole
from tests.api.served import Served, write_keys


def parse(module: Any, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(arguments)


def test_bench_measures_every_level(server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.play("one two three four", gap=0.001)
    out = tmp_path / "figures.json"
    args = parse(
        bench, server.url, "--concurrency", "1,3", "--num-prompts", "5", "--input-len", "7", "--output-len", "4",
        "--json", str(out),
    )  # fmt: skip
    assert bench.run(args) == 0
    report = json.loads(out.read_text())
    assert (report["model"], report["workload"]) == ("smollm2", "7 words in, 4 tokens out")
    assert [level["concurrency"] for level in report["levels"]] == [1, 3]
    for level in report["levels"]:
        assert (level["num_prompts"], level["failed"], level["output_tokens"], level["prompt_tokens"]) == (5, 0, 20, 35)
        assert level["output_tokens_per_s"] == pytest.approx(20 / level["duration_s"], rel=0.05)
        assert 0 < level["ttft_ms"]["p50"] <= level["ttft_ms"]["p99"] < level["e2e_ms"]["p99"]
    assert len(server.engine.requests) == 11  # the first warms up
    first = server.engine.requests[0]
    assert (first.sampling.temperature, first.sampling.stop_token_ids, first.sampling.max_tokens) == (0.0, (), 4)
    assert len({tuple(request.prompt_token_ids) for request in server.engine.requests}) == 11
    assert capsys.readouterr().out.count("\n") == 4


def test_a_user_of_bench_keeps_one_connection(
    server: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "_END_SECONDS", 120)  # however busy the machine is
    server.play("one two")
    with caplog.at_level("INFO", "octavo.access"):
        assert bench.run(parse(bench, server.url, "--concurrency=1", "--num-prompts=4", "--output-len=2")) == 0
    asked = [record.getMessage() for record in caplog.records if "POST /v1/completions" in record.getMessage()]
    assert len(asked) == 5  # the first warms up
    assert len({line.split()[0] for line in asked}) == 1, asked


def test_bench_says_what_failed(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(bench, server.url, "--model", "other")
    with pytest.raises(ClientError, match="404: the model 'other' is not served here"):
        bench.run(args)
    with pytest.raises(ClientError, match="no answer from"):
        bench.run(parse(bench, "http://127.0.0.1:9"))
    with pytest.raises(UsageError, match="there is no directory"):
        bench.run(parse(bench, server.url, "--json", "/nowhere/at/all.json"))


def test_a_proxy_of_the_environment_is_not_used_for_this_machine_and_is_named_if_it_fails(
    server: Served, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., None]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "elsewhere.invalid")
    server.play("one two")
    assert bench.run(parse(bench, server.url, "--concurrency=1", "--num-prompts=1", "--output-len=2")) == 0
    typed("Hi", "/quit")
    assert chat.run(parse(chat, server.url)) == 0
    assert top.run(parse(top, server.url, "--count=1")) == 0
    for module in (bench, chat, top):
        with pytest.raises(ClientError, match=r"through the proxy of HTTP_PROXY: .*[cC]onnect"):
            module.run(parse(module, "http://engine.invalid:8000"))
    assert through_proxy("http://elsewhere.invalid") == through_proxy("http://[::1]:8000") == ""


def test_bench_counts_failures_and_ends_with_1(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start()
    server.play("one two")
    complete = Client.complete
    calls = 0

    async def then_break(self: Client, *args: Any) -> Timing:
        nonlocal calls
        calls += 1
        if calls == 3:
            server.play("one two", finish="error")
        return await complete(self, *args)

    monkeypatch.setattr(Client, "complete", then_break)
    assert bench.run(parse(bench, server.url, "--concurrency", "1", "--num-prompts", "4")) == 1
    assert "NaN in the logits" in capsys.readouterr().err


def test_bench_with_a_key(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "alice"))
    server.play("one two")
    assert bench.run(parse(bench, server.url, "--api-key", "sk-alice", "--concurrency", "1", "--num-prompts", "1")) == 0
    with pytest.raises(ClientError, match="401"):
        bench.run(parse(bench, server.url))


def test_a_key_need_not_be_in_the_command(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., None]
) -> None:
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "alice"))
    file = tmp_path / "key"
    file.write_text("sk-alice\n")
    typed("Hi", "/quit", "Hi", "/quit")
    assert chat.run(parse(chat, server.url, "--api-key-file", str(file))) == 0
    monkeypatch.setenv("OCTAVO_API_KEY", "sk-alice")
    assert chat.run(parse(chat, server.url)) == 0
    assert len(server.engine.requests) == 2
    file.write_text("sk-wrong")  # what is given goes before the environment
    with pytest.raises(ClientError, match=r"401: .*; give one in OCTAVO_API_KEY, .* octavo: --api-key-secret SECRET\)"):
        chat.run(parse(chat, server.url, "--api-key-file", str(file)))


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff", "schl\u00fcssel".encode()])
def test_a_file_without_a_key(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"--api-key-file .*key: "):
        chat.run(parse(chat, "http://127.0.0.1:9", "--api-key-file", str(file)))
    with pytest.raises(UsageError, match="cannot be read"):
        chat.run(parse(chat, "http://127.0.0.1:9", "--api-key-file", str(tmp_path / "none")))


@contextmanager
def speaks(*lines: str) -> Iterator[str]:
    """A server of the test's own, not ours: answers every POST with these lines of a stream; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_answer('{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_answer("".join(f"{line}\n\n" for line in lines))

        def send_answer(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


BROKEN_STREAMS = [
    (["data: {"], "not JSON"),
    (["data: " + "[" * 100_000], "not JSON"),
    (["data: 5"], "not an object"),
    (['data: {"error": "overloaded"}'], "overloaded"),
    (['data: {"error": {"code": 5}}'], "code"),
    (['data: {"choices": [{"text": "a", "delta": {"content": "a"}}]}'], "ended"),
]


@pytest.mark.parametrize(("lines", "says"), BROKEN_STREAMS)
def test_a_broken_stream_is_a_failed_request(lines: list[str], says: str) -> None:
    with speaks(*lines) as url, pytest.raises(ClientError, match=says):
        bench.run(parse(bench, url))


@pytest.mark.parametrize(("lines", "says"), BROKEN_STREAMS)
def test_a_broken_stream_does_not_end_the_chat(
    lines: list[str], says: str, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("Hi", "/quit")
    with speaks(*lines) as url:
        assert chat.run(parse(chat, url)) == 0
    assert says in capsys.readouterr().out


def test_line_separators_of_unicode_are_text(typed: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\u2028b\u2029c\x85d"
    choice = {"text": text, "delta": {"content": text}}
    typed("Hi", "/quit")
    with speaks(f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}", "data: [DONE]") as url:
        assert chat.run(parse(chat, url)) == 0
        assert bench.run(parse(bench, url, "--concurrency=1", "--num-prompts=1", "--output-len=1")) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("usage", ["null", "{}", '{"prompt_tokens": "x"}', "[]"])
def test_usage_may_be_missing(tmp_path: Path, usage: str) -> None:
    texts = ['data: {"choices": [{"text": "a"}]}'] * 3
    others = [f'data: {{"choices": null, "usage": {usage}}}', 'data: {"choices": [5]}', ": comment", "data: [DONE]"]
    out = tmp_path / "figures.json"
    with speaks(*texts, *others) as url:
        args = parse(bench, url, "--concurrency", "1", "--num-prompts", "2", "--output-len", "3", "--json", str(out))
        assert bench.run(args) == 0
    [level] = json.loads(out.read_text())["levels"]
    assert (level["output_tokens"], level["prompt_tokens"], level["short"], level["failed"]) == (6, 0, 0, 0)


@pytest.mark.parametrize(
    ("flag", "sent", "hint"),
    [("--ignore-eos", True, "ignores ignore_eos"), ("--no-ignore-eos", False, "use --ignore-eos")],
)
def test_bench_says_when_answers_are_shorter(
    server: Served, capsys: pytest.CaptureFixture[str], flag: str, sent: bool, hint: str
) -> None:
    server.play("one two")
    assert bench.run(parse(bench, server.url, flag, "--concurrency", "2", "--num-prompts", "4")) == 0
    out = capsys.readouterr().out
    assert "4 answers had fewer tokens than were asked for" in out
    assert hint in out
    assert all((request.sampling.stop_token_ids == ()) is sent for request in server.engine.requests)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.json"
    write_whole(file, b"before")

    def half(path: Path, content: bytes) -> None:
        path.open("wb").write(content[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(ClientError, match=r"figures\.json: cannot be written: No space left on device"):
        write_whole(file, b"after")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"before"]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / ("f" * 250)
    file.touch(mode=0o600)
    write_whole(file, b"after")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"after", 0o600)
    for impossible in (file / "below", tmp_path, Path("/")):
        with pytest.raises(ClientError, match="cannot be written"):
            write_whole(impossible, b"")


def test_percentiles_are_nearest_rank() -> None:
    found = percentiles([n / 1000 for n in range(1, 101)])
    assert (found.mean, found.p50, found.p90, found.p99) == pytest.approx((50.5, 50, 90, 99))
    assert math.isnan(percentiles([]).p50)


def test_failed_requests_count_only_as_failed() -> None:
    good = Timing(first_token=0.5, end=1.0, between=[0.25], prompt_tokens=3, output_tokens=2, asked_tokens=2)
    silent = Timing(end=1.0, asked_tokens=2)  # an answer without any text
    level = summarize(Load(users=1), [good, silent, Timing(error="gone", output_tokens=99)], 2.0)
    assert (level.short, level.ttft_ms.p99) == (1, 500)
    assert (level.failed, level.output_tokens, level.output_tokens_per_s, level.first_error) == (1, 2, 1.0, "gone")
    empty = Report("u", "m", "t", "w", [summarize(Load(users=1), [], 1.0)])
    nothing = json.loads(to_json(empty))["levels"][0]["ttft_ms"]
    assert nothing == {"mean": None, "p50": None, "p90": None, "p99": None}


@pytest.mark.parametrize(
    "flag",
    [
        "--concurrency=0",
        "--concurrency=a",
        "--num-prompts=0",
        "--input-len=-1",
        "--rate=0",
        "--rate=1,x",
        "--seconds=0",
    ],
)
def test_bench_refuses_senseless_numbers(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(bench, "http://x", flag)
    assert flag.split("=", maxsplit=1)[0] in capsys.readouterr().err


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes `input` give these lines; an exception among them is raised."""

    def types(*lines: Any) -> None:
        waiting: Iterator[Any] = iter(lines)

        def read(_: str) -> str:
            line = next(waiting, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr("builtins.input", read)

    return types


def said(server: Served, index: int) -> str:
    return server.tokenizer.decode(server.engine.requests[index].prompt_token_ids, skip_special_tokens=False)


def test_chat_keeps_the_conversation(
    server: Served, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("First?", "", "Second?", "/new", "/help", "Third?", "/quit")
    assert chat.run(parse(chat, server.url, "--system", "Be brief.")) == 0
    out = capsys.readouterr().out
    assert out.count("/quit ends, /new forgets the conversation") == 2  # at the start, and for /help, which is not sent
    assert out.count("Hello there.") == 3 and "First?\nHello there.\n" in out  # questions of a pipe are written too
    assert "Be brief." in said(server, 0)
    assert "First?<|im_end|>\n<|im_start|>assistant\nHello there.<|im_end|>" in said(server, 1)
    assert "First?" not in said(server, 2)
    assert "Be brief." in said(server, 2)


def test_what_is_not_unicode_is_sent_as_question_marks(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"gr\xfcn\n/quit\n"), encoding="utf-8"))
    assert chat.run(parse(chat, server.url, "--system", "Be\udcfcbrief.")) == 0
    assert "Be?brief." in said(server, 0) and "gr\ufffdn<|im_end|>" in said(server, 0)


@pytest.mark.parametrize(("flags", "sent"), [((), 1.0), (("--temperature", "0"), 0.0)])
def test_chat_asks_with_the_temperature_it_is_given(
    server: Served, typed: Callable[..., None], flags: tuple[str, ...], sent: float
) -> None:
    typed("First?", "/quit")
    assert chat.run(parse(chat, server.url, *flags)) == 0
    assert server.engine.requests[0].sampling.temperature == sent


def test_chat_stops_an_answer_on_ctrl_c_and_keeps_what_was_said(
    server: Served, typed: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.play("one two three", hold_after=2)
    ask = chat.Conversation.ask

    def interrupted(self: chat.Conversation, question: str) -> Iterator[str]:
        pieces = ask(self, question)
        yield next(pieces) + next(pieces) + next(pieces)
        server.play("Well.")
        pieces.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.Conversation, "ask", interrupted)
    typed("Count!")
    assert chat.run(parse(chat, server.url)) == 0
    assert "one two [stopped]" in capsys.readouterr().out
    server.wait_until(lambda: server.engine.aborted)
    with httpx2.Client() as http:
        conversation = chat.Conversation(http, f"{server.url}/v1", "smollm2", None)
        server.play("one two", hold_after=1)
        pieces = ask(conversation, "Count!")
        assert next(pieces) + next(pieces) == "one"
        pieces.close()
        server.play("Well.")
        assert "".join(ask(conversation, "And?")) == "Well."
    assert "Count!<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nAnd?" in said(server, -1)


def test_chat_shows_errors_and_goes_on(
    server: Served, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("x " * 600, "short", "/quit")
    assert chat.run(parse(chat, server.url)) == 0
    out = capsys.readouterr().out
    assert "context length is 512 tokens" in out
    assert "Hello there." in out
    assert said(server, 0).count("<|im_start|>user") == 1


def test_chat_names_the_models_before_the_first_question(server: Served, typed: Callable[..., None]) -> None:
    typed("First?", "/quit")
    with pytest.raises(ClientError, match=r"--model smolm2: .* does not serve it; it serves smollm2$"):
        chat.run(parse(chat, server.url, "--model", "smolm2"))
    assert server.engine.requests == []


def test_chat_without_a_server() -> None:
    with pytest.raises(ClientError, match="no answer from"):
        chat.run(parse(chat, "http://127.0.0.1:9"))
