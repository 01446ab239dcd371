"""llm-compressor and compressed-tensors: each scheme calibrated and saved, and what compressed-tensors makes of it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from making import make_each, prompts, save_dequantized
from transformers import AutoModelForCausalLM

IGNORE = ["lm_head"]
KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def group(targets: list[str] | None = None, **weights: object) -> QuantizationScheme:
    """The scheme of a group of modules, of which only weights are quantized."""
    return QuantizationScheme(targets=targets or ["Linear"], weights=QuantizationArgs(**weights))


def gptq(**weights: object) -> GPTQModifier:
    """The GPTQ algorithm with groups of weights."""
    return GPTQModifier(config_groups={"group_0": group(**weights)}, ignore=IGNORE)


def preset(scheme: str, **more: object) -> QuantizationModifier:
    """A scheme by its name, only rounded."""
    return QuantizationModifier(targets="Linear", scheme=scheme, ignore=IGNORE, **more)


def mixed() -> QuantizationModifier:
    """Layers of 4 bits beside others of 8, and some in floating point."""
    groups = {
        "group_0": group(["re:.*mlp.*"], num_bits=4, strategy="group", group_size=32),
        "group_1": group(["re:.*self_attn.*"], num_bits=8, strategy="channel"),
    }
    return QuantizationModifier(config_groups=groups, ignore=["lm_head", "re:.*layers.0.mlp.down_proj"])


WORDS = {"num_bits": 4, "strategy": "group", "group_size": 32}
RECIPES = {
    "W4A16 by groups": lambda: preset("W4A16"),
    "W4A16 by groups, GPTQ": lambda: gptq(**WORDS),
    "W4A16 by groups, asymmetric": lambda: gptq(**WORDS, symmetric=False),
    "W4A16 by groups, actorder weight": lambda: gptq(**WORDS, actorder="weight"),
    "W4A16 by channel": lambda: gptq(num_bits=4, strategy="channel"),
    "W4A16 by channel, asymmetric": lambda: gptq(num_bits=4, strategy="channel", symmetric=False),
    "W8A16": lambda: preset("W8A16"),
    "W4A8": lambda: preset("W4A8"),
    "W8A8, dynamic": lambda: preset("W8A8"),
    "W8A8, static": lambda: preset("INT8"),
    "FP8, static": lambda: preset("FP8"),
    "FP8, dynamic": lambda: preset("FP8_DYNAMIC"),
    "FP8, blocks": lambda: preset("FP8_BLOCK"),
    "NVFP4A16": lambda: preset("NVFP4A16"),
    "NVFP4": lambda: preset("NVFP4"),
    "MXFP4A16": lambda: preset("MXFP4A16"),
    "W4AFP8": lambda: preset("W4AFP8"),
    "mixed": mixed,
    "FP8 with the KV cache in FP8": lambda: preset("FP8_DYNAMIC", kv_cache_scheme=KV),
}


def make(name: str, source: Path, directory: Path) -> None:
    """Write the checkpoint, and the numbers it stands for."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in prompts(model.config.vocab_size)]
    oneshot(
        model=model,
        recipe=RECIPES[name](),
        dataset=Dataset.from_list(rows),
        num_calibration_samples=len(rows),
        max_seq_length=64,
    )
    weights = dict(model.state_dict())
    for key, module in model.named_modules():
        if (stored := getattr(module, "quantization_scheme", None)) is not None and stored.weights is not None:
            numbers = {
                part: getattr(module, f"weight_{part}", None) for part in ("scale", "zero_point", "global_scale")
            }
            scale, zero, whole = numbers.values()
            weights[f"{key}.weight"] = fake_quantize(module.weight, scale, zero, stored.weights, global_scale=whole)
    save_dequantized(directory, weights)
    model.save_pretrained(directory, save_compressed=True)


if __name__ == "__main__":
    tool = f"llm-compressor {version('llmcompressor')}, compressed-tensors {version('compressed-tensors')}"
    make_each(tool, RECIPES, make)
