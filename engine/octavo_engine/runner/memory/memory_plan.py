"""The memory plan's records: what a model needs, the settings that bound the plan, and the plan itself."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.runner.memory.kv_blocks import BlockShares, WindowNeed
from octavo_engine.sizes import format_size


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
    causal: bool = True
    """Whether the model computes a prompt in parts, for which it has a KV cache."""

    @property
    def swap_on_device(self) -> int:
        """Bytes of the swap space that are part of the device's memory: all on a CPU, none on a GPU."""
        return self.swap_space if self.on_cpu else 0

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
    causal: bool = True
    """Whether the model has a KV cache."""

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

    @property
    def full_sequences(self) -> int:
        """The sequences of full length that the KV cache holds or, for a model without one, that a step computes."""
        return (self.kv_tokens if self.causal else self.step_tokens) // self.max_model_len

    def describe(self) -> str:
        """Return the plan as one line for the log."""
        full = self.full_sequences
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
            f"{full:,} sequence{'s' * (full != 1)} of {self.max_model_len:,} tokens{swap}"
        )
