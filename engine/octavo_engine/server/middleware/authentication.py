"""API keys: every path but the open ones needs one, and keys take turns to begin requests."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_engine.server.admission.auth import ANYONE, Key, KeyRing, presented_key, unauthorized
from octavo_engine.server.admission.pacer import Pacer
from octavo_engine.server.errors import APIError

BEGUN_AT_ONCE = 4
"""Requests that may begin in one iteration of the server's event loop; API keys take turns.

Otherwise very many requests at once would hold up all streams, even if each costs next to nothing or is refused. All
requests without a known key take turns as if they had one key.
"""


class Authentication:
    """Requires a valid API key for every path outside `open_paths`, whether the path exists or not.

    The path is `scope["path"]`, where %-escapes are decoded: the same string that the router matches.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing | None,
        open_paths: frozenset[str],
        on_reject: Callable[[], None],
        pacer: Pacer,
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._on_reject = on_reject
        self._pacer = pacer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise APIError(404, "this server speaks HTTP only", code="not_found")
        if self._keys is None or scope["path"] in self._open_paths:
            await self._pacer.wait(ANYONE)
        else:
            scope.setdefault("state", {})["key"] = await self._key(scope, self._keys)
        return await self._app(scope, receive, send)

    async def _key(self, scope: Scope, keys: KeyRing) -> Key:
        key, refused = None, unauthorized("this API key is not valid")
        try:
            key = keys.owner_of(presented_key(Headers(scope=scope)))
        except APIError as error:
            refused = error
        await self._pacer.wait(key or ANYONE)
        if key is None:
            self._on_reject()
            try:
                raise refused
            finally:
                del refused  # it refers to this frame, which would otherwise live until the next garbage collection
        return key


class PacedPreflights:
    """Lets browsers' preflight requests wait for their turn: CORS answers them before all other middleware."""

    def __init__(self, app: ASGIApp, pacer: Pacer) -> None:
        self._app, self._pacer = app, pacer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            await self._pacer.wait(ANYONE)
        await self._app(scope, receive, send)
