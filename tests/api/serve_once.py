"""`octavo-engine` with the scripted engine, whose `serve` ends as after Ctrl-C once the server is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from octavo_engine import cli
from octavo_engine.server import run
from tests.api.scripted_engine import ScriptedEngine


class BriefEngine(ScriptedEngine):
    """An engine that is loaded at once."""

    def __init__(self, *_: Any) -> None:
        super().__init__(load=False)

    async def start(self) -> None:
        await super().start()
        asyncio.get_running_loop().call_later(0.1, self._load_and_end)

    def _load_and_end(self) -> None:
        self.finish_loading()
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    run.EngineClient = BriefEngine  # type: ignore[misc, assignment]
    sys.exit(cli.main())
