"""Random LoRA adapters of experts as PEFT saves them, and their merged models, computed here from their definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from adapters import PREFIX, write_adapter
from torch import Tensor


@dataclass
class StackedAdapter:
    """An adapter of parameters that hold all experts: transformers' `gate_up_proj` and `down_proj`."""

    rank: int
    parameters: tuple[str, ...] = ("gate_up_proj", "down_proj")
    alpha: float = 12
    before_019: bool = False
    """Whether it is saved as by PEFT before 0.19, which took rows for columns."""
    seed: int = 0

    def deltas(self, model: Any) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """Yield module and parameter, A of each expert [E, r, columns] and B [E, rows, r]."""
        generator = torch.Generator().manual_seed(self.seed)
        for name, module in model.named_modules():
            if not name.endswith(".experts"):
                continue
            for parameter in self.parameters:
                count, first, last = getattr(module, parameter).shape
                rows, columns = (last, first) if _as_columns(module) else (first, last)
                a = torch.randn(count, self.rank, columns, generator=generator) * 0.1
                yield name, parameter, a, torch.randn(count, rows, self.rank, generator=generator) * 0.1

    def save(self, model: Any, folder: Path, **config: Any) -> Path:
        """Save the adapter in PEFT's layout; the first of two parameters of a module is wrapped by the second."""
        tensors = {}
        for name, parameter, a, b in self.deltas(model):
            inner = ".base_layer" if len(self.parameters) > 1 and parameter == self.parameters[0] else ""
            left, right = (b.mT, a.mT) if self.before_019 else (a, b)
            module = f"{PREFIX}{name}{inner}"
            tensors[f"{module}.lora_A.weight"] = left.flatten(0, 1)
            tensors[f"{module}.lora_B.weight"] = right.permute(1, 2, 0).flatten(1)
        version = "0.18.1" if self.before_019 else "0.21.2"
        values = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "peft_version": version}
        return write_adapter(folder, tensors, {**values, "target_parameters": list(self.parameters), **config})

    def merge(self, model: Any) -> Any:
        """Add the adapter to the model's weights, and return the model."""
        with torch.no_grad():
            for name, parameter, a, b in self.deltas(model):
                module = model.get_submodule(name)
                delta = self.alpha / self.rank * b @ a
                getattr(module, parameter).add_(delta.mT if _as_columns(module) else delta)
        return model


@dataclass
class NumberedAdapter:
    """An adapter of some experts one by one, as old versions of transformers named them."""

    rank: int
    name_of: Callable[[str, int, str], str]
    """The name of a module of experts, an expert and one of `gate`, `up` and `down`, as one linear layer's."""
    experts: tuple[int, ...] = (0, 2)
    seed: int = 0

    def deltas(self, model: Any) -> Iterator[tuple[str, int, str, Tensor, Tensor]]:
        """Yield module, expert and role, A [r, columns] and B [rows, r]."""
        generator = torch.Generator().manual_seed(self.seed)
        for name, module in model.named_modules():
            if not name.endswith(".experts"):
                continue
            _, hidden, inner = module.down_proj.shape
            for expert in self.experts:
                for role, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
                    a = torch.randn(self.rank, columns, generator=generator) * 0.1
                    yield name, expert, role, a, torch.randn(rows, self.rank, generator=generator) * 0.1

    def save(self, model: Any, folder: Path) -> Path:
        """Save the adapter in PEFT's layout, and return its folder."""
        tensors = {}
        for name, expert, role, a, b in self.deltas(model):
            module = f"{PREFIX}{self.name_of(name, expert, role)}"
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = a, b
        return write_adapter(folder, tensors, {"peft_type": "LORA", "r": self.rank, "lora_alpha": 2 * self.rank})

    def merge(self, model: Any) -> Any:
        """Add the adapter to the model's weights, and return the model."""
        with torch.no_grad():
            for name, expert, role, a, b in self.deltas(model):
                module = model.get_submodule(name)
                gate, up = module.gate_up_proj[expert].chunk(2)
                {"gate": gate, "up": up, "down": module.down_proj[expert]}[role].add_(2 * b @ a)
        return model


def _as_columns(module: Any) -> bool:
    return bool(getattr(module, "is_transposed", False))
