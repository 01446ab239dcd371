"""The body of a request: it is read before the endpoint runs, with limits of its size, its time and its memory."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.bytes_in_use import BytesInUse, Hold
from octavo_engine.server.errors import APIError

UPLOAD_TIMEOUT = 60.0
"""Seconds in which a request's body must have arrived."""
LINGER_BYTES = 32 << 20
LINGER_SECONDS = 3.0
"""The most bytes, and the longest time, for which the rest of a rejected body is read before the error is sent. Clients
that write a whole body before they read, as Python's http.client does, would otherwise see a reset connection."""
_COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
"""Values of Content-Encoding that are refused. Others are no compression: some clients send a charset by mistake."""


class Upload:
    """A request's body in memory, until the request is prepared."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def add(self, part: bytes) -> None:
        """Append a part of the body; RefusedError if bodies of this key, or of all keys, take too much memory."""
        self._hold.add(len(part))
        self._data += part

    @property
    def data(self) -> bytes:
        """The bytes of the body that have arrived."""
        return bytes(self._data)

    def take(self) -> bytes:
        """Return the body, of which this object then keeps no second copy. Its bytes count until `release`."""
        data, self._data = bytes(self._data), bytearray()
        return data

    def release(self) -> None:
        """Free the body's memory. May be called more than once."""
        self._data = bytearray()
        self._hold.release()


def upload_of(scope: Scope) -> Upload:
    """Return the body of a request, which BodyLimit has read."""
    upload: Upload = scope["state"]["upload"]
    return upload


class BodyLimit:
    """Reads the body before the endpoint runs: at most `max_bytes`, within UPLOAD_TIMEOUT, if `uploads` has room.

    Bodies that are posted to the paths `streamed` are read by their endpoints instead.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, uploads: BytesInUse, streamed: frozenset[str] = frozenset()
    ) -> None:
        self._app = app
        self._streamed = streamed
        self._max_bytes = max_bytes
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http" or (scope["method"] == "POST" and scope["path"] in self._streamed):
            return await self._app(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            if int(length) <= self._max_bytes + LINGER_BYTES and "expect" not in Headers(scope=scope):
                await discard(receive)
            raise self._too_large()
        upload = Upload(self._uploads.hold(key_of(scope)))
        scope.setdefault("state", {})["upload"] = upload
        try:
            if await self._read(receive, upload):
                if len(upload):
                    check_encoding(scope)
                await self._app(scope, receive, send)
        finally:
            upload.release()

    async def _read(self, receive: Receive, upload: Upload) -> bool:
        """Read the body; return True if it is complete, False if the client has disconnected."""
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT):
                return await self._read_all(receive, upload)
        except TimeoutError:
            message = f"the body did not arrive within {UPLOAD_TIMEOUT:.0f} s"
            raise APIError(408, message, code="upload_timeout", headers={"Connection": "close"}) from None

    async def _read_all(self, receive: Receive, upload: Upload) -> bool:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return False
            try:
                upload.add(message.get("body", b""))
                if len(upload) > self._max_bytes:
                    raise self._too_large()
            except APIError:
                upload.release()
                if message.get("more_body", False):
                    await discard(receive)
                raise
            if not message.get("more_body", False):
                return True

    def _too_large(self) -> APIError:
        return APIError(
            413,
            f"the body has more than {self._max_bytes} bytes (--max-request-bytes)",
            code="request_too_large",
            headers={"Connection": "close"},
        )


def check_encoding(scope: Scope) -> None:
    """Refuse a compressed body with APIError 415: a few kilobytes could unpack to gigabytes."""
    encoding = ", ".join(Headers(scope=scope).getlist("content-encoding")).lower()
    if not _COMPRESSIONS.isdisjoint(each.strip() for each in encoding.split(",")):
        message = f"compressed bodies are not read; send this one without Content-Encoding: {encoding[:50]}"
        headers = {"Accept-Encoding": "identity"}
        raise APIError(415, message, code="unsupported_content_encoding", headers=headers)


async def discard(receive: Receive) -> None:
    """Read and drop the rest of a rejected body, up to LINGER_BYTES and LINGER_SECONDS.

    Closing a connection that has unread bytes resets it, and the client may lose the error response.
    """
    discarded = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while discarded <= LINGER_BYTES:
                message = await receive()
                discarded += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
