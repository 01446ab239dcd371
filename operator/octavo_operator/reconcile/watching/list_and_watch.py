"""Lists and watches one kind as client-go's reflector does; kopf 1.45 does four things otherwise.

Where a watch cannot go on, as after a restart of the API server (410 Gone), all objects are listed again. kopf reports
what is listed, and forgets what is not: an object deleted meanwhile stayed in the indexes until the next resync, up to
ten minutes, and an operator that followed meanwhile would have made the children of a deleted LLMService again. A watch
that is ended at once is opened again at once, hundreds of times a second. And a task that is cancelled while a watch is
being opened goes on, so that the watches as a whole did not end, and the process ended for it. And kopf keeps all
that it lists, of all kinds, until it has listed everything; of each object only what is read is given to it, since at
1,000 LLMServices the whole objects took more memory than all else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from kopf._cogs.clients import errors, watching

from octavo_operator.reconcile.kinds import ALL, Kind
from octavo_operator.reconcile.observation.observe import Object, trimmed

logger = logging.getLogger(__name__)

SHORTEST_SECONDS = 1.0
"""From the start of one watch to that of the next at least."""
_WATCH = watching.watch_objs
_KINDS = {kind.plural: kind for kind in ALL}
_IDENTITY = ("name", "namespace", "labels", "ownerReferences")
"""The metadata by which the LLMService of an object is found."""
Known = dict[str, tuple[Any, ...]]
"""The values of _IDENTITY of each object that there is, by its uid: little, since there are thousands."""


async def infinite_watch(
    *, settings: Any, resource: Any, namespace: Any, operator_paused: Any = None
) -> AsyncIterator[Any]:
    """Yield kopf's events of a kind forever, and after each list the deletion of what is not there any more."""
    known: Known = {}
    while True:
        where = {"resource": resource, "namespace": namespace}
        async with watching.streaming_block(**where, operator_paused=operator_paused) as pause:
            listed: Known = {}
            try:
                async for event in watching.continuous_watch(settings=settings, **where, operator_pause_waiter=pause):
                    if event is watching.Bookmark.LISTED:
                        for uid in known.keys() - listed.keys():
                            yield _deletion(resource, uid, known.pop(uid))
                        listed = known
                    elif "uid" in event["object"]["metadata"]:  # a bookmark has none
                        _note(event, known, listed)
                        event["object"] = _kept(_KINDS[resource.plural], event["object"])
                    yield event
            except errors.APITooManyRequestsError:
                pass  # its own attempts have ended: it is asked again
        if (task := asyncio.current_task()) and task.cancelling():
            raise asyncio.CancelledError
        await asyncio.sleep(settings.watching.reconnect_backoff)


def _kept(kind: Kind, body: Object) -> Object:
    """Return `trimmed`, or the metadata alone of an object that this version cannot read.

    Without that a resync would take the object for one that the watches have missed, and end the process for ever.
    """
    try:
        return trimmed(kind, body)
    except Exception:
        metadata = body["metadata"]
        logger.exception("cannot read %s %s/%s", kind.name, metadata.get("namespace"), metadata["name"])
        return {"kind": kind.name, "metadata": metadata, "status": {}}


def _deletion(resource: Any, uid: str, identity: tuple[Any, ...]) -> dict[str, Any]:
    metadata = {name: value for name, value in zip(_IDENTITY, identity, strict=True) if value is not None}
    body = {"kind": resource.kind, "metadata": {**metadata, "uid": uid}}
    return {"type": "DELETED", "object": body}


def _note(event: Any, known: Known, listed: Known) -> None:
    """Note what an event, which has the type None for what a list has, says of the objects that there are."""
    metadata = event["object"]["metadata"]
    uid = metadata["uid"]
    if event["type"] == "DELETED":
        known.pop(uid, None)
        return
    known[uid] = listed[uid] = tuple(metadata.get(name) for name in _IDENTITY)


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
