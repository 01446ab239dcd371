"""`octavo-engine` with the scripted engine in place of the engine process: for tests of what `serve` prints."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from octavo_engine import cli
from octavo_engine.engine.client import EngineState
from octavo_engine.engine.messages import Loading
from octavo_engine.server import lifecycle, run
from octavo_engine.server.console.progress import show_loading
from tests.api.scripted_engine import ScriptedEngine

looked: list[str] = []
"""The phases that `serve` has seen, one for each look."""


async def show_and_note(state: Callable[[], EngineState], *more: Any) -> None:
    """Show the progress of loading as `serve` does, and note each look."""

    def look() -> EngineState:
        looked.append(state().progress.phase)
        return state()

    await show_loading(look, *more)


class LoadingEngine(ScriptedEngine):
    """An engine that says how it loads. However slow the machine is, each phase lasts until `serve` has seen it."""

    def __init__(self, *_: Any) -> None:
        super().__init__(load=False)

    async def start(self) -> None:
        await super().start()
        self._loading = asyncio.create_task(self._load_slowly())

    async def _load_slowly(self) -> None:
        self.state.progress = Loading("pulling", 0.26, "5 MiB of 10 MiB")
        self.state.plan = [("model", "a scripted one"), ("weights", "10.0 MiB")]
        await self._until_seen("pulling")
        self.state.progress = Loading("loading", 0.8, "7 MiB of 10 MiB")
        await self._until_seen("loading")
        self.finish_loading()

    async def _until_seen(self, phase: str) -> None:
        while phase not in looked:
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    run.EngineClient = LoadingEngine  # type: ignore[misc, assignment]
    lifecycle.show_loading = show_and_note
    sys.exit(cli.main())
