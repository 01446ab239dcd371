"""The slots of all layers of a decoder on one rank's device: memory, what is put into them, and a step's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.library import DTYPES, CPUKernels, cpu_kernels
from octavo_engine.kernels.triton_support import triton_runs_on
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf_architectures import of_family
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.lora import LoraBatch, LoraLayer, slot_rank
from octavo_engine.model.lora.adapter import AdapterModule, AdapterWrite
from octavo_engine.model.lora.targets import Target, find_targets

_FLOAT32_BYTES = 4
_KERNEL_WIDTH = 16
"""Triton's kernels want a multiple of it as the rows of each projection."""


class LoraSlots:
    """All adapters that are on the device. Used by the device's thread alone."""

    def __init__(self, decoder: Decoder, targets: Mapping[str, Target], num_slots: int, max_rank: int) -> None:
        """Give each of the targets' linear layers `num_slots` empty slots."""
        self.targets, self.num_slots = targets, num_slots
        self.batch = LoraBatch(_cpu_kernels(decoder))
        decoder.lora = self.batch
        for linear in _linears(targets):
            options = linear.options
            linear.lora = LoraLayer(
                self.batch,
                linear.parts,
                linear.columns.size,
                slots=num_slots,
                rank=slot_rank(max_rank, options.device),
                dtype=options.dtype,
                device=options.device,
            )

    @torch.inference_mode()
    def write(self, write: AdapterWrite) -> None:
        """Put a part of an adapter into its slot, which no step reads until all parts are there."""
        from safetensors import safe_open

        if write.first:
            for linear in _linears(self.targets):
                if linear.lora is not None:
                    linear.lora.clear(write.slot)
        with safe_open(write.path, framework="pt", device="cpu") as file:
            for module in write.modules:
                self._put(write.slot, module, file.get_tensor(module.a), file.get_tensor(module.b))

    def _put(self, slot: int, module: AdapterModule, a: Tensor, b: Tensor) -> None:
        """This rank's columns of A and rows of B, as the projections' own rows lie."""
        target = self.targets[module.name]
        layer = target.linear.lora
        if layer is None:
            raise RuntimeError(f"{module.name} has no slots")
        a, first = a[:, target.linear.columns.slice], 0
        for projection in target.projections:
            layer.put_a(slot, projection.index, a)
            stored = projection.stored_rows
            own = b[first + stored.start : first + stored.start + stored.size].float() * module.scale
            start = projection.rows.start
            rows = projection.rows if projection.order is None else start + projection.order
            layer.put_b(slot, rows if isinstance(rows, slice) else rows.to(layer.b.device), own)
            first += stored.total

    def use(self, slots: Sequence[int]) -> None:
        """The next forward pass is of tokens with these slots, NO_SLOT for none."""
        device = next(iter(self.targets.values())).linear.options.device
        if triton_runs_on(device) and slots and max(slots) >= 0:
            self.use_device(torch.tensor(slots, dtype=torch.int32).to(device, non_blocking=True))
        else:
            self.batch.use(slots)

    def use_device(self, slots: Tensor) -> None:
        """Use the slots [T] on the device, which a graph reads again in each replay."""
        from octavo_engine.kernels.lora import group_by_adapter

        self.batch.groups = group_by_adapter(slots, self.num_slots)


def _cpu_kernels(decoder: Decoder) -> CPUKernels | None:
    """The C kernels, where a decoder on a CPU can be computed by them."""
    device = decoder.input.tokens.weight.device
    return cpu_kernels() if device.type == "cpu" and decoder.dtype in DTYPES and not triton_runs_on(device) else None


def lora_targets(decoder: Decoder, device: torch.device, *, gguf: bool = False) -> dict[str, Target]:
    """The linear layers that can have adapters on a device: kernels know no odd sizes, such as a gate to one number.

    `gguf`: the weights come from a GGUF file.
    """
    stored = of_family(decoder.spec.architecture) if gguf else None
    reordered = stored is not None and stored.interleaves_rope
    kernels = device.type == "cuda" or triton_runs_on(device)
    return {
        name: target
        for name, target in find_targets(decoder, gguf=reordered).items()
        if not kernels or not any(size % _KERNEL_WIDTH for size in target.linear.parts)
    }


def lora_bytes(targets: Mapping[str, Target], num_slots: int, max_rank: int, device: torch.device) -> int:
    """Bytes of all slots on one rank."""
    rank = slot_rank(max_rank, device)
    numbers = sum(len(each.parts) * each.columns.size + sum(each.parts) for each in _linears(targets))
    return num_slots * rank * numbers * _itemsize(targets)


def lora_step_bytes(targets: Mapping[str, Target], max_tokens: int, max_rank: int, device: torch.device) -> int:
    """An upper bound of what a step of `max_tokens` takes in the layer that takes most: inputs by adapter, what is
    between A and B (float32, in up to four parts), results."""
    rank, size = slot_rank(max_rank, device), _itemsize(targets)
    layers = _linears(targets)
    each = (
        (layer.columns.size + max(layer.parts)) * size + 4 * len(layer.parts) * rank * _FLOAT32_BYTES
        for layer in layers
    )
    return max_tokens * max(each, default=0)


def _itemsize(targets: Mapping[str, Target]) -> int:
    return max((target.linear.options.dtype.itemsize for target in targets.values()), default=0)


def _linears(targets: Mapping[str, Target]) -> list[Linear]:
    """Each linear layer once."""
    return list({id(target.linear): target.linear for target in targets.values()}.values())
