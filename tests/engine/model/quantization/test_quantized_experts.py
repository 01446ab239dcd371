"""Quantized checkpoints with mixtures of experts or latent attention, parts of which are dequantized when loaded."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from c_kernels import needs_kernels
from checkpoints import reference_model, save
from grouped_checkpoints import FORMATS
from loaded import linears, load
from quantized_pairs import ROUTERS, SIZES, save_pair
from rank_logits import group_logits, logits_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.kernels.experts.experts import ExpertCodes, Experts
from octavo_engine.kernels.experts.moe import multiplies
from octavo_engine.model import footprint
from octavo_engine.model.alignment import check_alignment, check_experts_stay
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.layers.operations import choose_compute as choosing
from octavo_engine.model.layers.operations import device_support, triton_compute
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.collectives import ALONE, Collectives
from octavo_engine.model.tensor_parallel.shard import Shard

ON_GPU = torch.device("cuda")


CASES = [
    *(
        ("Qwen3Moe", name)
        for name in ("gptq", "gptq_act_order", "awq", "w4a16_act_order", "deepseek", "nvfp4", "torchao_int4")
    ),
    ("Qwen2Moe", "compressed_channel"),
    ("Mixtral", "w8a8"),
    ("DeepseekV3", "deepseek"),
    ("DeepseekV3", "awq"),
]


KEPT = ("gptq", "awq", "w8a8")
"""Experts in these formats stay in codes where C kernels multiply them; all others are dequantized."""


@pytest.mark.parametrize(("family", "name"), CASES)
def test_logits_are_those_of_the_numbers_that_a_checkpoint_stands_for(
    family: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Mixtral's experts have other names; Qwen2's have a shared one beside them, quantized like linear layers."""
    more = {"shared_expert_intermediate_size": 128} if family == "Qwen2Moe" else {}
    more |= {"num_local_experts": 4} if family == "Mixtral" else {}
    packed, exact = save_pair(tmp_path, name, family, **more)
    decoder = load(packed)
    logged = [message.split(",")[0] for message in caplog.messages if message.startswith("experts in")]
    expected = logits_of(load(exact))
    torch.testing.assert_close(logits_of(decoder), expected, rtol=1e-4, atol=1e-4)
    with (
        monkeypatch.context() as without
    ):  # kernels for CPUs add in another order than the unquantized weights' product
        without.setattr(choosing, "cpu_kernels", lambda: None)
        dequantizing, plain = load(packed), load(exact)
    torch.testing.assert_close(logits_of(dequantizing), logits_of(plain), rtol=1e-5, atol=1e-5)
    assert all(mixture.gate_up.dtype == mixture.down.dtype == torch.float32 for mixture in dequantizing.mixtures())
    kept = name in KEPT and decoder.compute.quantized_vocabulary is not None
    stored = decoder.spec.quantization.name
    assert logged == ([] if kept else [f"experts in {stored} were dequantized while they were loaded"])
    dtypes = {weight.dtype for mixture in decoder.mixtures() for weight in (mixture.gate_up, mixture.down)}
    assert dtypes == {torch.uint8 if kept else torch.float32}
    assert {linear.weight.dtype for linear in linears(decoder)} & {torch.uint8, torch.float8_e4m3fn, torch.int8}
    loaded = load(packed, dtype=torch.bfloat16)
    planned = footprint.weight_bytes(make_blueprint(decoder.spec, torch.bfloat16, Shard()))
    assert planned == sum(parameter.nbytes for parameter in loaded.parameters())


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_projections_stored_together_beside_one_that_is_not_quantized(name: str, tmp_path: Path) -> None:
    """Of Qwen3-Next's linear attention tools leave in_proj_ba as it is, so in_proj_qkvz is dequantized with it."""
    linear = {"key_head_dim": 32, "value_head_dim": 32, "num_key_heads": 2, "num_value_heads": 4}
    more = {f"linear_{field}": value for field, value in linear.items()}
    packed, exact = save_pair(tmp_path, name, "Qwen3Next", shared_expert_intermediate_size=128, **more)
    expected = logits_of(load(exact))
    torch.testing.assert_close(logits_of(load(packed)), expected, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("name", KEPT)
def test_experts_in_codes_give_what_dequantized_ones_do(name: str, tmp_path: Path) -> None:
    """As they are served, in bfloat16 with activations in 8 bits; each expert's memory is put in order by itself."""
    packed, exact = save_pair(tmp_path, name)
    decoder, wanted = load(packed, dtype=torch.bfloat16), logits_of(load(exact))
    assert all(each.interleaved for mixture in decoder.mixtures() for one in mixture.quantized for each in one.each)
    found = logits_of(decoder).float()
    assert (found - wanted).norm() < 0.05 * wanted.norm()
    plain = read_spec(ModelFiles("test", directory=exact))
    for device in (torch.device("cpu"), ON_GPU):
        quantized, whole = (
            footprint.weight_bytes(make_blueprint(spec, torch.bfloat16, Shard(), device))
            for spec in (decoder.spec, plain)
        )
        assert quantized < 0.75 * whole


GPU_FORMATS = ("gptq", "awq", "w8a8", "deepseek", "compressed_channel", "w4a16")


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("name", GPU_FORMATS)
def test_memory_for_triton_kernels_has_the_numbers_of_the_checkpoint(
    name: str, rank: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs experts stay as they are stored, also a rank's part; the kernels' own checks multiply such memory."""
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: None)
    packed, exact = save_pair(tmp_path, name, num_attention_heads=4)
    ranks = ALONE if rank is None else Collectives(Shard(rank, 2))
    plain = load(exact, ranks=ranks)
    monkeypatch.setattr(device_support, "triton_runs_on", lambda _: True)
    kept = load(packed, ranks=ranks)
    for quantized, whole in zip(kept.mixtures(), plain.mixtures(), strict=True):
        assert quantized.dequantized_from() == set()
        for experts, numbers in zip(quantized.quantized, (whole.gate_up, whole.down), strict=True):
            assert multiplies(experts.codes.every)
            found = experts.method.dequantized(experts.weights, torch.float32)
            torch.testing.assert_close(found, numbers.flatten(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size", "keeps"), [("deepseek", 256, True), ("deepseek", 192, False), ("compressed_channel", 192, True)]
)
def test_all_ranks_keep_experts_in_fp8_or_none_does(name: str, size: int, keeps: bool, tmp_path: Path) -> None:
    """The first rank's memory is planned for all: none keeps parts of blocks. GPUs before Ada keep them, too."""
    packed, _ = save_pair(tmp_path, name, moe_intermediate_size=size, num_attention_heads=4)
    spec = read_spec(ModelFiles("test", directory=packed))
    for rank, multiplies_fp8 in ((0, True), (1, True), (0, False)):
        blueprint = make_blueprint(spec, torch.bfloat16, Shard(rank, 2), ON_GPU, fp8_products=multiplies_fp8)
        stays = {not mixture.dequantized_from() for mixture in blueprint.mixtures()}
        assert stays == {keeps}


def test_many_tokens_are_left_to_pytorch_in_the_layers_without_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer, which may have none, is the one that is measured."""
    x, ours = torch.zeros(2, 8), torch.ones(2, 8)
    monkeypatch.setattr(triton_compute, "_MANY_TOKENS", 2)
    monkeypatch.setattr(triton_compute, "mixture_of_experts", lambda *_: ours)
    compute = triton_compute.TritonExperts()
    compute._many = lambda *_: x
    plain = Experts(torch.zeros(1, 16, 8), torch.zeros(1, 8, 8))
    part = QuantizedPart(
        codes=torch.zeros(8, 8, dtype=torch.int8), scale=torch.ones(8, 1), bits=8, columns=8, group=None
    )
    codes = ExpertCodes(QuantizedWeight([part]), 1, ())
    found = [compute(x, each, x, x) for each in (plain, replace(plain, quantized=(codes, codes)))]
    assert found[0] is x and found[1] is ours


def test_ranks_compute_what_one_computes(tmp_path: Path) -> None:
    pairs = [save_pair(tmp_path, name, num_attention_heads=4) for name in ("gptq", "awq", "deepseek")]
    pairs.append(save_pair(tmp_path / "latent", "compressed_block", "DeepseekV3"))
    group_logits(2, [packed for packed, _ in pairs], tmp_path)
    for packed, exact in pairs:
        logits = torch.load(tmp_path / f"{packed.name}.pt")
        torch.testing.assert_close(logits, logits_of(load(exact)), rtol=1e-4, atol=1e-4)


def test_experts_that_are_no_complete_groups_are_refused(tmp_path: Path) -> None:
    config = reference_model("Qwen3Moe", **SIZES, num_experts=4).config
    config.moe_intermediate_size, config.quantization_config = 48, FORMATS["gptq"][1]
    config.architectures = ["Qwen3MoeForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(ModelLoadError, match=r"intermediate_size \(48\) is not a multiple of 64"):
        check_alignment(read_spec(ModelFiles("test", directory=tmp_path)), 1)


def test_experts_that_only_some_files_have_quantized_are_named(tmp_path: Path) -> None:
    """The first expert is in floating point."""
    packed, _ = save_pair(tmp_path, "w4a16_act_order")
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"]["ignore"] = [*ROUTERS, "re:.*experts[.]0[.].*"]
    (packed / "config.json").write_text(json.dumps(config))
    blueprint = make_blueprint(read_spec(ModelFiles("test", directory=packed)), torch.float32, Shard(), ON_GPU)
    assert [mixture.dequantized_from() for mixture in blueprint.mixtures()] == [{"pack-quantized"}] * 2


@pytest.mark.parametrize("family", ["Qwen3Moe", "GraniteMoe"], ids=["apart", "in one tensor"])
def test_experts_that_files_have_in_floating_point_are_not_quantized(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the configuration says: tools that quantize linear layers leave out experts that are none."""
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if family == "GraniteMoe" else {}
    packed, exact = save_pair(tmp_path, "awq", family, **more)
    stored, numbers = (load_file(path / "model.safetensors") for path in (packed, exact))
    experts = {name: number for name, number in numbers.items() if ".experts." in name}
    codes = {name for name in stored if ".experts." in name}
    save_file({**{name: stored[name] for name in stored.keys() - codes}, **experts}, packed / "model.safetensors")
    decoder = load(packed)
    assert not [message for message in caplog.messages if message.startswith("experts in")]
    assert torch.uint8 in {linear.weight.dtype for linear in linears(decoder)}
    torch.testing.assert_close(logits_of(decoder), logits_of(load(exact)), rtol=1e-3, atol=1e-3)


def in_one_tensor(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with all experts of the one layer, as transformers joins those of each expert."""
    module = "model.layers.0.mlp.experts"
    joined = {name: tensor for name, tensor in stored.items() if module not in name}
    for name in [name for name in stored if name.startswith(f"{module}.0.") and ".gate_proj." not in name]:
        projection, kind = name.removeprefix(f"{module}.0.").split(".")
        halves = ("gate_proj", "up_proj") if projection == "up_proj" else (projection,)
        halves = halves[-1:] if stored[name].dim() == 0 else halves
        every = [[stored[f"{module}.{expert}.{half}.{kind}"] for half in halves] for expert in range(4)]
        fused = f"{module}.{'gate_up_proj' if projection == 'up_proj' else projection}"
        ending = kind.removeprefix("weight") if kind.startswith("weight") else f"_{kind}"
        parts = [torch.cat(each) if len(each) > 1 else each[0] for each in every]
        joined[f"{fused}{ending}"] = torch.stack(parts)
    return joined


@pytest.mark.parametrize("name", ["deepseek", "transformers"])
def test_fp8_experts_in_one_tensor_are_those_one_by_one(name: str, tmp_path: Path) -> None:
    """As transformers saves them on request, with a scale for each block or for each weight and its input."""
    one_by_one, _ = save_pair(tmp_path, name, num_hidden_layers=1)
    stored = load_file(one_by_one / "model.safetensors")
    if name == "transformers":
        for key in [key for key in stored if key.endswith(".weight_scale")]:
            stored[f"{key}_inv"] = stored.pop(key).view(1, 1)
            stored[key.replace("weight_scale", "activation_scale")] = torch.tensor(0.5)
        save_file(stored, one_by_one / "model.safetensors")
    fused = shutil.copytree(one_by_one, tmp_path / "fused")
    save_file(in_one_tensor(stored), fused / "model.safetensors")
    for rank in (ALONE, Collectives(Shard(1, 2))):
        expected, found = (load(each, ranks=rank).layers.state_dict() for each in (one_by_one, fused))
        assert all(torch.equal(found[key].float(), values.float()) for key, values in expected.items())


def test_quantized_experts_in_one_tensor_are_refused(tmp_path: Path) -> None:
    directory = save(reference_model("GraniteMoe", num_local_experts=4, num_experts_per_tok=2), tmp_path)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    save_file({name: t.to(torch.int8) if t.dim() == 3 else t for name, t in tensors.items()}, path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = FORMATS["gptq"][1]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"quantized \(gptq\).*experts that a checkpoint holds in one tensor"):
        read_spec(ModelFiles("test", directory=directory))


@needs_kernels
def test_experts_are_quantized_while_they_are_loaded_on_cpus(tmp_path: Path) -> None:
    directory = save(reference_model("Qwen3Moe", **SIZES, num_experts=4), tmp_path)
    whole, decoder = load(directory), load(directory, "int8")
    assert {each.method.name for mixture in decoder.mixtures() for each in mixture.quantized} == {"int8"}
    assert (logits_of(decoder) - logits_of(whole)).norm() < 0.1 * logits_of(whole).norm()


def test_experts_are_quantized_while_they_are_loaded_for_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan counts their bytes."""
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: None)
    directory = save(reference_model("Qwen3Moe", **SIZES, num_experts=4), tmp_path)
    spec = read_spec(ModelFiles("test", directory=directory))
    plain_bytes = footprint.weight_bytes(make_blueprint(spec, torch.bfloat16, Shard(), ON_GPU))
    whole = load(directory)
    monkeypatch.setattr(device_support, "triton_runs_on", lambda _: True)
    for name, error, share in (("fp8", 0.03, 0.6), ("int8", 0.01, 0.6), ("int4", 0.08, 0.4)):
        for quantized, plain in zip(load(directory, name).mixtures(), whole.mixtures(), strict=True):
            for experts, numbers in zip(quantized.quantized, (plain.gate_up, plain.down), strict=True):
                found = experts.method.dequantized(experts.weights, torch.float32)
                assert 0 < (found - numbers.flatten(0, 1)).norm() < error * numbers.norm()
        blueprint = make_blueprint(quantized_online(spec, name), torch.bfloat16, Shard(), ON_GPU, fp8_products=True)
        assert footprint.weight_bytes(blueprint) < share * plain_bytes


def test_experts_that_would_not_stay_quantized_are_refused(tmp_path: Path) -> None:
    """They are most of the weights; and a model with all experts in one tensor has no single ones to quantize."""
    directory = save(reference_model("Qwen3Moe", **SIZES, num_experts=4), tmp_path / "apart")
    spec = quantized_online(read_spec(ModelFiles("test", directory=directory)), "fp8")
    check_experts_stay(make_blueprint(spec, torch.bfloat16, Shard(), ON_GPU))
    with pytest.raises(ConfigurationError, match="--quantization fp8: the model's experts are not computed in fp8"):
        check_experts_stay(make_blueprint(spec, torch.bfloat16, Shard()))
    together = save(reference_model("GraniteMoe", num_local_experts=4, num_experts_per_tok=2), tmp_path / "together")
    with pytest.raises(ConfigurationError, match="--quantization int8: a checkpoint of GraniteMoeForCausalLM has one"):
        load(together, "int8")
