"""Makes Prometheus metric families of the engine's last report, at each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_engine.engine.client import EngineState
from octavo_engine.engine.info import EngineInfo


def _kv_waste(state: EngineState, _: int) -> float:
    slots = state.stats.kv_blocks_used * (state.ready.block_size if state.ready is not None else 0)
    return state.stats.kv_wasted_slots / slots if slots else 0.0


def _running_limit(state: EngineState, _: int) -> float:
    return state.stats.running_limit or (state.ready.max_num_seqs if state.ready is not None else 0)


@dataclass(frozen=True, slots=True)
class _Row:
    family: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    vllm_names: tuple[str, ...]
    help: str
    value: Callable[[EngineState, int], float]
    """Returns the value, given the engine's state and the number of requests that wait by the server's own count."""


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
_ROWS = (
    _Row(
        _GAUGE,
        "octavo_adapters_loaded",
        (),
        "LoRA adapters that requests may name",
        lambda state, _: len(state.adapters),
    ),
    _Row(
        _GAUGE,
        "octavo_load_progress_ratio",
        (),
        "How much of the model is loaded, 0 to 1",
        lambda state, _: 1.0 if state.phase == "ready" else state.progress.ratio,
    ),
    _Row(
        _GAUGE,
        "octavo_requests_running",
        ("vllm:num_requests_running",),
        "Requests that are being computed",
        lambda state, _: state.stats.running,
    ),
    _Row(
        _GAUGE,
        "octavo_requests_waiting",
        ("vllm:num_requests_waiting",),
        "Requests that wait for their first step, or for another after a preemption",
        # The server knows of requests that the engine has not reported yet, the engine of those that it has preempted.
        lambda state, waiting: max(state.stats.waiting, waiting),
    ),
    _Row(
        _GAUGE,
        "octavo_kv_cache_usage_ratio",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "Share of the KV cache in use, 0 to 1; with several KV groups, that of the fullest",
        lambda state, _: state.stats.kv_usage,
    ),
    _Row(
        _GAUGE,
        "octavo_kv_cache_waste_ratio",
        (),
        "Share of the KV cache's used slots that hold no token, 0 to 1",
        _kv_waste,
    ),
    _Row(
        _COUNTER,
        "octavo_prefix_cache_queried_tokens",
        ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        "Prompt tokens looked up in the prefix cache",
        lambda state, _: state.stats.prefix_queried_tokens,
    ),
    _Row(
        _COUNTER,
        "octavo_prefix_cache_hit_tokens",
        ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", "vllm:prompt_tokens_cached"),
        "Prompt tokens found in the prefix cache",
        lambda state, _: state.stats.prefix_hit_tokens,
    ),
    _Row(
        _COUNTER,
        "octavo_preemptions",
        ("vllm:num_preemptions",),
        "Requests preempted for KV memory, a more important request, another key's share, or a waiting adapter",
        lambda state, _: state.stats.preemptions,
    ),
    _Row(
        _COUNTER,
        "octavo_recomputed_tokens",
        (),
        "Tokens computed again after a preemption",
        lambda state, _: state.stats.recomputed_tokens,
    ),
    _Row(
        _COUNTER,
        "octavo_spec_decode_draft_tokens",
        ("vllm:spec_decode_num_draft_tokens",),
        "Draft tokens of speculative decoding that steps computed",
        lambda state, _: state.stats.draft_tokens,
    ),
    _Row(
        _COUNTER,
        "octavo_spec_decode_accepted_tokens",
        ("vllm:spec_decode_num_accepted_tokens",),
        "Draft tokens that were accepted",
        lambda state, _: state.stats.accepted_tokens,
    ),
    _Row(
        _COUNTER,
        "octavo_copied_blocks",
        (),
        "KV blocks that were shared, and copied before a request wrote to them",
        lambda state, _: state.stats.copied_blocks,
    ),
    _Row(
        _GAUGE,
        "octavo_running_limit",
        (),
        "Requests that may run at once now (--target-itl-p90 lowers it, --target-ttft-p90 raises it again)",
        _running_limit,
    ),
    _Row(
        _GAUGE,
        "octavo_prefill_chunk_limit",
        (),
        "Prompt tokens that a step may hold now (--target-itl-p90 and a slow device lower it); 0 before the first step",
        lambda state, _: state.stats.chunk_limit,
    ),
    _Row(
        _GAUGE,
        "octavo_latency_target_met",
        (),
        "0 while --target-ttft-p90 or --target-itl-p90 cannot be held by moving the limits, else 1",
        lambda state, _: float(state.stats.target_met),
    ),
)


class EngineCollector(Collector):
    """A collector of Prometheus' client, which reads the engine's state at each scrape."""

    def __init__(
        self, model_name: str, state: Callable[[], EngineState], waiting: Callable[[], int], vllm_names: bool
    ) -> None:
        self._model_name = model_name
        self._state = state
        self._waiting = waiting
        self._vllm = vllm_names

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family for each name."""
        state = self._state()
        for row in _ROWS:
            yield from self._families(row, row.value(state, self._waiting()))
        yield self._swapped(state)
        if self._vllm and state.ready is not None and state.ready.max_loras:
            yield self._adapters(state, state.ready.max_loras)
        if self._vllm and state.ready is not None:
            yield self._cache_config(state.ready)

    def _families(self, row: _Row, value: float) -> Iterator[Metric]:
        family = row.family(row.name, row.help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        yield family
        for name in row.vllm_names if self._vllm else ():
            alias = row.family(name, row.help, labels=["model_name", "engine"])
            alias.add_metric([self._model_name, "0"], value)
            yield alias

    def _swapped(self, state: EngineState) -> Metric:
        text = "KV blocks moved between the device and --swap-space"
        family = CounterMetricFamily("octavo_swapped_blocks", text, labels=["model_name", "direction"])
        family.add_metric([self._model_name, "in"], state.stats.swapped_in_blocks)
        family.add_metric([self._model_name, "out"], state.stats.swapped_out_blocks)
        return family

    def _adapters(self, state: EngineState, max_loras: int) -> Metric:
        labels = ["max_lora", "waiting_lora_adapters", "running_lora_adapters"]
        text = "LoRA adapters that requests wait for and run with; the value is the time of the scrape"
        family = GaugeMetricFamily("vllm:lora_requests_info", text, labels=labels)
        names = ",".join(state.stats.waiting_adapters), ",".join(state.stats.running_adapters)
        family.add_metric([str(max_loras), *names], time.time())
        return family

    def _cache_config(self, info: EngineInfo) -> Metric:
        labels = ["model_name", "engine", "block_size", "cache_dtype", "num_gpu_blocks"]
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's shape", labels=labels)
        shape = str(info.block_size), info.kv_cache_dtype, str(info.num_kv_blocks)
        family.add_metric([self._model_name, "0", *shape], 1)
        return family
