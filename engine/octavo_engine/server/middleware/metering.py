"""The limits of API keys, against which a request counts before its body is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_engine.server.admission.auth import Key, key_of
from octavo_engine.server.admission.limits import Arrival


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
