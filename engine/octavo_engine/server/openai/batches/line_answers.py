"""Gets the answer to one line of a batch from the same endpoints as other requests, by a call within the process."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from octavo_engine.server.admission.auth import ANYONE, Key
from octavo_engine.server.admission.fair_pool import FairPool
from octavo_engine.server.errors import APIError, internal_error
from octavo_engine.server.middleware.body_limit import Upload
from octavo_engine.server.openai.batches.storage import on_disk
from octavo_engine.server.serving import Serving

LOWEST_PRIORITY = 1000
_FULL = (429, 503)
"""Statuses of answers after which the line is tried again later."""
_LONGEST_PAUSE = 60.0
_LOOK_AGAIN = 0.05
"""Seconds between two checks whether a line may run, and whether other requests have arrived."""
_BESIDE_OTHERS = 1
"""Lines that run while there are other requests. They hardly slow these down, and the batch still makes progress."""
QUIET_SECONDS = 1.0
"""The time without other requests after which lines may use the whole server."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of an endpoint."""

    status: int
    request_id: str
    body: bytes
    pause: float | None = None
    """Seconds after which the line is tried again; None: this is its answer."""


class Gate:
    """Decides when lines run: up to half of --max-num-seqs while there are no other requests, else only the oldest.

    When another request arrives, all lines but the oldest are aborted, and run again after QUIET_SECONDS without other
    requests. Keys take turns, however many batches one of them has.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._turns: FairPool[None] = FairPool(1, lambda: False)
        self._turns.add(None)
        self._attempts: list[asyncio.Task[Answer]] = []
        """Lines that are being answered, the oldest first."""
        self._others_at = float("-inf")

    async def run(self, key: str, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer | None:
        """Run `work` when its turn has come; None if it was aborted because other requests arrived."""
        await self._turns.acquire(key)
        try:
            while not self.has_room():
                await asyncio.sleep(_LOOK_AGAIN)
            attempt = asyncio.create_task(work())
            self._attempts.append(attempt)
        finally:
            self._turns.release(key, None)
        try:
            while not (await asyncio.wait((attempt,), timeout=_LOOK_AGAIN))[0]:
                if self._others() and attempt not in self._attempts[:_BESIDE_OTHERS]:
                    return None
            return attempt.result()
        finally:
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            self._attempts.remove(attempt)

    def has_room(self) -> bool:
        """Return True if a line may begin."""
        serving = self._serving
        info = serving.engine.state.ready
        if not serving.loaded or serving.draining or info is None:
            return False
        if self._others():
            return len(self._attempts) < _BESIDE_OTHERS and serving.admission.queued == 0
        return len(self._attempts) < max(1, info.max_num_seqs // 2)

    def _others(self) -> bool:
        """Return True if requests other than batch lines run, or ran within the last QUIET_SECONDS."""
        now = time.monotonic()
        if len(self._serving.running) > len(self._attempts):
            self._others_at = now
        return now - self._others_at <= QUIET_SECONDS


class LineAnswers:
    """Gets answers from the application, with the rights and limits of the batch's key and with the lowest priority."""

    def __init__(self, serving: Serving, app: ASGIApp) -> None:
        self._serving, self._app = serving, app
        self.gate = Gate(serving)

    async def ask(self, key_name: str, path: str, read: Callable[[], bytes]) -> Answer:
        """Return the answer to a body, sent again while the server is full; APIError if the key was removed.

        `read` returns the body. It is called in a thread when the line's turn has come, so that no waiting line is in
        memory: sixteen batches may have hundreds of lines that wait, of a megabyte each.
        """
        while True:
            answer = await self.gate.run(key_name, partial(self._ask_once, key_name, path, read))
            if answer is not None:
                if answer.pause is None:
                    return answer
                await asyncio.sleep(min(_LONGEST_PAUSE, answer.pause))

    def _key(self, name: str) -> Key:
        keys = self._serving.keys
        key = keys.named(name) if keys is not None else ANYONE if not name else None
        if key is None:
            raise APIError(403, "the API key of this batch is no longer valid", code="key_removed")
        return replace(key, priority=LOWEST_PRIORITY)

    async def _ask_once(self, key_name: str, path: str, read: Callable[[], bytes]) -> Answer:
        key = self._key(key_name)
        request_id = uuid.uuid4().hex
        upload = Upload(self._serving.uploads.hold(key))
        try:
            upload.add(await on_disk(read))
            return await self._call(self._scope(key, path, request_id, upload), request_id)
        except APIError as error:
            return _answer(error.status, request_id, error.body(), error.headers, error)
        except Exception:  # noqa: BLE001  (the application has logged it and answered 500 already)
            return Answer(500, request_id, internal_error(request_id).body())
        finally:
            upload.release()

    def _scope(self, key: Key, path: str, request_id: str, upload: Upload) -> Scope:
        """Return the scope of a request, as the layers before the application would have left it."""
        hide_keys = self._serving.hide_keys
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
            "state": {"key": key, "request_id": request_id, "trace": None, "upload": upload, "hide_keys": hide_keys},
        }

    async def _call(self, scope: Scope, request_id: str) -> Answer:
        started: Message = {}
        parts: list[bytes] = []

        async def receive() -> Message:
            await asyncio.Event().wait()  # a batch line has no client that could disconnect
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        error: APIError | None = scope["state"].get("error")
        return _answer(started["status"], request_id, b"".join(parts), Headers(raw=started["headers"]), error)


def _answer(status: int, request_id: str, body: bytes, headers: Mapping[str, str], error: APIError | None) -> Answer:
    """Return a response; a line is tried again while the server is full, but not if it was begun and cannot succeed."""
    waited = error is not None and error.detail.code == "queue_timeout"
    retried = status in _FULL and (waited or headers.get("X-Should-Retry") != "false")
    return Answer(status, request_id, body, float(headers.get("Retry-After", 1)) if retried else None)
