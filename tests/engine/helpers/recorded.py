"""A stand-in for CUDA graphs on a CPU: records PyTorch's operations and replays them; with a backend that allows it.

`RecordedOperations` is not a GPU, but as strict as one in what matters: PyTorch's operations are recorded one by one
with the tensors that they read and wrote, and a replay repeats these operations and nothing else. The host's values at
the recording (lengths, branches, sizes) are fixed, and operations that would wait for a device, or copy numbers to it
from the host, cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.qk_norm import QKNorm
from octavo_engine.attention.rope import Rope
from octavo_engine.attention.torch_reference import allocate_blocks
from octavo_engine.capture import Work

WAITING = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "unique", "bincount"}
"""Operations whose result the host, or the shape of a tensor, depends on."""
FROM_HOST = {"lift_fresh", "lift_fresh_copy"}


class CannotBeRecordedError(AssertionError):
    """An operation that would break the capture of a CUDA graph."""


@dataclass(frozen=True)
class Operation:
    """One call of an operator and the tensor or tensors it gave."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def is_view(self) -> bool:
        """True if its results are views of its inputs, as they are in a replay."""
        if self.function._schema.is_mutable:
            return False
        inputs = {t.untyped_storage().data_ptr() for t in tensors((self.args, self.kwargs))}
        return all(t.untyped_storage().data_ptr() in inputs for t in tensors(self.result))

    @cached_property
    def copied(self) -> list[Tensor]:
        """The tensors that a replay copies its own results into; none where the operator writes into its inputs."""
        return [] if self.function._schema.is_mutable else tensors(self.result)

    def replay(self) -> None:
        """Repeat the operation, into the same memory."""
        again = self.function(*self.args, **self.kwargs)
        if self.copied:
            for old, new in zip(self.copied, tensors(again), strict=True):
                old.copy_(new)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors among an operator's arguments or results. PyTorch's own walk takes several times as long."""
    if isinstance(tree, Tensor):
        return [tree]
    each = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for inner in each for tensor in tensors(inner)]


class Recorder(TorchDispatchMode):
    """Keeps all operations that write."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in WAITING | FROM_HOST:
            raise CannotBeRecordedError(f"{name} inside a graph")
        if name == "index" and any(t.dtype in (torch.bool, torch.uint8) for t in tensors(args[1])):
            raise CannotBeRecordedError("a boolean index inside a graph")
        result = func(*args, **(kwargs or {}))
        operation = Operation(func, args, kwargs or {}, result)
        if not operation.is_view:
            self.operations.append(operation)
        return result


class RecordedOperations:
    """`Capture` by recording; `taken` counts `BYTES` for each record that is still there."""

    BYTES = 5_000

    def __init__(self) -> None:
        self.replays = 0
        self.recorded = 0
        self._alive: list[Any] = []

    def capture(self, works: Iterable[Work]) -> list[Work]:
        return [self._record(work) for work in works]

    def _record(self, work: Work) -> Work:
        work()
        with Recorder() as recorder:
            work()
        self.recorded += 1
        return partial(self._replay, recorder.operations)

    def _replay(self, operations: list[Operation]) -> None:
        self.replays += 1
        for operation in operations:
            operation.replay()

    def taken(self) -> int:
        return self.BYTES * self.recorded


@dataclass(frozen=True)
class StaticMetadata:
    """The slot, the sequence's blocks, and the visible tokens of each token."""

    slots: Tensor
    blocks: Tensor
    first: Tensor
    end: Tensor


class StaticAttention:
    """Every token against all blocks of its sequence's table, in operations whose shapes depend on no length."""

    name = "static"
    graph_safe = True
    mixed_graph_safe = True

    def allocate(
        self, group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> dict[int, LayerCache]:
        # One block more than the scheduler knows: slot -1 is its last one.
        return allocate_blocks(group, num_blocks + 1, block_size, dtype, device)

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> StaticMetadata:
        tokens = torch.arange(len(inputs.positions))
        sequence = (inputs.cu_query_lens[None, 1:] <= tokens[:, None]).sum(1)
        end = torch.minimum(inputs.positions + 1, inputs.context_lens[sequence])
        first = torch.zeros_like(end) if window is None else end - window
        return StaticMetadata(inputs.slot_mapping[group], inputs.block_tables[group][sequence], first, end)

    def write(self, cache: LayerCache, key: Tensor, value: Tensor, metadata: StaticMetadata) -> None:
        for blocks, new in ((cache.key, key), (cache.value, value)):
            blocks.flatten(0, 1).index_put_((metadata.slots,), new)

    def fused_write(
        self, cache: LayerCache, heads: Tensor, rope: Rope | None, qk_norm: QKNorm | None, metadata: StaticMetadata
    ) -> Tensor | None:
        return None

    def attend(self, query: Tensor, cache: LayerCache, metadata: StaticMetadata, variant: AttentionVariant) -> Tensor:
        places = torch.arange(metadata.blocks.shape[1] * cache.key.shape[1])
        seen = (places < metadata.end[:, None]) & (places >= metadata.first[:, None])
        key, value = (
            self._gather(blocks, metadata.blocks, seen, query.shape[1]) for blocks in (cache.key, cache.value)
        )
        scores = torch.einsum("thd,tlhd->thl", query.float(), key) * variant.scale
        weights = scores.masked_fill(~seen[:, None], -1e30).softmax(-1) * seen[:, None]
        return torch.einsum("thl,tlhd->thd", weights, value).to(query.dtype)

    def _gather(self, blocks: Tensor, indices: Tensor, seen: Tensor, heads: int) -> Tensor:
        rows = blocks[indices].flatten(1, 2).float()  # [T, L, K, D]
        rows = rows.masked_fill(~seen[:, :, None, None], 0.0)  # a masked NaN is a NaN still
        return rows.repeat_interleave(heads // blocks.shape[2], dim=2)

    def scratch_bytes(
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        return 4 * max_tokens * max_context * task.num_heads * group.head_dim
