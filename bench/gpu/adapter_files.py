"""Random LoRA adapters, written as PEFT does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch


def write_adapter(
    modules: Mapping[str, tuple[int, int]], rank: int, folder: Path, device: torch.device, *, seed: int, std: float
) -> Path:
    """Write a random adapter of rank `rank` in bfloat16, whose scale is 1, and return its folder.

    `modules` are rows and columns of each linear layer by its name. A and B are drawn around 0 with standard deviation
    `std`, on `device`, which should be a fast one.
    """
    from safetensors.torch import save_file

    generator, tensors = torch.Generator(device).manual_seed(seed), {}
    for name, (rows, columns) in modules.items():
        for part, size in (("A", (rank, columns)), ("B", (rows, rank))):
            values = torch.empty(size, dtype=torch.bfloat16, device=device).normal_(std=std, generator=generator)
            tensors[f"base_model.model.{name}.lora_{part}.weight"] = values.cpu()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
