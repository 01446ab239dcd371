"""The capacity dashboard: when more GPUs are needed, and which services could give some back."""

from __future__ import annotations

from octavo_operator.dashboards.grafana import ALL, Dashboard, Panel, Query, Section, per_second, quantile
from octavo_operator.render.prometheusrule import BASELINE

_SERVICE = "namespace, llmservice"
_NAME = "{{namespace}}/{{llmservice}}"
_AIM = 0.8
"""The share of the batch's slots that autoscaling aims for by default (targetConcurrencyPercent)."""
_RUNNING = f"sum by ({_SERVICE}) (octavo_requests_running{ALL})"
_WAITING = f"sum by ({_SERVICE}) (octavo_requests_waiting{ALL})"
_MAY_RUN = f"sum by ({_SERVICE}) (octavo_running_limit{ALL})"
_OF_ONE = f"avg by ({_SERVICE}) (octavo_running_limit{ALL})"
_REPLICAS = f"count by ({_SERVICE}) (octavo_requests_running{ALL})"

_ROOM = Section(
    "Room",
    [
        Panel(
            "Running requests, share of the limit",
            [Query(f"{_RUNNING} / {_MAY_RUN}", _NAME)],
            "percentunit",
            warn=0.8,
            bad=0.95,
            help="Of the requests that the replicas may run at once. Above 80 %, requests soon wait: add replicas.",
        ),
        Panel(
            "KV cache in use, mean of the replicas",
            [Query(f"avg by ({_SERVICE}) (octavo_kv_cache_usage_ratio{ALL})", _NAME)],
            "percentunit",
            bad=0.9,
        ),
        Panel(
            "Time in the queue, p90",
            [Query(quantile(0.9, "octavo_request_queue_seconds", ALL, _SERVICE), _NAME)],
            "s",
            help="How long requests wait. More replicas shorten it.",
        ),
        Panel(
            "Replicas running and needed",
            [
                Query(_REPLICAS, f"{_NAME} running"),
                Query(f"ceil(({_RUNNING} + {_WAITING}) / ({_AIM} * {_OF_ONE}))", f"{_NAME} needed"),
            ],
            width=12,
            help="Needed: so many that all running and waiting requests take 80 % of what replicas may run at once.",
        ),
        Panel(
            "Requests at once, peak of the past hour",
            [Query(f"max_over_time(({_RUNNING} + {_WAITING})[1h:15s])", _NAME)],
            width=12,
        ),
    ],
)

_YIELD = Section(
    "Throughput of a replica",
    [
        Panel(
            "Tokens/s of a replica",
            [Query(f"{per_second('octavo_generation_tokens_total', ALL, _SERVICE)} / {_REPLICAS}", _NAME)],
        ),
        Panel(
            "Tokens/s of a replica under full load",
            [Query(f"last_over_time({BASELINE}{ALL}[1d])", _NAME)],
            help="The last value of the past day. The LLMService's PrometheusRule records it while requests wait.",
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            [
                Query(
                    f"{per_second('octavo_prefix_cache_hit_tokens_total', ALL, _SERVICE)}"
                    f" / {per_second('octavo_prefix_cache_queried_tokens_total', ALL, _SERVICE)}",
                    _NAME,
                )
            ],
            "percentunit",
        ),
        Panel(
            "Tokens recomputed/s",
            [Query(per_second("octavo_recomputed_tokens_total", ALL, _SERVICE), _NAME)],
            help="After preemptions: more requests ran than the KV cache has room for.",
        ),
        Panel(
            "Tokens in the past day",
            [
                Query(f"sum by ({_SERVICE}) (increase(octavo_generation_tokens_total{ALL}[1d]))", f"{_NAME} generated"),
                Query(f"sum by ({_SERVICE}) (increase(octavo_prompt_tokens_total{ALL}[1d]))", f"{_NAME} of prompts"),
            ],
        ),
        Panel(
            "Rejected because the server is full",
            [
                Query(
                    per_second(
                        "octavo_requests_rejected_total",
                        ALL[:-1] + ',reason=~"queued_requests|queued_tokens|kv_commitment|deadline"}',
                        _SERVICE,
                    ),
                    _NAME,
                )
            ],
            "reqps",
            help="Answered with 503. Add replicas, or raise autoscaling.maxReplicas.",
        ),
    ],
)

CAPACITY = Dashboard(
    "capacity", "Octavo / Capacity", "Free capacity, and the throughput of a replica.", [_ROOM, _YIELD], many=True
)
