"""Shows on standard error how far loading is: a bar on a terminal, a log line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from octavo_engine.engine.client import EngineState

log = logging.getLogger("octavo.server")

_TICK = 0.1
_LINE_INTERVAL = 3.0


async def show_loading(state: Callable[[], EngineState], name: str) -> None:
    """Run until the engine is ready or dead; cancel it when something else went wrong."""
    if sys.stderr.isatty():
        await _bar(state, name)
    else:
        await _lines(state, name)


async def _bar(state: Callable[[], EngineState], name: str) -> None:
    with tqdm(total=100, unit="%", desc=name, bar_format="{desc} |{bar}| {n:.0f}% {elapsed} {postfix}") as bar:
        while (now := state()).phase in ("starting", "loading"):
            bar.n = round(now.progress.ratio * 100)
            bar.set_postfix_str(f"{now.progress.phase} {now.progress.detail}".strip())
            await asyncio.sleep(_TICK)
        if now.phase == "ready":
            bar.n = 100
            bar.set_postfix_str("ready")


async def _lines(state: Callable[[], EngineState], name: str) -> None:
    last_phase, last_line, said = "", float("-inf"), ""
    while (now := state()).phase in ("starting", "loading"):
        progress = now.progress
        if progress.phase != last_phase or time.monotonic() - last_line >= _LINE_INTERVAL:
            line = f"{name}: {progress.phase}, {progress.ratio * 100:.0f}% {progress.detail}".rstrip()
            if line != said:
                log.info("%s", line)
            last_phase, last_line, said = progress.phase, time.monotonic(), line
        await asyncio.sleep(_TICK)
