"""The adapter slots of all layers on one rank's device: their memory, writes into them, and the slots of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.cpu.library import DTYPES, CPUKernels, cpu_kernels
from octavo_engine.kernels.cpu.pages import LINE, HugePages
from octavo_engine.kernels.triton_support import triton_runs_on
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf.architectures import architecture_of
from octavo_engine.model.layers.adapters.expert_lora import ExpertLora
from octavo_engine.model.layers.adapters.latent_lora import LatentLora
from octavo_engine.model.layers.adapters.lora import LoraBatch, LoraLayer, slot_rank, slot_rows
from octavo_engine.model.layers.attention.latent_attention import LatentAttention
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.lora.adapter import AdapterWrite, ModulePart
from octavo_engine.model.lora.expert_targets import ExpertTarget, expert_targets
from octavo_engine.model.lora.targets import (
    LatentTarget,
    LinearTarget,
    Target,
    TargetChoice,
    latent_targets,
    linear_targets,
)

_FLOAT32_BYTES = 4
_KERNEL_WIDTH = 16
"""The multiple of which the rows of each projection must be for Triton's kernels."""
_MOST_GROUPS = 4096
"""The most groups into which Triton's kernels sort a step's tokens, by adapter or by adapter and expert."""

_OF_SAMPLED_ROWS = "it is computed after the last layer, for the sampled tokens alone; adapters of it are not supported"
_OF_SEVERAL_LAYERS = "several layers have its weights, and PEFT changes them in one of these layers alone"
_REORDERED = "the GGUF file has rows of query and key in another order than the adapter; take the safetensors files"
_SCALED = (
    "the GGUF file has multipliers in its weights, which adapters were trained without; serve the checkpoint instead"
)


@dataclass(frozen=True, slots=True)
class LayerSize:
    """One rank's part of a linear layer, or of the same one of all experts."""

    parts: tuple[int, ...]
    """The rows of each projection."""
    columns: int
    experts: int = 1
    chosen: int = 1
    """The number of a token's rows that go through it."""


class LoraSlots:
    """All adapters on the device; used only by the device's thread."""

    def __init__(self, decoder: Decoder, choice: TargetChoice, num_slots: int, max_rank: int) -> None:
        """Give each layer that adapters may change `num_slots` empty slots."""
        self.choice, self.num_slots = choice, num_slots
        self._targets = targets = choice.targets
        self.batch = LoraBatch(_cpu_kernels(decoder))
        self._device = decoder.input.tokens.weight.device
        decoder.lora = self.batch
        pages = HugePages(lora_bytes(targets, num_slots, max_rank, self._device)) if self.batch.kernels else None
        make = partial(_make_layer, self.batch, num_slots, max_rank, pages)
        self._slots: list[LoraLayer | ExpertLora | LatentLora] = []
        self._files: dict[int, Any] = {}
        """The file of each slot's adapter, open from the first part to the last, since opening it reads the full
        header."""
        for linear in linears_of(targets):
            linear.lora = make(linear.options, _size(linear))
            self._slots.append(linear.lora)
        for mixture in mixtures_of(targets):
            first, last = (make(mixture.options, size) for size in _sizes(mixture))
            mixture.lora = ExpertLora(first, last, mixture.spec.num_experts)
            self._slots.append(mixture.lora)
        for mixer in latents_of(targets):
            query, value = (make(mixer.options, size) for size in _latent_sizes(mixer))
            mixer.lora = LatentLora(query, value, mixer.heads.size)
            self._slots.append(mixer.lora)

    @torch.inference_mode()
    def write(self, write: AdapterWrite) -> None:
        """Put a part of an adapter into its slot, which no step reads until all parts are there."""
        from safetensors import safe_open

        if write.first:
            self._clear(write.slot)
        if write.first and write.modules:
            self._files[write.slot] = safe_open(write.path, framework="pt", device="cpu")
        file: Any = self._files.get(write.slot)
        for part in write.modules:
            module, target = part.module, self._targets[part.module.name]
            experts = target.shape.experts
            a, b = _ranks_of(file.get_tensor(module.a), file.get_tensor(module.b), experts, part)
            if module.transposed:
                a, b = transposed(a, b, experts)
            target.put(write.slot, a, b.float() * module.scale, part.begin)
        if write.last:
            self._files.pop(write.slot, None)

    def _clear(self, slot: int) -> None:
        for slots in self._slots:
            slots.clear(slot)

    def use(self, slots: Sequence[int]) -> None:
        """Set the slot of each token of the next forward pass, NO_SLOT for none."""
        if triton_runs_on(self._device) and slots and max(slots) >= 0:
            self.use_device(torch.tensor(slots, dtype=torch.int32).to(self._device, non_blocking=True))
        else:
            self.batch.use(slots)

    def use_device(self, slots: Tensor) -> None:
        """Use the slots [T] on the device, which a graph reads again in each replay."""
        self.batch.use_device(slots, self.num_slots)


def _make_layer(
    batch: LoraBatch, num_slots: int, max_rank: int, pages: HugePages | None, options: LayerOptions, size: LayerSize
) -> LoraLayer:
    return LoraLayer(
        batch,
        size.parts,
        size.columns,
        slots=num_slots * size.experts,
        rank=slot_rank(max_rank, options.device),
        dtype=options.dtype,
        device=options.device,
        pages=pages,
    )


def _ranks_of(a: Tensor, b: Tensor, experts: int, part: ModulePart) -> tuple[Tensor, Tensor]:
    """Return the ranks of a part: of `a` [experts * r, columns] and `b` [rows, r * experts]."""
    ranks = slice(part.begin, part.end)
    of_a, of_b = a.reshape(experts, -1, a.shape[1]), b.reshape(b.shape[0], -1, experts)
    return of_a[:, ranks].flatten(0, 1), of_b[:, ranks].flatten(1)


def transposed(a: Tensor, b: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return A and B of each expert's transposed product, from `a` [experts * r, rows] and `b` [columns, r * experts].

    The results are A [experts * r, columns] and B [rows, r * experts].
    """
    of_a, of_b = a.reshape(experts, -1, a.shape[1]), b.reshape(b.shape[0], -1, experts)
    return of_b.permute(2, 1, 0).flatten(0, 1), of_a.permute(2, 1, 0).flatten(1, 2)


def _cpu_kernels(decoder: Decoder) -> CPUKernels | None:
    """Return the C kernels, where a decoder on a CPU can be computed by them."""
    device = decoder.input.tokens.weight.device
    return cpu_kernels() if device.type == "cpu" and decoder.dtype in DTYPES and not triton_runs_on(device) else None


def _has_neighbours(decoder: Decoder) -> bool:
    ropes = (getattr(mixer.spec, "rope", None) for mixer in decoder.attentions())
    return all(rope is None or rope.interleaved for rope in ropes)


def lora_targets(
    decoder: Decoder, device: torch.device, *, gguf: bool = False, num_slots: int = 1, wanted: Sequence[str] = ()
) -> TargetChoice:
    """Return the layers that can have adapters on a device. ConfigurationError for one of `wanted` that no layer is.

    `gguf`: the weights come from a GGUF file. `wanted`: ends of names, and `experts`; none: all layers.
    """
    file = architecture_of(decoder.spec.architecture) if gguf else None
    every: dict[str, Target] = {**linear_targets(decoder, file)}
    every.update(latent_targets(decoder))
    every.update(expert_targets(decoder))
    for end in wanted:
        if not any(_is_wanted(name, [end]) for name in every):
            last = ", ".join(sorted({name.rpartition(".")[2] for name in every if ".experts." not in name}))
            raise ConfigurationError(f"--lora-target-modules {end[:100]!r}: the model has no such layer, but {last}")
    sampled = set(decoder.linears_of_sampled_rows())
    left_out = {
        name: _OF_SAMPLED_ROWS
        for name, target in every.items()
        if isinstance(target, LinearTarget) and target.linear in sampled
    }
    left_out |= dict.fromkeys(_of_several_layers(decoder, every), _OF_SEVERAL_LAYERS)
    left_out |= {name: reason for name, target in every.items() if (reason := _unsuitable(target, device, num_slots))}
    if file is not None and file.scales_weights:
        left_out |= dict.fromkeys(every, _SCALED)
    if file is not None and file.rotates_neighbours and not _has_neighbours(decoder):
        left_out |= dict.fromkeys(every, _REORDERED)
    left_out |= {
        name: "it is not among --lora-target-modules" for name in every if wanted and not _is_wanted(name, wanted)
    }
    return TargetChoice({name: target for name, target in every.items() if name not in left_out}, left_out)


def _of_several_layers(decoder: Decoder, names: Iterable[str]) -> Iterator[str]:
    """Yield the names that layers of shared blocks have in each of the decoder layers that share them."""
    own = partial(decoder.spec.names.of_layer, "shared_block")
    for block in decoder.shared_blocks():
        if (source := block.spec.weights_of_layer) is None:
            continue
        first = own(source) + "."
        for name in names:
            if name.startswith(first):
                yield from (name, f"{own(block.layer)}.{name.removeprefix(first)}")


def _is_wanted(name: str, ends: Sequence[str]) -> bool:
    return any(f".{name}".endswith(f".{end}") or (end == "experts" and ".experts." in name) for end in ends)


def _unsuitable(target: Target, device: torch.device, num_slots: int) -> str | None:
    """Return why a device's kernels do not compute adapters of a layer, such as its sizes; None if they do."""
    if not triton_runs_on(device) and device.type != "cuda":
        return None
    odd = any(size % _KERNEL_WIDTH for size in target.parts)
    if isinstance(target, LatentTarget):
        many = num_slots * target.mixer.heads.size > _MOST_GROUPS
        return f"with so many heads no more than {_MOST_GROUPS} / heads of --max-loras are supported" if many else None
    if isinstance(target, ExpertTarget):
        if num_slots * target.mixture.spec.num_experts > _MOST_GROUPS:
            return f"with so many experts no more than {_MOST_GROUPS} / experts of --max-loras are supported on a GPU"
        odd = odd or any(size % _KERNEL_WIDTH for size in (target.mixture.width.size, target.mixture.inner.size))
        return f"on a GPU experts' sizes have to be multiples of {_KERNEL_WIDTH}" if odd else None
    return (
        f"on a GPU the rows of fused projections have to be multiples of {_KERNEL_WIDTH}"
        if odd and len(target.parts) > 1
        else None
    )


def lora_bytes(
    targets: Mapping[str, Target], num_slots: int, max_rank: int, device: torch.device, *, as_files: bool = False
) -> int:
    """Return the bytes of all slots on one rank; A and B of each layer begin at a line of the CPU's cache.

    `as_files`: return the bytes of `num_slots` adapters in CPU memory instead, in float32, as PEFT saves them.
    """
    number = num_slots * slot_rank(max_rank, device) * (_FLOAT32_BYTES if as_files else _itemsize(targets))
    sizes = (
        number * each.experts * width
        for each in _layers(targets)
        for width in (len(each.parts) * each.columns, slot_rows(each.parts, device))
    )
    return sum(-(-size // LINE) * LINE for size in sizes)


def lora_step_bytes(targets: Mapping[str, Target], max_tokens: int, max_rank: int, device: torch.device) -> int:
    """Return an upper bound of a step's bytes in the layer that takes most: inputs by adapter, the products of A
    (float32, in up to four parts), and results; for experts also their sorted rows."""
    rank, size = slot_rank(max_rank, device), _itemsize(targets)
    each = (
        layer.chosen
        * ((layer.columns + slot_rows(layer.parts, device)) * size + 4 * len(layer.parts) * rank * _FLOAT32_BYTES)
        for layer in _layers(targets)
    )
    return max_tokens * max(each, default=0)


def _itemsize(targets: Mapping[str, Target]) -> int:
    return max((linear.options.dtype.itemsize for linear in linears_of(targets)), default=_FLOAT32_BYTES)


def linears_of(targets: Mapping[str, Target]) -> list[Linear]:
    """Return each linear layer once."""
    found = (target.linear for target in targets.values() if isinstance(target, LinearTarget))
    return list({id(linear): linear for linear in found}.values())


def mixtures_of(targets: Mapping[str, Target]) -> list[MoE]:
    """Return each mixture of experts once."""
    found = (target.mixture for target in targets.values() if isinstance(target, ExpertTarget))
    return list({id(mixture): mixture for mixture in found}.values())


def latents_of(targets: Mapping[str, Target]) -> list[LatentAttention]:
    """Return the latent attentions that adapters may change."""
    return [target.mixer for target in targets.values() if isinstance(target, LatentTarget)]


def _layers(targets: Mapping[str, Target]) -> list[LayerSize]:
    sizes = [_size(linear) for linear in linears_of(targets)]
    sizes += [size for mixture in mixtures_of(targets) for size in _sizes(mixture)]
    return [*sizes, *(size for mixer in latents_of(targets) for size in _latent_sizes(mixer))]


def _size(linear: Linear) -> LayerSize:
    return LayerSize(linear.parts, linear.columns.size)


def _sizes(mixture: MoE) -> tuple[LayerSize, LayerSize]:
    """Return the sizes of the projections to the intermediate size, and of those from it."""
    spec, width, inner = mixture.spec, mixture.width.size, mixture.inner.size
    first = LayerSize((inner,) * (2 if spec.gated else 1), width, spec.num_experts, spec.top_k)
    return first, LayerSize((width,), inner, spec.num_experts, spec.top_k)


def _latent_sizes(mixer: LatentAttention) -> tuple[LayerSize, LayerSize]:
    """Return the sizes of the addends of queries and of values: a layer for each head."""
    spec, heads = mixer.spec, mixer.heads.size
    first = LayerSize((spec.latent,), spec.plain_dim, heads, heads)
    return first, LayerSize((spec.value_dim,), spec.latent, heads, heads)
