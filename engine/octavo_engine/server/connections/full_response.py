"""Responses that are not streamed, with limits for clients that read slowly."""

from __future__ import annotations

import asyncio
import time

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.bytes_in_use import BytesInUse
from octavo_engine.server.admission.refusal import RefusedError
from octavo_engine.server.connections.connection import abort_connection
from octavo_engine.server.errors import answer_too_large

READING_SECONDS = 5.0
"""Seconds after a request's deadline until which its client must have read the response."""
LIST_SECONDS = 60.0
"""The time in which a client must have read a list, such as that of its files."""
_PART = 64 << 10


class FullResponse(Response):
    """A JSON response whose bytes count in `unread` until the client has read them.

    It is sent in parts, so that the server notices a client that stops reading. A client that reads very slowly has
    until `deadline` (monotonic seconds) plus READING_SECONDS.
    """

    media_type = "application/json"

    def __init__(self, body: bytes, unread: BytesInUse, deadline: float) -> None:
        super().__init__(body)
        self._unread = unread
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's signature)
        """Run as an ASGI application; an APIError, before anything is sent, if too much is unread."""
        hold = self._unread.hold(key_of(scope))
        try:
            hold.add(len(self.body))
        except RefusedError as error:
            raise (answer_too_large(self._unread.share) if error.alone else error) from None
        try:
            async with asyncio.timeout(self._deadline + READING_SECONDS - time.monotonic()):
                await self._send_parts(send)
        except TimeoutError:
            abort_connection(scope)
        finally:
            hold.release()

    async def _send_parts(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        for start in range(0, len(view), _PART):
            more = start + _PART < len(view)
            await send({"type": "http.response.body", "body": bytes(view[start : start + _PART]), "more_body": more})
