"""Lists and watches one kind as client-go's reflector does; kopf 1.45 does four things otherwise.

Where a watch cannot go on, as after a restart of the API server (410 Gone), all objects are listed again. kopf reports
what is listed, and forgets what is not: an object deleted meanwhile stayed in the indexes until the next resync, up to
ten minutes, and an operator that followed meanwhile would have made the children of a deleted LLMService again. A watch
that is ended at once is opened again at once, hundreds of times a second. A task that is cancelled while a watch is
being opened goes on, so that the watches as a whole did not end, and the process ended for it. And kopf keeps each
object that it lists, in a task of its own, until it has listed all kinds: at 1,000 LLMServices the operator took
316 MiB. So objects go straight to a sink, which keeps what is read of them, and kopf gets the LLMServices alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

import kopf
from kopf._cogs.clients import errors, watching

from octavo_operator.reconcile.kinds import ALL, LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import Object

SHORTEST_SECONDS = 1.0
"""From the start of one watch to that of the next at least."""
_WATCH = watching.watch_objs
_KINDS = {kind.plural: kind for kind in ALL}


class Sink(Protocol):
    """Takes what the watches report."""

    def take(self, kind: Kind, body: Object) -> Object:
        """Note an object as it is now; return what is kept of it."""

    def drop(self, kind: Kind, uid: str) -> Object | None:
        """Note that an object is gone; return what was kept of it, None if nothing was."""

    def listed(self, kind: Kind, namespace: str) -> None:
        """Note that all objects of a kind in a namespace ("": in all) have been taken."""


class Settings(kopf.OperatorSettings):
    """kopf's settings, with the sink of the watches that are opened by them."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink


async def infinite_watch(
    *, settings: Settings, resource: Any, namespace: Any, operator_paused: Any = None
) -> AsyncIterator[Any]:
    """Watch a kind forever, and yield kopf's events of LLMServices, and of each kind when it has been listed."""
    kind, sink = _KINDS[resource.plural], settings.sink
    known: set[str] = set()
    while True:
        where = {"resource": resource, "namespace": namespace}
        async with watching.streaming_block(**where, operator_paused=operator_paused) as pause:
            listed: set[str] = set()
            try:
                async for event in watching.continuous_watch(settings=settings, **where, operator_pause_waiter=pause):
                    if event is watching.Bookmark.LISTED:
                        gone, known = known - listed, listed
                        for uid in gone:
                            if passed_on := _dropped(kind, uid, sink):
                                yield passed_on
                        sink.listed(kind, namespace or "")
                        yield event
                    elif passed_on := _noted(event, kind, sink, known, listed):
                        yield passed_on
            except errors.APITooManyRequestsError:
                pass  # its own attempts have ended: it is asked again
        if (task := asyncio.current_task()) and task.cancelling():
            raise asyncio.CancelledError
        await asyncio.sleep(settings.watching.reconnect_backoff)


def _noted(event: Any, kind: Kind, sink: Sink, known: set[str], listed: set[str]) -> dict[str, Any] | None:
    """Note what an event, which has the type None for what a list has, says; return what of it is for kopf."""
    body = event["object"]
    uid = body["metadata"].get("uid")
    if uid is None:  # a bookmark
        return None
    if event["type"] == "DELETED":
        known.discard(uid)
        return _dropped(kind, uid, sink)
    known.add(uid)
    listed.add(uid)
    kept = sink.take(kind, body)
    return {"type": event["type"], "object": kept} if kind is LLMSERVICE else None


def _dropped(kind: Kind, uid: str, sink: Sink) -> dict[str, Any] | None:
    body = sink.drop(kind, uid)
    return {"type": "DELETED", "object": body} if body and kind is LLMSERVICE else None


async def watch_objs(**arguments: Any) -> AsyncIterator[Any]:
    """Yield the events of one watch of kopf, and return after SHORTEST_SECONDS at the earliest."""
    began = time.monotonic()
    async for event in _WATCH(**arguments):
        yield event
    await asyncio.sleep(max(0.0, began + SHORTEST_SECONDS - time.monotonic()))


def use_in_kopf() -> None:
    """Let kopf list and watch so from now on; it has no setting for it."""
    module: Any = watching
    module.infinite_watch, module.watch_objs = infinite_watch, watch_objs
