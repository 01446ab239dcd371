"""Finds experts that adapters change: one by one, as in old versions of transformers, or all as one parameter.

PEFT saves an adapter of a parameter [experts, rows, columns] under its module's name: A [experts * rank, columns], one
expert after another, and B [rows, rank * experts], where the experts' columns of one rank are consecutive. If a module
has two such parameters, one is wrapped in the other (`base_layer`), so that only shapes distinguish them. PEFT before
0.19 exchanged rows and columns: its B A is the transposed change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.names import ExpertLayout
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.adapters.lora import LoraLayer
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.lora.targets import ModuleShape


@dataclass(frozen=True, slots=True)
class ExpertTarget:
    """A target of adapters in experts: gate, up or both, or down, of one expert or of all."""

    mixture: MoE
    down: bool = False
    part: int | None = None
    """The index of the projection to the intermediate size; None: all of them, one after another or interleaved."""
    expert: int | None = None
    """The expert; None: all of them."""

    @property
    def shape(self) -> ModuleShape:
        """The shape of one expert's unsharded weight."""
        inner, width = self.mixture.inner.total, self.mixture.width.total
        experts = self.mixture.spec.num_experts if self.expert is None else 1
        if self.down:
            return ModuleShape(width, inner, experts)
        return ModuleShape(inner * (self._projections if self.part is None else 1), width, experts)

    @property
    def parts(self) -> Sequence[int]:
        """The rows of each projection of this rank's experts."""
        return (self.mixture.width.size,) if self.down else (self.mixture.inner.size,) * self._projections

    @property
    def _projections(self) -> int:
        return 2 if self.mixture.spec.gated else 1

    def put(self, slot: int, a: Tensor, b: Tensor, begin: int) -> None:
        """Put this device's columns of A [experts * r, columns] and rows of B [rows, r * experts] into a slot."""
        lora, count = self.mixture.lora, self.shape.experts
        if lora is None:
            raise RuntimeError("experts have no slots")
        a = a.reshape(count, -1, a.shape[1])
        b = b.reshape(b.shape[0], -1, count).permute(2, 0, 1)
        first = slot * lora.num_experts + (self.expert or 0)
        if self.down:
            lora.down.put_many(first, 0, a[:, :, self.mixture.inner.slice], b, begin)
        elif self.part is None:
            self._put_all_rows(lora.gate_up, first, a, b, begin)
        else:
            lora.gate_up.put_many(first, self.part, a, b[:, self.mixture.inner.slice], begin)

    def _put_all_rows(self, layer: LoraLayer, first: int, a: Tensor, b: Tensor, begin: int) -> None:
        count, inner = self._projections, self.mixture.inner
        for part in range(count):
            rows = (
                b[:, part::count] if self.mixture.interleaves else b[:, part * inner.total : (part + 1) * inner.total]
            )
            layer.put_many(first, part, a, rows[:, inner.slice], begin)


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """A module that holds the experts of a layer as parameters: their names, and their shapes as one expert's."""

    parameters: Mapping[str, ModuleShape]
    layout: ExpertLayout

    def find(self, columns: int, rows: int, *, before_019: bool) -> tuple[str, bool]:
        """Return the parameter of A with so many columns and B with so many rows, and whether they are transposed.

        `before_019`: whether PEFT's version is lower, which counts where the shape does not tell.
        """
        fitting = [
            (name, transposed)
            for name, shape in self.parameters.items()
            for transposed in (False, True)
            if (columns, rows) == ((shape.rows, shape.columns) if transposed else (shape.columns, shape.rows))
        ]
        if len(fitting) > 1 and self.layout != "columns":
            wanted = before_019 and self.layout == "rows"  # gpt-oss's columns were right in all versions of PEFT
            fitting = [each for each in fitting if each[1] == wanted]
        if len(fitting) == 1:
            return fitting[0]
        known = ", ".join(f"{name} {shape.columns} to {shape.rows}" for name, shape in self.parameters.items())
        reason = "its shape does not tell which of them it is for" if fitting else "the adapter is for another model"
        raise ModelLoadError(f"lora_A has {columns} columns and lora_B {rows} rows, of experts with {known}: {reason}")


def expert_targets(decoder: Decoder) -> dict[str, ExpertTarget]:
    """Return the targets in experts, by the checkpoint's names: each expert's layers, and those of all experts."""
    found: dict[str, ExpertTarget] = {}
    for mixture in decoder.mixtures():
        found |= dict(_one_by_one(mixture))
        if (names := _stacked(mixture)) is not None:
            found |= {names[0]: ExpertTarget(mixture), names[1]: ExpertTarget(mixture, down=True)}
    return found


def _one_by_one(mixture: MoE) -> Iterator[tuple[str, ExpertTarget]]:
    """Yield the targets of experts that a checkpoint has one by one."""
    of_layer, gated = mixture.options.names.of_layer, mixture.spec.gated
    wanted = [("expert_up", False, 1 if gated else 0), ("expert_down", True, None)]
    for role, down, part in [("expert_gate", False, 0)] * gated + wanted:
        name = of_layer(role, mixture.layer)
        if "{expert}" in name:
            for expert in range(mixture.spec.num_experts):
                yield name.replace("{expert}", str(expert)), ExpertTarget(mixture, down, part, expert)


def _stacked(mixture: MoE) -> tuple[str, str] | None:
    """Return transformers' names of the parameters of all experts; None if it has others (DBRX) or more (LongCat)."""
    gate, up, down = (
        mixture.options.names.of_layer(f"expert_{role}", mixture.layer) for role in ("gate", "up", "down")
    )
    if mixture.spec.zero_experts or (mixture.spec.gated and gate != up and "{expert}" not in gate):
        return None
    parent = down.partition(".experts")[0] if ".experts" in down else down.removesuffix(".weight").rpartition(".")[0]
    module = f"{parent}.experts"
    return f"{module}.{'gate_up_proj' if mixture.spec.gated else 'up_proj'}", f"{module}.down_proj"


def expert_stacks(targets: Mapping[str, ExpertTarget]) -> dict[str, ExpertStack]:
    """Return the modules that hold all experts of a layer as parameters."""
    found: dict[str, dict[str, ModuleShape]] = {}
    layout: ExpertLayout = "rows"
    for name, target in targets.items():
        if target.expert is None:
            found.setdefault(name.rpartition(".")[0], {})[name] = target.shape
            layout = target.mixture.options.names.expert_layout
    return {module: ExpertStack(parameters, layout) for module, parameters in found.items()}
