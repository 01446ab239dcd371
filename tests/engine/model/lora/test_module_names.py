"""Modules that transformers names otherwise than checkpoints do, and the errors about layers that take no adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapters import RandomAdapter
from family_pairs import make_pair
from reference import assert_same
from test_expert_adapters import CPU, GREEDY, SETTINGS, blueprint
from test_lora import PROMPTS

from octavo_engine import LLM
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import lora_targets

ADAPTERS = {
    "hrm-text": RandomAdapter(4, ("q_proj", "gate_proj", "up_proj", "o_proj"), seed=1, std=0.05),
    "axk2": RandomAdapter(4, ("fc1", "fc2", "q_gate_proj", "wq_b"), seed=2),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_name_modules_as_transformers_does(name: str, tmp_path: Path) -> None:
    """HRM's checkpoints have query, key, value and gate as one tensor; A.X K2's name the gates of norms otherwise."""
    pair, adapter = make_pair(name, tmp_path), ADAPTERS[name]
    path = adapter.save(pair.model, tmp_path / "adapter")
    llm = LLM(str(pair.directory), enable_lora=True, lora_modules=[f"ours={path}"], **SETTINGS)
    answers = llm.generate(PROMPTS[:1] * 2, GREEDY, adapter=["ours", None])
    llm.close()
    assert_same(pair.model, answers[1:], GREEDY.max_tokens)
    assert_same(adapter.merge(pair.model), answers[:1], GREEDY.max_tokens)


@pytest.mark.parametrize(
    ("case", "module"),
    [
        ("jetmoe", "model.layers.0.mlp.input_linear"),
        ("minimax-m3", "model.layers.1.self_attn.indexer.q_proj"),
        ("mixtral", "model.norm"),
    ],
)
def test_a_layer_without_adapters_is_not_said_to_be_missing(case: str, module: str, tmp_path: Path) -> None:
    decoder = blueprint(make_pair(case, tmp_path).directory)
    names = module_names(decoder, lora_targets(decoder, CPU))
    with pytest.raises(ModelLoadError, match=rf"{module}: the model has this layer, but it takes no adapters; .* do$"):
        names.find(f"base_model.model.{module}")
    with pytest.raises(ModelLoadError, match=r"the model has no such linear layer.*, but .*experts.*: is the adapter"):
        names.find("base_model.model.model.layers.0.mlp.other_proj")


@pytest.mark.parametrize("case", ["zamba", "zamba2"])
def test_a_block_that_several_layers_have_takes_no_adapters(case: str, tmp_path: Path) -> None:
    """One of a single layer would change the others, too. Layers' own parts, such as the Mamba mixer, take adapters."""
    decoder = blueprint(make_pair(case, tmp_path).directory)
    choice = lora_targets(decoder, CPU)
    names = module_names(decoder, choice)
    block = [name for name in choice.left_out if ".shared_transf" in name]
    assert {name.rpartition(".")[2] for name in block} >= {"q_proj", "o_proj", "down_proj"}
    assert len({name.split(".")[2] for name in block}) == 2, "the layer that has the weights, and one that shares them"
    for name in block:
        with pytest.raises(ModelLoadError, match=rf"{name}: several layers have its weights"):
            names.find(f"base_model.model.{name}")
    assert any(name.endswith("mamba.in_proj") for name in choice.targets)
