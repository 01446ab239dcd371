"""Shows the progress of loading on standard error: progress bars on a terminal, else log lines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo_engine.engine.client import EngineState

if TYPE_CHECKING:
    from octavo_engine.server.console.start_display import StartDisplay

log = logging.getLogger("octavo.server")

_TICK = 0.1
_LINE_INTERVAL = 3.0


async def show_loading(state: Callable[[], EngineState], name: str, display: StartDisplay | None = None) -> None:
    """Show the progress until the engine is ready or dead: on a terminal by `display`, or in the log if it is None."""
    if display is None:
        await _lines(state, name)
        return
    with display.loading():
        try:
            while (now := state()).phase in ("starting", "loading"):
                display.update(now)
                await asyncio.sleep(_TICK)
        finally:  # the end of loading cancels this, often before the next look
            display.update(state())


async def _lines(state: Callable[[], EngineState], name: str) -> None:
    last_phase, last_time, logged = "", float("-inf"), ""
    while (now := state()).phase in ("starting", "loading"):
        progress = now.progress
        if progress.phase != last_phase or time.monotonic() - last_time >= _LINE_INTERVAL:
            detail = f", {progress.detail}" if progress.detail else ""
            line = f"{name}: {progress.phase}, {progress.ratio * 100:.0f}%{detail}"
            if line != logged:
                log.info("%s", line)
            last_phase, last_time, logged = progress.phase, time.monotonic(), line
        await asyncio.sleep(_TICK)
