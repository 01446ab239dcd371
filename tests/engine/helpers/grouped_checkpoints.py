"""Writes small checkpoints of 4 and 8 bits as their formats' specifications say, and returns their dequantized models.

Quantized and packed here by loops over words, not by the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoints import reference_model, save
from fp8_checkpoints import PROJECTIONS
from safetensors.torch import load_file, save_file
from torch import Tensor

BY_COLUMNS = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""GPT-2's matrices, which are stored by columns, and by rows once bitsandbytes has quantized them."""
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Stored = dict[str, Tensor]
Quantize = Callable[[Tensor], tuple[Stored, Tensor]]
"""A weight [out, in] to its tensors by the ends of their names, and the numbers that they stand for."""


def words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """int32 [n * bits / 32, columns] of the bits of codes [n, columns]: place i of a word holds its row `order[i]`."""
    if order is not None:
        codes = codes.view(-1, len(order), codes.shape[1])[:, list(order)].flatten(0, 1)
    each = codes.long()[:, None] >> torch.arange(bits)[:, None] & 1
    found = (each.reshape(-1, 32, codes.shape[1]) << torch.arange(32)[:, None]).sum(1)
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


def by_groups(weight: Tensor, bits: int, group: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [out, in], scales and zeros [out, groups] of columns in these groups, and the numbers, float32."""
    levels, count = 2**bits - 1, int(group.max()) + 1
    codes, scales, zeros = torch.zeros_like(weight), [], []
    for index in range(count):
        part = weight[:, group == index]
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        if symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / levels).half().float()
        zero = torch.full_like(scale, 2 ** (bits - 1)) if symmetric else (-low / scale).round().clamp(0, levels)
        codes[:, group == index] = (part / scale + zero).round().clamp(0, levels)
        scales.append(scale)
        zeros.append(zero)
    scale, zero = torch.cat(scales, 1), torch.cat(zeros, 1)
    return codes, scale, zero, (codes - zero[:, group]) * scale[:, group]


def groups_of(columns: int, size: int, *, act_order: bool = False) -> Tensor:
    """The group of each column; in act-order the same for all weights of as many columns."""
    group = torch.arange(columns) // (columns if size == -1 else size)
    return group[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))] if act_order else group


def gptq(config: dict[str, Any]) -> Quantize:
    bits = config["bits"]
    less = config.get("checkpoint_format", "gptq") == "gptq" and config.get("packing_format") != "auto_round"

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        group = groups_of(weight.shape[1], config["group_size"], act_order=config.get("desc_act", False))
        positive = weight[1::5].abs() if not config["sym"] else weight[1::5]  # has zeros of 0
        weight = weight.clone().index_copy_(0, torch.arange(1, len(weight), 5), positive)
        codes, scale, zero, numbers = by_groups(weight, bits, group, symmetric=config["sym"])
        stored = {"qweight": words(codes.t(), bits), "scales": scale.t().half()}
        if config["quant_method"] == "gptq":
            stored["g_idx"] = group.int()
        stored["qzeros"] = words(zero, bits).t()
        if less:  # of a word at once, as GPTQModel does it: a zero of 0 borrows from the next one
            stored["qzeros"] = stored["qzeros"] - sum(1 << place for place in range(0, 32, bits))
        return stored, numbers

    return quantize


def awq(config: dict[str, Any]) -> Quantize:
    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        group = groups_of(weight.shape[1], config["group_size"])
        symmetric = not config.get("zero_point", True)
        sign = -1 if symmetric else 1  # AutoRound's symmetric scales may be negative
        codes, scale, zero, numbers = (sign * each for each in by_groups(sign * weight, 4, group, symmetric=symmetric))
        codes, zero = sign * codes, sign * zero
        packed = {"qweight": words(codes, 4, AWQ_ORDER).t(), "qzeros": words(zero, 4, AWQ_ORDER).t()}
        return {**packed, "scales": scale.t().half()}, numbers

    return quantize


def pack_quantized(config: dict[str, Any]) -> Quantize:
    wanted = config["config_groups"]["group_0"]["weights"]
    bits, symmetric = wanted["num_bits"], wanted["symmetric"]

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        act_order = wanted.get("actorder") == "group"
        group = groups_of(weight.shape[1], wanted.get("group_size", -1), act_order=act_order)
        codes, scale, zero, numbers = by_groups(weight, bits, group, symmetric=symmetric)
        stored = {"weight_packed": words(codes.t(), bits).t(), "weight_scale": scale.half()}
        stored["weight_shape"] = torch.tensor(weight.shape)
        if config.get("format") == "int-quantized":
            stored = {"weight": (codes - 2 ** (bits - 1)).to(torch.int8), "weight_scale": scale.half()}
        if not symmetric:
            stored["weight_zero_point"] = words(zero, bits)
        if act_order:
            stored["weight_g_idx"] = group.int()
        if config["config_groups"]["group_0"].get("input_activations"):
            stored |= {"input_scale": torch.tensor([0.1]), "input_zero_point": torch.tensor([3], dtype=torch.int8)}
        return stored, numbers

    return quantize


FP4 = (0.0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12)  # bitsandbytes' own e2m1, over its largest
TABLES = {
    "nf4": [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803,
            0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0],
    "fp4": [*FP4, *(-number for number in FP4)],
}  # fmt: skip


def bnb_4bit(config: dict[str, Any]) -> Quantize:
    kind = config["bnb_4bit_quant_type"]
    table, nested = torch.tensor(TABLES[kind]), config["bnb_4bit_use_double_quant"]

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        blocks = weight.reshape(-1, 64)
        absmax = blocks.abs().amax(1)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
        stored = {"quant_map": table.clone(), "absmax": absmax}
        if nested:
            offset, steps = absmax.mean(), torch.linspace(-1, 1, 256)
            apart = torch.stack([(part - offset).abs().max() for part in absmax.split(256)])
            scale = apart.repeat_interleave(256)[: len(absmax)]
            codes = ((absmax - offset) / scale)[:, None].sub(steps).abs().argmin(1)
            absmax = steps[codes] * scale + offset
            stored |= {"absmax": codes.to(torch.uint8), "nested_absmax": apart, "nested_quant_map": steps}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item()}
        codes = (blocks / absmax[:, None])[..., None].sub(table).abs().argmin(-1)
        numbers = (table[codes] * absmax[:, None]).view_as(weight)
        pairs = codes.view(-1, 2)
        text = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
        stored[f"quant_state.bitsandbytes__{kind}"] = text
        found = {f"weight.{name}": tensor for name, tensor in stored.items()}
        packed = (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8)
        storage = getattr(torch, config.get("bnb_4bit_quant_storage", "uint8"))
        return {**found, "weight": packed.flatten().view(storage)[:, None]}, numbers

    return quantize


def _bnb(kind: str, *, nested: bool) -> dict[str, Any]:
    known = {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["lm_head"]}
    return {**known, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}


def llm_int8(config: dict[str, Any]) -> Quantize:
    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        largest = weight.abs().amax(1)
        values = (weight / largest[:, None] * 127).round()
        stored = {"weight": values.to(torch.int8), "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return stored, values * (largest / 127)[:, None]

    return quantize


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp4_codes(groups: Tensor) -> Tensor:
    """The nearest e2m1 code of each number [rows, groups, size], the sign in bit 3."""
    return (groups.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (groups < 0)


def fp4_bytes(codes: Tensor) -> Tensor:
    """uint8 [rows, columns / 2] of codes [rows, groups, size], the first of two in the lower half."""
    pairs = codes.flatten(1).view(len(codes), -1, 2)
    return (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8)


def fp4_numbers(codes: Tensor) -> Tensor:
    return E2M1[codes % 8] * (1 - 2 * (codes // 8))


def nvfp4(config: dict[str, Any]) -> Quantize:
    """Groups of 16, or modelopt's of 32, with scales in e4m3; compressed-tensors stores one over a weight's own scale,
    modelopt the scale."""

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.view(len(weight), -1, config.get("group_size", 16))
        whole = weight.abs().max() / (448 * 6)
        scale = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
        modelopt = config["quant_method"] == "modelopt"
        own = scale.float() * whole if modelopt else scale.float() / (1 / whole)
        codes = fp4_codes(groups / own.clamp(min=1e-30)[..., None])
        numbers = (fp4_numbers(codes) * own[..., None]).view_as(weight)
        if modelopt:
            stored = {"weight": fp4_bytes(codes), "weight_scale_2": whole, "input_scale": torch.tensor(0.1)}
        else:
            stored = {"weight_packed": fp4_bytes(codes), "weight_global_scale": (1 / whole).view(1)}
            stored["input_global_scale"] = torch.tensor([10.0])
        return {**stored, "weight_scale": scale}, numbers

    return quantize


def mxfp4(config: dict[str, Any]) -> Quantize:
    """Groups of 32 with powers of two as scales."""

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.view(len(weight), -1, 32)
        power = (groups.abs().amax(-1) / 6).log2().ceil()
        codes = fp4_codes(groups / power.exp2()[..., None])
        numbers = (fp4_numbers(codes) * power.exp2()[..., None]).view_as(weight)
        return {"weight_packed": fp4_bytes(codes), "weight_scale": (power + 127).to(torch.uint8)}, numbers

    return quantize


def mxfp8(config: dict[str, Any]) -> Quantize:
    """Groups of 32 numbers in e4m3 with powers of two as scales."""

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.view(len(weight), -1, 32)
        power = (groups.abs().amax(-1, keepdim=True) / 448).log2().ceil()
        values = (groups / power.exp2()).to(torch.float8_e4m3fn)
        stored = {"weight": values.view_as(weight), "weight_scale": (power + 127).squeeze(-1).to(torch.uint8)}
        return stored, (values.float() * power.exp2()).view_as(weight)

    return quantize


def torchao(config: dict[str, Any]) -> Quantize:
    """A signed number in each byte with symmetric scales; two of 4 bits, where 0 stands for a zero point; or e4m3."""
    kind = config["quant_type"]["default"]
    data = kind["_data"]
    size = data["granularity"]["_data"].get("group_size") if "granularity" in data else data["group_size"]

    def in_bytes(weight: Tensor) -> tuple[Stored, Tensor]:
        largest = 7 if data.get("weight_dtype", {}).get("_data") == "int4" else 127
        groups = weight.view(len(weight), -1, size or weight.shape[1])
        scale = groups.abs().amax(-1) / largest
        values = (groups / scale[..., None]).round()
        stored = {"_weight_qdata": values.view_as(weight).to(torch.int8), "_weight_scale": scale}
        zeros = torch.zeros_like(scale, dtype=torch.int8)
        return {**stored, "_weight_zero_point": zeros}, (values * scale[..., None]).view_as(weight)

    def in_halves(weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.view(len(weight), -1, size)
        low, high = groups.amin(-1), groups.amax(-1)
        scale = ((high - low) / 15).bfloat16()
        middle = (low + 8 * scale.float()).bfloat16()
        values = ((groups - middle.float()[..., None]) / scale.float()[..., None]).round().clamp(-8, 7)
        numbers = values * scale.float()[..., None] + middle.float()[..., None]
        codes = (values.flatten(1).int() & 15).view(len(weight), -1, 2)
        stored = {"_weight_qdata": (codes[..., 0] | codes[..., 1] << 4).to(torch.uint8).view(torch.int8)}
        return {**stored, "_weight_scale": scale.t(), "_weight_zero_point": middle.t()}, numbers.view_as(weight)

    def in_floats(weight: Tensor) -> tuple[Stored, Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 448
        values = (weight / scale).to(torch.float8_e4m3fn)
        return {"_weight_qdata": values, "_weight_scale": scale}, values.float() * scale

    others = {"Int4WeightOnlyConfig": in_halves, "Float8WeightOnlyConfig": in_floats}
    return others.get(kind["_type"], in_bytes)


def _torchao(kind: str, size: int | None = None, **data: Any) -> dict[str, Any]:
    shared = {"_type": "PerRow", "_data": {"dim": -1}}
    if size is not None:
        shared = {"_type": "PerGroup", "_data": {"group_size": size}}
    values = {"_type": kind, "_version": 2, "_data": {"granularity": shared, **data}}
    if kind == "Int4WeightOnlyConfig":
        form = {"_type": "Int4PackingFormat", "_data": "PLAIN"}
        values["_data"] = {"group_size": size, "int4_packing_format": form, **data}
    return {"quant_method": "torchao", "quant_type": {"default": values}, "modules_to_not_convert": None}


def _fp4(kind: str, size: int, strategy: str, bits: int = 4) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "float", "strategy": strategy, "group_size": size, "symmetric": True}
    inputs = {**weights, "dynamic": "local"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    known = {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "format": f"{kind}-pack-quantized"}
    return {**known, "config_groups": {"group_0": group}}


def _compressed(inputs: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "int", **weights}, "input_activations": inputs}
    known = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    return {**known, "config_groups": {"group_0": group}}


_BY_GROUP = {"strategy": "group", "group_size": 32}
FORMATS: dict[str, tuple[Callable[[dict[str, Any]], Quantize], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}),
    "gptq_asymmetric": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}),
    "gptq_v2": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False}),
    "gptq_act_order": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}),
    "gptq_rows": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True, "desc_act": True}),
    "gptq_8": (gptq, {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False, "desc_act": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "auto_round": (gptq, {"quant_method": "auto-round", "bits": 2, "group_size": 32, "sym": False}),
    "auto_round_zeros": (gptq, {"quant_method": "auto-round", "bits": 3, "group_size": 32, "sym": False}),
    "auto_round_awq": (awq, {"quant_method": "intel/auto-round", "bits": 4, "group_size": 32}),
    "w4a16": (pack_quantized, _compressed(num_bits=4, symmetric=True, **_BY_GROUP)),
    "w4a16_act_order": (pack_quantized, _compressed(num_bits=4, symmetric=False, actorder="group", **_BY_GROUP)),
    "w8a8": (pack_quantized, _compressed({"num_bits": 8}, num_bits=8, symmetric=True, strategy="channel")),
    "w8a8_bytes": (pack_quantized, _compressed({"num_bits": 8}, num_bits=8, symmetric=True, strategy="channel")),
    "w4a8": (pack_quantized, _compressed({"num_bits": 8}, num_bits=4, symmetric=True, **_BY_GROUP)),
    "nvfp4": (nvfp4, _fp4("nvfp4", 16, "tensor_group")),
    "nvfp4_modelopt": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}),
    "nvfp4_modelopt_32": (nvfp4, {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}),
    "mxfp4": (mxfp4, _fp4("mxfp4", 32, "group")),
    "mxfp8": (mxfp8, {**_fp4("mxfp8", 32, "group", 8), "format": "mxfp8-quantized"}),
    "torchao_int8": (torchao, _torchao("Int8WeightOnlyConfig")),
    "torchao_int8_groups": (torchao, _torchao("Int8WeightOnlyConfig", 32)),
    "torchao_int4": (torchao, _torchao("Int4WeightOnlyConfig", 32)),
    "torchao_intx": (torchao, _torchao("IntxWeightOnlyConfig", 32, weight_dtype={"_data": "int4"})),
    "torchao_float8": (torchao, _torchao("Float8WeightOnlyConfig", weight_dtype={"_data": "float8_e4m3fn"})),
    "nf4": (bnb_4bit, _bnb("nf4", nested=False)),
    "nf4_nested": (bnb_4bit, _bnb("nf4", nested=True)),
    "nf4_stored_as_bfloat16": (bnb_4bit, {**_bnb("nf4", nested=True), "bnb_4bit_quant_storage": "bfloat16"}),
    "fp4": (bnb_4bit, _bnb("fp4", nested=False)),
    "llm_int8": (llm_int8, {"load_in_8bit": True}),  # of the time before `quant_method`
}
FORMATS["gptq_v2"][1]["checkpoint_format"] = "gptq_v2"
FORMATS["auto_round"][1]["backend"] = "auto"
FORMATS["auto_round_zeros"][1]["packing_format"] = "auto_round"
FORMATS["auto_round_awq"][1].update(packing_format="auto_round:auto_awq", zero_point=False)
FORMATS["nvfp4_modelopt_32"][1]["group_size"] = 32
FORMATS["w4a8"][1]["format"] = FORMATS["w8a8_bytes"][1]["format"] = "int-quantized"


def save_grouped(directory: Path, name: str, config: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Write a checkpoint of format `name`, `config` changed; the model in float32 of the numbers it stands for."""
    make, base = FORMATS[name]
    wanted = {**base, **(config or {})}
    quantize, model = make(wanted), reference_model(**{**SIZES, **changes})
    path = save(model, directory) / "model.safetensors"
    tensors, state = load_file(path), model.state_dict()
    for key in [key for key in tensors if key.endswith((*PROJECTIONS, *BY_COLUMNS))]:
        weight, numbers = tensors.pop(key), state[key]
        if key.endswith(BY_COLUMNS):
            weight, numbers = weight.t(), numbers.t()
        stored, stands_for = quantize(weight)
        numbers.copy_(stands_for)
        tensors |= {f"{key.removesuffix('weight')}{end}": tensor for end, tensor in stored.items()}
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    values = json.loads((directory / "config.json").read_text())
    values["quantization_config"] = wanted
    (directory / "config.json").write_text(json.dumps(values))
    return model
