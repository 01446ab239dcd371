"""Lists all objects from time to time, in case a watch missed an event or ended unnoticed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Protocol

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.health import Heartbeat
from octavo_operator.reconcile.kinds import LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.relist import Listing, Missed, keys, missed
from octavo_operator.reconcile.watching.watched import Watched

logger = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
"""The time from the start to the first resync: a CRD that comes and goes just then may leave kopf without a watch of
its kind."""
RESYNC_SECONDS = 600.0
RETRY_SECONDS = 60.0
SETTLE_SECONDS = 30.0  # an event may be on its way; a watch that has not reported it in this time will not


class Lister(Protocol):
    """The API calls that a resync makes."""

    async def list_all(self, kind: Kind, namespaces: Sequence[str]) -> Listing:
        """Return all objects of the kind that the watches should know."""


class WatchLostError(Exception):
    """The watches have stopped reporting changes; only a restart of the operator opens new ones."""


class Resync:
    """Lists what is `watched`, compares with the indexes of the watches, and has every LLMService looked at."""

    def __init__(self, cluster: Lister, watched: Watched, heartbeat: Heartbeat) -> None:
        self._cluster = cluster
        self._watched = watched
        self._heartbeat = heartbeat

    async def run(self) -> None:
        """Resync again and again; raises WatchLostError if the watches stay behind."""
        pause = FIRST_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))
            try:
                await self.once()
                pause = RESYNC_SECONDS
            except ApiError as error:
                logger.warning("listing failed, retrying in about %.0f s: %s", RETRY_SECONDS, error)
                pause = RETRY_SECONDS

    async def once(self) -> None:
        """Compare the lists with the watches once; WatchLostError names objects that the watches fail to report."""
        behind = await self._look()
        self._heartbeat.beat()
        if not behind:
            return
        await asyncio.sleep(SETTLE_SECONDS)
        if lost := behind & await self._look():
            examples = ", ".join(sorted(f"{each.kind} of {'/'.join(each.key)}" for each in lost)[:3])
            raise WatchLostError(f"the watches missed {len(lost)} changes ({examples}); starts again")

    async def _look(self) -> set[Missed]:
        behind: set[Missed] = set()
        wanted: set[Key] = set()
        for kind, namespaces in self._watched.namespaces.items():
            listing = await self._cluster.list_all(kind, namespaces)
            behind |= missed(listing, self._watched.indexes.get(kind.plural, {}))
            if kind is LLMSERVICE:
                wanted = keys(listing)
        for key in wanted | set(self._watched.indexes.get(LLMSERVICE.plural, {})) | {each.key for each in behind}:
            self._watched.queue.add(key)
        return behind
