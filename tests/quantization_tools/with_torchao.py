"""torchao through transformers, saved in safetensors."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch
from making import make_each, save_dequantized
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
)
from transformers import AutoModelForCausalLM, TorchAoConfig

SCHEMES = {
    "Int8WeightOnlyConfig": Int8WeightOnlyConfig,
    "Int8WeightOnlyConfig, groups": lambda: Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "Int8DynamicActivationInt8WeightConfig": Int8DynamicActivationInt8WeightConfig,
    "IntxWeightOnlyConfig, 4 bits": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "IntxWeightOnlyConfig, 8 bits": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)),
    "Int4WeightOnlyConfig": lambda: Int4WeightOnlyConfig(group_size=32),
    "Float8WeightOnlyConfig": Float8WeightOnlyConfig,
    "Float8DynamicActivationFloat8WeightConfig": Float8DynamicActivationFloat8WeightConfig,
}


def make(name: str, source: Path, directory: Path) -> None:
    """Write the checkpoint, and the numbers it stands for."""
    dtype = torch.bfloat16 if name == "Int4WeightOnlyConfig" else torch.float32
    config = TorchAoConfig(SCHEMES[name]())
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, quantization_config=config)
    model.save_pretrained(directory)
    weights = {
        key: getattr(value, "dequantize", lambda v=value: v)() if type(value.data) is not torch.Tensor else value
        for key, value in model.state_dict().items()
    }
    save_dequantized(directory, weights)


if __name__ == "__main__":
    make_each(f"torchao {version('torchao')}", SCHEMES, make)
