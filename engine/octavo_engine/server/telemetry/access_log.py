"""Logs one line for each request, without query strings, bodies and keys, and at a limited rate."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.types import Scope

from octavo_engine.server.admission.auth import key_of, presented_key
from octavo_engine.server.admission.key_search import SHORTEST_HIDDEN
from octavo_engine.server.admission.paths import OPEN_PATHS
from octavo_engine.server.console.line_rate import LineRate
from octavo_engine.server.errors import APIError
from octavo_engine.server.telemetry.trace_context import TraceContext, trace_context

log = logging.getLogger("octavo.access")

LINES_PER_SECOND = 50.0
_BURST = 500.0
_LONGEST_PATH, _MOST_READ = 200, 2048
"""Bytes of a path that are logged, and bytes of a path or a method that are searched for keys before."""
_KEY = re.compile(r"(?i)(sk|key|token)[-_=][A-Za-z0-9_-]{6,}")
_NEEDLESS_ESCAPE = re.compile(rb"%(2[DdEe]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|7[Ee])")
"""A letter, a digit, or one of `-._~` as a % escape, which means the same as the character itself (RFC 3986, 2.3)."""


class AccessLog:
    """Writes the log, whose rate a token bucket limits. The number of omitted lines is logged before the next line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = LineRate(_BURST, LINES_PER_SECOND, clock)

    def write(self, scope: Scope, status: int, *, cut_off: bool = False) -> None:
        """Log a request with the status of its answer, except for probes and scrapes, which come every few seconds.

        It is logged when its answer begins, and again if the answer is `cut_off`, as its connection ended first.
        """
        if scope["path"] in OPEN_PATHS:
            return
        if not self._lines.admits():
            return
        if omitted := self._lines.take_omitted():
            log.info("%d requests were not logged: too many came at once", omitted)
        client = scope.get("client") or ("", 0)
        method, path, names = without_keys(scope["method"][:_MOST_READ], scope)[:20], _path_of(scope), _names(scope)
        suffix = " cut off" * cut_off + "".join(f" {name}={value}" for name, value in names.items())
        fields = {"client": client[0], "method": method, "path": path, "status": status, "cut_off": cut_off, **names}
        log.info('%s:%d "%s %s" %d%s', client[0], client[1], method, path, status, suffix, extra={"fields": fields})


def _names(scope: Scope) -> dict[str, str]:
    """Return the names of a request for its line: its id, its API key's name, its trace's id; those that it has."""
    state = scope.get("state", {})
    trace: TraceContext | None = state.get("trace")
    names = {
        "request_id": without_keys(state.get("request_id", ""), scope),
        "key": key_of(scope).name,
        "trace_id": trace.trace_id if trace is not None else None,
    }
    return {name: value for name, value in names.items() if value}


def _path_of(scope: Scope) -> str:
    """Return the path without keys, and with the %-escapes that keep it from beginning another line."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path = _NEEDLESS_ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), raw[:_MOST_READ])
    shown = without_keys(path.decode("ascii", errors="replace"), scope)
    plain = unquote(shown)  # a key may have characters such as + and /, which clients write as escapes
    if (hidden := without_keys(plain, scope)) != plain:
        shown = quote(hidden)
    return shown[:_LONGEST_PATH]


def without_keys(text: str, scope: Scope) -> str:
    """Return what a client sent without API keys: those of the server, that of the request, and what looks like one.

    RuntimeError for a request whose scope does not say how the server's keys are hidden, as RequestContext makes it do.
    """
    hide_keys: Callable[[str], str] | None = scope.get("state", {}).get("hide_keys")
    if hide_keys is None:
        raise RuntimeError("no `hide_keys` for what a client sent: its request has not come through RequestContext")
    text = hide_keys(text)
    with contextlib.suppress(APIError):
        if len(key := presented_key(Headers(scope=scope))) >= SHORTEST_HIDDEN:
            text = text.replace(key, "...")
    return _KEY.sub(r"\1-...", text)


def clients_trace(scope: Scope) -> TraceContext | None:
    """Return the trace context that a request's client sent; None if there is none, or if its ids are an API key."""
    trace = trace_context(Headers(scope=scope).get("traceparent", ""))
    if trace is None or any(without_keys(each, scope) != each for each in (trace.trace_id, trace.parent_id)):
        return None
    return trace
