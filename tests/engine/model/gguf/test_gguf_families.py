"""GGUF files of many architectures, as llama.cpp's converter writes them: logits against transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import RandomAdapter
from gguf.constants import GGMLQuantizationType as Kind
from gguf_families import CASES, write_case
from gguf_families import case as writing
from stepper import Sequence, Stepper

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.gguf_blocks import quantized, stored_blocks
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.gguf.architectures import ARCHITECTURES
from octavo_engine.model.gguf.architectures.encoders import ENCODERS
from octavo_engine.model.loader import load_model
from octavo_engine.model.lora.adapter_files import AdapterLimits, read_adapter
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import MoESpec

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.model()
    files = ModelFiles("test", gguf=write_case(model, tmp_path / "model.gguf", name))
    decoder = load_model(files, read_spec(files), torch.device("cpu"), torch.float32, lambda *_: None)
    (logits,) = Stepper(decoder).step([(Sequence(TOKENS), len(TOKENS))])
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert expected.argmax(-1).unique().numel() > 2  # answers that tell one model from another
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("llama, experts", "phi3", "falcon, new", "gpt2", "qwen2moe", "qwen3moe, fused", "gemma2", "deepseek2"),
        *("granitehybrid, bamba", "lfm2"),
    ],
)
def test_blocks_that_are_kept_are_the_numbers_of_the_file(name: str, tmp_path: Path) -> None:
    """Fused rows, permuted rows and shared experts stay in blocks, and give what the dequantized numbers do."""
    case = CASES[name]
    model = case.model()
    files = ModelFiles("test", gguf=write_case(model, tmp_path / "model.gguf", name, Kind.Q8_0))
    found = []
    for flag in (None, "gguf"):
        spec = quantized(files, read_spec(files), flag)
        decoder = load_model(files, spec, torch.device("cpu"), torch.float32, lambda *_: None)
        found.append(Stepper(decoder).step([(Sequence(TOKENS), len(TOKENS))])[0])
        kept = {linear.method.name for linear in decoder.linears()} - {"none"}
        assert ("gguf Q8_0" in kept) == (flag is not None)
        experts = flag is not None and decoder.compute.quantized_vocabulary is not None
        assert all((mixture.quantized is not None) == experts for mixture in decoder.mixtures())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_each_architecture_that_is_read_is_tried() -> None:
    tried = {name.partition(",")[0] for name in CASES}
    tried |= {"qwen2", *(each.name for each in ENCODERS)}  # in test_gguf.py and test_gguf_encoders.py
    assert {each.name for each in ARCHITECTURES} == tried


@pytest.mark.parametrize(
    "name", ["falcon, new", "bloom", "gptneox", "smollm3", "qwen3next", "qwen35", "granitehybrid, bamba"]
)
def test_adapters_have_the_rows_of_hugging_faces_checkpoint(name: str, tmp_path: Path) -> None:
    """The file has query, key and value in other groups, or rows of layers without RoPE permuted as if they had it."""
    case, device = CASES[name], torch.device("cpu")
    model = case.model()
    files = ModelFiles("test", gguf=write_case(model, tmp_path / "model.gguf", name))
    decoder = load_model(files, read_spec(files), device, torch.float32, lambda *_: None)
    slots = LoraSlots(decoder, lora_targets(decoder, device, gguf=True), 1, 4)
    modules = ("query_key_value", "q_proj", "k_proj", "in_proj_qkv", "in_proj_ba", "out_proj")
    adapter = RandomAdapter(4, modules, seed=1, std=0.05)
    limits = AdapterLimits(module_names(decoder, slots.choice), 4, half=False)
    for write in read_adapter(adapter.save(model, tmp_path / "adapter"), limits).writes(0):
        slots.write(write)
    slots.use([0] * len(TOKENS))
    (logits,) = Stepper(decoder).step([(Sequence(TOKENS), len(TOKENS))])
    with torch.inference_mode():
        expected = adapter.merge(model)(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("falcon-h1", {"tie_word_embeddings": True}, "'output.weight' is missing"),
        ("falcon-h1", {"attention_bias": True}, "'blk.0.attn_q.bias' is not supported"),
        ("falcon-h1", {"mamba_rms_norm": True}, "'blk.0.ssm_norm.weight' is not supported"),
    ],
)
def test_what_no_header_states_is_refused(name: str, change: dict[str, bool], message: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = replace(case, changes={**case.changes, **change}).model()
    files = ModelFiles("test", gguf=write_case(model, tmp_path / "model.gguf", name))
    with pytest.raises(ModelLoadError, match=message):
        read_spec(files)


HEADERS = {
    "deepseek2": ({"expert_group_count": None}, "expert_group_count is missing, and no published model with 3 layers"),
    "granite": ({"rope.scaling.finetuned": False}, "attention without RoPE"),
    "afmoe": ({"expert_weights_norm": None}, "expert_weights_norm None is not supported, only true"),
    "step35": ({"attention.head_count": [8, 4, 8]}, r"head_count \[8, 4, 8\] differs in layers of one type"),
    "bailingmoe": ({"expert_weights_scale": 2.5}, "changes answers, and bailingmoe is not computed with it"),
    "apertus": ({"xielu.beta": [0.5]}, r"xielu.beta \[0.5\] is not a number for each of 3 layers"),
    "qwen3moe": ({"expert_count": 16384}, "expert_count 16384 is more than the 4 of the file's tensors"),
    "gpt-oss": ({"rope.freq_base_swa": 500.0}, r"rope.freq_base_swa 500.0 changes answers, and gpt-oss is"),
    "mistral4": ({"attention.temperature_length": 77}, "temperature_length 77 is not mistral4.rope"),
    "glm-dsa": ({"attention.indexer.types": None, "context_length": 1 << 20}, "indexer.types None is not a flag for"),
}


def _written(folder: Path, name: str, changed: dict[str, Any]) -> ModelFiles:
    """The files of a case whose header has other values, or lacks those that are None."""
    case = replace(CASES[name], keys=lambda config: {**CASES[name].keys(config), **changed})
    return ModelFiles("test", gguf=writing.write(case.model(), folder / "model.gguf", name, case))


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_other_models_are_refused(name: str, tmp_path: Path) -> None:
    changed, message = HEADERS[name]
    files = _written(tmp_path, name, changed)
    with pytest.raises(ModelLoadError, match=message):
        read_spec(files)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("step35", "expert_weights_norm", None, "None is not supported, only true"),
        ("step35", "attention.sliding_window_pattern", None, "None is not a flag for each of 3 layers"),
        ("cohere2moe", "attention.sliding_window_pattern", None, "None is not a flag for each of 5 layers"),
        ("cohere2moe", "attention.sliding_window_pattern", 4, "4 is not a flag for each of 5 layers"),
    ],
)
def test_what_llama_cpp_needs_or_takes_in_another_way_is_refused(
    name: str, key: str, value: int | None, message: str, tmp_path: Path
) -> None:
    """In llama.cpp the first of four layers of cohere2moe sees all tokens; in other models the last one does."""
    files = _written(tmp_path, name, {key: value})
    with pytest.raises(ModelLoadError, match=f"{key} {message}"):
        read_spec(files)


def test_one_limit_of_activations_in_a_header_is_that_of_all_layers(tmp_path: Path) -> None:
    spec = read_spec(_written(tmp_path, "step35", {"swiglu_clamp_exp": 0.5, "swiglu_clamp_shexp": None}))
    mixtures = [part for layer in spec.layers for part in layer.feed_forwards if isinstance(part, MoESpec)]
    assert [mixture.activated_limit for mixture in mixtures] == [0.5, 0.5]


def test_projections_of_convolutions_stay_in_blocks(tmp_path: Path) -> None:
    files = ModelFiles("test", gguf=write_case(CASES["lfm2"].model(), tmp_path / "model.gguf", "lfm2", Kind.Q8_0))
    blocks = stored_blocks(files, read_spec(files))
    assert blocks is not None
    assert {f"model.layers.0.conv.{name}_proj" for name in ("in", "out")} <= blocks.rules[0].names


REFUSED = {
    "falcon-h1": ("mamba.in_proj", "multipliers"),
    "glm4, sections": ("self_attn.q_proj", "in another order"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_are_multiplied_or_in_another_order_take_no_adapters(name: str, tmp_path: Path) -> None:
    (module, reason), device = REFUSED[name], torch.device("cpu")
    files = ModelFiles("test", gguf=write_case(CASES[name].model(), tmp_path / "model.gguf", name))
    decoder = load_model(files, read_spec(files), device, torch.float32, lambda *_: None)
    choice = lora_targets(decoder, device, gguf=True)
    assert not choice.targets
    assert reason in choice.left_out[f"model.layers.0.{module}"]
