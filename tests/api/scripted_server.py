"""`octavo-engine` with the scripted engine in place of the engine process: for tests of what `serve` prints."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from octavo_engine import cli
from octavo_engine.engine.messages import Loading
from octavo_engine.server import run
from tests.api.scripted_engine import ScriptedEngine

SECONDS = 0.3
"""Seconds between the phases; `serve` reports ten times a second."""


class LoadingEngine(ScriptedEngine):
    """An engine that says how it loads."""

    def __init__(self, *_: Any) -> None:
        super().__init__(load=False)

    async def start(self) -> None:
        await super().start()
        self._loading = asyncio.create_task(self._load_slowly())

    async def _load_slowly(self) -> None:
        self.state.progress = Loading("pulling", 0.26, "5 MiB of 10 MiB")
        self.state.plan = [("model", "a scripted one"), ("weights", "10.0 MiB")]
        await asyncio.sleep(SECONDS)
        self.state.progress = Loading("loading", 0.8, "7 MiB of 10 MiB")
        await asyncio.sleep(SECONDS)
        self.finish_loading()


if __name__ == "__main__":
    run.EngineClient = LoadingEngine  # type: ignore[misc, assignment]
    sys.exit(cli.main())
