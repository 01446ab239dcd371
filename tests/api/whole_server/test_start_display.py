"""The output of `serve` while it starts and under load: phases on a terminal, log lines in a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from itertools import chain, repeat

import pytest
from rich.console import Console

from octavo_engine.engine.client import EngineState
from octavo_engine.engine.messages import Failed, Loading
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.engine.startup.load_phases import PHASES, overall, within
from octavo_engine.server.console import load_lines
from octavo_engine.server.console.load_lines import Counts, LoadReading
from octavo_engine.server.console.progress import show_loading
from octavo_engine.server.console.start_display import StartDisplay, room_for
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served
from tests.free_port import free_port
from tests.terminal import read_until, rest_of

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def command(*flags: str) -> list[str]:
    serve = [sys.executable, "-m", "tests.api.scripted_server", "serve", "smollm2"]
    return [*serve, "--host=127.0.0.1", f"--port={free_port()}", *flags]


def test_a_terminal_shows_how_the_start_goes() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(command(), stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = read_until(ours, b"Ctrl-C")
        process.send_signal(signal.SIGINT)
        shown += rest_of(ours)
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert "━".encode() in shown  # a bar
    text = ESCAPES.sub("", shown.decode()).replace("\r\n", "\n")
    steps = [
        "smollm2\n",
        "model    a scripted one\n    weights  10.0 MiB\n",
        "pulled 10 MiB in",
        "loaded weights 10 MiB in",
    ]
    places = [text.find(step) for step in [*steps, "ready after"]]
    assert -1 not in places, text
    assert places == sorted(places)
    assert re.search(r"API +http://127\.0\.0\.1:\d+/v1\n +playground +http://127\.0\.0\.1:\d+/\n", text)
    assert "2 users with 512 tokens each; 4 are answered at once" in text
    assert "the server is stopped" in text
    assert "INFO" not in text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_pipe_gets_plain_lines(log_format: str) -> None:
    with subprocess.Popen(command(f"--log-format={log_format}"), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "is ready at" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert "\x1b" not in "".join(lines)
    if log_format == "json":
        messages = [json.loads(line)["message"] for line in lines]
        assert messages[0] == "smollm2: pulling, 26%, 5 MiB of 10 MiB"
    else:
        assert re.fullmatch(r"\S+ \S+ INFO octavo\.server: smollm2: pulling, 26%, 5 MiB of 10 MiB\n", lines[0])


def shown_for(*states: EngineState) -> str:
    """Return the text that a terminal of 100 columns shows after these states."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    display = StartDisplay(console, "m[/bold]", clock=iter(range(99)).__next__)
    with display.loading():
        for state in states:
            display.update(state)
    return ESCAPES.sub("", screen.getvalue())


def test_the_plan_is_shown_once_and_names_are_no_markup() -> None:
    plan = [("on", "a [GPU]")]
    loading = EngineState("loading", Loading("loading", 0.6, "[1] of 2"), plan)
    shown = shown_for(EngineState(), loading, loading, replace(loading, phase="ready"))
    assert shown.count("on  a [GPU]") == 1
    assert shown.startswith("m[/bold]\n")
    assert "[1] of 2" in shown
    assert "✓ loaded weights 2 in 1.0 s" in shown


def test_the_time_until_ready_includes_the_imports_of_the_engine() -> None:
    screen = StringIO()
    display = StartDisplay(Console(file=screen, width=100), "m", clock=iter((3.0, 10.0)).__next__)
    display.ready(replace(READY, load_seconds=2.0), "http://127.0.0.1:8000", playground=True)
    assert "ready after 7.0 s" in screen.getvalue()


async def test_a_phase_that_ends_with_the_loading_is_shown_as_done() -> None:
    """The engine's end of loading cancels the display, which may not have looked since."""
    screen, state = StringIO(), EngineState("loading", Loading("loading", 0.6, "1 of 2"))
    showing = asyncio.create_task(show_loading(lambda: state, "m", StartDisplay(Console(file=screen), "m")))
    await asyncio.sleep(0)
    state.phase = "ready"
    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)
    assert "✓ loaded weights 2 in" in screen.getvalue()


def test_the_phase_that_failed_is_marked() -> None:
    loading = EngineState("loading", Loading("loading", 0.6, "1 of 2"))
    shown = shown_for(loading, replace(loading, phase="dead", failed=Failed(4, "no room")))
    assert "✗ loading weights" in shown
    assert "✓" not in shown


def test_the_display_says_for_how_many_users_the_kv_cache_has_room() -> None:
    assert room_for(replace(READY, max_model_len=8192, num_kv_blocks=1024)).startswith(
        "2 users with 8,192 tokens each, or 8 with 2,048; 4 are answered"
    )
    assert room_for(replace(READY, max_model_len=1024)).startswith("1 user with 1,024 tokens each; 4 are")


def test_a_phases_own_ratio_is_found_on_the_scale_of_all() -> None:
    for phase in PHASES:
        assert within(phase, overall(phase, 0.25)) == pytest.approx(0.25)
    assert (overall("pulling", -1.0), overall("warmup", 7.0)) == (PHASES["pulling"][0], 1.0)
    assert within("starting", 0.0) == 0.0


IDLE = SchedulerStats(prefix_queried_tokens=100, prefix_hit_tokens=25)
BEFORE = Counts(at=100.0, tokens=1000, rejected=2, prefix_queried=0, prefix_hit=0)


@pytest.mark.parametrize(
    ("stats", "queued", "tokens", "rejected", "text"),
    [
        (SchedulerStats(running=3, waiting=1, kv_usage=0.5), 2, 1710, 3,
         "running 3, waiting 2, 71.0 tokens/s, KV cache 50%, prefix hits -, rejected 1"),
        (SchedulerStats(running=1), 0, 1000, 2,  # a request that gets no token is no idleness
         "running 1, waiting 0, 0.0 tokens/s, KV cache 0%, prefix hits -, rejected 0"),
        (IDLE, 0, 1005, 2, "running 0, waiting 0, 0.5 tokens/s, KV cache 0%, prefix hits 25%, rejected 0"),
        (SchedulerStats(), 0, 1000, 9, "running 0, waiting 0, 0.0 tokens/s, KV cache 0%, prefix hits -, rejected 7"),
        (SchedulerStats(kv_usage=0.5), 0, 1000, 2, None),
    ],
)  # fmt: skip
def test_a_line_says_what_happened_since_the_last_one(
    stats: SchedulerStats, queued: int, tokens: float, rejected: float, text: str | None
) -> None:
    counts = Counts(110.0, tokens, rejected, stats.prefix_queried_tokens, stats.prefix_hit_tokens)
    said = load_lines.line(BEFORE, LoadReading(stats, queued, counts))
    assert (said and said[0]) == text


def test_what_a_line_is_made_of_is_what_the_server_did(server: Served) -> None:
    first = server.do(server.serving.read_load)
    server.play("one two three")
    server.http.post("/v1/completions", json={"prompt": "x"})
    server.http.post("/v1/completions", json={"prompt": 5})  # an error of the client, which is no load
    server.do(lambda: server.serving.metrics.reject("queued_requests"))
    now = server.do(server.serving.read_load)
    assert now.counts.tokens - first.counts.tokens == 4  # and the end
    assert now.counts.rejected - first.counts.rejected == 1


async def test_lines_are_logged_while_something_happens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "octavo.load")
    before = LoadReading(SchedulerStats(), 0, BEFORE)
    after = LoadReading(SchedulerStats(), 0, Counts(110.0, 1000, 779, 0, 0))
    readings = chain([before], repeat(after))
    logging = asyncio.create_task(load_lines.log_load(lambda: next(readings), interval=0.0))
    for _ in range(20):
        await asyncio.sleep(0)
    logging.cancel()
    assert [message for message in caplog.messages if "rejected 777" in message] == [
        "running 0, waiting 0, 0.0 tokens/s, KV cache 0%, prefix hits -, rejected 777"
    ]


async def test_the_first_line_after_a_pause_comes_an_interval_after_the_requests_began(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise a line would break into the first answer of `make demo`, which is streamed to the same terminal."""
    caplog.set_level("INFO", "octavo.load")
    # By this share of the cache the lines are told from those of other tests' servers in this process.
    idle, busy = SchedulerStats(kv_usage=0.77), SchedulerStats(running=1, kv_usage=0.77)
    times = [
        (0.0, idle),
        (0.04, idle),
        (0.08, idle),
        (0.09, busy),
        (0.12, busy),
        (0.17, busy),
        (0.19, busy),
        (0.2, busy),
    ]
    readings = [LoadReading(stats, 0, Counts(at, 100 * at, 0, 0, 0)) for at, stats in times]
    remaining = chain(readings, repeat(readings[-1]))
    taken: list[LoadReading] = []

    def read() -> LoadReading:
        taken.append(next(remaining))
        return taken[-1]

    logging = asyncio.create_task(load_lines.log_load(read, interval=0.1))
    async with asyncio.timeout(PATIENCE):
        while len(taken) <= len(readings):
            await asyncio.sleep(0.01)
    logging.cancel()
    assert [message for message in caplog.messages if "KV cache 77%" in message] == [
        "running 1, waiting 0, 100.0 tokens/s, KV cache 77%, prefix hits -, rejected 0"
    ]
