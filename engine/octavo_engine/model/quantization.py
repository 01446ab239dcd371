"""Weights in 8-bit floating point (e4m3, arXiv 2209.05433): what a checkpoint says of its own, what flags ask for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.fields import Fields

if TYPE_CHECKING:
    from octavo_engine.model.spec import ModelSpec

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
"""Rows and columns of a weight that share a scale, where scales are by block."""
_PIECE = 1 << 20
"""Elements that are quantized at once: each takes 13 bytes meanwhile."""
_SUPPORTED = (
    "supported are float8 e4m3 weights with activations in 8 bits: fp8 (a scale for each weight, or for each block of "
    "128 x 128), compressed-tensors (float-quantized, by tensor, channel or such blocks), modelopt (FP8); or take an "
    "unquantized checkpoint of the model (--quantization fp8 quantizes it while it is loaded), or a .gguf file"
)
_PROJECTION = re.compile(r"(^re:(?!.*lm_head)|_proj$|self_attn$|mlp$|layers(\.\d+)?$)")


@dataclass(frozen=True, slots=True)
class FP8Scheme:
    """How the weights of a decoder's linear layers are stored; embeddings, norms, biases and the head never are so.

    A weight is its e4m3 values times float32 scales.
    """

    granularity: Literal["tensor", "channel", "block"]
    """What has a scale of its own in the checkpoint: a weight, each of its rows (output channels), or each block of
    BLOCK x BLOCK. In memory a weight's one scale stands at each of its rows, as several weights are fused."""
    activation: Literal["dynamic", "static"] = "dynamic"
    """Scales of activations, where they are quantized too: from their own numbers, or from the checkpoint."""
    scale_name: str | None = "weight_scale"
    """What the checkpoint calls scales; None: it has none, and weights are quantized while they are loaded."""

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of the scales of a weight [rows, columns] in memory."""
        return (rows // BLOCK, columns // BLOCK) if self.granularity == "block" else (rows, 1)


ONLINE = FP8Scheme("channel", scale_name=None)
"""What `--quantization fp8` makes of weights in 16 or 32 bits."""


def read_scheme(fields: Fields) -> FP8Scheme | None:
    """What `quantization_config` of a config.json says; ModelLoadError if that is not computed here."""
    config = fields.mapping("quantization_config")
    if config is None:
        return None
    method = config.text("quant_method", default="?")
    readers: dict[str, Callable[[Fields], FP8Scheme]] = {
        "fp8": _fp8,
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
    }
    if method not in readers:
        raise _refusal(config, f"the weights are quantized ({method}), which this version of Octavo does not compute")
    for name in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        _check_left_out(config, name)
    return readers[method](config)


def has_mxfp4_experts(fields: Fields) -> bool:
    """Whether the experts of a config.json are in MXFP4, and all else unquantized, as gpt-oss is published.

    ModelLoadError if anything is quantized otherwise.
    """
    config = fields.mapping("quantization_config")
    if config is None:
        return False
    method = config.text("quant_method", default="?")
    if method != "mxfp4":
        raise ModelLoadError(
            f"{config.origin}: the weights are quantized ({method}), which this version of Octavo does not compute for "
            "mixtures of experts; supported are experts in mxfp4 and unquantized checkpoints"
        )
    left_out = config.values.get("modules_to_not_convert") or []
    if not isinstance(left_out, list) or any("experts" in str(name) for name in left_out):
        raise config.wrong("modules_to_not_convert", left_out, "has experts, which are all in mxfp4 or none")
    return True


def asked_for(spec: ModelSpec, quantization: str | None) -> ModelSpec:
    """`spec` as `--quantization` wants it; a checkpoint that is in FP8 already stays as it is.

    ConfigurationError for mixtures of experts, whose experts would stay as they are.
    """
    if quantization is None or spec.quantization is not None:
        return spec
    if spec.moe is not None:
        raise ConfigurationError(
            f"--quantization {quantization}: {spec.architecture} is a mixture of experts, which cannot be quantized "
            "while it is loaded; leave the flag out"
        )
    return replace(spec, quantization=ONLINE)


def check_blocks(spec: ModelSpec, ranks: int) -> None:
    """An OctavoError unless each projection of `spec`, a rank's of `ranks`, consists of whole blocks."""
    if spec.quantization is None or spec.quantization.granularity != "block":
        return
    sizes = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "query heads": spec.num_heads * spec.head_dim,
        "KV heads": spec.num_kv_heads * spec.head_dim,
    }
    if wrong := [f"{name} ({size})" for name, size in sizes.items() if size % BLOCK]:
        why = f"{', '.join(wrong)} is no multiple of {BLOCK}, and weights have a scale for each {BLOCK} x {BLOCK}"
        if ranks == 1:
            raise ModelLoadError(f"the model's {why}")
        raise ConfigurationError(f"--tensor-parallel-size {ranks}: a rank's {why}; take a smaller size")


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values e4m3 and scales float32 [rows, 1] of a weight [rows, columns]: each row's largest is 448."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny * FP8_MAX) / FP8_MAX
    return to_fp8(wide / scale), scale


def quantize_into(weight: Tensor, scale: Tensor, values: Tensor) -> None:
    """Fill e4m3 `weight` [rows, columns] and `scale` [rows, 1] from `values`, on their device, in small pieces."""
    step = max(1, _PIECE // values.shape[1])
    for first in range(0, len(values), step):
        part = slice(first, first + step)
        quantized, found = quantize_rows(values[part].to(weight.device))
        weight[part].copy_(quantized)
        scale[part].copy_(found)


def to_fp8(x: Tensor) -> Tensor:
    """Rounded to e4m3; what is beyond its range becomes its largest number, NaN stays (PyTorch's cast may not)."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(FP8)


def dequantize(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that e4m3 values [rows, columns] with scales [rows, 1], or by block, stand for, in `dtype`."""
    wide = weight.float()
    if len(scale) == len(weight):
        return wide.mul_(scale).to(dtype)
    columns = scale.repeat_interleave(BLOCK, dim=1)
    wide.view(len(scale), BLOCK, -1).mul_(columns.unsqueeze(1))
    return wide.to(dtype)


def _fp8(config: Fields) -> FP8Scheme:
    """The format of DeepSeek-V3 and Qwen3 (blocks), and AutoFP8's (a scale for each weight)."""
    activation = config.text("activation_scheme", default="dynamic")
    if config.text("fmt", default="e4m3") not in ("e4m3", "float8_e4m3fn") or activation not in ("dynamic", "static"):
        raise _refusal(config, "fp8 weights of another form than e4m3 with static or dynamic activation_scheme")
    if not config.has("weight_block_size"):
        return FP8Scheme("tensor", "static" if activation == "static" else "dynamic")
    if config.integers("weight_block_size") != (BLOCK, BLOCK) or activation != "dynamic":
        raise _refusal(config, "fp8 blocks other than 128 x 128, or with static activation scales")
    return FP8Scheme("block", scale_name="weight_scale_inv")


def _compressed_tensors(config: Fields) -> FP8Scheme:
    """The format of llm-compressor; one group for all linear layers."""
    groups = config.mapping("config_groups")
    names = list(groups.values) if groups is not None else []
    group = groups.mapping(names[0]) if groups is not None and len(names) == 1 else None
    weights, inputs = (group and group.mapping(name) for name in ("weights", "input_activations"))
    if config.text("format", default="?") != "float-quantized" or group is None or not weights or not inputs:
        raise _refusal(config, "compressed-tensors other than float-quantized, one group, weights and activations")
    for part in (weights, inputs):
        if part.integer("num_bits", 0, 64, default=8) != 8 or part.text("type", default="float") != "float":
            raise _refusal(config, "compressed-tensors other than of 8-bit floats")
    activation: Literal["dynamic", "static"] = "dynamic" if inputs.boolean("dynamic", False) else "static"
    match weights.text("strategy", default="?"):
        case "tensor":
            return FP8Scheme("tensor", activation)
        case "channel":
            return FP8Scheme("channel", activation)
        case "block" if weights.integers("block_structure") == (BLOCK, BLOCK) and activation == "dynamic":
            return FP8Scheme("block")
    raise _refusal(config, "compressed-tensors with scales that are neither by tensor, by channel nor by 128 x 128")


def _modelopt(config: Fields) -> FP8Scheme:
    """NVIDIA's format: a scale for each weight and one for what it is multiplied with."""
    if config.text("quant_algo", default="?") != "FP8":
        raise _refusal(config, "modelopt other than quant_algo FP8")
    return FP8Scheme("tensor", "static")


def _check_left_out(config: Fields, name: str) -> None:
    """ModelLoadError if the list `name` of what was not quantized has one of our linear layers."""
    left_out = config.values.get(name) or []
    if not isinstance(left_out, list):
        raise config.wrong(name, left_out, "is no list")
    if linears := [item for item in left_out if isinstance(item, str) and _PROJECTION.search(item)]:
        raise _refusal(config, f"{linears[0]} is not quantized while other layers are")


def _refusal(config: Fields, what: str) -> ModelLoadError:
    return ModelLoadError(f"{config.origin}: {what}; {_SUPPORTED}")
