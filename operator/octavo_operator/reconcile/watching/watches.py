"""The watches, by kopf: they fill the indexes and queue the keys that changed. All decisions are made elsewhere.

Only `on.event` and `index` handlers are used: they write no annotations and need no finalizers. The indexes are our own
(`indexes`); kopf's empty ones have it wait, before it reports the first LLMService, until all kinds have been listed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import kopf

from octavo_operator.api.names import FIELD_MANAGER, SERVICE_LABEL
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.health import Heartbeat
from octavo_operator.reconcile.kinds import LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import Index, Key, key_of
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.watching import kopf_toggles, list_and_watch, watch_errors
from octavo_operator.reconcile.watching.discovery import WatchesOutdatedError
from octavo_operator.reconcile.watching.indexes import Indexes

logger = logging.getLogger(__name__)

_SERVER_TIMEOUT_SECONDS = 300  # a watch is opened again after this time
_CLIENT_TIMEOUT_SECONDS = 330  # and also where the API server, or what is between, does not answer any more
RELIST_SECONDS = 2.0
"""The pause before all objects of a kind are listed again, as after 410 Gone. An API server whose history ends too soon
answers each watch so, and kopf's own pause, 0.1 s, would keep it busy with lists.
"""
PAGE = 250
"""The objects in one answer to a list, as whole objects in memory at a time: some MiB."""
_IDLE_SECONDS = 0.5
_FAILED_SECONDS = 1.0
WIND_UP_SECONDS = 10.0
"""The time that kopf may take to end its watches; it has no limit of its own."""
_KOPF = f"{Path(kopf.__file__).parent}{os.sep}"
_BACKOFFS = (1, 1, 2, 3, 5, 8, 13)
_LAST_BACKOFF = 20
kopf_toggles.use_in_kopf()
list_and_watch.use_in_kopf()
watch_errors.use_in_kopf()


class WatchesHangError(Exception):
    """The watches have failed, or were asked to end, and have not ended in time."""


class WatchFailedError(WatchesOutdatedError):
    """A watch has ended with an error, for example because etcd has no leader or the CRD was deleted."""


class Indexed:
    """The namespaces whose indexes are complete and queued: before that, an index shows only a part of the cluster."""

    def __init__(self) -> None:
        self._namespaces: set[str] = set()
        self.begun = asyncio.Event()
        """Set with the first of them."""

    def add(self, namespaces: Sequence[str]) -> None:
        """Note that the indexes of these namespaces are complete."""
        self._namespaces.update(namespaces)
        self.begun.set()

    @property
    def namespaces(self) -> frozenset[str]:
        """Return these namespaces ("": the whole cluster) as they are now."""
        return frozenset(self._namespaces)

    def __contains__(self, namespace: object) -> bool:
        return "" in self._namespaces or namespace in self._namespaces


class _EndlessBackoffs:
    """Seconds between the attempts of one request of kopf, forever.

    At the end of a finite list one request that is refused, in one namespace, would end all watches.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(_BACKOFFS, itertools.repeat(_LAST_BACKOFF))


class _NoDifferences(kopf.DiffBaseStorage):
    """Finds no difference between two versions of an object, as no handler here asks for any.

    kopf would copy each object for it, a tenth of all work while 1,000 LLMServices are created.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None: ...


class _NotKopfs:
    """The tasks of the event loop that do not run kopf's code.

    When it ends, kopf cancels all tasks but those that it is to ignore, taking what has begun since its start for its
    own: a connection to /healthz or /metrics that is kept alive would stay open, and answer nothing any more.
    """

    def __contains__(self, task: asyncio.Task[Any]) -> bool:
        code = getattr(task.get_coro(), "cr_code", None)
        return code is None or not code.co_filename.startswith(_KOPF)


@dataclass(frozen=True)
class Watches:
    """Watches of several kinds in several namespaces; all kinds but LLMServices are selected by our label."""

    cluster: Cluster
    queue: WorkQueue[Key]
    heartbeat: Heartbeat
    namespaces: Sequence[str]
    """An empty name is the whole cluster."""
    kinds: Sequence[Kind]
    """LLMServices are among them."""
    indexes: dict[str, Index]
    """By the kinds' plurals; shared with the watches of other namespaces, as the next one."""
    indexed: Indexed = field(default_factory=Indexed)

    async def run(self, started: Callable[[], None]) -> None:
        """Fill `indexes` and queue the owner of whatever changes, until cancelled.

        `started` is called when kopf has put its own signal handlers in place. WatchesHangError if kopf has failed, or
        this was cancelled, and not all of kopf has ended after WIND_UP_SECONDS. WatchFailedError if a watch has.
        """
        identity: Any = FIELD_MANAGER  # kopf would ask the system for the user's name, and a pod's uid has none
        everywhere = "" in self.namespaces
        filled = Indexes(self.kinds, self.namespaces, self._note_change, self._note_complete)
        for plural, index in filled.by_plural.items():
            joined: Any = self.indexes.setdefault(plural, cast(Index, ChainMap()))
            joined.maps.append(index)
        parts = await kopf.spawn_tasks(
            identity=identity,
            registry=self._registry(),
            settings=self._settings(filled),
            standalone=True,
            clusterwide=everywhere,
            namespaces=[] if everywhere else list(self.namespaces),
        )
        started()
        ours: Any = _NotKopfs()
        running = asyncio.ensure_future(kopf.run_tasks(parts, ignored=ours))
        try:
            await asyncio.wait({running, *parts}, return_when=asyncio.FIRST_COMPLETED)  # no part ends by itself
        except asyncio.CancelledError:
            running.cancel()
            await _wound_up(running)
            raise
        await _wound_up(running)
        try:
            running.result()
        except Exception as error:
            await asyncio.sleep(_FAILED_SECONDS)
            raise WatchFailedError(f"a watch has failed: {watch_errors.sentence_of(error)}") from error

    def _settings(self, sink: list_and_watch.Sink) -> kopf.OperatorSettings:
        settings = list_and_watch.Settings(sink)
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = _NoDifferences()
        settings.scanning.disabled = True  # the CRD is waited for; neither CRDs nor namespaces need to be watched
        # kopf keeps a worker for an object until that has been idle a while; with a limit, others would wait for it.
        settings.queueing.worker_limit = None
        settings.queueing.idle_timeout = _IDLE_SECONDS
        settings.watching.server_timeout = _SERVER_TIMEOUT_SECONDS
        settings.watching.client_timeout = _CLIENT_TIMEOUT_SECONDS
        settings.watching.reconnect_backoff = RELIST_SECONDS
        settings.watching.chunk_size = PAGE
        settings.networking.error_backoffs = _EndlessBackoffs()
        for kind in self.kinds:
            if kind is not LLMSERVICE:
                settings.watching.label_selectors[kind.plural] = SERVICE_LABEL
        return settings

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry, id="login")
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(**await self.cluster.server.credentials())

        for kind in self.kinds:
            group, _, version = kind.api_version.rpartition("/")
            kopf.index(group, version, kind.plural, registry=registry, id=kind.plural)(_index_nothing)
            kopf.on.event(group, version, kind.plural, registry=registry, id=f"changed-{kind.plural}")(self._changed)
        return registry

    async def _changed(self, body: Any, **_: Any) -> None:
        """Queue an LLMService; kopf calls this once all kinds have been listed, and for no other kind."""
        self.heartbeat.beat()
        if key := key_of(LLMSERVICE, body):
            self.queue.add(key, urgent=_was_changed(body))

    def _note_change(self, owner: Key) -> None:
        """Queue the owner of a child; before all is listed its LLMService is queued by `_changed` again."""
        self.heartbeat.beat()
        self.queue.add(owner)

    def _note_complete(self) -> None:
        self.indexed.add(self.namespaces)


async def _index_nothing(**_: Any) -> None: ...


async def _wound_up(running: asyncio.Future[None]) -> None:
    await asyncio.wait({running}, timeout=WIND_UP_SECONDS)
    if not running.done():
        raise WatchesHangError(f"the watches have not ended within {WIND_UP_SECONDS:.0f} s")


def _was_changed(body: Any) -> bool:
    """Return True if the spec of an LLMService that was seen before has changed: a user waits for the result."""
    looked_at = value_at(body.get("status"), int, "observedGeneration")
    return looked_at is not None and looked_at != body["metadata"].get("generation")
