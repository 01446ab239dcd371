"""The settings of a simulation, and the scheduler that is built from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

from bench.simulation.cost_model import COSTS
from bench.simulation.replay import Recording, Replay
from bench.simulation.traces import FLOOD, TRACES, Ask, Load
from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import Policy, SchedulerSettings
from octavo_engine.engine.adaptive_limits import AdaptiveLimits

CHOICES: dict[str, tuple[str, ...]] = {
    "trace": tuple(TRACES),
    "cost": tuple(COSTS),
    "policy": get_args(Policy),
    "eviction": ("lru", "lfu", "priority"),
}

_DEFAULTS = SchedulerSettings(max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A trace, a device, and the scheduler's settings; every field is a flag of `bench.simulate`."""

    trace: str = "sharegpt"
    cost: str = "h200-8b"
    seed: int = 0
    requests: int = 2000
    load: float = 0.8
    """Rate of arrivals as a share of the device's throughput, by the cost model's estimate."""
    policy: str = "fcfs"
    blocks: int = 0
    """KV blocks; 0: as many as fit into the device's memory."""
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    prefix_caching: bool = True
    eviction: str = "lru"
    ageing_seconds: float = _DEFAULTS.ageing_seconds
    max_preemptions: int = _DEFAULTS.max_preemptions
    max_skips: int = _DEFAULTS.max_skips
    watermark: float = _DEFAULTS.watermark
    swap_blocks: int = 0
    target_ttft_p90: float = 0.0
    """The target in seconds; 0: no target."""
    target_itl_p90: float = 0.0

    def changed(self, text: str) -> Setup:
        """Return a copy with the changes `name=value,name=value`; ValueError if a name or a value is not valid."""
        changes: dict[str, Any] = {}
        types = {field.name: type(field.default) for field in dataclasses.fields(self)}
        for part in text.split(","):
            name, _, value = part.partition("=")
            name = name.strip().replace("-", "_")
            if name not in types:
                raise ValueError(f"there is no setting {name!r}; there are {', '.join(types)}")
            changes[name] = _parse(types[name], value)
            if name in CHOICES and changes[name] not in CHOICES[name]:
                raise ValueError(f"{name} must be one of {', '.join(CHOICES[name])}, not {value!r}")
        return dataclasses.replace(self, **changes)

    @property
    def num_blocks(self) -> int:
        """The number of KV blocks: those that fit into the device's memory, unless `blocks` is given."""
        return self.blocks or COSTS[self.cost].blocks * 16 // self.block_size

    def asks(self) -> list[Ask]:
        """Return the trace. Its rate is determined by the mean lengths of a first trace, without those of a flood."""
        generate = TRACES[self.trace]
        draft = generate(Load(min(self.requests, 1000), 1.0, self.max_model_len, self.seed))
        draft = [ask for ask in draft if ask.tenant != FLOOD]
        capacity = COSTS[self.cost].capacity(
            fresh=fmean(len(ask.prompt) - ask.shared * self.prefix_caching for ask in draft),
            prompt=fmean(len(ask.prompt) for ask in draft),
            answer=fmean(len(ask.answer) for ask in draft),
            batch=self.max_num_seqs,
        )
        return generate(Load(self.requests, self.load * capacity, self.max_model_len, self.seed))

    def scheduler(self) -> Scheduler:
        """Return the real scheduler with these settings."""
        cost = COSTS[self.cost]
        settings = SchedulerSettings(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            policy=self.policy,  # type: ignore[arg-type]  # judged by CHOICES
            ageing_seconds=self.ageing_seconds,
            max_preemptions=self.max_preemptions,
            max_skips=self.max_skips,
            watermark=self.watermark,
            swap_block_seconds=2 * cost.per_swap if self.swap_blocks else float("inf"),
        )
        memory = KVMemory(
            [KVGroup(self.num_blocks, swap_blocks=self.swap_blocks)],
            self.block_size,
            prefix_caching=self.prefix_caching,
            eviction=self.eviction,
            max_chunk=self.max_num_batched_tokens,
        )
        return Scheduler(settings, memory, self._adaptive())

    def _adaptive(self) -> AdaptiveLimits | None:
        ttft_p90, itl_p90 = self.target_ttft_p90 or None, self.target_itl_p90 or None
        if ttft_p90 is None and itl_p90 is None:
            return None
        return AdaptiveLimits(self.max_num_seqs, self.max_num_batched_tokens, ttft_p90=ttft_p90, itl_p90=itl_p90)

    def run(self) -> Recording:
        """Replay the trace, and return the recording."""
        return Replay(self.scheduler(), COSTS[self.cost], self.asks(), self.max_model_len).run()


def _parse(kind: type, text: str) -> Any:
    """Return the value of a flag; ValueError if it is not valid."""
    if kind is bool:
        if text.lower() not in {"true", "false", "1", "0", "yes", "no"}:
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in {"true", "1", "yes"}
    return kind(text)
