"""Scales Deployments through /scale from the engines' own metrics: autoscaling without the aggregated metrics API.

For clusters where another program serves external metrics, or where an APIService is not wanted. The numbers and the
arithmetic are those of the HorizontalPodAutoscaler that would be made otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import IN_FLIGHT_METRIC, WAITING_METRIC
from octavo_operator.api.resource import InvalidLLMServiceError, LLMService, parse_stored
from octavo_operator.api.value_at import value_at
from octavo_operator.metrics_api.collector import Collector, NoAnswerError
from octavo_operator.metrics_api.hpa_algorithm import Decision, History, decide, proposal
from octavo_operator.metrics_api.load import Load
from octavo_operator.metrics_api.other_scaler import OtherScaler
from octavo_operator.metrics_api.pods import list_engine_pods
from octavo_operator.metrics_api.scrape import Scraper
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.apply.other_autoscalers import autoscalers_of
from octavo_operator.reconcile.kinds import BY_NAME, LLMSERVICE
from octavo_operator.reconcile.observation.observe import Index, Key, Object
from octavo_operator.reconcile.queue import ExpectedError, WorkQueue
from octavo_operator.render.hpa import behavior, target_in_flight
from octavo_operator.render.scaler import bounds_in_force, is_scaled_directly

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 15.0
"""The interval of Kubernetes' own autoscaler."""


class OtherScalerError(Exception):
    """Another client scales the Deployment too."""


class DirectScaler:
    """Keeps `reports`, which say what a HorizontalPodAutoscaler's status would, by LLMService."""

    def __init__(
        self,
        cluster: Cluster,
        indexes: Mapping[str, Index],
        queue: WorkQueue[Key],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reports: dict[Key, Object] = {}
        self._cluster, self._indexes, self._queue, self._clock = cluster, indexes, queue, clock
        self._now = cluster.server.clock.now  # by which schedules begin and end, also where this node's is wrong
        self._histories: dict[Key, History] = {}
        self._others: dict[Key, OtherScaler] = {}

    async def run(self) -> None:
        """Scale all LLMServices again and again, until the task is cancelled."""
        scraper = Scraper()
        collector = Collector(functools.partial(list_engine_pods, self._cluster), scraper.scrape)
        try:
            while True:
                await self.scale_all(collector)
                await asyncio.sleep(INTERVAL_SECONDS)
        finally:
            await scraper.close()

    async def scale_all(self, collector: Collector) -> None:
        """Scale every LLMService that is to be scaled, once."""
        services = {key: service for key, service in self._services().items() if is_scaled_directly(service.spec)}
        for known in (self.reports, self._histories, self._others):
            for gone in known.keys() - services.keys():
                del known[gone]
        await asyncio.gather(*(self._scale(collector, key, service) for key, service in services.items()))

    def _services(self) -> dict[Key, LLMService]:
        found, index = {}, self._indexes.get(LLMSERVICE.plural, {})
        for key in list(index):
            for live in index.get(key, ()):
                try:
                    found[key] = parse_stored(live).service
                except InvalidLLMServiceError:
                    continue  # a reconcile of it says so
        return found

    async def _scale(self, collector: Collector, key: Key, service: LLMService) -> None:
        current = 0
        try:
            current = self._replicas(key)
            if not current:  # the Deployment is not made yet, or about to start again
                return
            other = await self._other_scaler(key, current)
            if problem := other.problem(self._clock()):
                raise OtherScalerError(problem)
            load = await collector.load(*key)
            decision = self._decide(key, service, current, load)
            if decision.replicas != current:
                logger.info("%s/%s: scaling from %d to %d replicas", *key, current, decision.replicas)
                await self._cluster.scale(BY_NAME["Deployment"], *key, decision.replicas)
                other.expected = decision.replicas
                self._histories[key].changes.append((self._clock(), decision.replicas - current))
            report = _report(decision, load, current, self._last_change(key, service, decision.replicas != current))
        except OtherScalerError as error:
            report = _unable(Reason.FIELD_CONFLICT, str(error), current)
        except ApiError as error:
            report = _unable(Reason.FAILED_UPDATE_SCALE, str(error), current)
        except (NoAnswerError, ExpectedError) as error:
            report = _unknown(str(error), current)
        except Exception:  # the boundary: a fault of ours affects one LLMService only
            logger.exception("%s/%s: cannot be scaled because of a bug in the operator", *key)
            report = _unknown("a bug in the operator; its log has the traceback", current)
        self._report(key, report)

    async def _other_scaler(self, key: Key, current: int) -> OtherScaler:
        """Return what is known of other clients that change the replicas, of which there are `current`. ApiError."""
        other = self._others.setdefault(key, OtherScaler())
        other.observe(current, self._clock())
        if other.problem(self._clock()) and other.has_gone(await autoscalers_of(self._cluster, *key)):
            other = self._others[key] = OtherScaler(expected=current)
        return other

    def _replicas(self, key: Key) -> int:
        named = (each for each in self._indexes.get("deployments", {}).get(key, ()) if _name_of(each) == key[1])
        return int((next(named, {}).get("spec") or {}).get("replicas") or 0)

    def _report(self, key: Key, report: Object) -> None:
        if self.reports.get(key) != report:
            self.reports[key] = report
            self._queue.add(key)

    def _decide(self, key: Key, service: LLMService, current: int, load: Load) -> Decision:
        autoscaling = service.spec.autoscaling
        bounds = bounds_in_force(service.spec, datetime.fromisoformat(self._now()))
        if autoscaling is None or bounds is None:
            raise ValueError("no target to scale by is set")
        targets = (autoscaling.target_queue_depth, target_in_flight(service.spec))
        proposed = proposal(current, list(zip((load.waiting, load.in_flight), targets, strict=True)))
        history = self._histories.setdefault(key, History())
        rules = behavior(service)
        return decide(current, proposed, bounds.floor, bounds.max_replicas, rules, history, self._clock())

    def _last_change(self, key: Key, service: LLMService, changed: bool) -> str | None:
        """Return when the replicas were last changed (RFC 3339): now if they were `changed`, else as reported before.

        What an earlier leader reported is in the status.
        """
        known = (self.reports.get(key) or {}).get("status", {}).get("lastScaleTime")
        return self._now() if changed else known or value_at(service.status, str, "autoscaling", "lastScaleTime")


def _name_of(child: Object) -> str:
    return str(child["metadata"]["name"])


def _condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _report(decision: Decision, load: Load, current: int, last: str | None) -> Object:
    averages = {WAITING_METRIC: load.waiting / current, IN_FLIGHT_METRIC: load.in_flight / current}
    conditions = [
        _condition("AbleToScale", "True", decision.reason),
        _condition("ScalingActive", "True", "ValidMetricFound"),
        _condition("ScalingLimited", "True", decision.reason),
    ]
    metrics = [
        {"type": "External", "external": {"metric": {"name": name}, "current": {"averageValue": f"{value:.3f}"}}}
        for name, value in averages.items()
    ]
    status: dict[str, Any] = {"desiredReplicas": decision.replicas, "conditions": conditions, "currentMetrics": metrics}
    return {"metadata": {}, "status": {**status, **({"lastScaleTime": last} if last else {})}}


def _unable(reason: Reason, message: str, current: int) -> Object:
    return _held(_condition("AbleToScale", "False", reason, message), current)


def _unknown(message: str, current: int) -> Object:
    reason = Reason.FAILED_GET_EXTERNAL_METRIC
    return _held(_condition("ScalingActive", "False", reason, f"the load is not known: {message}"), current)


def _held(condition: dict[str, str], current: int) -> Object:
    return {"metadata": {}, "status": {"desiredReplicas": current, "conditions": [condition]}}
