"""The quantized modules of a checkpoint and their schemes: lists of exceptions, groups of targets, overrides."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import reference_model, save
from fp8_checkpoints import FORMATS as FP8_FORMATS
from fp8_checkpoints import quantized as to_fp8
from grouped_checkpoints import FORMATS, SIZES, Quantize, awq, bnb_4bit, gptq, nvfp4, pack_quantized, torchao
from loaded import linears, load
from rank_logits import group_logits, logits_of
from safetensors.torch import load_file, save_file

from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ModelLoadError
from octavo_engine.model import footprint
from octavo_engine.model.alignment import check_alignment
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization import module_rules
from octavo_engine.model.quantization.dequantized import Dequantized
from octavo_engine.model.quantization.select import read_quantization
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard

Choose = Callable[[str], Quantize | None]
"""How the module of a name is quantized; None: not at all."""
KEY, VALUE, OUTPUT = (f"self_attn.{part}_proj" for part in "kvo")
GATE, UP, DOWN = (f"mlp.{part}_proj" for part in ("gate", "up", "down"))
LAYER = "model.layers"


def save_chosen(directory: Path, config: dict[str, Any], choose: Choose, **changes: Any) -> tuple[Path, Path]:
    """A checkpoint with `config` whose linear layers and head are quantized as `choose` says, and one in float32 of the
    numbers that it stands for."""
    exact = save(
        reference_model(**{**SIZES, "tie_word_embeddings": False, "vocab_size": 144, **changes}), directory / "exact"
    )
    packed = save(
        reference_model(**{**SIZES, "tie_word_embeddings": False, "vocab_size": 144, **changes}), directory / "packed"
    )
    numbers, stored = load_file(exact / "model.safetensors"), {}
    for key, weight in numbers.items():
        name = key.removesuffix(".weight")
        quantize = choose(name) if "_proj" in name or name == "lm_head" else None
        if quantize is None:
            stored[key] = weight
        else:
            tensors, numbers[key] = quantize(weight)
            stored |= {f"{name}.{end}": tensor for end, tensor in tensors.items()}
    save_file({key: tensor.contiguous() for key, tensor in numbers.items()}, exact / "model.safetensors")
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, packed / "model.safetensors")
    values = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**values, "quantization_config": config}))
    return packed, exact


def fp8(name: str) -> Quantize:
    """`name`: the format in fp8_checkpoints.py, without static scales."""

    def quantize(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        values, scale, numbers = to_fp8(weight, name)
        return {"weight": values, "weight_scale": scale}, numbers

    return quantize


def _weights(bits: int, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **more}


def _packed(bits: int, **more: Any) -> Quantize:
    return pack_quantized({"config_groups": {"group_0": {"weights": _weights(bits, **more)}}})


def _mixed() -> tuple[dict[str, Any], Choose]:
    """Four bits, eight in some, FP8 in others; one target by its name, and one projection of a fused layer left out."""
    eight, by_row = {"strategy": "channel", "group_size": -1}, {"num_bits": 8, "type": "float", "strategy": "channel"}
    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "ignore": ["lm_head", rf"re:.*layers\.0\.{VALUE}$", f"{LAYER}.1.{DOWN}"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "format": "pack-quantized", "weights": _weights(4)},
            "group_1": {
                "targets": [r"re:.*\.(gate|up)_proj$", f"{LAYER}.0.{OUTPUT}"],
                "format": "pack-quantized",
                "weights": _weights(8, **eight),
            },
            "group_2": {
                "targets": [r"re:.*\.down_proj$"],
                "format": "float-quantized",
                "weights": by_row,
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            },
        },
    }

    def choose(name: str) -> Quantize | None:
        if name in ("lm_head", f"{LAYER}.0.{VALUE}", f"{LAYER}.1.{DOWN}"):
            return None
        if name.endswith(DOWN):
            return fp8("compressed_channel")
        return _packed(8, **eight) if name.endswith((GATE, UP)) or name == f"{LAYER}.0.{OUTPUT}" else _packed(4)

    return config, choose


def _dynamic() -> tuple[dict[str, Any], Choose]:
    """GPTQModel's overrides: eight bits in one layer, other groups elsewhere, one module left out; a quantized head.

    Of a list of the modules that were quantized, the files show which were not.
    """
    config = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False, "desc_act": False, "lm_head": True}
    wide, other = {"bits": 8, "group_size": 32}, {"group_size": -1}
    config["dynamic"] = {r"-:.*\.0\.mlp\.gate_proj": {}, r"+:.*\.1\.mlp\.(gate|up)": wide, r".*\.o_proj": other}
    config["modules_in_block_to_quantize"] = [["self_attn.q_proj", KEY, VALUE], [OUTPUT], [GATE, UP]]

    def choose(name: str) -> Quantize | None:
        if name == f"{LAYER}.0.{GATE}" or name.endswith(DOWN):
            return None
        changed = wide if name in (f"{LAYER}.1.{GATE}", f"{LAYER}.1.{UP}") else other if name.endswith(OUTPUT) else {}
        return gptq({**config, **changed})

    return config, choose


def _auto_round() -> tuple[dict[str, Any], Choose]:
    """Other values by the name of a module, by an expression, and for the head."""
    config: dict[str, Any] = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4}
    config |= {"group_size": 64, "sym": False, "data_type": "int", "act_bits": 16}
    eight, plain = {"bits": 8, "group_size": 32}, {"bits": 16, "data_type": "float"}
    gate, head = {f"{LAYER}.1.{GATE}": plain}, {"lm_head": {"bits": 8, "group_size": None}}
    config["extra_config"] = {r"\.1\.mlp\.(gate|up)": eight, **gate, **head}

    def choose(name: str) -> Quantize | None:
        if name == f"{LAYER}.1.{GATE}":
            return None
        return gptq({**config, **(eight if name == f"{LAYER}.1.{UP}" else {"bits": 8} if name == "lm_head" else {})})

    return config, choose


def _awq() -> tuple[dict[str, Any], Choose]:
    """A list of what is left out, and GPTQModel's overrides and quantized head."""
    config = {**FORMATS["awq"][1], "modules_to_not_convert": ["layers.0.self_attn", f"{LAYER}.1.{UP}", "visual"]}
    config |= {"lm_head": True, "dynamic": {r".*\.1\.self_attn": {"group_size": 16}, r"-:.*\.0\.mlp\.gate": {}}}
    left_out = (f"{LAYER}.0.self_attn", f"{LAYER}.1.{UP}", f"{LAYER}.0.{GATE}")

    def choose(name: str) -> Quantize | None:
        if name.startswith(left_out):
            return None
        return awq({**config, "group_size": 16} if ".1.self_attn" in name else config)

    return config, choose


def _nf4() -> tuple[dict[str, Any], Choose]:
    config = {
        **FORMATS["nf4"][1],
        "llm_int8_skip_modules": ["lm_head", "down_proj", r"model.layers.*.self_attn.o_proj"],
    }
    return config, lambda name: None if name.endswith((DOWN, OUTPUT, "lm_head")) else bnb_4bit(config)


def _torchao_by_name() -> tuple[dict[str, Any], Choose]:
    """FqnToConfig: a name, two expressions of which one is of a parameter, and a default; of the list of what is left
    out, transformers does not find `o_proj`, since it compares it with `…o_proj.weight`."""
    eight, four = FORMATS["torchao_int8"][1], FORMATS["torchao_intx"][1]
    kinds = {
        f"{LAYER}.0.{GATE}": None,
        r"re:.*\.1\.mlp\.(gate|up)_proj": four["quant_type"]["default"],
        r"re:.*v_proj.weight": None,
        "_default": eight["quant_type"]["default"],
    }
    by_name = {"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": kinds, "module_fqn_to_config": kinds}}
    config = {**eight, "quant_type": {"default": by_name}, "modules_to_not_convert": ["o_proj", f"{LAYER}.1.{DOWN}"]}

    def choose(name: str) -> Quantize | None:
        if name.endswith((VALUE, "lm_head")) or name in (f"{LAYER}.0.{GATE}", f"{LAYER}.1.{DOWN}"):
            return None
        return torchao(four if name in (f"{LAYER}.1.{GATE}", f"{LAYER}.1.{UP}") else eight)

    return config, choose


def _fp8() -> tuple[dict[str, Any], Choose]:
    config = {**FP8_FORMATS["tensor"], "modules_to_not_convert": [f"{LAYER}.0", f"{LAYER}.1.{KEY}"]}
    left_out = (f"{LAYER}.0.", f"{LAYER}.1.{KEY}", "lm_head")
    return config, lambda name: None if name.startswith(left_out) else fp8("tensor")


def _modelopt() -> tuple[dict[str, Any], Choose]:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*.o_proj", f"{LAYER}.0.mlp*"]}

    def quantize(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        stored, numbers = fp8("modelopt")(weight)
        return {**stored, "input_scale": torch.tensor(0.01)}, numbers

    return config, lambda name: None if name.endswith((OUTPUT, "lm_head")) or ".0.mlp" in name else quantize


CHOSEN = {
    "mixed": _mixed,
    "dynamic": _dynamic,
    "auto_round": _auto_round,
    "awq": _awq,
    "nf4": _nf4,
    "fp8": _fp8,
    "torchao": _torchao_by_name,
    "modelopt": _modelopt,
}


@pytest.mark.parametrize("name", CHOSEN)
def test_modules_are_stored_as_their_names_say(name: str, tmp_path: Path) -> None:
    packed, exact = save_chosen(tmp_path, *CHOSEN[name]())
    decoder = load(packed)
    torch.testing.assert_close(logits_of(decoder), logits_of(load(exact)), rtol=1e-4, atol=1e-4)
    methods = [linear.method for linear in linears(decoder)]
    assert not all(method is UNQUANTIZED or isinstance(method, Dequantized) for method in methods)
    assert any(method is UNQUANTIZED or isinstance(method, Dequantized) for method in methods)
    planned = footprint.weight_bytes(make_blueprint(decoder.spec, torch.float32, Shard()))
    assert planned == sum(parameter.nbytes for parameter in decoder.parameters())


def _save_modelopt(path: Path, quantization: dict[str, Any], choose: Choose, where: str) -> tuple[Path, Path]:
    """`where`: the file with the object `quantization`."""
    nested = {"producer": {"name": "modelopt"}, "quantization": quantization}
    packed, exact = save_chosen(path, {"quant_method": "modelopt", **nested}, choose)
    if where != "config.json":
        values = json.loads((packed / "config.json").read_text())
        del values["quantization_config"]
        (packed / "config.json").write_text(json.dumps(values))
        (packed / where).write_text(json.dumps(nested))
    return packed, exact


@pytest.mark.parametrize("where", ["config.json", "hf_quant_config.json"])
def test_what_modelopt_says_of_layers_is_read(where: str, tmp_path: Path) -> None:
    """FP8 and NVFP4 by name, one of them of all that a module holds, and others that are left out."""
    half, eight = {"quant_algo": "NVFP4", "group_size": 16}, {"quant_algo": "FP8"}
    layers = {f"{LAYER}.0.mlp": half, f"{LAYER}.1.{DOWN}": half, f"{LAYER}.0.{OUTPUT}": eight}
    config = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": ["lm_head", "*.up_proj"]}
    four, whole = nvfp4({"quant_method": "modelopt"}), _modelopt()[1](f"{LAYER}.1.{UP}")

    def choose(name: str) -> Quantize | None:
        if name == f"{LAYER}.0.{OUTPUT}":
            return whole
        return four if name in (f"{LAYER}.0.{GATE}", f"{LAYER}.0.{DOWN}", f"{LAYER}.1.{DOWN}") else None

    packed, exact = _save_modelopt(tmp_path, config, choose, where)
    decoder = load(packed)
    torch.testing.assert_close(logits_of(decoder), logits_of(load(exact)), rtol=1e-4, atol=1e-4)
    assert decoder.spec.quantization is not None
    assert decoder.spec.quantization.name == "nvfp4 and fp8"


def test_ranks_compute_what_one_computes(tmp_path: Path) -> None:
    pairs = [save_chosen(tmp_path / name, *CHOSEN[name]()) for name in ("mixed", "dynamic")]
    folders = [packed.rename(tmp_path / f"packed-{index}") for index, (packed, _) in enumerate(pairs)]
    group_logits(2, folders, tmp_path)
    for folder, (_, exact) in zip(folders, pairs, strict=True):
        logits = torch.load(tmp_path / f"{folder.name}.pt")
        torch.testing.assert_close(logits, logits_of(load(exact)), rtol=1e-4, atol=1e-4)


def test_each_layer_is_checked_where_names_say_how_it_is_stored(tmp_path: Path) -> None:
    """The second layer alone has groups that three ranks cannot share."""
    config = {**FORMATS["gptq"][1], "group_size": 16, "dynamic": {r".*layers\.1\.": {"group_size": 256}}}
    packed, _ = save_chosen(tmp_path, config, lambda _: None)
    (packed / "model.safetensors").unlink()  # it has matrices in floating point, which would not be quantized
    with pytest.raises(ModelLoadError, match=r"not a multiple of 256"):
        check_alignment(read_spec(ModelFiles("test", directory=packed)), 1)


def test_a_module_that_is_stored_otherwise_than_its_name_says(tmp_path: Path) -> None:
    """It is read if the files have a matrix without scales, and named if they have codes."""
    config, choose = _mixed()
    packed, exact = save_chosen(tmp_path, {**config, "ignore": ["lm_head"]}, choose)
    torch.testing.assert_close(logits_of(load(packed)), logits_of(load(exact)), rtol=1e-4, atol=1e-4)
    ignored = [*config["ignore"], f"{LAYER}.1.{VALUE}"]
    packed, _ = save_chosen(tmp_path / "codes", {**config, "ignore": ignored}, choose)
    with pytest.raises(ModelLoadError, match=rf"missing: {LAYER}\.1\.{VALUE}\.weight "):
        load(packed)


def test_names_are_those_of_the_files_as_well(tmp_path: Path) -> None:
    """The language model of a larger one has another name there."""
    config = {**FORMATS["w4a16"][1], "ignore": ["lm_head", r"re:^language_model\.model\.layers\.1\..*"]}
    quantize = pack_quantized(config)
    packed, exact = save_chosen(tmp_path, config, lambda name: quantize if ".layers.0." in name else None)
    for folder in (packed, exact):
        path = folder / "model.safetensors"
        save_file({f"language_model.{name}": tensor for name, tensor in load_file(path).items()}, path)
        values = json.loads((folder / "config.json").read_text())
        outer = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "dtype": "float32"}
        outer |= {"quantization_config": values.pop("quantization_config")} if folder == packed else {}
        (folder / "config.json").write_text(json.dumps({**outer, "text_config": values}))
    torch.testing.assert_close(logits_of(load(packed)), logits_of(load(exact)), rtol=1e-4, atol=1e-4)


def read(config: dict[str, Any]) -> Any:
    return read_quantization(Fields("config.json", {"quantization_config": config}))


def test_a_name_counts_before_an_expression_and_that_before_a_class() -> None:
    groups = {
        f"group_{bits}_{size}": {"targets": targets, "weights": _weights(bits, group_size=size)}
        for bits, size, targets in ((4, 32, ["Linear"]), (8, 32, ["re:.*b$", "re:.*a"]), (8, 64, ["model.ab"]))
    }
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": None}
    found = read(config)
    sizes = {name: (found.method(name).bits, found.method(name).group_size) for name in ("model.ab", "x.b", "x.c")}
    assert sizes == {"model.ab": (8, 64), "x.b": (8, 32), "x.c": (4, 32)}
    assert read({**config, "ignore": ["model.ab"]}).method("model.ab") is UNQUANTIZED
    assert read_quantization(Fields("config.json", {"compression_config": config})) == found  # its name once


@pytest.mark.parametrize(
    ("names", "left_out", "quantized"),
    [
        (["mlp.gate"], "model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj"),
        (["layers.1"], "model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj"),
        (["fc1"], "model.decoder.layers.2.fc1", "model.decoder.layers.2.fc2"),
        (["model.layers.*.self_attn"], "model.layers.12.self_attn.q_proj", "model.layers.12.mlp.up_proj"),
    ],
)
def test_lists_of_what_is_left_out(names: list[str], left_out: str, quantized: str) -> None:
    found = read({**FP8_FORMATS["tensor"], "modules_to_not_convert": names})
    assert found.method(left_out) is UNQUANTIZED
    assert found.method(quantized) is not UNQUANTIZED


PUBLISHED = (
    r".*lm_head", r".*self_attn.*", r"^(?!.*vision).*q_proj$", r".*mlp.(gate|up|gate_up|down)_proj.*",
    r".*\.experts\.\d+\..*", r"model.layers.(1|2|3).mlp.*", r".*\.layers\.\d+\..*\.experts\.\d+\.(gate|up|down)_proj",
)  # fmt: skip


def test_expressions_of_published_checkpoints_are_read_however_many_there_are() -> None:
    """In compressed-tensors' list, in GPTQ's overrides, and one for each of 6,144 experts."""
    read({**_mixed()[0], "ignore": [f"re:{expression}" for expression in PUBLISHED]})
    each = {rf"-:.*\.{layer}\.mlp\.{expert}\.(up|down)": {} for layer in range(48) for expert in range(128)}
    config = {**FORMATS["gptq"][1], "dynamic": {**{f"-:{name}": {} for name in PUBLISHED}, **each}}
    assert read(config).method("model.layers.47.mlp.127.up") is UNQUANTIZED


def test_many_quantized_layers_cost_no_comparison_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 layers of 128 experts: all components of a name are put together once, not for each of 18,432 rules."""
    computed = Counter[str]()

    def counted(name: str) -> Iterable[str]:
        computed[name] += 1
        return runs(name)

    runs = module_rules._runs
    monkeypatch.setattr(module_rules, "_runs", counted)
    names = [
        f"{LAYER}.{layer}.mlp.experts.{expert}.{part}_proj"
        for layer in range(48) for expert in range(128) for part in ("gate", "up", "down")
    ]  # fmt: skip
    layers = {name: {"quant_algo": ("FP8", "NVFP4")[index % 2]} for index, name in enumerate(names)}
    found = read({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert [found.method(name).name for name in names] == ["fp8", "nvfp4"] * (len(names) // 2)
    assert found.method("model.layers.48.mlp.experts.0.up_proj") is UNQUANTIZED
    assert set(computed.values()) == {1}


def test_the_first_of_the_quantized_layers_that_hold_a_module_decides() -> None:
    layers = {
        "a.0.mlp": {"quant_algo": "FP8"},
        "a.1.mlp.up": {"quant_algo": "NVFP4"},
        "a.0.mlp.up": {"quant_algo": "NVFP4"},
    }
    layers["a.1.mlp"] = {"quant_algo": "FP8"}
    found = read({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    names = ["a.0.mlp.up", "a.1.mlp.up", "a.1.mlp.down"]
    assert [found.method(name).name for name in names] == ["fp8", "nvfp4", "fp8"]


@pytest.mark.parametrize("name", ["gptq", "w4a16"])
def test_a_packed_head_is_read_although_config_json_ties_it(name: str, tmp_path: Path) -> None:
    quantize, config = FORMATS[name]
    config = {**config, "lm_head": True, "ignore": []}
    packed, exact = save_chosen(tmp_path, config, lambda _: quantize(config))
    values = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**values, "tie_word_embeddings": True}))
    torch.testing.assert_close(logits_of(load(packed)), logits_of(load(exact)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kv_cache", "scale"),
    [
        ({}, 0.5),
        ({"kv_cache_quant_algo": "FP8"}, 0.5),
        ({"kv_cache_quant_algo": "NVFP4"}, 1.0),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, 0.5),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float", "dynamic": False}}, 1.0),
    ],
)
def test_scales_of_a_kv_cache_in_4_bits_are_not_those_of_one_in_fp8(
    kv_cache: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    packed, _ = save_chosen(tmp_path, {**FORMATS["nvfp4_modelopt"][1], **kv_cache, "ignore": ["*"]}, lambda _: None)
    path = packed / "model.safetensors"
    scales = {f"{LAYER}.0.{KEY}.k_scale": torch.tensor(0.5)}
    scales[f"{LAYER}.1.{KEY}.k_scale"] = torch.tensor([0.25, 0.5]).view(2, 1, 1)  # by head, of which the largest counts
    save_file({**load_file(path), **scales}, path)
    assert load(packed).kv_scales() == {0: (scale, 1.0), 1: (scale, 1.0)}


def test_a_subnormal_scale_of_a_whole_weight_is_refused(tmp_path: Path) -> None:
    config = FORMATS["nvfp4"][1]
    quantize = nvfp4(config)
    packed, _ = save_chosen(tmp_path, config, lambda name: None if name == "lm_head" else quantize)
    path = packed / "model.safetensors"
    save_file({**load_file(path), f"{LAYER}.1.{UP}.weight_global_scale": torch.tensor([1e-40])}, path)
    with pytest.raises(ModelLoadError, match=r"up_proj.weight_global_scale.* 1 scales that are not positive numbers"):
        load(packed)


def _changed(**changes: Any) -> dict[str, Any]:
    return {**_mixed()[0], **changes}


def _torchao(kind: str, size: int | None = None, **data: Any) -> dict[str, Any]:
    config = FORMATS["torchao_int8"][1]
    return {**config, "quant_type": {"default": {"_type": kind, "_data": {"group_size": size, **data}}}}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "sparse": (_changed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config of format sparse-24"),
    "fewer experts": (_changed(moe_sparsity_config={"method": "prune", "num_experts": [3]}), "with a moe_sparsity_c"),
    "mxfp8 in other groups": (_changed(format="mxfp8-quantized", config_groups={"g": {"targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "group_size": 64}}}), "of 64; symmetric float 8 in groups of 32"),
    "zeros of the cache": (_changed(kv_cache_scheme={"num_bits": 8, "symmetric": False}), "kv_cache_scheme is not"),
    "no format": (_changed(format="marlin-24", config_groups={"g": {"targets": ["Linear"], "weights": _weights(4)}}),
                  "in the format marlin-24; "),
    "preset": (_changed(config_groups={"W4A16": ["Linear"]}), "W4A16 names a preset"),
    "no weights": (_changed(config_groups={"g": {"targets": ["Linear"]}}), "without a group that has weights and"),
    "other class": (_changed(config_groups={"g": {"targets": ["Embedding"], "weights": _weights(4)}}), "Embedding"),
    "no list": (_changed(ignore="lm_head"), "ignore 'lm_head' is not a list of names"),
    "no expression": (_changed(ignore=["re:("]), r"'\(' is not a regular expression"),
    "long expression": (_changed(ignore=["re:" + "a" * 2000]), "a pattern of 2000 characters"),
    "two hundred expressions": (_changed(ignore=[f"re:.*a.*b.*c.*{i}" for i in range(200)]),
        "'.*a.*b.*c.*[0-9]+' could take too long, by itself or after the patterns before it"),
    "rotated": ({**FORMATS["gptq"][1], "rotation": "hadamard"}, "gptq with rotation"),
    "activations in 8 bits": ({**FORMATS["gptq"][1], "activation": {"mode": "w4afp8"}}, "gptq with activation"),
    "words of 16 bits": ({**FORMATS["gptq"][1], "pack_dtype": "int16"}, "gptq with pack_dtype int16; int32"),
    "modelopt's groups": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 48}, "group_size 48; "),
    "modelopt's sizes": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "config_groups": {"g": {"weights": {"group_size": 32}}}}, r"more than one group_size \(\[16, 32\]\)"),
    "modelopt's layers": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "W8"}}},
        "modelopt with quant_algo W8;"),
    "torchao's tensor cores": (_torchao("Int4WeightOnlyConfig", 32, int4_packing_format="tile_packed_to_4d"),
        "in the format TILE_PACKED_TO_4D; plain is supported"),
    "torchao's floats": (_torchao("Float8StaticConfig"), r"torchao \(Float8StaticConfig\); Int8Weight"),
    "torchao's e5m2": (_torchao("Float8WeightOnlyConfig", weight_dtype={"_data": "float8_e5m2"}), "of float8_e5m2;"),
    "torchao's zeros": (_torchao("IntxWeightOnlyConfig", mapping_type="ASYMMETRIC"), "_TO_INT8 and ASYMMETRIC;"),
    "torchao by tensor": (_torchao("Int8WeightOnlyConfig", granularity={"_type": "PerTensor"}), "scales by PerTensor"),
    "torchao's other modules": ({**FORMATS["torchao_int8"][1], "quant_type":
        {**FORMATS["torchao_int8"][1]["quant_type"], "q_proj": {}}}, "with quant_type for q_proj; only default"),
    "auto-round's rotation": ({**FORMATS["auto_round"][1], "spinquant_config": {"r1": True}}, "with spinquant_config"),
    "torchao's embeddings": ({**FORMATS["torchao_int8"][1], "include_input_output_embeddings": True}, "include_input"),
    "groups of 64": ({**FORMATS["nvfp4"][1], "config_groups": {"g": {"targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "float", "group_size": 64}}}}, "of 64; symmetric float 4 in groups of 16"),
    "no method": ({"w_bit": 4, "q_group_size": 128}, "quantization_config has no quant_method"),
    "huge blocks": ({"quant_method": "fp8", "weight_block_size": [10**30, 128]}, "is not the rows and columns of a"),
    "overridden layout": ({**FORMATS["awq"][1], "dynamic": {".*up": {"format": "gemv"}}}, "all modules must have gemm"),
    "overridden": ({**FORMATS["gptq"][1], "dynamic": {"+:.*up": {"bits": 3}}}, "gptq with 3 bits"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_computed_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(config)
