"""Writes small FP8 (e4m3) checkpoints in every format that is read, and returns the weights that they stand for.

Quantized here by arithmetic in float64, not by the code under test.
"""

from __future__ import annotations

import json
import shutil
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
PROJECTIONS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down", "qkv", "gate_up"))


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
    "small_blocks": {"quant_method": "fp8", "weight_block_size": [48, 80], "modules_to_not_convert": ["lm_head"]},
    "autofp8": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    "tensor": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "transformers": {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    "compressed_channel": _group("channel", dynamic=True),
    "compressed_channel_naive": {**_group("channel", dynamic=None), "format": "naive-quantized"},
    "compressed_tensor": _group("tensor", dynamic=False),
    "compressed_block": _group("block", dynamic=True, block_structure=[128, 128]),
    "fbgemm": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
}


def quantized(weight: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Values, scales as a checkpoint of this format has them, and the numbers they stand for, float32."""
    if name in ("deepseek", "compressed_block", "small_blocks"):
        rows, columns = (48, 80) if name == "small_blocks" else (128, 128)
        stored = torch.stack(  # the last blocks may be smaller
            [
                torch.stack([block.abs().max() / 448 for block in part.split(columns, dim=1)])
                for part in weight.split(rows)
            ]
        ).to(torch.bfloat16 if name == "deepseek" else torch.float32)
        every = [torch.arange(size) // side for size, side in zip(weight.shape, (rows, columns), strict=True)]
        scale = stored.double()[every[0][:, None], every[1]]
        values = (weight.double() / scale).clamp(-448, 448).to(FP8)
        return values, stored, (values.double() * scale).float()
    scale = weight.double().abs().amax(1, keepdim=True) / 448
    scale = (scale if name.startswith(("compressed_channel", "fbgemm")) else scale.max()).float()
    values = (weight.double() / scale).clamp(-448, 448).to(FP8)
    stored = scale.view(1) if name == "compressed_tensor" else scale
    return values, stored, (values.double() * scale).float()


def save_fp8(directory: Path, name: str, **changes: Any) -> Any:
    """Write a checkpoint of format `name` into `directory`; the model in float32 of the numbers that it stands for.

    The folder `exact` in it has these numbers, too.
    """
    model = reference_model(**{**SIZES, **changes})
    save(model, directory)
    path = directory / "model.safetensors"
    tensors, state, exact = load_file(path), model.state_dict(), load_file(path)
    for key in [key for key in tensors if key.endswith(PROJECTIONS)]:
        tensors[key], scale, stands_for = quantized(tensors[key], name)
        exact[key] = stands_for
        if key in state:  # the model has all experts of a layer in one tensor
            state[key].copy_(stands_for)
        tensors[f"{key}_scale_inv" if "weight_block_size" in FORMATS[name] else f"{key}_scale"] = scale
        if name in ("autofp8", "compressed_tensor", "modelopt", "transformers"):
            input_scale = "activation_scale" if name == "transformers" else "input_scale"
            tensors[f"{key.removesuffix('.weight')}.{input_scale}"] = torch.tensor(0.01 * (1 + len(key) % 7))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    (directory / "exact").mkdir()
    shutil.copy(directory / "config.json", directory / "exact")
    save_file(exact, directory / "exact" / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = FORMATS[name]
    (directory / "config.json").write_text(json.dumps(config))
    return model
