"""The memory plan: how a device's memory is divided between weights, one step and the KV cache.

The plan is computed before anything is loaded, so that a model that does not fit is reported at once: what it needs,
what there is, and which setting to change by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from octavo_engine.errors import ConfigurationError, DoesNotFitError
from octavo_engine.runner.cgroup_memory import cgroup_memory
from octavo_engine.runner.kv_blocks import BlockShares, WindowNeed
from octavo_engine.sizes import format_size

CPU_KV_CACHE = 4 << 30
"""The default size of the KV cache on a CPU, whose memory other programs need too; --kv-cache-memory changes it."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device in bytes; on a CPU, of the machine or the container's limit."""

    total: int
    free: int
    name: str

    def budget(self, utilization: float) -> int:
        """Return the bytes that we may take if all programs together may use the share `utilization` of the device."""
        return int(self.total * utilization) - (self.total - self.free)

    def share(self, ranks: int) -> DeviceMemory:
        """Return the share of this memory that each of `ranks` processes may use."""
        name = self.name if ranks == 1 else f"a share of 1/{ranks} of {self.name}"
        return DeviceMemory(self.total // ranks, self.free // ranks, name)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that a model needs, in bytes."""

    weights: int
    step: int
    """An upper bound of one step's activations, logits included."""
    kv_per_token: int
    """Bytes of a token in the layers of full attention, which keep every token."""
    graphs: int = 0
    """Bytes that CUDA graphs keep: estimated before loading, measured after."""
    windows: tuple[WindowNeed, ...] = ()
    """The needs of each group with a sliding window."""
    state: int = 0
    """Bytes of one sequence's states in all layers that keep a state."""
    adapters: int = 0
    """Bytes of the slots of LoRA adapters."""

    @property
    def fixed(self) -> int:
        """Bytes of everything but the KV cache."""
        return self.weights + self.step + self.graphs + self.adapters


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The settings that bound the memory plan; None for those that the user did not give."""

    utilization: float
    block_size: int
    max_num_seqs: int
    model_max_len: int
    max_model_len: int | None = None
    kv_cache_memory: int | None = None
    num_kv_blocks: int | None = None
    swap_space: int = 0
    on_cpu: bool = False
    max_num_batched_tokens: int = 2048
    mixture: bool = False
    """Whether the model is a mixture of experts, which `--quantization` cannot shrink."""
    prefix_caching: bool = True

    def shares(self, need: MemoryNeed, window_seqs: int = 1) -> BlockShares:
        """Return the sizes that divide memory between KV groups, with windows and states for `window_seqs` requests."""
        tokens = self.max_num_batched_tokens
        return BlockShares(need.kv_per_token, need.windows, self.block_size, tokens, window_seqs, need.state)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan: sizes in bytes, and the blocks and context length that they allow."""

    need: MemoryNeed
    budget: int
    kv_bytes: int
    num_kv_blocks: int
    """Blocks of full attention; groups with a window, or with states, may have fewer."""
    block_size: int
    max_model_len: int
    swap_blocks: int = 0
    """Blocks of full attention in the swap space, in CPU memory."""
    step_tokens: int = 0
    """The value of --max-num-batched-tokens."""
    window_seqs: int = 1
    """The number of requests that get a sliding window and a state."""

    @property
    def shares(self) -> BlockShares:
        """The sizes that divide memory between KV groups."""
        need = self.need
        sizes = (self.block_size, self.step_tokens, self.window_seqs, need.state)
        return BlockShares(need.kv_per_token, need.windows, *sizes)

    def blocks_of(self, window: int | None, *, states: bool = False) -> int:
        """Return the blocks of a KV group; with a `window` or `states` it may have fewer than `num_kv_blocks`."""
        blocks = self.num_kv_blocks
        return self.shares.state_slots(blocks) if states else self.shares.blocks_of(window, blocks)

    def swap_blocks_of(self, window: int | None, *, states: bool = False) -> int:
        """Return the swap blocks of a KV group, by its `window` (None: full attention) or `states`."""
        blocks = self.swap_blocks
        return self.shares.state_slots(blocks) if states and blocks else self.shares.blocks_of(window, blocks)

    @property
    def swap_bytes(self) -> int:
        """Bytes of the swap space, in CPU memory."""
        return self.shares.bytes(self.swap_blocks)

    @property
    def kv_tokens(self) -> int:
        """The number of tokens that the KV cache holds."""
        return self.num_kv_blocks * self.block_size

    def describe(self) -> str:
        """Return the plan as one line for the log."""
        full = self.kv_tokens / self.max_model_len
        swap = f", {format_size(self.swap_bytes)} of CPU memory to swap to" if self.swap_blocks else ""
        rest = f" + CUDA graphs {format_size(self.need.graphs)}" if self.need.graphs else ""
        rest += f" + adapters {format_size(self.need.adapters)}" if self.need.adapters else ""
        tokens = ((need.window, self.blocks_of(need.window) * self.block_size) for need in self.need.windows)
        windows = "".join(f" and {count:,} in windows of {window:,}" for window, count in tokens)
        if self.need.state:
            windows += f" and {self.blocks_of(None, states=True):,} states of {format_size(self.need.state)}"
        return (
            f"weights {format_size(self.need.weights)} + step {format_size(self.need.step)}{rest} + KV cache "
            f"{format_size(self.kv_bytes)} of {format_size(self.budget)}: {self.kv_tokens:,} tokens of KV{windows}, "
            f"{full:.1f} sequences of {self.max_model_len:,} tokens{swap}"
        )


def plan_memory(need: MemoryNeed, memory: DeviceMemory, limits: MemoryLimits) -> MemoryPlan:
    """Size the KV cache; DoesNotFitError unless it holds at least one sequence of --max-model-len tokens."""
    budget = memory.budget(limits.utilization)
    left = budget - need.fixed - _swap_on_device(limits)
    wanted = limits.max_model_len or limits.model_max_len
    shares, blocks = _share(need, left, wanted, limits)
    capacity = blocks * limits.block_size
    max_model_len = limits.max_model_len or min(wanted, capacity)
    if max_model_len < 1 or capacity < max_model_len or shares.bytes(blocks) > left:
        raise DoesNotFitError(_explain(need, memory, limits, budget, left, max_model_len or limits.block_size))
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


def _swap_on_device(limits: MemoryLimits) -> int:
    """Return the bytes of the swap space that are part of the device's memory: all on a CPU, none on a GPU."""
    return limits.swap_space if limits.on_cpu else 0


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


def _explain(need: MemoryNeed, memory: DeviceMemory, limits: MemoryLimits, budget: int, left: int, length: int) -> str:
    kv = limits.shares(need).bytes(-(-length // limits.block_size))
    if limits.num_kv_blocks is not None and limits.num_kv_blocks * limits.block_size < length:
        return (
            f"--num-kv-blocks {limits.num_kv_blocks} holds {limits.num_kv_blocks * limits.block_size} tokens, fewer "
            f"than --max-model-len {length}; raise the first to {-(-length // limits.block_size)} or lower the second"
        )
    if limits.kv_cache_memory is not None and limits.kv_cache_memory < kv:
        return (
            f"--kv-cache-memory {format_size(limits.kv_cache_memory)} is too small: one sequence needs "
            f"{format_size(kv)} for its {length} tokens; raise it to that, or lower --max-model-len"
        )
    asked = f"for {length} tokens"
    if limits.num_kv_blocks is not None:
        kv, asked = limits.shares(need).bytes(limits.num_kv_blocks), f"for --num-kv-blocks {limits.num_kv_blocks}"
    elif limits.kv_cache_memory is not None:
        kv, asked = limits.kv_cache_memory, "as --kv-cache-memory says"
    swap = _swap_on_device(limits)
    total = need.fixed + kv + swap
    graphs = f" + CUDA graphs {format_size(need.graphs)}" if need.graphs else ""
    adapters = f" + adapters {format_size(need.adapters)}" if need.adapters else ""
    swapped = f" + swap space {format_size(swap)}" if swap else ""
    return (
        f"does not fit into {memory.name}: needs {format_size(total)} (weights {format_size(need.weights)} + one step "
        f"{format_size(need.step)}{graphs}{adapters} + KV cache {format_size(kv)} {asked}{swapped}); there "
        f"are {format_size(max(budget, 0))} "
        f"(--gpu-memory-utilization {limits.utilization:g} of {format_size(memory.total)}, "
        f"{format_size(memory.total - memory.free)} of it taken by others). "
        + _advice(need, memory, limits, budget, left, total)
    )


def _advice(need: MemoryNeed, memory: DeviceMemory, limits: MemoryLimits, budget: int, left: int, total: int) -> str:
    tips = []
    if need.graphs and total - budget <= need.graphs:
        tips.append("--enforce-eager (fits)")
    if need.adapters and total - budget <= need.adapters:
        tips.append(
            "a smaller --max-loras or --max-lora-rank, or --lora-target-modules without modules that no adapter changes"
        )
    if (swap := _swap_on_device(limits)) and total - budget <= swap:
        tips.append(f"--swap-space {(swap - (total - budget)) >> 20}MiB (fits)")
    blocks = limits.shares(need).most(left, limits.num_kv_blocks or -(-limits.model_max_len // limits.block_size))
    if limits.num_kv_blocks is not None and blocks:
        tips.append(f"--num-kv-blocks {blocks} (fits)")
    if limits.kv_cache_memory is not None and left > 0:
        tips.append(f"--kv-cache-memory {left >> 20}MiB (fits)")
    if blocks and limits.num_kv_blocks is None and limits.kv_cache_memory is None:
        tips.append(f"--max-model-len {blocks * limits.block_size} (fits)")
    share = (total + memory.total - memory.free) / memory.total
    if limits.utilization < share <= 0.98:
        tips.append(f"--gpu-memory-utilization {share + 0.005:.2f}")
    if total > memory.free and left <= limits.shares(need).bytes(1):
        # On a CPU products with e4m3 weights take more memory in a step than those with int8.
        smaller = "" if limits.mixture else f"smaller weights (--quantization {'int8' if limits.on_cpu else 'fp8'})"
        gpus = "" if limits.on_cpu else "more GPUs"
        more = math.ceil((total + memory.total - memory.free) / limits.utilization) - memory.total
        ways = [f"a device with {format_size(more)} more memory", gpus, smaller]
        tips += [way for way in ways if way]
    if left <= 0:
        tips.append(f"a smaller --max-num-seqs or --max-num-batched-tokens (one step takes {format_size(need.step)})")
    return "Try " + ", or ".join(tips) + "." if tips else "Take a larger device."


def device_memory(device: torch.device) -> DeviceMemory:
    """Return the total and the free memory of `device` now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free, torch.cuda.get_device_name(device))
    return host_memory()


def host_memory() -> DeviceMemory:
    """Return the machine's memory, or the limit of this process's control groups if that is less."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(meminfo[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limited = cgroup_memory()
    if limited is not None and limited[0] < total:
        return DeviceMemory(limited[0], min(limited[1], free), "the memory limit of this container or cgroup")
    return DeviceMemory(total, free, "this machine's memory")
