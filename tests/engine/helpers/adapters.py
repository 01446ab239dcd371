"""Random LoRA adapters as PEFT saves them, and their merged models, computed here from their definition.

peft itself is not used: it would bring accelerate into the tests for what is one line, W + scale * B A.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


@dataclass
class RandomAdapter:
    """An adapter of some modules of a transformers model."""

    rank: int
    modules: Sequence[str] = ALL
    """The endings of the names of modules that have the adapter."""
    alpha: float = 16
    rslora: bool = False
    layers: Sequence[int] | None = None
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    """Other values of alpha, by the endings of modules' names."""
    seed: int = 0
    std: float = 0.1

    def deltas(self, model: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
        """Return A [rank, columns], B [rows, rank] and the scale of each module by its name."""
        generator, deltas = torch.Generator().manual_seed(self.seed), {}
        for name, module in model.named_modules():
            layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
            if not name.endswith(tuple(self.modules)) or (self.layers is not None and layer not in self.layers):
                continue
            rows, columns = module.weight.shape[::-1] if _as_columns(module) else module.weight.shape
            a = torch.randn(self.rank, columns, generator=generator) * self.std
            b = torch.randn(rows, self.rank, generator=generator) * self.std
            alpha = next((own for end, own in self.alpha_pattern.items() if name.endswith(end)), self.alpha)
            deltas[name] = a, b, alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
        assert deltas
        return deltas

    def save(self, model: Any, folder: Path, **config: Any) -> Path:
        """Save the adapter in PEFT's layout, and return its folder; `config` changes fields of its configuration."""
        tensors = {}
        for name, (a, b, _) in self.deltas(model).items():
            tensors[f"{PREFIX}{name}.lora_A.weight"], tensors[f"{PREFIX}{name}.lora_B.weight"] = a, b
        values = {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
            "alpha_pattern": self.alpha_pattern,
            "target_modules": list(self.modules),
            "layers_to_transform": None if self.layers is None else list(self.layers),
            "bias": "none",
            "modules_to_save": None,
            "init_lora_weights": True,
            "lora_dropout": 0.05,
            "loftq_config": {},
            "megatron_core": "megatron.core",
        }
        return write_adapter(folder, tensors, {**values, **config})

    def merge(self, model: Any) -> Any:
        """Add the adapter to the model's weights, and return the model."""
        with torch.no_grad():
            for name, (a, b, scale) in self.deltas(model).items():
                module = model.get_submodule(name)
                delta = scale * b @ a
                module.weight += delta.t() if _as_columns(module) else delta
        return model


def _as_columns(module: Any) -> bool:
    return type(module).__name__ == "Conv1D"


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    """Write a folder in PEFT's layout, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
