"""INT8 weights: the numbers of checkpoints, the effect of `--quantization int8`, and the memory of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import reference_model, save
from fp8_checkpoints import PROJECTIONS
from gguf_writer import write_gguf
from loaded import linears, load
from rank_logits import group_logits, logits_of
from safetensors.torch import load_file, save_file

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ModelLoadError
from octavo_engine.model import footprint
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.quantization.int8 import quantize
from octavo_engine.model.quantization.pieces import PIECE_BYTES
from octavo_engine.model.quantization.select import ONLINE
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard

WEIGHTS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}


def quantization_config(**group: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None, **group}}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": groups,
    }


def save_int8(directory: Path, **group: Any) -> Any:
    """Write a compressed-tensors checkpoint; the model in float32 of the numbers it stands for."""
    model = reference_model(attention_bias=True)
    path = save(model, directory) / "model.safetensors"
    tensors, state = load_file(path), model.state_dict()
    for key in [key for key in tensors if key.endswith(PROJECTIONS)]:
        wide = tensors[key].double()
        scale = (wide.abs().amax(1, keepdim=True) / 127).float()
        values = (wide / scale).round().to(torch.int8)
        tensors[key], tensors[f"{key}_scale"] = values, scale
        state[key].copy_((values.double() * scale).float())
        if "input_activations" in group:
            tensors[f"{key.removesuffix('weight')}input_scale"] = torch.tensor([0.1])
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = quantization_config(**group)
    (directory / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize(
    "group",
    [{}, {"format": "naive-quantized"}, {"input_activations": ACTIVATIONS}],
    ids=["weights", "naive", "activations too"],
)
def test_a_checkpoint_gives_the_logits_of_the_numbers_it_stands_for(group, tmp_path):
    model = save_int8(tmp_path / "int8", **group)
    decoder, exact = load(tmp_path / "int8"), load(save(model, tmp_path / "exact"))
    assert {linear.weight.dtype for linear in linears(decoder)} == {torch.int8}
    torch.testing.assert_close(logits_of(decoder), logits_of(exact), rtol=1e-5, atol=1e-5)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load(tmp_path / "int8", dtype=dtype)
        planned = make_blueprint(decoder.spec, dtype, Shard())
        assert footprint.weight_bytes(planned) == sum(parameter.nbytes for parameter in loaded.parameters())
        largest = max(linear.weight.numel() for linear in linears(loaded))
        assert footprint.module_scratch_bytes(planned) == largest * (PIECE_BYTES + dtype.itemsize)


def test_ranks_compute_what_one_computes(tmp_path):
    save_int8(tmp_path / "int8")
    group_logits(2, [tmp_path / "int8"], tmp_path)
    torch.testing.assert_close(
        torch.load(tmp_path / "int8.pt"), logits_of(load(tmp_path / "int8")), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("gguf", [False, True])
def test_a_weight_quantized_while_loading_is_off_by_no_more_than_half_a_step(gguf, tmp_path):
    model = reference_model()
    path = write_gguf(model, tmp_path / "model.gguf") if gguf else save(model, tmp_path)
    decoder, exact = load(path, "int8"), load(path)
    assert torch.equal(decoder.input.tokens.weight, exact.input.tokens.weight)
    for ours, theirs in zip(linears(decoder), linears(exact), strict=True):
        found, wanted = ours.weight.double() * ours.scale.double(), theirs.weight.double()
        assert bool(((found - wanted).abs() <= ours.scale.double() / 2 * (1 + 1e-4)).all())
        assert bool((ours.weight.abs().amax(1) == 127).all())
    similar = torch.cosine_similarity(logits_of(decoder), logits_of(exact))
    assert 0.99 < similar.mean() < 1


def test_weights_take_half_of_what_they_take_in_16_bits(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "vocab_size": 32}
    spec = read_spec(ModelFiles("test", directory=save(reference_model(**sizes), tmp_path)))
    half, full = (
        footprint.weight_bytes(make_blueprint(quantized_online(spec, name), torch.bfloat16, Shard()))
        for name in ("int8", None)
    )
    assert half < 0.53 * full


def test_zeros_stay_zeros_and_signs_are_alike():
    values, scale = quantize(torch.tensor([[0.0, 0, 0], [-3e38, 1, 3e38], [1e-30, -1e-30, 0]]))
    assert values.tolist() == [[0, 0, 0], [-127, 0, 127], [127, -127, 0]]
    assert bool(scale.isfinite().all())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "5 bits": ({"weights": {**WEIGHTS, "num_bits": 5}}, "int 4 and 8 are supported"),
    "by tensor": ({"weights": {**WEIGHTS, "strategy": "tensor"}}, "with scales by tensor"),
    "zero points": ({"weights": {**WEIGHTS, "symmetric": False}}, "zero points"),
}


@pytest.mark.parametrize(("group", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_computed_is_reported(group, message, tmp_path):
    save_int8(tmp_path, **group)
    with pytest.raises(ModelLoadError, match=message) as caught:
        read_spec(ModelFiles("test", directory=tmp_path))
    assert "supported are float8 e4m3 weights" in str(caught.value) and "int8 weights" in str(caught.value)


def test_values_of_another_type_are_refused(tmp_path):
    save_int8(tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].float()}, path)
    with pytest.raises(ModelLoadError, match=f"{name}' is F32, not I8"):
        load(tmp_path)


def test_scales_that_are_no_positive_numbers_are_refused(tmp_path):
    save_int8(tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.0.mlp.down_proj.weight_scale"
    tensors = load_file(path)
    tensors[name][1] = torch.inf
    save_file(tensors, path)
    with pytest.raises(ModelLoadError, match=rf"{name}' has 1 scales that are not positive numbers, such as inf"):
        load(tmp_path)


def test_the_flag_knows_the_schemes_that_quantize_while_loading():
    for name in ONLINE:
        assert EngineConfig(model="x", quantization=name).quantization == name
