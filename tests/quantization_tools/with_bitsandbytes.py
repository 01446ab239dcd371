"""bitsandbytes through transformers, on a CPU."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch
from making import make_each, save_dequantized
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

SCHEMES = {
    "NF4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "NF4, double quantization": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "NF4, stored as bfloat16": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": torch.bfloat16,
    },
    "FP4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "FP4, double quantization": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "fp4",
        "bnb_4bit_use_double_quant": True,
    },
    "LLM.int8": {"load_in_8bit": True},
}


def make(name: str, source: Path, directory: Path) -> None:
    """Write the checkpoint, and the numbers it stands for."""
    config = BitsAndBytesConfig(**SCHEMES[name], bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, quantization_config=config, device_map={"": "cpu"}
    )
    model.save_pretrained(directory)
    model.dequantize(torch.float32)
    save_dequantized(directory, model.state_dict())


if __name__ == "__main__":
    make_each(f"bitsandbytes {version('bitsandbytes')}", SCHEMES, make)
