"""What every request passes before its endpoint: an id, the check of its key, the limit of its body's size.

Plain ASGI, so that a client's disconnect still reaches the endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine.server.auth import ANYONE, OPEN_PATHS, Key, KeyRing, bearer_of, unauthorized
from octavo_engine.server.errors import APIError, internal_error
from octavo_engine.server.refusal import RefusedError, Rejection

log = logging.getLogger("octavo.server")

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10
UPLOAD_TIMEOUT = 60.0
"""Seconds in which a request's body must have arrived."""
LINGER_BYTES = 1 << 20
LINGER_SECONDS = 1.0
"""So much of a body that is too large is still read before the error is sent, and for no longer."""
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}", re.ASCII)


class RequestContext:
    """Gives each request an id, the client's own if it sent one, and turns exceptions into answers.

    The client sees the id in X-Request-Id and the log names it where something fails; nothing is looked up by it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        theirs = Headers(scope=scope).get("x-request-id", "")
        shown = theirs if _USABLE_ID.fullmatch(theirs) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = shown
        started = ended = False

        async def send_with_id(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["X-Request-Id"] = shown
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            _check_headers(scope)
            await self._app(scope, receive, send_with_id)
        except APIError as error:
            if started:
                raise
            await error.response()(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s failed", shown)
            if started and not ended:
                raise  # the connection is closed: half an answer must not look like a whole one
            if not started:
                await internal_error(shown).response()(scope, receive, send_with_id)
        return None


def _check_headers(scope: Scope) -> None:
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise APIError(
            431,
            f"more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them",
            code="headers_too_large",
            headers={"Connection": "close"},
        )


class Authentication:
    """Default-deny: a path that is not exactly one of OPEN_PATHS needs a key, whether it exists or not.

    The path is `scope["path"]`, the request target's with its %-escapes decoded: the string that the router matches.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing | None, on_reject: Callable[[], None]) -> None:
        self._app = app
        self._keys = keys
        self._on_reject = on_reject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise APIError(404, "there is nothing but HTTP here", code="not_found")
        if self._keys is not None and scope["path"] not in OPEN_PATHS:
            scope.setdefault("state", {})["key"] = self._key(scope, self._keys)
        return await self._app(scope, receive, send)

    def _key(self, scope: Scope, keys: KeyRing) -> Key:
        try:
            key = keys.owner_of(bearer_of(Headers(scope=scope).get("authorization")))
            if key is None:
                raise unauthorized("this API key is not known here")
        except APIError:
            self._on_reject()
            raise
        return key


def key_of(scope: Scope) -> Key:
    """The API key of a request, as Authentication has found it."""
    key: Key = scope.get("state", {}).get("key", ANYONE)
    return key


class EarlyRejection:
    """Rejects a request to `paths` before its body is read if not even the smallest request would be accepted.

    An overloaded server rejects most requests, and this keeps the cost of each small.
    """

    def __init__(
        self, app: ASGIApp, paths: frozenset[str], look: Callable[[Key], None], on_reject: Callable[[Rejection], None]
    ) -> None:
        self._app = app
        self._paths = paths
        self._look = look
        self._on_reject = on_reject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] == "http" and scope["path"] in self._paths and scope["method"] == "POST":
            try:
                self._look(key_of(scope))
            except RefusedError as error:
                self._on_reject(error.reason)
                raise
        return await self._app(scope, receive, send)


class BodyLimit:
    """Reads the body before the endpoint runs: at most so many bytes, in at most so much time."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            if int(length) <= self._max_bytes + LINGER_BYTES and "expect" not in Headers(scope=scope):
                await _discard(receive)
            raise self._too_large()
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT):
                body = await self._read(receive)
        except TimeoutError:
            message = f"the body did not arrive within {UPLOAD_TIMEOUT:.0f} s"
            raise APIError(408, message, code="upload_timeout", headers={"Connection": "close"}) from None
        if body is None:
            return None  # the client has gone
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                if message.get("more_body", False):
                    await _discard(receive)
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> APIError:
        return APIError(
            413,
            f"the body has more than {self._max_bytes} bytes (--max-request-bytes)",
            code="request_too_large",
            headers={"Connection": "close"},
        )


async def _discard(receive: Receive) -> None:
    """Read on for a moment and forget what comes.

    A connection that is closed while bytes of its client are unread is reset, and the client may lose the answer.
    """
    discarded = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while discarded <= LINGER_BYTES:
                message = await receive()
                discarded += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
