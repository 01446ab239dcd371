"""GPTQModel: GPTQ of all bits and formats (but for 3 bits in `gptq`, which Octavo refuses), and AWQ."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from making import make_each, prompts, save_dequantized

SCHEMES: dict[str, dict[str, Any]] = {
    "4 bits": {"bits": 4},
    "4 bits, desc_act": {"bits": 4, "group_size": 32, "desc_act": True},
    "4 bits, asymmetric": {"bits": 4, "sym": False, "group_size": 32},
    "4 bits, asymmetric, gptq_v2": {"bits": 4, "sym": False, "format": "gptq_v2"},
    "4 bits, gptq_v2, desc_act": {"bits": 4, "format": "gptq_v2", "desc_act": True},
    "4 bits, by row": {"bits": 4, "group_size": -1, "act_group_aware": False},
    "8 bits": {"bits": 8},
    "2 bits": {"bits": 2, "group_size": 32},
    "3 bits, gptq_v2": {"bits": 3, "format": "gptq_v2"},
    "dynamic": {"bits": 4, "dynamic": {r"-:.*layers\.0\.mlp\.down_proj": {}, r".*layers\.1\..*o_proj": {"bits": 8}}},
    "AWQ": {"bits": 4, "quant_method": "awq", "format": "gemm"},
    "AWQ, symmetric": {"bits": 4, "quant_method": "awq", "format": "gemm", "sym": True},
}


def make(name: str, source: Path, directory: Path) -> None:
    """Write the checkpoint, and the numbers it stands for: the products of the identity, in its PyTorch kernel."""
    config = QuantizeConfig(**{"group_size": 128, "desc_act": False, **SCHEMES[name]}, device="cpu")
    model = GPTQModel.load(str(source), config, dtype=torch.float16)
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in prompts(512)]
    model.quantize(rows, batch_size=1)
    model.save(str(directory))
    awq = SCHEMES[name].get("quant_method") == "awq"
    backend = BACKEND.TORCH_AWQ if awq else BACKEND.TORCH
    loaded = GPTQModel.load(str(directory), backend=backend, device="cpu", dtype=torch.float16)
    weights = dict(loaded.model.state_dict())
    for key, module in loaded.model.named_modules():
        if hasattr(module, "qweight"):
            with torch.inference_mode():
                module.float()
                weights[f"{key}.weight"] = module(torch.eye(module.in_features)).T
    save_dequantized(directory, weights)


if __name__ == "__main__":
    make_each(f"GPTQModel {version('gptqmodel')}", SCHEMES, make)
