"""The PrometheusRule of an LLMService: its alerts, each with what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_operator.api.resource import LLMService
from octavo_operator.render.monitoring import LABEL, is_wanted, monitoring_metadata

KIND = "PrometheusRule"
BASELINE = "llmservice:octavo_generation_tokens_per_replica:rate5m"
"""Recorded while requests wait and so under full load: only then do tokens/s of two moments compare."""


@dataclass(frozen=True)
class Alert:
    """One alert. In `expression` ME stands for the label matchers of the LLMService."""

    name: str
    expression: str
    after: str
    severity: str
    summary: str
    description: str


def prometheus_rule(llmservice: LLMService, kinds: frozenset[str]) -> dict[str, Any] | None:
    """Return a PrometheusRule named like the LLMService, or None where none is wanted or `kinds` lacks it."""
    if not llmservice.spec.monitoring.alerts or not is_wanted(llmservice, KIND, kinds):
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": KIND,
        "metadata": monitoring_metadata(llmservice),
        "spec": {"groups": [rule_group(llmservice.namespace or "default", llmservice.name)]},
    }


def rule_group(namespace: str, name: str) -> dict[str, Any]:
    """Return the rules of one LLMService, as Prometheus reads them."""
    matchers = f'namespace="{namespace}",{LABEL}="{name}"'
    identity = {"namespace": namespace, LABEL: name}
    record = {"record": BASELINE, "expr": _expression(_UNDER_FULL_LOAD, matchers), "labels": identity}
    alerts = [
        {
            "alert": alert.name,
            "expr": _expression(alert.expression, matchers),
            "for": alert.after,
            "labels": {**identity, "severity": alert.severity},
            "annotations": {
                "summary": f"LLMService {namespace}/{name}: {alert.summary}",
                "description": alert.description,
            },
        }
        for alert in ALERTS
    ]
    return {"name": f"octavo.{namespace}.{name}", "rules": [record, *alerts]}


def _expression(template: str, matchers: str) -> str:
    return template.replace("ME", matchers)


_UNDER_FULL_LOAD = (
    "sum(rate(octavo_generation_tokens_total{ME}[5m])) / count(octavo_requests_running{ME} > 0)"
    " and sum(octavo_requests_waiting{ME}) > 0"
)

ALERTS = (
    Alert(
        "OctavoTimeToFirstTokenHigh",
        "histogram_quantile(0.99, sum by (le) (rate(octavo_time_to_first_token_seconds_bucket{ME}[5m]))) > 2",
        "10m",
        "warning",
        "the first token takes longer than 2 s",
        "The p99 of the time to the first token is {{ $value | humanizeDuration }}; the threshold is 2 s. If requests"
        " wait, add replicas or raise autoscaling.maxReplicas. If none wait, prompts take this long to compute: shorten"
        " them, begin them with the same text so that the prefix cache has it, or use a faster GPU.",
    ),
    Alert(
        "OctavoKVCacheNearlyFull",
        "max by (pod) (octavo_kv_cache_usage_ratio{ME}) > 0.9",
        "10m",
        "warning",
        "the KV cache is nearly full",
        "{{ $labels.pod }} uses {{ $value | humanizePercentage }} of its KV cache; requests will wait or be preempted."
        " Add replicas, lower engine.maxModelLength, or raise engine.gpuMemoryUtilization.",
    ),
    Alert(
        "OctavoThroughputLow",
        f"{BASELINE}{{ME}} < 0.5 * quantile_over_time(0.5, {BASELINE}{{ME}}[1d] offset 1h)",
        "10m",
        "warning",
        "throughput under full load is less than half of the usual",
        "Requests wait, and a replica generates {{ $value | humanize }} tokens/s, less than half of the last day's"
        " median under full load. Look in the dashboard whether requests are preempted or prompts are longer than"
        " usual, and with nvidia-smi whether the GPU is throttled.",
    ),
    Alert(
        "OctavoErrorRateHigh",
        'sum(rate(octavo_requests_total{ME,outcome="error"}[5m])) / sum(rate(octavo_requests_total{ME}[5m])) > 0.01',
        "5m",
        "critical",
        "more than 1 % of the answers end in an error",
        "{{ $value | humanizePercentage }} of the answers end in an error. `kubectl logs` of the pods says why, with"
        " each request's id.",
    ),
    Alert(
        "OctavoQueueGrowing",
        "sum(avg_over_time(octavo_requests_waiting{ME}[5m]))"
        " - sum(avg_over_time(octavo_requests_waiting{ME}[5m] offset 10m))"
        " > 4 * count(octavo_requests_waiting{ME})",
        "10m",
        "warning",
        "the queue grows",
        "{{ $value | humanize }} more requests wait than 10 minutes ago. Add replicas or raise autoscaling.maxReplicas;"
        " `kubectl octavo why` says what keeps it from scaling.",
    ),
    Alert(
        "OctavoRequestsRejected",
        "sum(rate(octavo_requests_rejected_total"
        '{ME,reason=~"queued_requests|queued_tokens|kv_commitment|deadline"}[5m])) > 0',
        "10m",
        "warning",
        "requests are rejected because the server is full",
        "{{ $value | humanize }} requests/s are answered with 503. Add replicas, or raise engine.maxQueuedRequests if"
        " they may wait.",
    ),
    Alert(
        "OctavoNoTokens",
        "min by (pod) (min_over_time(octavo_requests_running{ME}[5m])) > 0"
        " and on (pod) sum by (pod) (increase(octavo_generation_tokens_total{ME}[5m])) == 0",
        "2m",
        "critical",
        "requests run but generate no tokens",
        "{{ $labels.pod }} has run requests for 5 minutes without generating a token. If its scheduling loop hangs, the"
        " liveness probe restarts it. If it is not restarted, read its log, check its GPU, and delete the pod.",
    ),
    Alert(
        "OctavoPreemptionStorm",
        "sum(rate(octavo_preemptions_total{ME}[5m])) / sum(rate(octavo_requests_total{ME}[5m])) > 1",
        "10m",
        "warning",
        "requests are preempted more often than they end",
        "There are {{ $value | humanize }} preemptions for each request that ends, mostly because the KV cache is full."
        " Lower engine.maxConcurrentRequests, or add replicas.",
    ),
    Alert(
        "OctavoEngineRestarted",
        "sum by (pod) (changes(process_start_time_seconds{ME}[15m])) > 0",
        "0m",
        "warning",
        "an engine was restarted",
        "{{ $labels.pod }} was restarted {{ $value }} times within 15 minutes; its answers were cut off. Condition"
        " Degraded of the LLMService and `kubectl logs --previous` say why.",
    ),
)
