"""The message about a model that does not fit into a device's memory: what it needs, what there is, what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from octavo_engine.runner.memory.device_memory import LIMIT, DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed
from octavo_engine.sizes import format_size


@dataclass(frozen=True, slots=True)
class Misfit:
    """A model whose weights, step and KV cache for one sequence of `length` tokens take more memory than there is."""

    need: MemoryNeed
    memory: DeviceMemory
    limits: MemoryLimits
    length: int

    def explain(self) -> str:
        """Return the message, which ends with the settings that would make the model fit."""
        limits, length = self.limits, self.length
        kv, reason = limits.shares(self.need).bytes(-(-length // limits.block_size)), f"for {length} tokens"
        blocks, given = limits.num_kv_blocks, limits.kv_cache_memory
        if blocks is not None and blocks * limits.block_size < length:
            return (
                f"--num-kv-blocks {blocks} holds {blocks * limits.block_size} tokens, fewer than --max-model-len "
                f"{length}; raise --num-kv-blocks to {-(-length // limits.block_size)} or lower --max-model-len"
            )
        if given is not None and given < kv:
            return (
                f"--kv-cache-memory {format_size(given)} is too small: one sequence needs {format_size(kv)} for its "
                f"{length} tokens; raise it to that, or lower --max-model-len"
            )
        if blocks is not None:
            kv, reason = limits.shares(self.need).bytes(blocks), f"(--num-kv-blocks {blocks})"
        elif given is not None:
            kv, reason = given, "(--kv-cache-memory)"
        total = self.need.fixed + kv + limits.swap_on_device
        return f"{self._sizes(total, kv, reason)} {self._advice(total)}"

    def _sizes(self, total: int, kv: int, reason: str) -> str:
        """Return sentences that compare what is needed, `total`, with what there is, then the parts of both."""
        need, memory, limits = self.need, self.memory, self.limits
        graphs = f" + CUDA graphs {format_size(need.graphs)}" if need.graphs else ""
        adapters = f" + adapters {format_size(need.adapters)}" if need.adapters else ""
        swap = f" + swap space {format_size(limits.swap_on_device)}" if limits.swap_on_device else ""
        return (
            f"the model does not fit into {memory.name}: it needs {format_size(total)}, and there are "
            f"{format_size(max(self._budget, 0))}. Needed: weights {format_size(need.weights)} + one step "
            f"{format_size(need.step)}{graphs}{adapters} + KV cache {format_size(kv)} {reason}{swap}. Available: "
            f"--gpu-memory-utilization {limits.utilization:g} of {format_size(memory.total)}, minus "
            f"{format_size(memory.total - memory.free)} in use."
        )

    @property
    def _budget(self) -> int:
        return self.memory.budget(self.limits.utilization)

    @property
    def _left(self) -> int:
        """The bytes that are left for the KV cache; negative: weights and one step do not fit."""
        return self._budget - self.need.fixed - self.limits.swap_on_device

    def _advice(self, total: int) -> str:
        ways = [*self._smaller_parts(total - self._budget), *self._smaller_cache(), *self._more_memory(total)]
        return "Try " + ", or ".join(ways) + "." if ways else "Take a larger device."

    def _smaller_parts(self, missing: int) -> Iterator[str]:
        """Yield the parts besides weights and KV cache that take at least the `missing` bytes."""
        if self.need.graphs and missing <= self.need.graphs:
            yield "--enforce-eager (fits)"
        if self.need.adapters and missing <= self.need.adapters:
            yield (
                "a smaller --max-loras or --max-lora-rank, or --lora-target-modules without modules that no adapter "
                "changes"
            )
        if (swap := self.limits.swap_on_device) and missing <= swap:
            yield f"--swap-space {(swap - missing) >> 20}MiB (fits)"

    def _smaller_cache(self) -> Iterator[str]:
        """Yield the sizes of the KV cache, or the context length, with which the model fits."""
        limits, left = self.limits, self._left
        wanted = limits.num_kv_blocks or -(-limits.model_max_len // limits.block_size)
        blocks = limits.shares(self.need).most(left, wanted)
        if limits.num_kv_blocks is not None and blocks:
            yield f"--num-kv-blocks {blocks} (fits)"
        if limits.kv_cache_memory is not None and left > 0:
            yield f"--kv-cache-memory {left >> 20}MiB (fits)"
        if blocks and limits.num_kv_blocks is None and limits.kv_cache_memory is None:
            yield f"--max-model-len {blocks * limits.block_size} (fits)"

    def _more_memory(self, total: int) -> Iterator[str]:
        """Yield the ways to have more memory, or to need less where not even one block of the KV cache fits."""
        memory, limits = self.memory, self.limits
        taken = total + memory.total - memory.free
        if limits.utilization < taken / memory.total <= 0.98:
            yield f"--gpu-memory-utilization {taken / memory.total + 0.005:.2f}"
        if total > memory.free and self._left <= limits.shares(self.need).bytes(1):
            more = format_size(math.ceil(taken / limits.utilization) - memory.total)
            yield f"a limit that is {more} higher" if memory.name == LIMIT else f"a device with {more} more memory"
            if not limits.on_cpu:
                yield "more GPUs"
            if not limits.mixture:
                # On a CPU products with e4m3 weights take more memory in a step than those with int8.
                yield f"smaller weights (--quantization {'int8' if limits.on_cpu else 'fp8'})"
        if self._left <= 0:
            yield "a smaller --max-num-seqs or --max-num-batched-tokens, for a smaller step"
