"""ASGI middleware around all endpoints: gives requests an id, checks their keys, limits the size of bodies.

Plain ASGI, so that a client's disconnect still reaches the endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine.server.access_log import AccessLog
from octavo_engine.server.auth import ANYONE, Key, KeyRing, key_of, presented_key, unauthorized
from octavo_engine.server.bytes_in_use import BytesInUse, Hold
from octavo_engine.server.errors import APIError, error_response, internal_error, request_id_headers, shutting_down
from octavo_engine.server.fair_turns import FairTurns
from octavo_engine.server.limits import Arrival
from octavo_engine.server.refusal import RefusedError, Rejection
from octavo_engine.server.serving import GENERATING
from octavo_engine.server.trace_context import TraceContext, trace_context
from octavo_engine.server.tracing import RequestSpan, Tracing

log = logging.getLogger("octavo.server")

BEGUN_AT_ONCE = 4
"""Requests that begin in one turn of the server's loop."""
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10
UPLOAD_TIMEOUT = 60.0
"""Seconds in which a request's body must have arrived."""
LINGER_BYTES = 32 << 20
LINGER_SECONDS = 3.0
"""The longest time for which the rest of a too large body is read before the error is sent: clients that write a whole
body before they read, as Python's http.client does, would otherwise see a reset connection."""
_COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
"""Of Content-Encoding. Other values, as a charset that some clients give there by mistake, say nothing about a body."""
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}", re.ASCII)


class RequestContext:
    """Gives each request an id, the client's own if it sent one, a log line, and turns exceptions into answers.

    The client sees the id in X-Request-Id and the log names it; nothing is looked up by it. OpenAI-Processing-Ms, which
    OpenAI's servers send too, says how long the answer took to begin. A `traceparent` of the
    client is answered with one of the same trace, which the log names as well. With `tracing` requests for answers
    have a span, which is in such a trace or begins one.
    """

    def __init__(self, app: ASGIApp, on_reject: Callable[[Rejection], None], tracing: Tracing | None = None) -> None:
        self._app = app
        self._on_reject = on_reject
        self._tracing = tracing
        self._access_log = AccessLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        theirs = Headers(scope=scope).get("x-request-id", "")
        shown = theirs if _USABLE_ID.fullmatch(theirs) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = shown
        span, trace = self._trace(scope)
        scope["state"].update(span=span, trace=trace)
        arrived = time.monotonic()
        started = ended = False
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal started, ended, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(dict.fromkeys(request_id_headers(scope["path"]), shown) | limits_of(scope))
                headers["OpenAI-Processing-Ms"] = f"{(time.monotonic() - arrived) * 1000:.0f}"
                if trace is not None:
                    headers["traceparent"] = trace.header
                self._access_log.write(scope, message["status"])
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            _check_headers(scope)
            await self._app(scope, receive, send_with_id)
        except APIError as error:
            if isinstance(error, RefusedError):
                self._on_reject(error.reason)
            if started:
                raise
            await error_response(error, scope)(scope, receive, send_with_id)
        except asyncio.CancelledError:  # by uvicorn, which has waited for it to end when the server does
            if started:
                raise
            await error_response(shutting_down(), scope)(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s failed", shown)
            if started and not ended:
                raise  # the connection is closed: half an answer must not look like a whole one
            if not started:
                await error_response(internal_error(shown), scope)(scope, receive, send_with_id)
        finally:
            if started and not ended:
                self._access_log.write(scope, status, cut_off=True)
            if span is not None:
                span.end(status)
        return None

    def _trace(self, scope: Scope) -> tuple[RequestSpan | None, TraceContext | None]:
        """The request's span, where it has one, and its place in a trace."""
        if self._tracing is not None and scope["method"] == "POST" and scope["path"] in GENERATING:
            span = self._tracing.begin(scope)
            return span, span.context
        return None, trace_context(Headers(scope=scope).get("traceparent", ""))


def _check_headers(scope: Scope) -> None:
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise APIError(
            431,
            f"more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them",
            code="headers_too_large",
            headers={"Connection": "close"},
        )


def _check_encoding(scope: Scope) -> None:
    """APIError 415 for a compressed body, which nothing here unpacks: a few kilobytes may become gigabytes."""
    encoding = ", ".join(Headers(scope=scope).getlist("content-encoding")).lower()
    if not _COMPRESSIONS.isdisjoint(each.strip() for each in encoding.split(",")):
        message = f"compressed bodies are not read; send this one without Content-Encoding: {encoding[:50]}"
        headers = {"Accept-Encoding": "identity"}
        raise APIError(415, message, code="unsupported_content_encoding", headers=headers)


class Authentication:
    """Default-deny: a path that is not exactly one of `open_paths` needs a key, whether it exists or not.

    The path is `scope["path"]`, the request target's with its %-escapes decoded: the string that the router matches.
    """

    def __init__(
        self, app: ASGIApp, keys: KeyRing | None, open_paths: frozenset[str], on_reject: Callable[[], None]
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._on_reject = on_reject
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise APIError(404, "this server speaks HTTP only", code="not_found")
        if self._keys is None or scope["path"] in self._open_paths:
            await self._turns.wait(ANYONE)
        else:
            scope.setdefault("state", {})["key"] = await self._key(scope, self._keys)
        return await self._app(scope, receive, send)

    async def _key(self, scope: Scope, keys: KeyRing) -> Key:
        key, refused = None, unauthorized("this API key is not valid")
        try:
            key = keys.owner_of(presented_key(Headers(scope=scope)))
        except APIError as error:
            refused = error
        await self._turns.wait(key or ANYONE)
        if key is None:
            self._on_reject()
            raise refused
        return key


class Turns:
    """Lets few requests begin between two looks at what else the loop has to do, each key's in turn.

    Requests that cost next to nothing, also refused ones, would otherwise hold up all streams when very many come at
    once. Those without a known key share the turns of one.
    """

    def __init__(self) -> None:
        self._turns: FairTurns[None] = FairTurns(BEGUN_AT_ONCE, lambda: False)
        for _ in range(BEGUN_AT_ONCE):
            self._turns.add(None)

    async def wait(self, key: Key) -> None:
        """Return when a request of this key may begin."""
        await self._turns.acquire(key.name)
        asyncio.get_running_loop().call_soon(self._turns.release, key.name, None)


class Metering:
    """Counts a request against the limits of its key once its headers are there, before its body is read.

    What is rejected here costs the server next to nothing and the key nothing. All that comes further costs the key a
    request, also if it turns out to be invalid.
    """

    def __init__(
        self,
        app: ASGIApp,
        open_paths: frozenset[str],
        arrive: Callable[[Scope], Arrival | None],
        limits: Callable[[Key], dict[str, str]],
    ) -> None:
        """`limits` gives the headers about a key's limits, which all answers to the key have."""
        self._app = app
        self._open_paths = open_paths
        self._arrive, self._limits = arrive, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return await self._app(scope, receive, send)
        scope.setdefault("state", {})["limits"] = partial(self._limits, key_of(scope))
        if (arrival := self._arrive(scope)) is None:
            return await self._app(scope, receive, send)
        scope["state"]["arrival"] = arrival
        try:
            await self._app(scope, receive, send)
        finally:
            arrival.end()


def limits_of(scope: Scope) -> dict[str, str]:
    """The headers about the limits of the request's key, as they are now; none before Metering has seen it."""
    limits: Callable[[], dict[str, str]] = scope["state"].get("limits", dict)
    return limits()


def arrival_of(scope: Scope) -> Arrival | None:
    """A request's place in the queue, as Metering has given it; None while the model is not loaded."""
    arrival: Arrival | None = scope.get("state", {}).get("arrival")
    return arrival


class Upload:
    """A request's body, held until it has been prepared."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def add(self, part: bytes) -> None:
        """Append what has come; RefusedError if too much is held for this key, or for all."""
        self._hold.add(len(part))
        self._data += part

    @property
    def data(self) -> bytes:
        """All of it."""
        return bytes(self._data)

    def release(self) -> None:
        """Forget the body. May be called more than once."""
        self._data = bytearray()
        self._hold.release()


def upload_of(scope: Scope) -> Upload:
    """The body of a request, as BodyLimit has read it."""
    upload: Upload = scope["state"]["upload"]
    return upload


class BodyLimit:
    """Reads the body before the endpoint runs: at most so many bytes in at most so much time, if `uploads` has room.

    Endpoints of the paths `streamed` read the bodies that are posted to them themselves.
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
                    _check_encoding(scope)
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


async def discard(receive: Receive) -> None:
    """Read and drop the rest of a rejected body for a moment.

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
