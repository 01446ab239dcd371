"""kopf as glue: its watches fill the indexes and name the keys that changed. All thinking is elsewhere.

Only `on.event` and `index` handlers are used: they write no annotations and need no finalizers.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import kopf

from octavo_operator.api.names import FIELD_MANAGER, SERVICE_LABEL
from octavo_operator.reconcile.apply import Cluster
from octavo_operator.reconcile.health import Heartbeat, serve_health
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observe import Index, Key, key_of, trimmed
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.resync import Resync
from octavo_operator.render import RenderConfig

WORKERS = 8


@dataclass(frozen=True)
class OperatorOptions:
    """How to run. `namespaces` empty: the whole cluster. `health_port` 0: no health endpoint."""

    engine_image: str
    namespaces: Sequence[str] = ()
    health_port: int = 8080


async def run(options: OperatorOptions) -> None:
    """Runs until SIGINT or SIGTERM. Any part that fails ends the whole: Kubernetes starts it again."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # kopf's own are there only once it runs
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    queue: WorkQueue[Key] = WorkQueue()
    heartbeat = Heartbeat()
    health = await serve_health(queue, heartbeat, options.health_port)
    cluster = await Cluster.connect()
    try:
        await _first_of(stop.wait(), _start(options, cluster, queue, heartbeat, stop))
    finally:
        await cluster.close()
        if health:
            await health.cleanup()


async def _start(
    options: OperatorOptions, cluster: Cluster, queue: WorkQueue[Key], heartbeat: Heartbeat, stop: asyncio.Event
) -> None:
    await cluster.wait_for_crd()
    heartbeat.beat()
    indexes: dict[str, Index] = {}
    reconciler = Reconciler(cluster, indexes, RenderConfig(options.engine_image))
    resync = Resync(cluster, options.namespaces, indexes, queue, heartbeat)
    registry = _registry(cluster, queue, indexes, heartbeat)
    await _first_of(
        _watch(options, registry, stop),
        resync.run(reconciler),
        *(queue.work(reconciler.reconcile) for _ in range(WORKERS)),
    )


async def _first_of(*parts: Coroutine[Any, Any, Any]) -> None:
    """Runs the parts until one ends, ends the others, and raises what the first one raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _watch(options: OperatorOptions, registry: kopf.OperatorRegistry, stop: asyncio.Event) -> None:
    identity: Any = FIELD_MANAGER  # kopf would ask the system for the user's name, and a pod's uid has none
    await kopf.operator(
        identity=identity,
        registry=registry,
        settings=_settings(),
        stop_flag=stop,
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


def _registry(
    cluster: Cluster, queue: WorkQueue[Key], indexes: dict[str, Index], heartbeat: Heartbeat
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry, id="indexes")
    async def take_indexes(**kwargs: Any) -> None:
        indexes.update({kind.plural: kwargs[kind.plural] for kind in (LLMSERVICE, *CHILDREN, POD)})

    @kopf.on.login(registry=registry, id="login")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await cluster.credentials())

    for kind in (LLMSERVICE, *CHILDREN, POD):
        _follow(registry, kind, queue, heartbeat)
    return registry


def _follow(registry: kopf.OperatorRegistry, kind: Kind, queue: WorkQueue[Key], heartbeat: Heartbeat) -> None:
    """Keeps an index of `kind` and queues the owner of whatever changes."""
    group, _, version = kind.api_version.rpartition("/")

    @kopf.index(group, version, kind.plural, registry=registry, id=kind.plural)
    async def index(body: Any, **_: Any) -> dict[Key, Any] | None:
        key = key_of(kind, body)
        return {key: trimmed(kind, dict(body))} if key else None

    @kopf.on.event(group, version, kind.plural, registry=registry, id=f"changed-{kind.plural}")
    async def changed(body: Any, **_: Any) -> None:
        heartbeat.beat()
        if key := key_of(kind, body):
            queue.add(key)
