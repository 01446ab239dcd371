"""Writes small FP8 (e4m3) checkpoints in every format that is read, and returns the weights that they stand for.

Quantized here by arithmetic in float64, not by the code under test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from checkpoints import reference_model, save
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8 = torch.float8_e4m3fn
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
SIZES |= {"head_dim": 128, "num_hidden_layers": 2}
"""Each projection consists of whole blocks of 128 x 128, also where two ranks share it."""
PROJECTIONS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down"))


def _group(strategy: str, *, dynamic: bool | None, **more: Any) -> dict[str, Any]:
    """`dynamic`: the scales of inputs; None: they are not quantized."""
    floats = {"num_bits": 8, "type": "float"}
    weights = {**floats, "strategy": strategy, "dynamic": False, **more}
    known = {**floats, "strategy": "token" if dynamic else "tensor", "dynamic": dynamic}
    inputs = None if dynamic is None else known
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None if dynamic is None else inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


BLOCKS = {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}
FORMATS: dict[str, dict[str, Any]] = {
    "deepseek": {"quant_method": "fp8", "fmt": "e4m3", **BLOCKS, "modules_to_not_convert": ["lm_head", "model.norm"]},
    "autofp8": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    "tensor": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "compressed_channel": _group("channel", dynamic=True),
    "compressed_channel_naive": {**_group("channel", dynamic=None), "format": "naive-quantized"},
    "compressed_tensor": _group("tensor", dynamic=False),
    "compressed_block": _group("block", dynamic=True, block_structure=[128, 128]),
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
}


def quantized(weight: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Values, scales as a checkpoint of this format has them, and the numbers they stand for, float32."""
    rows, columns = weight.shape
    if name in ("deepseek", "compressed_block"):
        blocks = torch.zeros(-(-rows // 128) * 128, columns, dtype=torch.float64)  # the last one may have fewer rows
        blocks[:rows] = weight
        blocks = blocks.view(-1, 128, columns // 128, 128)
        scale = (blocks.abs().amax((1, 3), keepdim=True) / 448).float()
        stored = scale.view(-1, columns // 128).to(torch.bfloat16 if name == "deepseek" else torch.float32)
        scale = stored.double().view_as(scale)
        values = (blocks / scale).clamp(-448, 448).to(FP8)
        numbers = (values.double() * scale).view(-1, columns)[:rows].float()
        return values.view(-1, columns)[:rows], stored, numbers
    scale = weight.double().abs().amax(1, keepdim=True) / 448
    scale = (scale if name.startswith("compressed_channel") else scale.max()).float()
    values = (weight.double() / scale).clamp(-448, 448).to(FP8)
    stored = scale.view(1) if name == "compressed_tensor" else scale
    return values, stored, (values.double() * scale).float()


def save_fp8(directory: Path, name: str, **changes: Any) -> Any:
    """Write a checkpoint of format `name` into `directory`; the model in float32 of the numbers it stands for."""
    model = reference_model(**{**SIZES, **changes})
    save(model, directory)
    path = directory / "model.safetensors"
    tensors, state = load_file(path), model.state_dict()
    for key in [key for key in tensors if key.endswith(PROJECTIONS)]:
        tensors[key], scale, stands_for = quantized(tensors[key], name)
        state[key].copy_(stands_for)
        tensors[f"{key}_scale_inv" if name == "deepseek" else f"{key}_scale"] = scale
        if name in ("autofp8", "compressed_tensor", "modelopt"):
            tensors[f"{key.removesuffix('.weight')}.input_scale"] = torch.tensor(0.01 * (1 + len(key) % 7))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = FORMATS[name]
    (directory / "config.json").write_text(json.dumps(config))
    return model
