"""The fleet dashboard: all services in one view, to find those that need attention."""

from __future__ import annotations

from octavo_operator.dashboards.grafana import ALL, Dashboard, Panel, Query, Section, per_second, quantile

_SERVICE = "namespace, llmservice"
_NAME = "{{namespace}}/{{llmservice}}"
_ERRORS = ALL[:-1] + ',outcome="error"}'
_ERROR_RATIO = (
    f"{per_second('octavo_requests_total', _ERRORS, _SERVICE)} / {per_second('octavo_requests_total', ALL, _SERVICE)}"
)
_FIRING = 'sum(ALERTS{alertname=~"Octavo.*",alertstate="firing",namespace=~"$namespace"}) or vector(0)'


def _by_service(function: str, gauge: str) -> str:
    return f"{function} by ({_SERVICE}) ({gauge}{ALL})"


_NOW = Section(
    "Now",
    [
        Panel("Services", [Query(f"count({_by_service('count', 'octavo_requests_running')})")], kind="stat", width=3),
        Panel("Replicas", [Query(f"count(octavo_requests_running{ALL})")], kind="stat", width=3),
        Panel(
            "Replicas loading",
            [Query(f"count(octavo_load_progress_ratio{ALL} < 1) or vector(0)")],
            kind="stat",
            width=3,
        ),
        Panel("Requests running", [Query(f"sum(octavo_requests_running{ALL})")], kind="stat", width=3),
        Panel("Requests waiting", [Query(f"sum(octavo_requests_waiting{ALL})")], kind="stat", width=3),
        Panel("Tokens/s", [Query(per_second("octavo_generation_tokens_total", ALL))], kind="stat", width=3),
        Panel(
            "First token, p99",
            [Query(quantile(0.99, "octavo_time_to_first_token_seconds", ALL))],
            "s",
            "stat",
            3,
            warn=1,
            bad=2,
        ),
        Panel("Alerts", [Query(_FIRING)], kind="stat", width=3, warn=1, bad=3),
    ],
)

_TABLE = Section(
    "Services",
    [
        Panel(
            "Services",
            [
                Query(_by_service("count", "octavo_requests_running"), "replicas"),
                Query(_by_service("sum", "octavo_requests_running"), "running"),
                Query(_by_service("sum", "octavo_requests_waiting"), "waiting"),
                Query(per_second("octavo_generation_tokens_total", ALL, _SERVICE), "tokens/s"),
                Query(quantile(0.99, "octavo_time_to_first_token_seconds", ALL, _SERVICE), "first token p99", "s"),
                Query(_by_service("max", "octavo_kv_cache_usage_ratio"), "KV cache", "percentunit"),
                Query(_ERROR_RATIO, "errors", "percentunit"),
            ],
            kind="table",
            width=24,
        )
    ],
)

_OVER_TIME = Section(
    "Over time",
    [
        Panel("Tokens/s", [Query(per_second("octavo_generation_tokens_total", ALL, _SERVICE), _NAME)], stacked=True),
        Panel("Requests waiting", [Query(_by_service("sum", "octavo_requests_waiting"), _NAME)]),
        Panel("Replicas", [Query(_by_service("count", "octavo_requests_running"), _NAME)], stacked=True),
        Panel(
            "First token, p99",
            [Query(quantile(0.99, "octavo_time_to_first_token_seconds", ALL, _SERVICE), _NAME)],
            "s",
            bad=2,
        ),
        Panel(
            "KV cache, fullest replica",
            [Query(_by_service("max", "octavo_kv_cache_usage_ratio"), _NAME)],
            "percentunit",
            bad=0.9,
            help="When it is full, requests wait or are preempted: add replicas, or give them more memory.",
        ),
        Panel("Answers ended in an error", [Query(_ERROR_RATIO, _NAME)], "percentunit", bad=0.01),
        Panel(
            "Rejected",
            [
                Query(
                    per_second("octavo_requests_rejected_total", ALL, f"{_SERVICE}, reason"), f"{_NAME} {{{{reason}}}}"
                )
            ],
            "reqps",
            width=24,
            help="400 and 401: wrong requests; 429: a key's limits; 503: the server is full, loading or draining.",
        ),
    ],
)

FLEET = Dashboard("fleet", "Octavo / Fleet", "All LLMServices at a glance.", [_NOW, _TABLE, _OVER_TIME], many=True)
