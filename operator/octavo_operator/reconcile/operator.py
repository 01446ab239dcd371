"""The operator's process: a lease says who leads, watches tell what changes, workers act on it.

Every replica watches, so that one that follows knows everything when it has to lead; only the leader works and writes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_operator.reconcile.apply import Cluster
from octavo_operator.reconcile.discovery import KindsChangedError, check_kinds, present_kinds, watch_kinds
from octavo_operator.reconcile.external_metrics import others_answer, watch_answerer
from octavo_operator.reconcile.health import Heartbeat, serve_health, trouble
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, POD
from octavo_operator.reconcile.lease import Lease
from octavo_operator.reconcile.loading import LoadWatch
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observe import Index, Key
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.resync import Resync
from octavo_operator.reconcile.watches import Watches
from octavo_operator.render import RenderConfig

WORKERS = 8
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OperatorOptions:
    """How to run. `namespaces` empty: the whole cluster. `health_port` 0: no health endpoint.

    `lease`: namespace and name of the Lease by which replicas agree who leads; None: this one always leads.
    `metrics_url`: Octavo's metrics API, as KEDA reaches it; empty: there is none.
    """

    engine_image: str
    namespaces: Sequence[str] = ()
    health_port: int = 8080
    lease: tuple[str, str] | None = None
    metrics_url: str = ""


@dataclass(frozen=True)
class _Process:
    """What lives as long as the process."""

    options: OperatorOptions
    cluster: Cluster
    queue: WorkQueue[Key]
    heartbeat: Heartbeat
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    leads: asyncio.Event = field(default_factory=asyncio.Event)


async def run(options: OperatorOptions) -> None:
    """Runs until SIGINT or SIGTERM. Any part that fails ends the whole: Kubernetes starts it again."""
    metrics = OperatorMetrics()
    process = _Process(options, await Cluster.connect(), WorkQueue(metrics.reconciled), Heartbeat())
    _stop_on_signals(process.stop)
    metrics.read_from(process.queue, process.heartbeat)
    process.cluster.wrote = metrics.wrote
    wrong = functools.partial(trouble, process.queue, process.heartbeat)
    health = await serve_health(options.health_port, wrong, metrics.render)
    lease = Lease(process.cluster, *options.lease) if options.lease else None
    try:
        await _first_of(process.stop.wait(), _lead(process, lease, metrics), _start(process))
    finally:
        if lease:  # all work has ended
            await lease.release()
        await process.cluster.close()
        if health:
            await health.cleanup()


def _stop_on_signals(stop: asyncio.Event) -> None:
    """In kopf's place too: it waits five seconds for tasks that it takes for its own, and nobody leads meanwhile."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _lead(process: _Process, lease: Lease | None, metrics: OperatorMetrics) -> None:
    """Leads as soon as it may, for ever; LeaseLostError once it may no longer."""
    if lease:
        process.cluster.may_write_for = lease.seconds_left
        await lease.acquire()
    metrics.leads()
    process.leads.set()
    await (lease.keep() if lease else asyncio.Event().wait())


async def _start(process: _Process) -> None:
    await process.cluster.wait_for_crd()
    process.heartbeat.beat()
    await _serve_for_ever(process)


async def _serve_for_ever(process: _Process) -> None:
    """Opens the watches, and again whenever a CRD comes or goes, until stopped."""
    while True:
        try:
            return await _serve(process)
        except KindsChangedError as change:
            logger.info("%s; opens the watches anew", change)
            process.queue.clear()  # the new watches name every LLMService again, once they know all that belongs to it
            _stop_on_signals(process.stop)


async def _serve(process: _Process) -> None:
    """Watches and works until stopped; KindsChangedError if a CRD comes or goes that decides what is made."""
    cluster, queue, heartbeat, options = process.cluster, process.queue, process.heartbeat, process.options
    optional = await present_kinds(cluster)
    others = await others_answer(cluster, options.metrics_url) or False
    indexes: dict[str, Index] = {}
    kinds = (LLMSERVICE, *CHILDREN, *optional, POD)
    watches = Watches(cluster, queue, heartbeat, options.namespaces, kinds, indexes)
    present = frozenset(kind.name for kind in optional)
    config = RenderConfig(options.engine_image, present, metrics_url=options.metrics_url, others_answer=others)
    if options.lease:  # it lies where the operator runs
        config = replace(config, operator_namespace=options.lease[0])
    loading = LoadWatch(indexes, queue)
    reconciler = Reconciler(cluster, indexes, config, loading.reports)
    try:
        await _first_of(
            watches.run(functools.partial(_stop_on_signals, process.stop)),
            Resync(cluster, options.namespaces, indexes, queue, heartbeat).run(),
            watch_kinds(cluster, optional),
            watch_answerer(cluster, options.metrics_url, others),
            _ask_pods(process, loading),
            *(_work(process, watches.indexed, reconciler) for _ in range(WORKERS)),
        )
    except Exception:
        await check_kinds(cluster, optional)  # kopf fails when what it watches is there no longer
        raise


async def _ask_pods(process: _Process, loading: LoadWatch) -> None:
    await process.leads.wait()
    await loading.run()


async def _work(process: _Process, indexed: asyncio.Event, reconciler: Reconciler) -> None:
    await process.leads.wait()
    await indexed.wait()
    await process.queue.work(reconciler.reconcile)


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
