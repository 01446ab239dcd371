"""`octavo-engine top`: a table from the metrics of running servers."""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from octavo_client import top
from octavo_client.errors import ClientError
from octavo_client.top import Reading, Server
from tests.api.served import PATIENCE, Served
from tests.terminal import read_until, rest_of

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NOTHING = dict.fromkeys(top._WANTED, 0.0)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    return parser.parse_args(arguments)


def reading(at: float, buckets: dict[float, float] | None = None, **values: float) -> Reading:
    named = {f"octavo_{name}": value for name, value in values.items()}
    return Reading(at, {**NOTHING, **named}, buckets or {0.5: 0, 1.0: 0, float("inf"): 0})


def test_a_row_is_of_the_last_seconds() -> None:
    server = Server("u", window=10.0)
    server.take(reading(0.0, generation_tokens_total=1_000_000))
    assert server.cells()[4] == "-"  # one reading is no rate
    server.take(reading(10.0, generation_tokens_total=1_000_500, requests_rejected_total=2))
    buckets = {0.5: 10.0, 1.0: 18.0, float("inf"): 20.0}
    last = reading(
        20.0, buckets, generation_tokens_total=1_000_800, requests_rejected_total=5, requests_running=3,
        requests_waiting=2, kv_cache_usage_ratio=0.426, prefix_cache_queried_tokens_total=200,
        prefix_cache_hit_tokens_total=50,
    )  # fmt: skip
    server.take(last)
    assert server.cells() == ("u", "3", "2", "43", "30.0", "25", "<0.5s", ">1s", "3")


def test_a_server_that_was_restarted_counts_anew() -> None:
    server = Server("u", window=10.0)
    server.take(reading(0.0, generation_tokens_total=500))
    server.take(reading(2.0, generation_tokens_total=20))
    assert server.cells()[4] == "-"
    server.take(reading(4.0, generation_tokens_total=40))
    assert server.cells()[4] == "10.0"


def test_lines_for_a_pipe(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    server.do(lambda: server.engine.report(running=2, waiting=1, kv_usage=0.5))
    assert top.run(parse(f"{server.url}/v1", "--count", "2", "--interval", "0.1")) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == list(top._HEADER)
    assert first.split() == [f"{server.url}/v1", "2", "1", "50", "-", "-", "-", "-", "0"]
    assert second.split()[4] == "0.0"
    series = 'octavo_requests_rejected_total{reason="%s"} 2'
    text = "\n".join(["octavo_requests_running 0", series % "invalid", series % "deadline", ""])
    assert top.read(text, 0.0).values["octavo_requests_rejected_total"] == 2  # not those with an error of the client


def test_what_cannot_be_read_is_reported(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(ClientError, match="no answer"):
        top.run(parse(nowhere, "--count", "1"))
    assert top.run(parse(server.url, nowhere, "--count", "1")) == 0  # one of several may be away
    assert "no answer" in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(ClientError, match="has no octavo_requests_running"):
        top.read("other 1\n", 0.0)
    for text in ("<html>\n", 'octavo_requests_waiting{a="b",\t="y"} 2e3 # aa="b"} 1\n'):
        with pytest.raises(ClientError, match="not Prometheus"):
            top.read(text, 0.0)
    with pytest.raises(ClientError, match="answers 404"):
        top.run(parse(f"{server.url}/elsewhere", "--count", "1"))


@pytest.mark.parametrize("columns", ["60", "120"])
def test_a_terminal_gets_a_live_table(server: Served, columns: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "octavo_engine.cli", "top", server.url, "--count", "2", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": columns}) as process:
        os.close(theirs)
        shown = rest_of(ours).decode()
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert "\x1b[1A" in shown  # drawn over the first one
    assert ESCAPES.sub("", shown).count(server.url) >= 2
    assert "REJECTED" in shown


def test_a_terminal_has_its_cursor_again_after_sigterm(server: Served) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "octavo_engine.cli", "top", server.url]
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(theirs)
        shown = read_until(ours, b"RUNNING")
        process.terminate()
        shown += rest_of(ours)
        assert process.wait(PATIENCE) == 143
    os.close(ours)
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://127.0.0.1:18902"])
def test_the_url_of_a_local_server_fits_80_columns(url: str) -> None:
    console = Console(file=StringIO(), width=80)
    server = Server(url, window=10.0)
    server.take(reading(0.0))
    console.print(top.table([server]))
    assert len(console.file.getvalue().splitlines()) == 2  # type: ignore[attr-defined]


def test_a_narrow_terminal_breaks_only_urls() -> None:
    console = Console(file=StringIO(), width=80)
    server = Server("http://inference.example.com:8000", window=10.0)
    server.take(reading(0.0))
    console.print(top.table([server]))
    head, *rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert head.split() == list(top._HEADER)
    assert "".join(row.split()[0] for row in rows) == server.url


def test_sixty_columns_have_every_figure_and_every_url_in_full() -> None:
    console = Console(file=StringIO(), width=60)
    server = Server("http://inference.example.com:8000", window=10.0)
    server.take(reading(0.0))
    away = Server("http://127.0.0.1:8001", window=10.0, problem="no answer: Connection refused")
    console.print(top.stacked([server, away]))
    head, *rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert head.split() == list(top._HEADER[1:])
    assert rows[0] == server.url
    assert rows[1].split() == ["0", "0", "0", "-", "-", "-", "-", "0"]
    assert len(rows[1]) == len(head) <= 60
    assert rows[2:] == [away.url, away.problem]


def test_a_server_that_does_not_answer_leaves_the_others_their_row() -> None:
    console = Console(file=StringIO(), width=80)
    server = Server("http://127.0.0.1:8000", window=10.0)
    server.take(reading(0.0))
    away = Server("http://127.0.0.1:8001", window=10.0, problem="no answer: Connection refused")
    console.print(top.table([server, away]))
    head, row, *rest = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert head.split() == list(top._HEADER)
    assert row.split() == [server.url, "0", "0", "0", "-", "-", "-", "-", "0"]
    assert " ".join(" ".join(rest).split()) == f"{away.url} {away.problem}"


def test_a_url_is_no_markup() -> None:
    console = Console(file=StringIO(), width=120)
    console.print(top.table([Server("http://[::1]:8000", 10.0, problem="[b]")]))
    assert "http://[::1]:8000" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "[b]" in console.file.getvalue()  # type: ignore[attr-defined]
