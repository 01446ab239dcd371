"""Explains in one sentence whether an LLMService is scaling, by the HorizontalPodAutoscaler's own status. Pure.

KEDA scales by a HorizontalPodAutoscaler of its own, whose status says the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from octavo_operator.api.conditions import ConditionState, Reason
from octavo_operator.api.names import IN_FLIGHT_METRIC, METRICS_API_SERVICE, WAITING_METRIC, keda_autoscaler
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.resource import LLMService
from octavo_operator.api.status import AutoscalingStatus
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.observation.observe import Object, is_terminating
from octavo_operator.reconcile.pods.pod_view import condition_of
from octavo_operator.reconcile.problem import counted
from octavo_operator.render.hpa import KIND as HPA
from octavo_operator.render.hpa import behavior, load_seconds, loads_quickly
from octavo_operator.render.scaledobject import KIND as SCALED_OBJECT
from octavo_operator.render.schedules import Bounds

NOT_MEASURED: Object = {
    "metadata": {},
    "status": {
        "conditions": [
            {
                "type": "AbleToScale",
                "status": "False",
                "reason": Reason.AUTOSCALER_PENDING,
                "message": "the operator has not measured the load yet",
            }
        ]
    },
}
"""Stands for the HorizontalPodAutoscaler of a service that the operator scales by itself, before it has measured."""
_SAID_BY_CLIENT = "external metrics API: "


@dataclass(frozen=True)
class Scaling:
    """The facts about an autoscaler: its bounds, the Deployment's replicas, how many of them do not answer yet.

    `unmade`: why none is made, in a sentence.
    """

    service: LLMService
    bounds: Bounds
    replicas: int
    loading: int
    hpa: Object | None
    by_keda: bool
    unmade: str = ""

    def status(self) -> AutoscalingStatus:
        """Return the autoscaler's current metric and desired replicas."""
        if self._reported_before and (reported := value_at(self.service.status, dict, "autoscaling")):
            with contextlib.suppress(ValidationError):  # another version of the operator may have written it
                return AutoscalingStatus.model_validate(reported)
        seen = (self.hpa or {}).get("status") or {}
        averages = _averages(seen)
        waiting, in_flight = averages.get(WAITING_METRIC), averages.get(IN_FLIGHT_METRIC)
        most = self.service.spec.engine.max_concurrent_requests
        return AutoscalingStatus(
            desired_replicas=seen.get("desiredReplicas"),
            queue_depth=None if waiting is None else f"{waiting:.1f}".removesuffix(".0"),
            concurrency_percent=None if in_flight is None else round(100 * in_flight / most),
            last_scale_time=seen.get("lastScaleTime"),
            message=self.scaling_active()[2],
        )

    def scaling_active(self) -> ConditionState:
        """Return the state of the condition ScalingActive, which says whether it scales by the load."""
        if self._reported_before:
            return self._reported_before
        holds, reason, sentence = self._problem() or ("True", Reason.VALID_METRIC_FOUND, self._direction())
        return holds, reason, "; ".join([sentence, *self._remarks()])

    @property
    def _reported_before(self) -> ConditionState | None:
        """Return the state of ScalingActive that an earlier leader reported, until this one has measured the load."""
        known = condition_of({"status": self.service.status}, "ScalingActive")
        if self.hpa is not NOT_MEASURED or known.get("status") != "True":
            return None
        return "True", _reason(known), known.get("message", "")

    def _problem(self) -> ConditionState | None:
        """Return the state of ScalingActive if the autoscaler cannot scale; None if it can."""
        if self.unmade:
            return "False", Reason.AUTOSCALER_FAILED, f"held at {self.replicas}: {self.unmade}"
        if self.hpa is None:
            missing = "the HorizontalPodAutoscaler has not been created"
            if self.by_keda:
                missing = "KEDA has not created its HorizontalPodAutoscaler"
            return "False", Reason.AUTOSCALER_PENDING, f"held at {self.replicas}: {missing} yet"
        able, active = condition_of(self.hpa, "AbleToScale"), condition_of(self.hpa, "ScalingActive")
        if able.get("status") == "False":
            return "False", _reason(able), f"held at {self.replicas}: {able.get('message')}"
        if active.get("status") == "False":
            # While no replica is ready there is no load that could be known: no fault, and no warning.
            reason = Reason.AUTOSCALER_PENDING if self.loading >= self.replicas else _reason(active)
            return "False", reason, f"held at {self.replicas}: {_why_not(active)}"
        if not active:
            return (
                "False",
                Reason.AUTOSCALER_PENDING,
                f"held at {self.replicas}: the HorizontalPodAutoscaler has no status yet",
            )
        return None

    def _direction(self) -> str:
        """Describe where the number of replicas is going, with an autoscaler that works."""
        hpa = self.hpa or {}
        wanted = (hpa.get("status") or {}).get("desiredReplicas", self.replicas)
        if wanted != self.replicas:
            return f"goes from {self.replicas} to {wanted} replicas with the load{self._pace(wanted)}"
        reasons = [condition_of(hpa, kind).get("reason") for kind in ("AbleToScale", "ScalingLimited")]
        if self.replicas <= self.bounds.floor and "ScaleDownStabilized" in reasons:
            reasons = ["TooFewReplicas"]  # there is nothing to give up, now or later
        at = f"{self.replicas}"
        if self.loading:
            at += f" ({counted(self.loading, 'is', 'are')} still loading)"
        found = (sentence for reason, sentence in self._sentences(at).items() if reason in reasons)
        return next(found, f"at {at}, as many as the load asks for")

    def _pace(self, wanted: int) -> str:
        """Explain how many replicas are added at a time, unless the spec says how many."""
        seconds, rules = load_seconds(self.service), self.service.spec.autoscaling
        given = rules is not None and rules.behavior is not None and rules.behavior.scale_up is not None
        if wanted < self.replicas or seconds is None or given:
            return ""
        if loads_quickly(self.service):
            return f", all at once, since one loads in {seconds} s"
        return f", some at a time, since one takes {seconds} s to load"

    def _sentences(self, at: str) -> dict[str, str]:
        """Return a user's sentence for each reason of the autoscaler, the most informative first."""
        windows = {way: rules["stabilizationWindowSeconds"] for way, rules in behavior(self.service).items()}
        return {
            "TooManyReplicas": f"at maxReplicas {at}, though the load asks for more: raise "
            "spec.autoscaling.maxReplicas",
            "ScaleDownStabilized": f"held at {at}: fewer would be enough; they are removed once they have "
            f"not been needed for {windows['scaleDown']} s",
            "ScaleUpStabilized": f"held at {at}: more are needed; they are added once they have been "
            f"needed for {windows['scaleUp']} s",
            "ScaleUpLimit": f"at {at}, and grows as fast as spec.autoscaling.behavior lets it",
            "ScaleDownLimit": f"at {at}, and shrinks as fast as spec.autoscaling.behavior lets it",
            "TooFewReplicas": f"at minReplicas {at}: the load asks for no more",
        }

    def _remarks(self) -> list[str]:
        remarks = list(self.bounds.ignored)
        if self.bounds.schedules:
            until = f" until {self.bounds.until:%Y-%m-%dT%H:%MZ}" if self.bounds.until else ""
            names = " and ".join(self.bounds.schedules)
            remarks.append(f"schedule {names} sets {self.bounds.floor} to {self.bounds.max_replicas}{until}")
        if self.bounds.min_replicas == 0:
            remarks.append("minReplicas 0 acts as 1, since without a replica nothing could report that requests wait")
        return remarks


def scaling(
    service: LLMService, bounds: Bounds, children: Mapping[tuple[str, str], Object], ready: int, unmade: str = ""
) -> Scaling:
    """Return the autoscaling of `service`, which has `ready` ready replicas; `unmade`: why it has no autoscaler."""
    deployment = children.get(("Deployment", service.name), {})
    replicas = int((deployment.get("spec") or {}).get("replicas", bounds.floor))
    scaled_object = children.get((SCALED_OBJECT, service.name))
    by_keda = scaled_object is not None and not is_terminating(scaled_object)
    hpa = children.get((HPA, keda_autoscaler(service.name) if by_keda else service.name))
    return Scaling(service, bounds, replicas, max(0, replicas - ready), hpa, by_keda, unmade)


def _averages(status: Mapping[str, Any]) -> dict[str, Decimal]:
    """Return each metric's value per replica. KEDA calls its metrics by the number of their trigger."""
    found = {}
    for metric in status.get("currentMetrics") or ():
        external = metric.get("external") or {}
        name, value = external.get("metric", {}).get("name", ""), external.get("current", {}).get("averageValue")
        name = {"s0": WAITING_METRIC, "s1": IN_FLIGHT_METRIC}.get(name.partition("-")[0], name)
        with contextlib.suppress(ValueError, ArithmeticError):  # a query of the user's own may give less than nothing
            if value is not None:
                found[name] = parse_quantity(value)
    return found


def _reason(condition: Mapping[str, Any]) -> Reason:
    try:
        return Reason(condition.get("reason", ""))
    except ValueError:
        return Reason.AUTOSCALER_FAILED


def _why_not(condition: Mapping[str, Any]) -> str:
    """Return the metrics API's own message, without the prefixes that the programs on the way put before it."""
    message = str(condition.get("message"))
    if _SAID_BY_CLIENT not in message:
        return advice(message)
    cause = message.rpartition(_SAID_BY_CLIENT)[2]
    return f"the load is not known: {cause} (to see which server answers: kubectl get apiservice {METRICS_API_SERVICE})"
