"""Draws the settings of a scheduler's test with hypothesis: pool, KV groups, rules and limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from simulation import limit_context, make_scheduler

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.scheduler import Scheduler

KINDS = {
    "full": [KVGroup(0)],
    "sliding": [KVGroup(0, "sliding", 5)],
    "recurrent": [KVGroup(0, "recurrent")],
    "full + sliding": [KVGroup(0), KVGroup(0, "sliding", 7)],
    "full + recurrent": [KVGroup(0), KVGroup(0, "recurrent")],
    "full + sliding + recurrent": [KVGroup(0), KVGroup(0, "sliding", 9), KVGroup(0, "recurrent")],
}


@dataclass(frozen=True)
class World:
    """The settings under which a history happens."""

    blocks: int
    block_size: int
    kinds: str
    seqs: int
    tokens: int
    prefix: bool
    eviction: str
    ttl: float | None
    swap_blocks: int
    policy: str
    max_preemptions: int
    max_skips: int
    ageing_seconds: float
    watermark: float
    ahead: int
    context: float

    @property
    def groups(self) -> list[KVGroup]:
        """The KV groups with their blocks."""
        return [replace(group, num_blocks=self.blocks) for group in KINDS[self.kinds]]

    def scheduler(self) -> Scheduler:
        """A scheduler for it. Swapping, where there is space, always looks cheap."""
        scheduler = make_scheduler(
            groups=self.groups,
            blocks=self.blocks,
            block_size=self.block_size,
            seqs=self.seqs,
            tokens=max(self.seqs, self.tokens),
            model_len=2 * self.blocks * self.block_size,
            prefix=self.prefix,
            eviction=self.eviction,
            ttl=self.ttl,
            swap_blocks=self.swap_blocks,
            swap_block_seconds=0.0 if self.swap_blocks else float("inf"),
            policy=self.policy,
            max_preemptions=self.max_preemptions,
            max_skips=self.max_skips,
            ageing_seconds=self.ageing_seconds,
            watermark=self.watermark,
        )
        limit_context(scheduler, self.context)
        return scheduler


WORLDS = st.builds(
    World,
    blocks=st.one_of(st.integers(8, 20), st.integers(8, 20), st.integers(8, 64)),
    block_size=st.sampled_from([4, 4, 16]),
    kinds=st.sampled_from(sorted(KINDS)),
    seqs=st.one_of(st.integers(1, 8), st.just(8)),
    tokens=st.integers(4, 80),
    prefix=st.sampled_from([True, True, False]),
    eviction=st.sampled_from(["lru", "lfu", "priority"]),
    ttl=st.sampled_from([None, 5.0]),
    swap_blocks=st.sampled_from([0, 10, 40]),
    policy=st.sampled_from(["fcfs", "priority"]),
    max_preemptions=st.integers(0, 3),
    max_skips=st.sampled_from([0, 1, 4, 32]),
    ageing_seconds=st.sampled_from([3.0, 30.0]),
    watermark=st.sampled_from([0.0, 0.1]),
    ahead=st.integers(0, 1),
    context=st.sampled_from([float("inf"), 30.0, 100.0]),
)
