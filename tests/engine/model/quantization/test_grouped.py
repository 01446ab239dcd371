"""Weights of 4 and 8 bits that share scales by groups: published checkpoints and `--quantization int4`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from c_kernels import needs_kernels
from checkpoints import reference_model, save
from gguf_writer import write_gguf
from grouped_checkpoints import FORMATS, SIZES, save_grouped
from loaded import linears, load
from peak_memory import peak_memory
from rank_logits import group_logits, logits_of
from safetensors.torch import load_file, save_file

from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model import footprint
from octavo_engine.model.alignment import check_alignment
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.quantization import int4
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard


def spec_of(directory: Path) -> Any:
    return read_spec(ModelFiles("test", directory=directory))


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_gives_the_logits_of_the_numbers_it_stands_for(name, tmp_path):
    model = save_grouped(tmp_path / "packed", name, attention_bias=True)
    decoder, exact = load(tmp_path / "packed"), load(save(model, tmp_path / "exact"))
    torch.testing.assert_close(logits_of(decoder), logits_of(exact), rtol=1e-5, atol=1e-5)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load(tmp_path / "packed", dtype=dtype)
        planned = footprint.weight_bytes(make_blueprint(decoder.spec, dtype, Shard()))
        assert planned == sum(parameter.nbytes for parameter in loaded.parameters())
    stored = {"llm_int8": torch.int8, "w8a8_bytes": torch.int8}
    stored |= dict.fromkeys(("torchao_float8", "mxfp8"), torch.float8_e4m3fn)
    assert {linear.weight.dtype for linear in linears(decoder)} == {stored.get(name, torch.uint8)}


@needs_kernels
def test_products_without_a_kernel_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logged = {}
    for name in ("nf4", "awq", "gptq_act_order", "w4a16_act_order"):
        save_grouped(tmp_path / name, name, head_dim=32)
        caplog.clear()
        load(tmp_path / name, dtype=torch.bfloat16)
        logged[name] = caplog.messages
    assert [message.split(",")[0] for message in logged["nf4"]] == [
        "linear layers in nf4 are dequantized in each product"
    ]
    assert [logged[name] for name in ("awq", "gptq_act_order", "w4a16_act_order")] == [[], [], []]


GPT2 = {"n_embd": 128, "n_head": 8, "n_layer": 2}


@pytest.mark.parametrize("name", ["nf4", "nf4_nested"])
@pytest.mark.parametrize(
    ("family", "changes"), [("Phi3", {"pad_token_id": 0, "num_key_value_heads": 2}), ("GPT2", GPT2)]
)
def test_bitsandbytes_has_projections_together_and_columns_as_rows(family, changes, name, tmp_path):
    """The scales of scales belong to blocks of 256 x 64 numbers, which two projections of a tensor may share."""
    model = save_grouped(tmp_path / "packed", name, family=family, **changes)
    exact = logits_of(load(save(model, tmp_path / "exact")))
    torch.testing.assert_close(logits_of(load(tmp_path / "packed")), exact, rtol=1e-4, atol=1e-4)


def test_ranks_compute_what_one_computes(tmp_path):
    names = [
        "gptq",
        "gptq_act_order",
        "gptq_rows",
        "awq",
        "w4a16_act_order",
        "nf4_nested",
        "nvfp4",
        "mxfp4",
        "torchao_int4",
    ]
    for name in names:
        save_grouped(tmp_path / name, name)
    group_logits(2, [tmp_path / name for name in names], tmp_path)
    for name in names:
        expected = logits_of(load(tmp_path / name))
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.pt"), expected, rtol=1e-4, atol=1e-4)


def memory_of_products(linear: Linear, tokens: int) -> int:
    x = torch.zeros(tokens, linear.columns.size, dtype=torch.bfloat16)
    with peak_memory() as peak:
        linear(x)
    return peak.bytes - tokens * sum(linear.parts) * x.itemsize


def test_a_product_takes_the_memory_that_is_planned(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1}
    for name in ("gptq", "gptq_act_order", "nf4", "nvfp4"):
        save_grouped(tmp_path / name, name, **sizes)
        for linear in linears(load(tmp_path / name, dtype=torch.bfloat16)):
            quantized = linear.weights.quantized
            if quantized is not None and quantized.column_order is not None:
                # Kernels make 8 bits of inputs, beside their copy in the order of the columns.
                copied = memory_of_products(linear, 40)
                quantized.column_order = None
                copied -= memory_of_products(linear, 40)
                assert 0 < copied <= 40 * (linear.quantized_input_bytes(0) - linear.columns.size)
            linear.weights.quantized = None  # no kernel multiplies it as it is
            if linear.column_groups is not None:  # no longer groups, where columns were sorted for kernels
                linear.column_groups.zero_()
            assert 0.3 * linear.scratch_bytes < memory_of_products(linear, 1) <= linear.scratch_bytes + 4096


def test_ranks_that_would_cut_groups_are_refused_with_the_sizes_that_work(tmp_path):
    save_grouped(tmp_path, "gptq", num_key_value_heads=8)
    check_alignment(spec_of(tmp_path), 2)
    with pytest.raises(ConfigurationError, match=r"size 4: a rank's query heads \(32\) .*64.*; sizes that work: 1, 2"):
        check_alignment(spec_of(tmp_path), 4)


def test_the_flag_takes_the_name_of_the_checkpoints_own_scheme_alone(tmp_path):
    save_grouped(tmp_path / "gptq", "gptq")
    save(reference_model(), tmp_path / "plain")
    stored, plain = spec_of(tmp_path / "gptq"), spec_of(tmp_path / "plain")
    assert quantized_online(stored, "gptq") is stored
    with pytest.raises(ConfigurationError, match=r"--quantization int8: .* stored in gptq already"):
        quantized_online(stored, "int8")
    with pytest.raises(ConfigurationError, match=r"--quantization awq: .* not stored in awq.*one of fp8, int8, int4"):
        quantized_online(plain, "awq")


@pytest.mark.parametrize("gguf", [False, True])
def test_a_weight_quantized_while_loading_is_near(gguf, tmp_path):
    model = reference_model()
    path = write_gguf(model, tmp_path / "model.gguf") if gguf else save(model, tmp_path)
    decoder, exact = load(path, "int4"), load(path)
    for ours, theirs in zip(linears(decoder), linears(exact), strict=True):
        assert isinstance(ours.method, Grouped)
        found, wanted = ours.method.dequantized(ours.weights, torch.float32), theirs.weight
        largest = wanted.abs().amax(1, keepdim=True)
        assert bool(((found - wanted).abs() <= 0.15 * largest).all())
        assert (found - wanted).norm() < 0.1 * wanted.norm()


def test_a_last_group_of_fewer_columns_is_fitted_to_them_alone():
    weight = torch.randn(6, 44, generator=torch.Generator().manual_seed(1))
    _, scale, minimum = int4.quantize(weight)
    _, scale_alone, minimum_alone = int4.quantize(weight[:, 32:], 12)
    assert torch.equal(scale[:, 1:], scale_alone)
    assert torch.equal(minimum[:, 1:], minimum_alone)


def test_weights_take_five_bits_instead_of_sixteen(tmp_path):
    sizes = {"hidden_size": 576, "intermediate_size": 2048, "vocab_size": 32}
    spec = read_spec(ModelFiles("test", directory=save(reference_model(**sizes), tmp_path)))
    quarter, full = (
        footprint.weight_bytes(make_blueprint(quantized_online(spec, name), torch.bfloat16, Shard()))
        for name in ("int4", None)
    )
    assert quarter < 0.33 * full


def corrupt(path: Path, name: str, change: Any) -> str:
    tensors = load_file(path / "model.safetensors")
    full = f"model.layers.1.mlp.down_proj.{name}"
    tensors[full] = change(tensors[full]).contiguous()
    save_file(tensors, path / "model.safetensors")
    return full


BROKEN: dict[str, tuple[str, Any, str]] = {
    "scales that are infinite": ("scales", lambda t: t.fill_(torch.inf), "scales that are not finite"),
    "scales for other groups": ("scales", lambda t: t[:-1], r"is \[7, 128\], expected \[8, 128\]"),
    "codes of another type": ("qweight", lambda t: t.float(), "is F32, not I32"),
    "codes of other rows": ("qweight", lambda t: t[:, :-8], r"is \[32, 120\], expected \[32, 128\]"),
    "groups beyond the scales": ("g_idx", lambda t: t + 1, "beyond the 8 that have scales"),
}


@pytest.mark.parametrize(("name", "change", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_tensor_is_named(name, change, message, tmp_path):
    save_grouped(tmp_path, "gptq_act_order", num_hidden_layers=2)
    full = corrupt(tmp_path, name, change)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(tmp_path)
    assert full in str(caught.value)


def test_other_tables_and_states_of_bitsandbytes_are_refused(tmp_path):
    save_grouped(tmp_path, "nf4_nested")
    state, table = "weight.quant_state.bitsandbytes__nf4", "weight.quant_map"
    for name, change, message in (
        (table, lambda t: t.flip(0), "has other numbers for codes"),
        (table, lambda t: t.flip(0), ""),  # as it was
        (state, lambda t: t[:-1], "is not the JSON object that bitsandbytes writes"),
        (
            state,
            lambda _: torch.frombuffer(bytearray(b'{"blocksize": 128, "shape": [128, 256]}'), dtype=torch.uint8),
            "and blocks of 64 numbers",
        ),
        (
            state,
            lambda _: torch.frombuffer(bytearray(b'{"blocksize": 64, "shape": ["all", 256]}'), dtype=torch.uint8),
            "has a shape that is not one of rows and columns",
        ),
        (
            state,
            lambda _: torch.frombuffer(
                bytearray(b'{"blocksize": 64, "shape": [128, 256], "nested_offset": %d}' % (10**400)), dtype=torch.uint8
            ),
            "has a nested_offset that is not a floating-point number",
        ),
    ):
        full = corrupt(tmp_path, name, change)
        if message:
            with pytest.raises(ModelLoadError, match=f"{full}' {message}|{full}' .*{message}"):
                load(tmp_path)


def test_a_row_of_zeros_in_llm_int8_has_the_scale_zero(tmp_path):
    save_grouped(tmp_path, "llm_int8")
    for name in ("weight", "SCB"):
        corrupt(tmp_path, name, lambda tensor: tensor.index_fill(0, torch.tensor([3]), 0))
    assert logits_of(load(tmp_path)).isfinite().all()


def test_act_order_that_the_configuration_does_not_say_is_refused(tmp_path):
    save_grouped(tmp_path, "gptq")
    full = corrupt(tmp_path, "g_idx", lambda t: t.flip(0))
    with pytest.raises(ModelLoadError, match=f"{full}' has columns in groups in another order"):
        load(tmp_path)


def test_biases_of_zeros_are_ignored_and_others_refused(tmp_path):
    model = save_grouped(tmp_path, "awq")
    expected, path = logits_of(load(tmp_path)), tmp_path / "model.safetensors"
    tensors, name = load_file(path), "model.layers.0.self_attn.v_proj.bias"
    size = model.config.hidden_size // 4
    save_file({**tensors, name: torch.zeros(size)}, path)
    assert torch.equal(logits_of(load(tmp_path)), expected)
    save_file({**tensors, name: torch.ones(size)}, path)
    with pytest.raises(ModelLoadError, match=f"{name}' is a bias that is not zero"):
        load(tmp_path)


def _group(**changes: Any) -> dict[str, Any]:
    (group,) = FORMATS["w4a16"][1]["config_groups"].values()
    return {"config_groups": {"group_0": {**group, **changes}}}


def _rotated(*locations: str) -> dict[str, Any]:
    applied = [{"targets": ["re:.*down_proj$"], "location": location} for location in locations]
    return {"transform_config": {"config_groups": {"R4": {"type": "hadamard", "apply": applied}}}}


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "3 bits": ("gptq", {"bits": 3}, "gptq with 3 bits in the format gptq"),
    "5 bits": ("gptq", {"bits": 5}, "gptq with 5 bits"),
    "odd groups": ("gptq", {"group_size": 48}, "group_size 48"),
    "marlin": ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format marlin"),
    "two formats": ("gptq_v2", {"format": "gptq"}, r"different layouts \(gptq and gptq_v2\)"),
    "a rule's format": ("gptq", {"dynamic": {"q_": {"format": "gptq_v2"}}}, "'q_'. names the format gptq_v2"),
    "another packing": ("auto_round", {"packing_format": "auto_round:fp8"}, "packing_format auto_round:fp8"),
    "gemv as format": ("awq", {"version": None, "format": "gemv"}, "awq in the order gemv"),
    "gemv": ("awq", {"version": "gemv"}, "awq in the order gemv"),
    "results too": ("w4a16", _group(output_activations={"num_bits": 8}), "output_activations of group_0"),
    "by tensor": ("w4a16", _group(weights={"num_bits": 4, "strategy": "tensor"}), "with scales by tensor"),
    "rotated": ("w4a16", _rotated("weight_input", "input"), r"rotates activations \(R4, location input\)"),
}


def test_rotations_that_stored_weights_contain_need_nothing(tmp_path):
    save_grouped(tmp_path, "w4a16")
    expected, path = logits_of(load(tmp_path)), tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["quantization_config"] |= _rotated("weight_input", "weight_output")
    path.write_text(json.dumps(values))
    assert torch.equal(logits_of(load(tmp_path)), expected)


def test_gptqmodels_new_name_of_the_layout_is_read(tmp_path):
    """With `checkpoint_format` alone, zeros would be taken for one less than they are."""
    save_grouped(tmp_path, "gptq_v2")
    expected, path = logits_of(load(tmp_path)), tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["quantization_config"]["format"] = values["quantization_config"].pop("checkpoint_format")
    path.write_text(json.dumps(values))
    assert torch.equal(logits_of(load(tmp_path)), expected)


@pytest.mark.parametrize(("name", "change", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_computed_is_named(name, change, message, tmp_path):
    save(reference_model(**SIZES, vocab_size=8), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values["quantization_config"] = {**FORMATS[name][1], **change}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelLoadError, match=message):
        spec_of(tmp_path)
