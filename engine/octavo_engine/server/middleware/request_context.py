"""The id of a request, its line in the access log, and error responses for exceptions."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine.server.admission.paths import GENERATING
from octavo_engine.server.admission.refusal import RefusedError, Rejection
from octavo_engine.server.connections.connection import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    abort_connection,
    head_too_large,
)
from octavo_engine.server.connections.direct_send import direct_send
from octavo_engine.server.error_responses import error_response, request_id_headers
from octavo_engine.server.errors import APIError, internal_error, shutting_down
from octavo_engine.server.middleware.metering import limits_of
from octavo_engine.server.telemetry.access_log import AccessLog, clients_trace, without_keys
from octavo_engine.server.telemetry.trace_context import TraceContext
from octavo_engine.server.telemetry.tracing import RequestSpan, Tracing

log = logging.getLogger("octavo.server")

MAX_QUERY_BYTES = 8 << 10
"""Bytes of a query, which is parsed on the event loop: one of 14,000 fields takes 10 ms."""
_USABLE_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}", re.ASCII)


class RequestContext:
    """Gives each request an id and a line in the access log, and turns exceptions into error responses.

    The id is the client's X-Request-Id, or a new one; the response has it in X-Request-Id and log lines name it.
    OpenAI-Processing-Ms, a header of OpenAI's servers, is the time until the response began. If the client sends a
    `traceparent`, the response has one of the same trace, which the log names as well. With `tracing`, each request to
    a path of GENERATING has a span, either in the client's trace or in a new one.
    """

    def __init__(
        self,
        app: ASGIApp,
        hide_keys: Callable[[str], str],
        on_reject: Callable[[Rejection], None],
        tracing: Tracing | None = None,
    ) -> None:
        """Wrap `app`. `hide_keys` returns a text without the server's API keys, for the log and traces."""
        self._app = app
        self._hide_keys = hide_keys
        self._on_reject = on_reject
        self._tracing = tracing
        self._access_log = AccessLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        theirs = Headers(scope=scope).get("x-request-id", "")
        shown = theirs if _USABLE_ID.fullmatch(theirs) else uuid.uuid4().hex
        scope.setdefault("state", {}).update(request_id=shown, hide_keys=self._hide_keys)
        span, trace = self._trace(scope)
        scope["state"].update(span=span, trace=trace)
        answer = _Answer(scope, send, self._access_log)
        try:
            with direct_send(scope, answer.send):
                await self._answer(scope, receive, answer)
        finally:
            answer.log_cut_off()
            if span is not None:
                span.end(answer.status)
        return None

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Run the application, and send an error response for its exception unless an answer has begun."""
        try:
            _check_headers(scope)
            await self._app(scope, receive, answer.send)
        except APIError as error:
            if isinstance(error, RefusedError):
                self._on_reject(error.reason)
            if answer.begun:
                raise
            await error_response(error, scope)(scope, receive, answer.send)
        except asyncio.CancelledError:  # by uvicorn, if the request has not ended when the server stops
            if answer.begun:
                abort_connection(scope)
                await asyncio.sleep(0)  # until the connection has ended: uvicorn logs what it has not, with a traceback
                return
            await error_response(shutting_down(), scope)(scope, receive, answer.send)
        except Exception:
            shown = scope["state"]["request_id"]
            log.exception("request %s failed", without_keys(shown, scope))
            if answer.is_cut_off:
                raise  # uvicorn closes the connection, so that half an answer does not look like a complete one
            if not answer.begun:
                await error_response(internal_error(shown), scope)(scope, receive, answer.send)

    def _trace(self, scope: Scope) -> tuple[RequestSpan | None, TraceContext | None]:
        """Return the request's span, if it has one, and its trace context, if it belongs to a trace."""
        if self._tracing is not None and scope["method"] == "POST" and scope["path"] in GENERATING:
            span = self._tracing.begin(scope)
            return span, span.context
        return None, clients_trace(scope)


class _Answer:
    """The answer to one request while it is sent: it gets headers of its own, and is logged when it begins."""

    def __init__(self, scope: Scope, send: Send, access_log: AccessLog) -> None:
        self.status = 0
        """The status; 0 until the answer has begun."""
        self._scope, self._send, self._access_log = scope, send, access_log
        self._arrived = time.monotonic()
        self._ended = False

    @property
    def begun(self) -> bool:
        """True once the status and the headers are sent."""
        return self.status != 0

    @property
    def is_cut_off(self) -> bool:
        """True if the answer has begun, and has not been sent completely."""
        return self.begun and not self._ended

    async def send(self, message: Message) -> None:
        """Send a message of the application, as ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._begin(message)
        await self._send(message)
        self._ended = message["type"] == "http.response.body" and not message.get("more_body", False)

    def _begin(self, message: Message) -> None:
        scope, state = self._scope, self._scope["state"]
        self.status = message["status"]
        headers = MutableHeaders(scope=message)
        headers.update(dict.fromkeys(request_id_headers(scope), state["request_id"]) | limits_of(scope))
        headers["OpenAI-Processing-Ms"] = f"{(time.monotonic() - self._arrived) * 1000:.0f}"
        if (trace := state["trace"]) is not None:
            headers["traceparent"] = trace.header
        self._access_log.write(scope, self.status)

    def log_cut_off(self) -> None:
        """Log the request once more if its answer is cut off."""
        if self.is_cut_off:
            self._access_log.write(self._scope, self.status, cut_off=True)


def _check_headers(scope: Scope) -> None:
    """Raise APIError for headers or a query that are too large; it ends the connection, as `head_too_large` says."""
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise head_too_large()
    if len(scope["query_string"]) > MAX_QUERY_BYTES:
        message = f"the query has more than {MAX_QUERY_BYTES} bytes"
        raise APIError(414, message, code="query_too_long", headers={"Connection": "close"})
