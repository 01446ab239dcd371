"""The answer to one line of a batch, from the same endpoints as other requests, called within the process."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, replace

from starlette.types import ASGIApp, Message, Scope

from octavo_engine.server.auth import ANYONE, Key
from octavo_engine.server.errors import APIError, internal_error
from octavo_engine.server.middleware import Upload
from octavo_engine.server.serving import Serving

LOWEST_PRIORITY = 1000
_FULL = (429, 503)
"""Answers that mean: later."""
_LONGEST_PAUSE = 60.0
_LOOK_AGAIN = 0.05
"""Seconds until the next look whether there is room."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint answered."""

    status: int
    request_id: str
    body: bytes
    retry_after: float


class Gate:
    """Lets a line begin only when no request waits, and only while at most half of --max-num-seqs are in use.

    So every other request finds a free slot at once. Lines of several batches take turns.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._turn = asyncio.Lock()
        self._running = 0

    async def __aenter__(self) -> None:
        async with self._turn:
            while not self._room():
                await asyncio.sleep(_LOOK_AGAIN)
            self._running += 1

    async def __aexit__(self, *_: object) -> None:
        self._running -= 1

    def _room(self) -> bool:
        serving = self._serving
        info = serving.engine.state.ready
        if not serving.loaded or serving.draining or info is None:
            return False
        used = max(self._running, serving.engine.state.stats.running)
        return used < max(1, info.max_num_seqs // 2) and serving.admission.queued == 0


class LineAnswers:
    """Asks the application, with a key's rights and limits, in the lowest class of the scheduler."""

    def __init__(self, serving: Serving, app: ASGIApp) -> None:
        self._serving, self._app = serving, app
        self._gate = Gate(serving)

    async def ask(self, key_name: str, path: str, body: bytes) -> Answer:
        """The answer to a body, however long the server is full; APIError if the key does not exist any more."""
        while True:
            async with self._gate:
                answer = await self._ask_once(self._key(key_name), path, body)
            if answer.status not in _FULL:
                return answer
            await asyncio.sleep(min(_LONGEST_PAUSE, answer.retry_after))

    def _key(self, name: str) -> Key:
        keys = self._serving.keys
        key = keys.named(name) if keys is not None else ANYONE if not name else None
        if key is None:
            raise APIError(403, "the API key of this batch is not known here any more", code="key_removed")
        return replace(key, priority=LOWEST_PRIORITY)

    async def _ask_once(self, key: Key, path: str, body: bytes) -> Answer:
        request_id = uuid.uuid4().hex
        upload = Upload(self._serving.uploads.hold(key))
        try:
            upload.add(body)
            return await self._call(_scope(key, path, request_id, upload), request_id)
        except APIError as error:
            return Answer(error.status, request_id, error.body(), float(error.headers.get("Retry-After", 1)))
        except Exception:  # noqa: BLE001  (the application has logged it and answered 500 already)
            return Answer(500, request_id, internal_error(request_id).body(), 1.0)
        finally:
            upload.release()

    async def _call(self, scope: Scope, request_id: str) -> Answer:
        started: Message = {}
        parts: list[bytes] = []

        async def receive() -> Message:
            await asyncio.Event().wait()  # nobody goes away
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        headers = {name.lower(): value for name, value in started["headers"]}
        return Answer(started["status"], request_id, b"".join(parts), float(headers.get(b"retry-after", b"1")))


def _scope(key: Key, path: str, request_id: str, upload: Upload) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "state": {"key": key, "request_id": request_id, "trace": None, "upload": upload},
    }
