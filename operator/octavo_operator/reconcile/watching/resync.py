"""Lists all objects from time to time, in case a watch missed an event or ended unnoticed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Protocol

from octavo_operator.reconcile.api_requests.api_error import HELD_BACK, ApiError
from octavo_operator.reconcile.health import Heartbeat
from octavo_operator.reconcile.kinds import LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.relist import Listing, Missed, count, missed
from octavo_operator.reconcile.watching.discovery import WatchesOutdatedError
from octavo_operator.reconcile.watching.failing_lists import FailingLists, named
from octavo_operator.reconcile.watching.watched import Watched

logger = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
"""The time from the start to the first resync: a CRD that comes and goes just then may leave kopf without a watch of
its kind."""
RESYNC_SECONDS = 600.0
"""The time after which every LLMService is looked at again."""
RETRY_SECONDS = 60.0
"""The pause before LLMServices are listed again, and a kind that could not be listed. LLMServices are few beside their
children, and one whose event was lost would be looked after by nobody.
"""
_OBJECTS, _OBJECTS_OF_A_LIST = 1000, 20
"""All kinds are listed every minute for so many objects in all; each list costs as much as so many objects."""
_REPORTED_ELSEWHERE = 403, 404
"""A right that is missing, and a kind that has gone."""
SETTLE_SECONDS = 30.0  # an event may be on its way; a watch that has not reported it in this time will not


class Lister(Protocol):
    """The API calls that a resync makes."""

    async def list_all(self, kind: Kind, namespace: str) -> Listing:
        """Return all objects of the kind that the watches should know."""


class WatchLostError(WatchesOutdatedError):
    """The watches have missed changes, and will not report them: they must be opened again."""


class Resync:
    """Lists what is `watched`, and compares with the indexes of the watches: LLMServices every minute, and all kinds
    after one to ten minutes, as they cost more or less.

    A kind that cannot be listed is noted as `failing`, and left out; it too is listed again soon. `indexed`: the
    namespaces of which the watches have read all that was there when they were opened.
    """

    def __init__(
        self,
        cluster: Lister,
        watched: Watched,
        heartbeat: Heartbeat,
        failing: FailingLists,
        indexed: Container[str],
    ) -> None:
        self._cluster = cluster
        self._watched = watched
        self._heartbeat = heartbeat
        self._failing = failing
        self._indexed = indexed

    async def run(self) -> None:
        """Resync again and again; raises WatchLostError if the watches stay behind."""
        await _pause(FIRST_SECONDS)
        most, unlisted, left = int(RESYNC_SECONDS / RETRY_SECONDS), set[Kind](), 0
        for number in itertools.count():
            if number % most == 0:
                self._queue(self._watched.indexes.get(LLMSERVICE.plural, {}))
            if left == 0:
                unlisted, left = set(self._watched.namespaces), min(most, self._minutes())
            unlisted = set(await self.once({LLMSERVICE, *unlisted}))
            left -= 1
            await _pause(RETRY_SECONDS)

    def _minutes(self) -> int:
        """Return after how many minutes all kinds are to be listed again."""
        objects = sum(map(count, self._watched.indexes.values()))
        lists = sum(map(len, self._watched.namespaces.values()))
        return 1 + (objects + _OBJECTS_OF_A_LIST * lists) // _OBJECTS

    async def once(self, kinds: Collection[Kind]) -> Collection[Kind]:
        """Compare lists of `kinds` with the watches; WatchLostError names objects that the watches fail to report.

        Return the kinds that could not be listed. Watches that are still reading what was there when they were opened
        are waited for as long as they make progress: opened again, they would begin anew.
        """
        behind, unlisted = await self._compare(kinds)
        while behind:
            await asyncio.sleep(SETTLE_SECONDS)
            again, _ = await self._compare(kinds)
            lost = behind & again
            if lost and (lost == behind or not self._still_reading()):
                examples = ", ".join(sorted(f"{each.kind} of {'/'.join(each.key)}" for each in lost)[:3])
                raise WatchLostError(f"the watches missed {len(lost)} changes ({examples})")
            behind = lost
        return unlisted

    def _still_reading(self) -> bool:
        return any(namespace not in self._indexed for namespace in self._watched.namespaces[LLMSERVICE])

    async def _compare(self, kinds: Collection[Kind]) -> tuple[set[Missed], Collection[Kind]]:
        """Return what the watches have missed of the kinds that can be listed, and the kinds that cannot."""
        behind: set[Missed] = set()
        unlisted: list[Kind] = []
        for kind in kinds:
            listing = await self._listed(kind, self._watched.namespaces[kind])
            if listing is None:
                unlisted.append(kind)
                continue
            behind |= missed(listing, self._watched.indexes.get(kind.plural, {}))
        self._queue({each.key for each in behind})
        return behind, unlisted

    def _queue(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            self._watched.queue.add(key)

    async def _listed(self, kind: Kind, namespaces: Sequence[str]) -> Listing | None:
        """Return all objects of a kind, as of the oldest of the lists; None if one of these has failed."""
        listings: list[Listing] = []
        for namespace in namespaces:
            which = namespace, kind
            try:
                listings.append(await self._cluster.list_all(kind, namespace))
            except ApiError as error:
                what = f"{kind.plural} of {named(namespace)}"
                logger.warning("cannot list %s, retrying in about %.0f s: %s", what, RETRY_SECONDS, error)
                if error.status not in _REPORTED_ELSEWHERE and error.reason != HELD_BACK:
                    self._failing.failed(which, error.message, of_all=True)
                continue
            self._failing.succeeded(which)
            self._heartbeat.beat()
        if len(listings) < len(namespaces):
            return None
        version = min(each.version for each in listings)
        return Listing(kind, version, tuple(item for each in listings for item in each.items))


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds * random.uniform(0.9, 1.1))
