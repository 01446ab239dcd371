"""NVIDIA's ModelOpt: FP8, and NVFP4 of weights alone: with activations in NVFP4 its calibration needs a GPU.

ModelOpt rounds a bfloat16 weight once when it calibrates, but twice when it exports FP8 (the quotient to bfloat16,
then to e4m3), so that 3 % of the exported numbers are others than its quantizers return. What counts is the export.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from making import make_each, prompts, save_dequantized
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

SCHEMES = (
    "FP8_DEFAULT_CFG",
    "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "W4A16_NVFP4_CFG",
    "NVFP4_MLP_WEIGHT_ONLY_CFG",
)


def dequantized(stored: torch.Tensor, scale: torch.Tensor, whole: torch.Tensor | None) -> torch.Tensor:
    """The numbers [out, in] of a stored weight, by ModelOpt's own classes."""
    if whole is None:
        weight = FP8QTensor(stored.shape, torch.float32, stored)
        return weight.dequantize(scale=scale.view(-1, 1) if scale.dim() else scale)
    shape = torch.Size((len(stored), stored.shape[1] * 2))
    size = shape[1] // scale.shape[1]
    return NVFP4QTensor(shape, torch.float32, stored).dequantize(
        scale=scale, double_scale=whole, block_sizes={-1: size}
    )


def make(name: str, source: Path, directory: Path) -> None:
    """Write the checkpoint, and the numbers it stands for."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    tokens = torch.tensor(prompts(model.config.vocab_size))
    weights_alone = "NVFP4" in name
    model = mtq.quantize(model, getattr(mtq, name), None if weights_alone else lambda model: model(tokens))
    export_hf_checkpoint(model, export_dir=directory)
    stored = load_file(directory / "model.safetensors")
    weights = {
        key: dequantized(tensor, stored[f"{key}_scale"], stored.get(f"{key}_scale_2"))
        if f"{key}_scale" in stored
        else tensor
        for key, tensor in stored.items()
        if key.endswith(".weight")
    }
    save_dequantized(directory, weights)


if __name__ == "__main__":
    make_each(f"ModelOpt {version('nvidia-modelopt')}", SCHEMES, make)
