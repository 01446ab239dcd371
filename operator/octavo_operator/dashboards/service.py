"""The service dashboard: one service's latency, load, cache and autoscaling in detail."""

from __future__ import annotations

from octavo_operator.dashboards.grafana import ONE, WINDOW, Dashboard, Panel, Query, Section, per_second, quantile

_POD = "{{pod}}"
_ERRORS = ONE[:-1] + ',outcome="error"}'


def _quantiles(title: str, histogram: str, bad: float | None = None, explanation: str = "") -> Panel:
    queries = [Query(quantile(share, histogram, ONE), f"p{share * 100:g}") for share in (0.5, 0.9, 0.99)]
    return Panel(title, queries, "s", bad=bad, help=explanation)


def _stat(
    title: str, expression: str, unit: str = "short", warn: float | None = None, bad: float | None = None
) -> Panel:
    return Panel(title, [Query(expression)], unit, "stat", 3, warn=warn, bad=bad)


_NOW = Section(
    "Now",
    [
        _stat("Replicas", f"count(octavo_requests_running{ONE})"),
        _stat("Loaded", f"avg(octavo_load_progress_ratio{ONE})", "percentunit"),
        _stat("Requests running", f"sum(octavo_requests_running{ONE})"),
        _stat("Requests waiting", f"sum(octavo_requests_waiting{ONE})"),
        _stat("Tokens/s", per_second("octavo_generation_tokens_total", ONE)),
        _stat("First token, p99", quantile(0.99, "octavo_time_to_first_token_seconds", ONE), "s", 1, 2),
        _stat("KV cache", f"max(octavo_kv_cache_usage_ratio{ONE})", "percentunit", 0.8, 0.9),
        _stat(
            "Errors",
            f"{per_second('octavo_requests_total', _ERRORS)} / {per_second('octavo_requests_total', ONE)}",
            "percentunit",
            0.001,
            0.01,
        ),
    ],
)

_LATENCY = Section(
    "Latency",
    [
        _quantiles("First token", "octavo_time_to_first_token_seconds", 2, "From arrival to the first token."),
        _quantiles("Between tokens", "octavo_inter_token_latency_seconds", None, "Between two tokens of one answer."),
        _quantiles("Whole answer", "octavo_request_duration_seconds", None, "From arrival to the last token."),
        _quantiles("Time in the queue", "octavo_request_queue_seconds", None, "From arrival to the first step."),
        Panel(
            "First token, distribution",
            [
                Query(
                    f"sum by (le) (increase(octavo_time_to_first_token_seconds_bucket{ONE}[{WINDOW}]))",
                    "{{le}}",
                )
            ],
            "s",
            "heatmap",
            16,
        ),
    ],
)

_THROUGHPUT = Section(
    "Throughput",
    [
        Panel(
            "Tokens generated/s", [Query(per_second("octavo_generation_tokens_total", ONE, "pod"), _POD)], stacked=True
        ),
        Panel(
            "Prompt tokens read/s", [Query(per_second("octavo_prompt_tokens_total", ONE, "pod"), _POD)], stacked=True
        ),
        Panel(
            "Answers ended, by outcome",
            [Query(per_second("octavo_requests_total", ONE, "outcome"), "{{outcome}}")],
            "reqps",
            stacked=True,
        ),
        Panel(
            "Rejected, by reason",
            [Query(per_second("octavo_requests_rejected_total", ONE, "reason"), "{{reason}}")],
            "reqps",
            width=24,
        ),
    ],
)

_SCHEDULER = Section(
    "Scheduler",
    [
        Panel(
            "Requests",
            [
                Query(f"sum(octavo_requests_running{ONE})", "running"),
                Query(f"sum(octavo_requests_waiting{ONE})", "waiting"),
                Query(f"sum(octavo_running_limit{ONE})", "limit of running"),
            ],
        ),
        _quantiles(
            "Duration of a step",
            "octavo_step_seconds",
            None,
            "One step computes a token of each running request, and chunks of new prompts.",
        ),
        Panel(
            "Most prompt tokens in a step",
            [Query(f"octavo_prefill_chunk_limit{ONE}", _POD)],
            help="The engine lowers this so that a step does not hold up running answers for long.",
        ),
        Panel(
            "Latency targets met",
            [Query(f"octavo_latency_target_met{ONE}", _POD)],
            help="0 while --target-ttft-p90 or --target-itl-p90 cannot be met, else 1.",
        ),
    ],
)

_MEMORY = Section(
    "KV memory",
    [
        Panel("KV cache in use", [Query(f"octavo_kv_cache_usage_ratio{ONE}", _POD)], "percentunit", bad=0.9),
        Panel(
            "KV cache without a token",
            [Query(f"octavo_kv_cache_waste_ratio{ONE}", _POD)],
            "percentunit",
            help="Share of the blocks in use that is still empty: the ends of the last blocks of requests.",
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            [
                Query(
                    f"{per_second('octavo_prefix_cache_hit_tokens_total', ONE)}"
                    f" / {per_second('octavo_prefix_cache_queried_tokens_total', ONE)}",
                    "share",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Preemptions/s",
            [Query(per_second("octavo_preemptions_total", ONE, "pod"), _POD)],
            help="A request gives up its KV cache to others and continues later. If this is frequent, lower "
            "engine.maxConcurrentRequests, or add replicas.",
        ),
        Panel(
            "Tokens recomputed/s",
            [Query(per_second("octavo_recomputed_tokens_total", ONE, "pod"), _POD)],
            help="After preemptions: more requests ran than the KV cache has room for.",
        ),
        Panel(
            "KV blocks swapped and copied/s",
            [
                Query(per_second("octavo_swapped_blocks_total", ONE, "direction"), "swapped {{direction}}"),
                Query(per_second("octavo_copied_blocks_total", ONE), "copied"),
            ],
        ),
    ],
)

_LIFE = Section(
    "Pods",
    [
        Panel("Model loaded", [Query(f"octavo_load_progress_ratio{ONE}", _POD)], "percentunit"),
        Panel("Time since the start", [Query(f"time() - process_start_time_seconds{ONE}", _POD)], "s"),
        Panel(
            "Restarts within the hour", [Query(f"changes(process_start_time_seconds{ONE}[1h])", _POD)], warn=1, bad=3
        ),
    ],
)

SERVICE = Dashboard(
    "service",
    "Octavo / Service",
    "One LLMService in depth.",
    [_NOW, _LATENCY, _THROUGHPUT, _SCHEDULER, _MEMORY, _LIFE],
    many=False,
)
