"""auto-round, in each of its formats, but for 3 bits, which Octavo refuses in the packing that is the default."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from making import make_each, prompts, save_dequantized
from transformers import AutoModelForCausalLM, AutoTokenizer

SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "auto_round, 4 bits": ("auto_round", {}),
    "auto_round, 4 bits, asymmetric": ("auto_round", {"sym": False}),
    "auto_round, 2 bits": ("auto_round", {"bits": 2, "group_size": 32}),
    "auto_round, 8 bits": ("auto_round", {"bits": 8}),
    "auto_round, mixed": ("auto_round", {"layer_config": {"model.layers.0.mlp.down_proj": {"bits": 8}}}),
    "auto_gptq, 4 bits": ("auto_gptq", {}),
    "auto_gptq, 4 bits, asymmetric": ("auto_gptq", {"sym": False}),
    "auto_gptq, 8 bits": ("auto_gptq", {"bits": 8}),
    "auto_gptq, 2 bits": ("auto_gptq", {"bits": 2}),
    "auto_awq, asymmetric": ("auto_awq", {"sym": False}),
    "auto_awq, symmetric": ("auto_awq", {}),
    "llm_compressor, W4A16": ("llm_compressor", {}),
}


def make(name: str, source: Path, directory: Path) -> None:
    """Write the checkpoint, and the numbers it stands for: auto-round leaves them in the model."""
    form, options = SCHEMES[name]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokens = torch.tensor(prompts(model.config.vocab_size))
    tool = AutoRound(
        model,
        AutoTokenizer.from_pretrained(source),
        **{"bits": 4, "group_size": 128, "sym": True, **options},
        dataset=[{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in tokens],
        iters=0,
        disable_opt_rtn=True,
        seqlen=64,
        nsamples=len(tokens),
        batch_size=1,
        device_map="cpu",
        amp=False,
    )
    quantized, _ = tool.quantize()
    save_dequantized(directory, quantized.state_dict())
    tool.save_quantized(str(directory), format=form, inplace=True)


if __name__ == "__main__":
    make_each(f"auto-round {version('auto-round')}", SCHEMES, make)
