"""The response with a file's content, or with the ranges of it that a client asks for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable
from starlette.types import Receive, Scope, Send

from octavo_engine.server.connections.connection import abort_connection
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.batches.storage import Owned, Storage

READ_SECONDS, LEAST_RATE, MOST_SECONDS = 600.0, 64 << 10, 4200.0
"""The time in which a file must have been read: ten minutes, and a second more for each 64 KiB, but at most 70 minutes.
A client that reads a few kilobytes a second would otherwise keep one of the few places for a day."""


class FileContent(FileResponse):
    """A response with a file's content. As RFC 9110 says, an unreadable Range is ignored; one beyond the end is 416."""

    def __init__(self, storage: Storage, owner: Owned, path: Path, stat_result: os.stat_result) -> None:
        super().__init__(path, media_type="application/jsonl", stat_result=stat_result)
        self._storage, self._owner = storage, owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; an APIError, before anything is sent, if the key reads too many files."""
        size = self.stat_result.st_size if self.stat_result is not None else 0
        with self._storage.transfer(self._owner):
            try:
                async with asyncio.timeout(min(READ_SECONDS + size / LEAST_RATE, MOST_SECONDS)):
                    await super().__call__(scope, receive, send)
            except TimeoutError:
                abort_connection(scope)

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            return []
        except RangeNotSatisfiable:
            message = f"the range lies beyond the file's {file_size} bytes"
            headers = {"Content-Range": f"bytes */{file_size}"}
            raise APIError(416, message, code="range_not_satisfiable", headers=headers) from None
