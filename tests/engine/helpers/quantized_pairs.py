"""Quantized checkpoints with experts, and checkpoints of the numbers that they stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from checkpoints import reference_model, save
from fp8_checkpoints import FORMATS as FP8_FORMATS
from fp8_checkpoints import PROJECTIONS, quantized
from grouped_checkpoints import FORMATS
from safetensors.torch import load_file, save_file

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 256, "head_dim": 128}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2}

DEEPSEEK: dict[str, Any] = {
    **{name: value for name, value in SIZES.items() if name != "head_dim"},
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
"""Its compressed keys and values have 192 rows: one block of 128 and half of another."""

OTHERS = tuple(
    f"{name}.weight"
    for name in ("w1", "w2", "w3", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "in_proj_qkvz")
)

ROUTERS = ["lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$"]


def save_pair(directory: Path, name: str, family: str = "Qwen3Moe", **changes: Any) -> tuple[Path, Path]:
    """A checkpoint in format `name`, and one in float32 of the numbers that it stands for."""
    sizes = DEEPSEEK if family == "DeepseekV3" else {**SIZES, "num_experts": 4}
    exact = save(reference_model(family, **{**sizes, **changes}), directory / f"{name}-exact")
    packed = directory / name
    shutil.copytree(exact, packed)
    numbers, stored = load_file(exact / "model.safetensors"), {}
    fp8 = name in FP8_FORMATS
    wanted = FP8_FORMATS[name] if fp8 else FORMATS[name][1]
    for key in sorted(numbers):
        weight = numbers[key]
        if not key.endswith((*PROJECTIONS, *OTHERS)):
            stored[key] = weight
        elif fp8:
            stored[key], scale, numbers[key] = quantized(weight, name)
            stored[f"{key}_scale_inv" if name == "deepseek" else f"{key}_scale"] = scale
        else:
            tensors, numbers[key] = FORMATS[name][0](wanted)(weight)
            stored |= {f"{key.removesuffix('weight')}{end}": tensor for end, tensor in tensors.items()}
    save_file({key: tensor.contiguous() for key, tensor in numbers.items()}, exact / "model.safetensors")
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, packed / "model.safetensors")
    config = json.loads((packed / "config.json").read_text())
    left_out = {"ignore": ROUTERS} if "ignore" in wanted else {}
    config["quantization_config"] = {**wanted, **left_out}
    (packed / "config.json").write_text(json.dumps(config))
    return packed, exact
