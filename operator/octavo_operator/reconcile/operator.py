"""kopf as glue: its watches fill the indexes and name the keys that changed. All thinking is elsewhere.

Only `on.event` and `index` handlers are used: they write no annotations and need no finalizers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kopf

from octavo_operator.api.names import FIELD_MANAGER, SERVICE_LABEL
from octavo_operator.reconcile.apply import Cluster
from octavo_operator.reconcile.health import serve_health
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observe import Index, Key, key_of, trimmed
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.render import RenderConfig

logger = logging.getLogger(__name__)

WORKERS = 8
RESYNC_SECONDS = 600.0


@dataclass(frozen=True)
class OperatorOptions:
    """How to run. `namespaces` empty: the whole cluster. `health_port` 0: no health endpoint."""

    engine_image: str
    namespaces: Sequence[str] = ()
    health_port: int = 8080


async def run(options: OperatorOptions) -> None:
    """Runs until SIGINT or SIGTERM. Any part that fails ends the whole: Kubernetes starts it again."""
    cluster = await Cluster.connect()
    try:
        await cluster.wait_for_crd()
        queue: WorkQueue[Key] = WorkQueue()
        indexes: dict[str, Index] = {}
        reconciler = Reconciler(cluster, indexes, RenderConfig(options.engine_image))
        background = [
            *(asyncio.create_task(queue.work(reconciler.reconcile)) for _ in range(WORKERS)),
            asyncio.create_task(_resync(reconciler, queue, indexes)),
            asyncio.create_task(serve_health(queue, options.health_port)),
        ]
        watching = asyncio.create_task(_watch(options, cluster, queue, indexes))
        done, _ = await asyncio.wait([watching, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in (watching, *background):
            task.cancel()
        await asyncio.gather(watching, *background, return_exceptions=True)
        for task in done:
            task.result()
    finally:
        await cluster.close()


async def _watch(options: OperatorOptions, cluster: Cluster, queue: WorkQueue[Key], indexes: dict[str, Index]) -> None:
    identity: Any = FIELD_MANAGER  # kopf would ask the system for the user's name, and a pod's uid has none
    await kopf.operator(
        identity=identity,
        registry=_registry(cluster, queue, indexes),
        settings=_settings(),
        standalone=True,
        clusterwide=not options.namespaces,
        namespaces=list(options.namespaces),
    )


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the CRD is waited for; neither CRDs nor namespaces need to be watched
    settings.queueing.worker_limit = 50
    settings.watching.server_timeout = 300
    for kind in (*CHILDREN, POD):
        settings.watching.label_selectors[kind.plural] = SERVICE_LABEL
    return settings


def _registry(cluster: Cluster, queue: WorkQueue[Key], indexes: dict[str, Index]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry, id="indexes")
    async def take_indexes(**kwargs: Any) -> None:
        indexes.update({kind.plural: kwargs[kind.plural] for kind in (LLMSERVICE, *CHILDREN, POD)})

    @kopf.on.login(registry=registry, id="login")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await cluster.credentials())

    for kind in (LLMSERVICE, *CHILDREN, POD):
        _follow(registry, kind, queue)
    return registry


def _follow(registry: kopf.OperatorRegistry, kind: Kind, queue: WorkQueue[Key]) -> None:
    """Keeps an index of `kind` and queues the owner of whatever changes."""
    group, _, version = kind.api_version.rpartition("/")

    @kopf.index(group, version, kind.plural, registry=registry, id=kind.plural)
    async def index(body: Any, **_: Any) -> dict[Key, Any] | None:
        key = key_of(kind, body)
        return {key: trimmed(kind, dict(body))} if key else None

    @kopf.on.event(group, version, kind.plural, registry=registry, id=f"changed-{kind.plural}")
    async def changed(body: Any, **_: Any) -> None:
        if key := key_of(kind, body):
            queue.add(key)


async def _resync(reconciler: Reconciler, queue: WorkQueue[Key], indexes: dict[str, Index]) -> None:
    """Looks at everything again from time to time, in case an event was missed."""
    while True:
        await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.9, 1.1))
        reconciler.forget()
        for key in list(indexes[LLMSERVICE.plural]):
            queue.add(key)
