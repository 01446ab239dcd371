"""ASGI middleware around all endpoints: request ids, API keys, limits of keys and of bodies.

It is plain ASGI instead of Starlette's BaseHTTPMiddleware, so that a client's disconnect still reaches the endpoint.
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

from octavo_engine.server.admission.auth import ANYONE, Key, KeyRing, key_of, presented_key, unauthorized
from octavo_engine.server.admission.bytes_in_use import BytesInUse, Hold
from octavo_engine.server.admission.fair_turns import FairTurns
from octavo_engine.server.admission.limits import Arrival
from octavo_engine.server.admission.paths import GENERATING
from octavo_engine.server.admission.refusal import RefusedError, Rejection
from octavo_engine.server.connections.connection import MAX_HEADER_BYTES, abort_connection
from octavo_engine.server.errors import APIError, error_response, internal_error, request_id_headers, shutting_down
from octavo_engine.server.telemetry.access_log import AccessLog, without_keys
from octavo_engine.server.telemetry.trace_context import TraceContext, trace_context
from octavo_engine.server.telemetry.tracing import RequestSpan, Tracing

log = logging.getLogger("octavo.server")

BEGUN_AT_ONCE = 4
"""Requests that may begin in one iteration of the server's event loop."""
MAX_HEADERS = 100
MAX_QUERY_BYTES = 8 << 10
"""Bytes of a query, which is parsed on the event loop: one of 14,000 fields takes 10 ms."""
UPLOAD_TIMEOUT = 60.0
"""Seconds in which a request's body must have arrived."""
LINGER_BYTES = 32 << 20
LINGER_SECONDS = 3.0
"""The most bytes, and the longest time, for which the rest of a rejected body is read before the error is sent. Clients
that write a whole body before they read, as Python's http.client does, would otherwise see a reset connection."""
_COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
"""Values of Content-Encoding that are refused. Others are no compression: some clients send a charset by mistake."""
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}", re.ASCII)


class RequestContext:
    """Gives each request an id and a line in the access log, and turns exceptions into error responses.

    The id is the client's X-Request-Id, or a new one; the response has it in X-Request-Id and log lines name it.
    OpenAI-Processing-Ms, a header of OpenAI's servers, is the time until the response began. If the client sends a
    `traceparent`, the response has one of the same trace, which the log names as well. With `tracing`, each request to
    a path of GENERATING has a span, either in the client's trace or in a new one.
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
                headers.update(dict.fromkeys(request_id_headers(scope), shown) | limits_of(scope))
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
        except asyncio.CancelledError:  # by uvicorn, if the request has not ended when the server stops
            if started:
                abort_connection(scope)
                await asyncio.sleep(0)  # until the connection has ended: uvicorn logs what it has not, with a traceback
                return None
            await error_response(shutting_down(), scope)(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s failed", without_keys(shown, scope))
            if started and not ended:
                raise  # uvicorn closes the connection, so that half an answer does not look like a complete one
            if not started:
                await error_response(internal_error(shown), scope)(scope, receive, send_with_id)
        finally:
            if started and not ended:
                self._access_log.write(scope, status, cut_off=True)
            if span is not None:
                span.end(status)
        return None

    def _trace(self, scope: Scope) -> tuple[RequestSpan | None, TraceContext | None]:
        """Return the request's span, if it has one, and its trace context, if it belongs to a trace."""
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
    if len(scope["query_string"]) > MAX_QUERY_BYTES:
        raise APIError(414, f"the query has more than {MAX_QUERY_BYTES} bytes", code="query_too_long")


def check_encoding(scope: Scope) -> None:
    """Refuse a compressed body with APIError 415: a few kilobytes could unpack to gigabytes."""
    encoding = ", ".join(Headers(scope=scope).getlist("content-encoding")).lower()
    if not _COMPRESSIONS.isdisjoint(each.strip() for each in encoding.split(",")):
        message = f"compressed bodies are not read; send this one without Content-Encoding: {encoding[:50]}"
        headers = {"Accept-Encoding": "identity"}
        raise APIError(415, message, code="unsupported_content_encoding", headers=headers)


class Authentication:
    """Requires a valid API key for every path outside `open_paths`, whether the path exists or not.

    The path is `scope["path"]`, where %-escapes are decoded: the same string that the router matches.
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
    """Lets at most BEGUN_AT_ONCE requests begin in one iteration of the event loop; API keys take turns.

    Otherwise very many requests at once would hold up all streams, even if each costs next to nothing or is refused.
    All requests without a known key take turns as if they had one key.
    """

    def __init__(self) -> None:
        self._turns: FairTurns[None] = FairTurns(BEGUN_AT_ONCE, lambda: False)
        for _ in range(BEGUN_AT_ONCE):
            self._turns.add(None)

    async def wait(self, key: Key) -> None:
        """Wait until a request of this key may begin."""
        await self._turns.acquire(key.name)
        asyncio.get_running_loop().call_soon(self._turns.release, key.name, None)


class Metering:
    """Counts a request against the limits of its key when its headers have arrived, before its body is read.

    A request that is rejected here costs the server next to nothing, and does not count against the key. Every other
    request counts, also if it turns out to be invalid.
    """

    def __init__(
        self,
        app: ASGIApp,
        open_paths: frozenset[str],
        arrive: Callable[[Scope], Arrival | None],
        limits: Callable[[Key], dict[str, str]],
    ) -> None:
        """Wrap `app`. `limits` returns the headers about a key's limits, which all responses to the key have."""
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
    """Return the headers about the present limits of the request's key; none before Metering has seen the request."""
    limits: Callable[[], dict[str, str]] = scope["state"].get("limits", dict)
    return limits()


def arrival_of(scope: Scope) -> Arrival | None:
    """Return the Arrival that Metering has given the request; None if the model was not loaded or the server drains."""
    arrival: Arrival | None = scope.get("state", {}).get("arrival")
    return arrival


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
