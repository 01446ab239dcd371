"""LoRA adapters of the projection that latent attention absorbs: the answers of merged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from adapters import RandomAdapter
from checkpoints import SIZES, reference_model, save, save_words
from family_cases import CASES
from reference import assert_same
from test_expert_adapters import GREEDY, NO_ENDS, SETTINGS
from test_lora import PROMPTS

from octavo_engine import LLM
from octavo_engine.model.layers.adapters import latent_lora
from octavo_engine.model.layers.adapters.latent_lora import LatentLora
from octavo_engine.model.layers.adapters.lora import NO_SLOT, LoraBatch, LoraLayer

CASE = CASES["deepseek-v3"]
ADAPTERS = {
    "absorbed": RandomAdapter(3, ("kv_b_proj",), seed=1),
    "all": RandomAdapter(5, ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"), layers=[0, 2], seed=2),
}


def model() -> Any:
    return reference_model(CASE.family, std=CASE.std, **{**NO_ENDS, **CASE.changes})


@pytest.mark.parametrize("settings", [{"max_loras": 2}, {"tensor_parallel_size": 2}], ids=["alone", "two ranks"])
def test_adapters_of_an_absorbed_projection_answer_as_merged_weights(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their modules are put onto a device in parts of some ranks each."""
    monkeypatch.setattr("octavo_engine.model.lora.adapter._WRITE_BYTES", 2000)
    base = save(model(), tmp_path / "base")
    save_words(base, SIZES["vocab_size"])
    modules = [f"{name}={each.save(model(), tmp_path / name)}" for name, each in ADAPTERS.items()]
    llm = LLM(str(base), enable_lora=True, lora_modules=modules, **{**SETTINGS, **settings})
    names = [None, *ADAPTERS]
    answers = llm.generate([PROMPTS[0]] * len(names), GREEDY, adapter=names)
    llm.close()
    for name, answer in zip(names, answers, strict=True):
        assert_same(model() if name is None else ADAPTERS[name].merge(model()), [answer], GREEDY.max_tokens)


def test_the_heads_of_a_steps_tokens_are_grouped_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = mock.Mock(side_effect=latent_lora.batch_of_rows)
    monkeypatch.setattr(latent_lora, "batch_of_rows", grouped)
    batch = LoraBatch()
    of_slot: dict[str, Any] = {"rank": 4, "dtype": torch.float32, "device": torch.device("cpu")}
    layers = [
        LatentLora(
            LoraLayer(batch, (8,), 6, slots=2 * heads, **of_slot),
            LoraLayer(batch, (6,), 8, slots=2 * heads, **of_slot),
            heads,
        )
        for heads in (3, 3, 2)
    ]
    for step, slots in enumerate(([0, NO_SLOT], [1, 1]), 1):
        batch.use(slots)
        found = [layer.of_step() for layer in layers]
        assert found[0] is found[1] is not None
        assert found[2] is not found[0]
        assert grouped.call_count == 2 * step
    assert [each.slot for each in found[0].by_slot] == [3, 4, 5]
    batch.use([NO_SLOT])
    assert layers[0].of_step() is None
