"""The sizing of the KV cache: it gets what weights and one step leave of a device's memory.

It is computed before anything is loaded, so that a model that does not fit is reported at once.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.errors import ConfigurationError, DoesNotFitError
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.does_not_fit import Misfit
from octavo_engine.runner.memory.kv_blocks import BlockShares
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed, MemoryPlan
from octavo_engine.sizes import format_size

CPU_KV_CACHE = 4 << 30
"""The default size of the KV cache on a CPU, whose memory other programs need too; --kv-cache-memory changes it."""


def plan_memory(need: MemoryNeed, memory: DeviceMemory, limits: MemoryLimits) -> MemoryPlan:
    """Size the KV cache; DoesNotFitError unless it holds at least one sequence of --max-model-len tokens."""
    budget = memory.budget(limits.utilization)
    left = budget - need.fixed - limits.swap_on_device
    wanted = limits.max_model_len or limits.model_max_len
    shares, blocks = _share(need, left, wanted, limits)
    capacity = blocks * limits.block_size
    max_model_len = limits.max_model_len or min(wanted, capacity)
    if max_model_len < 1 or capacity < max_model_len or shares.bytes(blocks) > left:
        raise DoesNotFitError(Misfit(need, memory, limits, max_model_len or limits.block_size).explain())
    return MemoryPlan(
        need,
        budget,
        shares.bytes(blocks),
        blocks,
        limits.block_size,
        max_model_len,
        _swap_blocks(limits.swap_space, shares, blocks),
        limits.max_num_batched_tokens,
        shares.window_seqs,
        limits.causal,
    )


def _share(need: MemoryNeed, left: int, wanted: int, limits: MemoryLimits) -> tuple[BlockShares, int]:
    """Divide `left` bytes between KV groups; return the shares and the number of blocks of full attention.

    Twice as many requests as may run get windows and states: the prefix cache keeps the second half of them. That
    number is doubled for as long as full attention loses no blocks, or windows and states take less than an eighth of
    the cache; a group with as many blocks as full attention allows every hit that full attention allows. If a sequence
    of `wanted` tokens would not fit, the number is halved until it does. If --max-model-len does not ask for that
    length, the length is reduced instead once windows take at most an eighth of the cache: with windows for a single
    request, long prompts would run one after another.
    """
    least = window_seqs = 2 * limits.max_num_seqs
    most = _blocks(left, limits.shares(need, least), wanted, limits)
    while limits.prefix_caching and not limits.shares(need, window_seqs).keeps_all(most):
        window_seqs *= 2
    while True:
        shares = limits.shares(need, window_seqs)
        blocks = _blocks(left, shares, wanted, limits)
        long_enough = blocks * limits.block_size >= wanted or limits.num_kv_blocks is not None
        small = 0 < 8 * shares.bytes_of_running(blocks) <= shares.bytes(blocks)
        if window_seqs > least:
            free = blocks == most and shares.bytes(blocks) <= _allowed(left, shares, wanted, limits)
            suits = long_enough and (free or (small and bool(need.windows)))
        else:
            suits = long_enough or (small and limits.max_model_len is None)
        if (suits and shares.bytes(blocks) <= left) or window_seqs == 1:
            return shares, blocks
        window_seqs //= 2


def _swap_blocks(swap_space: int, shares: BlockShares, on_device: int) -> int:
    blocks = shares.most(swap_space, max(shares.limit(swap_space), on_device)) if swap_space else 0
    if swap_space and not blocks:
        raise ConfigurationError(
            f"--swap-space {format_size(swap_space)} holds no block: one takes {format_size(shares.bytes(1))}; give at "
            f"least that, or 0 for none"
        )
    return blocks


def check_swap_space(plan: MemoryPlan, host: DeviceMemory) -> None:
    """Raises DoesNotFitError unless the swap space of a GPU fits into the CPU's memory, where it is pinned."""
    if plan.swap_bytes > host.free:
        raise DoesNotFitError(
            f"--swap-space {format_size(plan.swap_bytes)} does not fit into {host.name}: {format_size(host.free)} of "
            f"{format_size(host.total)} are free. Try --swap-space {host.free // 2 >> 20}MiB."
        )


def _blocks(left: int, shares: BlockShares, wanted: int, limits: MemoryLimits) -> int:
    """Return the number of blocks of full attention."""
    if limits.num_kv_blocks is not None:
        return limits.num_kv_blocks
    allowed = _allowed(left, shares, wanted, limits)
    most_of_use = -(-wanted // limits.block_size) * limits.max_num_seqs
    return shares.most(
        allowed, most_of_use if limits.kv_cache_memory is None else max(most_of_use, shares.limit(allowed))
    )


def _allowed(left: int, shares: BlockShares, wanted: int, limits: MemoryLimits) -> int:
    """Return the bytes that the KV cache may take."""
    if limits.kv_cache_memory is not None:
        return limits.kv_cache_memory
    of_one = replace(shares, window_seqs=1).bytes(-(-wanted // limits.block_size))
    return min(left, max(CPU_KV_CACHE, of_one)) if limits.on_cpu else left
