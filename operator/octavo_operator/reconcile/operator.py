"""The operator's process: a lease says which replica leads, watches report what changes, workers act on it.

Every replica watches, so that one that follows knows everything when it has to lead; only the leader works and writes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from octavo_operator.api.engine_defaults import NO_DEFAULTS, EngineDefaults
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.external_metrics import others_answer, watch_answerer
from octavo_operator.reconcile.health import Heartbeat, problem, serve_health
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, OBSERVED, Kind
from octavo_operator.reconcile.lease import Lease
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observation.observe import Index, Key, Object
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.polling.adapter_watch import AdapterWatch
from octavo_operator.reconcile.polling.loading import LoadWatch
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.status.facts import PATIENCE_SECONDS
from octavo_operator.reconcile.status.remembered import Remembered
from octavo_operator.reconcile.unavailable_metrics_api import watch_metrics_api
from octavo_operator.reconcile.watching.discovery import WatchesOutdatedError, present_kinds, watch_kinds
from octavo_operator.reconcile.watching.foreign_objects import ForeignObjectWatch
from octavo_operator.reconcile.watching.resync import Resync, WatchLostError
from octavo_operator.reconcile.watching.watch_errors import is_expected
from octavo_operator.reconcile.watching.watched import Watched
from octavo_operator.reconcile.watching.watched_namespaces import WatchedNamespaces, watch_namespaces
from octavo_operator.reconcile.watching.watches import Indexed, Watches, WatchesHangError, WatchFailedError
from octavo_operator.render import RenderConfig

WORKERS = 8
REOPEN_SECONDS = 5.0
_MOST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0
"""Watches that fail after so long have worked: they are reopened at once."""
logger = logging.getLogger(__name__)


class Scaler(Protocol):
    """Scales Deployments; `reports` say what a HorizontalPodAutoscaler's status would, by LLMService."""

    @property
    def reports(self) -> Mapping[Key, Object]:
        """The reports of those LLMServices that it scales."""

    async def run(self) -> None:
        """Scale until the task is cancelled."""


MakeScaler = Callable[[Cluster, Mapping[str, Index], WorkQueue[Key]], Scaler]


@dataclass(frozen=True)
class OperatorOptions:
    """The options of the operator."""

    engine_image: str
    namespaces: Sequence[str] = ()
    """Empty: the whole cluster."""
    health_port: int = 8080
    """0: no health endpoint."""
    lease: tuple[str, str] | None = None
    """Namespace and name of the Lease by which replicas agree who leads; None: this one always leads."""
    metrics_url: str = ""
    """Octavo's metrics API, as KEDA reaches it; empty: there is none."""
    host_paths: frozenset[str] = frozenset()
    """The folders of nodes that spec.cache.hostPath may name."""
    engine_defaults: EngineDefaults = NO_DEFAULTS
    """The fields that the administrator sets for all engines."""
    scaler: MakeScaler | None = None
    """What scales instead of HorizontalPodAutoscalers; None: these do."""
    slice_managers: frozenset[str] = frozenset()
    """The managers whose EndpointSlices may send a model's requests elsewhere."""
    node_wait: float = PATIENCE_SECONDS
    """Seconds for which a pod may find no node before its LLMService is reported as stalled."""


@dataclass(frozen=True)
class _Process:
    """The objects that live as long as the process."""

    options: OperatorOptions
    cluster: Cluster
    queue: WorkQueue[Key]
    heartbeat: Heartbeat
    namespaces: WatchedNamespaces
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    remembered: Remembered = field(default_factory=Remembered)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    leads: asyncio.Event = field(default_factory=asyncio.Event)


async def run(options: OperatorOptions) -> None:
    """Run until SIGINT or SIGTERM. Any part that fails ends the whole: Kubernetes starts it again.

    Parts that do not end when they are cancelled are left behind: WatchesHangError.
    """
    metrics = OperatorMetrics()
    queue = WorkQueue[Key](metrics.reconciled, group_of=lambda key: key[0])
    namespaces = WatchedNamespaces(options.namespaces)
    process = _Process(options, await Cluster.connect(), queue, Heartbeat(), namespaces, metrics)
    _stop_on_signals(process.stop)
    metrics.read_from(process.queue, process.heartbeat)
    metrics.read_namespaces(namespaces)
    metrics.read_rights(process.cluster.server.missing_rights)
    process.cluster.server.wrote = metrics.wrote
    wrong = functools.partial(problem, process.queue, process.heartbeat)
    lease = Lease(process.cluster, *options.lease) if options.lease else None
    health = await serve_health(options.health_port, wrong, lambda: _problems(process, lease), metrics.render)
    try:
        await _first_of(process.stop.wait(), _lead(process, lease), _serve_for_ever(process))
    finally:
        if lease:  # all work has ended
            await lease.release()
        await process.cluster.close()
        if health:
            await health.cleanup()


def _problems(process: _Process, lease: Lease | None) -> list[str]:
    """Return problems that no restart fixes, as sentences."""
    cluster = process.cluster
    known = filter(None, (lease.problem if lease else "", cluster.crd_problem))
    return [*known, *process.namespaces.problems, *cluster.server.missing_rights.problems]


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Replace kopf's handlers too: kopf waits five seconds for tasks, and no replica would lead meanwhile."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _lead(process: _Process, lease: Lease | None) -> None:
    """Acquire the lease and keep it; raises LeaseLostError once another replica may lead."""
    if lease:
        process.cluster.server.may_write_for = lease.seconds_left
        await lease.acquire()
    process.metrics.leads()
    process.leads.set()
    await (lease.keep() if lease else asyncio.Event().wait())


async def _serve_for_ever(process: _Process) -> None:
    """Watch and work until stopped; reopen the watches when CRDs or rights change, or when a watch fails.

    Each opening lists the whole cluster, so where watches fail again and again the pauses between grow.
    """
    pause = 0.0
    while True:
        await process.cluster.wait_for_crd(process.heartbeat.beat)
        began = time.monotonic()
        try:
            return await _serve(process)
        except WatchFailedError as failure:
            pause = pause if time.monotonic() - began < _STEADY_SECONDS else 0.0
            unexpected = None if is_expected(failure.__cause__) else failure
            logger.warning("%s; reopening the watches in %.0f s", failure, pause, exc_info=unexpected)
            await asyncio.sleep(pause)
            pause = min(_MOST_PAUSE_SECONDS, 2 * pause + 1)
        except WatchLostError as lost:
            logger.warning("%s; reopening the watches", lost)
        except WatchesOutdatedError as change:
            logger.info("%s; reopening the watches", change)
        except ApiError as error:  # each part handles those of its own: it has failed before the watches were opened
            logger.warning("cannot open the watches, trying again in %.0f s: %s", REOPEN_SECONDS, error)
            await asyncio.sleep(REOPEN_SECONDS)
        process.queue.clear()  # the new watches name every LLMService again, once they know all that belongs to it
        _stop_on_signals(process.stop)


async def _serve(process: _Process) -> None:
    """Watch and work until stopped.

    WatchesOutdatedError if a CRD comes or goes that decides what is made, something else can be read than before, or a
    watch has failed.
    """
    cluster, options = process.cluster, process.options
    optional = await present_kinds(cluster)
    others = await others_answer(cluster, options.metrics_url) or False
    kinds = (LLMSERVICE, *CHILDREN, *optional, *OBSERVED)
    await process.namespaces.probe(cluster, kinds)
    changes = (
        watch_kinds(cluster, optional),
        watch_answerer(cluster, options.metrics_url, others),
        watch_namespaces(cluster, process.namespaces, kinds, cluster.server.missing_rights.lately),
    )
    present = frozenset(kind.name for kind in optional)
    config = RenderConfig(
        options.engine_image,
        present,
        metrics_url=options.metrics_url,
        others_answer=others,
        host_paths=options.host_paths,
        defaults=options.engine_defaults,
        scales_directly=options.scaler is not None,
    )
    if options.lease:  # the Lease is in the namespace in which the operator runs
        config = replace(config, operator_namespace=options.lease[0])
    parts = _parts(process, kinds, config) if process.namespaces.readable else ()
    if not parts:
        process.metrics.read_services({})  # otherwise the LLMServices that were seen last would be shown for ever
    await _first_of(*changes, *parts)


def _parts(process: _Process, kinds: Sequence[Kind], config: RenderConfig) -> Sequence[Coroutine[Any, Any, Any]]:
    """Return the tasks that look after the namespaces that can be read; they run concurrently."""
    cluster, queue, heartbeat = process.cluster, process.queue, process.heartbeat
    groups, indexes, indexed = process.namespaces.groups(kinds), dict[str, Index](), Indexed()
    process.metrics.read_services(indexes)
    watches = [
        Watches(cluster, queue, heartbeat, namespaces, kinds_there, indexes, indexed)
        for kinds_there, namespaces in groups.items()
    ]
    readable = {
        kind: [each for there, namespaces in groups.items() if kind in there for each in namespaces] for kind in kinds
    }
    watched = Watched({kind: namespaces for kind, namespaces in readable.items() if namespaces}, indexes, queue)
    loading, adapters = LoadWatch(indexes, queue), AdapterWatch(indexes, queue)
    make_scaler = process.options.scaler
    scaler = make_scaler(cluster, indexes, queue) if make_scaler else None
    foreign = ForeignObjectWatch(cluster, watched, indexed, process.options.slice_managers)
    sources = Sources(
        indexes,
        load_reports=loading.reports,
        adapter_reports=adapters.reports,
        unanswered=loading.unanswered,
        scaling=scaler.reports if scaler else {},
        unwatched=process.namespaces.unwatched,
        foreign_problems=foreign.found,
    )
    clock, node_wait = cluster.server.clock.now, process.options.node_wait
    reconciler = Reconciler(cluster, sources, config, clock=clock, node_wait=node_wait, remembered=process.remembered)
    return (
        *(each.run(functools.partial(_stop_on_signals, process.stop)) for each in watches),
        Resync(cluster, watched, heartbeat, process.namespaces.failing, indexed).run(),
        _while_leading(process, loading.run),
        _while_leading(process, adapters.run),
        _once_indexed(process, indexed, foreign.run),
        *([_once_indexed(process, indexed, scaler.run)] if scaler else []),
        *([_keep_discovery_working(process)] if process.options.metrics_url else []),
        *(_work(process, indexed, foreign, reconciler) for _ in range(WORKERS)),
    )


async def _keep_discovery_working(process: _Process) -> None:
    await process.leads.wait()
    await watch_metrics_api(process.cluster, process.options.metrics_url, process.cluster.server.clock.now)


async def _while_leading(process: _Process, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await process.leads.wait()
    await work()


async def _once_indexed(process: _Process, indexed: Indexed, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await process.leads.wait()
    await indexed.begun.wait()
    await work()


async def _work(process: _Process, indexed: Indexed, foreign: ForeignObjectWatch, reconciler: Reconciler) -> None:
    async def reconcile(key: Key) -> float | None:
        if key[0] not in indexed:  # it is queued again once the watches know all that belongs to it
            return None
        await foreign.first_search(key[0])
        return await reconciler.reconcile(key)

    await process.leads.wait()
    await indexed.begun.wait()
    await process.queue.work(reconcile)


async def _first_of(*parts: Coroutine[Any, Any, Any]) -> None:
    """Run the parts until one ends, end the others, and raise what the first one raised.

    WatchesHangError comes first: what has not ended must not be started a second time.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, WatchesHangError):
                raise end
    for task in done:
        task.result()
