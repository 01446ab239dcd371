"""The output of `serve` on a terminal while it starts: each phase with a bar, the memory plan, and the URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from octavo_engine.engine.client import EngineState
from octavo_engine.engine.info import EngineInfo
from octavo_engine.engine.messages import Loading
from octavo_engine.engine.startup.load_phases import within
from octavo_engine.text_table import table

_DOING = {
    "starting": "reading the model's description",
    "sizing": "planning memory",
    "pulling": "pulling",
    "loading": "loading weights",
    "warmup": "warming up",
}
_DONE = {"pulling": "pulled", "loading": "loaded weights", "warmup": "warmed up"}
_SIZED = {"pulling", "loading"}
"""Phases whose detail ends with the total size."""
_SHORT_CONTEXT = 2048
"""Tokens of a conversation that is not long, for which the number of users is shown beside that of full context."""


class StartDisplay:
    """Shows the start of one server: a line for each phase that is done, and below them a bar of the present phase."""

    def __init__(self, console: Console, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._name = name
        self._clock = clock
        self._now = Loading("starting", 0.0)
        self._began = self._since = clock()
        self._planned = False
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
        )

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Show a bar until the block ends, however it ends."""
        self._console.print(f"[bold]{escape(self._name)}[/bold]", highlight=False)
        with self._bar:
            yield

    def update(self, state: EngineState) -> None:
        """Show the present progress of the engine."""
        now = state.progress
        if now.phase != self._now.phase or state.phase in ("ready", "dead"):
            self._end_phase(failed=state.phase == "dead")
        if state.plan is not None and not self._planned:
            self._planned = True
            self._bar.console.print(table(state.plan, indent="    ").rstrip("\n"), markup=False, highlight=False)
        if state.phase in ("ready", "dead"):
            return
        if self._task is None:
            self._task = self._bar.add_task(_DOING.get(now.phase, now.phase), total=1.0, detail="")
        self._bar.update(self._task, completed=within(now.phase, now.ratio), detail=escape(now.detail), refresh=True)
        self._now = now

    def _end_phase(self, *, failed: bool) -> None:
        """Remove the bar, and print a line about the phase that ended if it failed or is one of `_DONE`."""
        seconds, self._since = self._clock() - self._since, self._clock()
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        done = _DONE.get(self._now.phase)
        if failed:
            self._bar.console.print(f"  [red]✗[/red] {_DOING.get(self._now.phase, self._now.phase)}", highlight=False)
        elif done is not None:
            size = self._now.detail.rpartition(" of ")[2] if self._now.phase in _SIZED else ""
            self._bar.console.print(
                f"  [green]✓[/green] {' '.join((done, escape(size))).strip()} in {seconds:.1f} s", highlight=False
            )

    def ready(self, info: EngineInfo, url: str, *, playground: bool) -> None:
        """Show that the server answers at `url`, and for how many users it has room."""
        say = self._console.print
        say(f"  [green]✓[/green] [bold]ready[/bold] after {self._clock() - self._began:.1f} s", highlight=False)
        rows = [("API", f"{url}/v1")]
        if playground:
            rows.append(("playground", f"{url}/"))
        rows.append(("room for", room_for(info)))
        rows.append(("to end it", "Ctrl-C; a second one does not wait for answers in progress"))
        say(table(rows, indent="    ").rstrip("\n"), markup=False, highlight=False, soft_wrap=True)


def room_for(info: EngineInfo) -> str:
    """Describe how many users' conversations the KV cache holds at a time, of full context and of a moderate length."""
    tokens = info.num_kv_blocks * info.block_size
    text = f"{_users(tokens // info.max_model_len)} with {info.max_model_len:,} tokens each"
    if info.max_model_len > _SHORT_CONTEXT:
        text += f", or {tokens // _SHORT_CONTEXT:,} with {_SHORT_CONTEXT:,}"
    return f"{text}; {info.max_num_seqs:,} are answered at once (--max-num-seqs), others wait"


def _users(count: int) -> str:
    return f"{count:,} user{'s' * (count != 1)}"
