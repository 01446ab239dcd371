"""LoRA adapters of experts, in every stored form: the answers of merged weights, beside other adapters and the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import RandomAdapter, write_adapter
from checkpoints import SIZES, reference_model, save, save_words
from expert_adapters import NumberedAdapter, StackedAdapter
from family_cases import CASES
from reference import assert_same
from safetensors.torch import load_file
from test_lora import PROMPTS
from torch import Tensor

from octavo_engine import LLM, SamplingParams
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import make_blueprint, resolve_for_estimate
from octavo_engine.engine.startup.sizing import memory_need
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.layers.adapters.lora import slot_rank
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import lora_targets
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.model.tensor_parallel.shard import UNSHARDED

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, logprobs=20, ignore_eos=True)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 60, "max_model_len": 120}
NO_ENDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
FAMILIES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "intermediate_size": 64},
}
"""gpt-oss's hidden and intermediate sizes are equal, so that a shape does not tell what is transposed."""


def mixtral_name(module: str, expert: int, role: str) -> str:
    module = module.replace(".mlp.", ".block_sparse_moe.")
    return f"{module}.{expert}.{ {'gate': 'w1', 'up': 'w3', 'down': 'w2'}[role] }"


ADAPTERS: dict[str, dict[str, Any]] = {
    "Mixtral": {
        "all experts": StackedAdapter(3, seed=1),
        "some experts": NumberedAdapter(5, mixtral_name, seed=2),
        "before 0.19": StackedAdapter(2, before_019=True, seed=3),
        "down": StackedAdapter(8, ("down_proj",), seed=4),
        "router": RandomAdapter(4, ("mlp.gate", "v_proj"), seed=5),
        "attention": RandomAdapter(4, ("q_proj", "o_proj"), seed=6),
    },
    "GptOss": {"all experts": StackedAdapter(3, seed=1), "gate and up": StackedAdapter(4, ("gate_up_proj",), seed=2)},
}


def model_of(family: str) -> Any:
    return reference_model(family, **NO_ENDS, **FAMILIES[family])


def modules(family: str, folder: Path) -> list[str]:
    found = ADAPTERS[family].items()
    return [f"{name.replace(' ', '-')}={each.save(model_of(family), folder / name)}" for name, each in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def bases(folder: Path) -> dict[str, Path]:
    found = {}
    for family in FAMILIES:
        found[family] = save(model_of(family), folder / family)
        save_words(found[family], SIZES["vocab_size"])
    return found


@pytest.mark.parametrize(
    ("family", "settings"),
    [("Mixtral", {"max_loras": 6}), ("GptOss", {"max_loras": 1}), ("Mixtral", {"tensor_parallel_size": 2})],
    ids=["beside each other", "in turn, rows interleaved", "two ranks"],
)
def test_adapters_of_experts_answer_as_merged_weights(
    family: str, settings: dict[str, Any], bases: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their modules are put onto a device in parts of some ranks each."""
    monkeypatch.setattr("octavo_engine.model.lora.adapter._WRITE_BYTES", 2000)
    adapters = modules(family, folder / f"{family} {len(settings)} {settings.get('max_loras')}")
    llm = LLM(str(bases[family]), enable_lora=True, lora_modules=adapters, **{**SETTINGS, **settings})
    names = [None, *(each.partition("=")[0] for each in adapters)]
    asked = [(name, prompt) for prompt in PROMPTS[:2] for name in names]
    answers = llm.generate([prompt for _, prompt in asked], GREEDY, adapter=[name for name, _ in asked])
    llm.close()
    for name in names:
        model = model_of(family) if name is None else ADAPTERS[family][name.replace("-", " ")].merge(model_of(family))
        own = [answer for (asked_for, _), answer in zip(asked, answers, strict=True) if asked_for == name]
        assert_same(model, own, GREEDY.max_tokens)


def test_fused_experts_have_adapters_of_twice_the_rank(bases: dict[str, Path], folder: Path) -> None:
    """An adapter of rank 256 of gate and one of up are one of rank 512 of both."""
    wide = StackedAdapter(512, ("gate_up_proj",), alpha=200, seed=7)
    adapters = [f"wide={wide.save(model_of('Mixtral'), folder / 'wide')}"]
    llm = LLM(str(bases["Mixtral"]), enable_lora=True, lora_modules=adapters, max_lora_rank=512, **SETTINGS)
    answers = llm.generate(PROMPTS[:2], GREEDY, adapter="wide")
    llm.close()
    assert_same(wide.merge(model_of("Mixtral")), answers, GREEDY.max_tokens)


def test_slots_of_a_gpu_have_a_power_of_two_as_rank() -> None:
    assert [slot_rank(rank, torch.device("cuda")) for rank in (1, 16, 129, 257, 512)] == [16, 16, 256, 512, 512]
    assert slot_rank(257, torch.device("cpu")) == 257


def test_a_router_in_float32_has_adapters(folder: Path) -> None:
    """Its scores are float32 beside bfloat16; what an adapter adds is rounded."""
    case, adapter = CASES["glm4-moe"], RandomAdapter(4, ("mlp.gate",), alpha=40, seed=1)

    def model() -> Any:
        return reference_model(case.family, std=case.std, **{**NO_ENDS, **case.changes})

    def scores(directory: Path, name: str | None, **settings: Any) -> Tensor:
        save_words(directory, SIZES["vocab_size"])
        llm = LLM(str(directory), **{**SETTINGS, "dtype": "bfloat16", **settings})
        answer = llm.generate(PROMPTS[5:], SamplingParams(max_tokens=0, prompt_logprobs=0), adapter=name)[0]
        llm.close()
        return torch.tensor([each.logprob for each in answer.prompt_logprobs])

    base = save(model(), folder / "router-base", dtype=torch.bfloat16)
    merged = save(adapter.merge(model()), folder / "router-merged", dtype=torch.bfloat16)
    served = {"enable_lora": True, "lora_modules": [f"router={adapter.save(model(), folder / 'router')}"]}
    alone, beside, expected = scores(base, None), scores(base, "router", **served), scores(merged, None)
    assert (beside - expected).abs().mean() < 0.3 * (alone - expected).abs().mean()


def test_experts_that_are_not_the_models_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    llm = LLM(str(bases["Mixtral"]), enable_lora=True, **SETTINGS)
    other = model_of("GptOss")
    with pytest.raises(ModelLoadError, match=r"of experts with .* the adapter is for another model"):
        llm.load_adapter("other", str(StackedAdapter(4, ("down_proj",)).save(other, tmp_path / "other")))
    with pytest.raises(ModelLoadError, match=r"rank 20, and --max-lora-rank is 16"):
        llm.load_adapter("large", str(StackedAdapter(20).save(model_of("Mixtral"), tmp_path / "large")))
    with pytest.raises(ModelLoadError, match=r"expected \[32, 64\].* rank 8.* for each of 4 experts"):
        llm.load_adapter("wrong", str(StackedAdapter(4).save(model_of("Mixtral"), tmp_path / "wrong", r=8)))
    folders = [
        StackedAdapter(4).save(model_of("Mixtral"), tmp_path / "all"),
        NumberedAdapter(4, mixtral_name).save(model_of("Mixtral"), tmp_path / "some"),
    ]
    both: dict[str, Tensor] = {}
    for each in folders:
        both |= load_file(each / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match=r"experts\.0\.w1: the file has a module of all experts \(.*\), too"):
        llm.load_adapter("both", str(write_adapter(tmp_path / "both", both, {"r": 4, "lora_alpha": 8})))
    llm.close()


def blueprint(base: Path) -> Any:
    return make_blueprint(read_spec(ModelFiles("test", directory=base)), torch.float32, UNSHARDED)


def test_layers_that_are_not_wanted_have_no_slots_and_refuse_adapters(bases: dict[str, Path]) -> None:
    decoder = blueprint(bases["Mixtral"])
    names = module_names(decoder, lora_targets(decoder, CPU, wanted=["q_proj", "w1"]))
    assert names.find("base_model.model.model.layers.0.self_attn.q_proj")
    assert names.find("base_model.model.model.layers.0.block_sparse_moe.experts.3.w1")
    for refused in ("self_attn.k_proj", "block_sparse_moe.experts.3.w2", "mlp.experts", "mlp.experts.base_layer"):
        with pytest.raises(ModelLoadError, match="it is not among --lora-target-modules"):
            names.find(f"base_model.model.model.layers.0.{refused}")
    names = module_names(decoder, lora_targets(decoder, CPU, wanted=["experts"]))
    assert names.find_stack("base_model.model.model.layers.2.mlp.experts.base_layer") is not None
    with pytest.raises(ConfigurationError, match=r"'x_proj': the model has no such layer, but .*q_proj"):
        lora_targets(decoder, CPU, wanted=["x_proj"])


def test_on_a_gpu_experts_of_odd_sizes_have_no_slots(tmp_path: Path) -> None:
    """Neither the projections with that many rows nor those with as many columns: both are made together."""
    model = reference_model("Mixtral", **NO_ENDS, **FAMILIES["Mixtral"], intermediate_size=72)
    save(model, tmp_path)
    choice = lora_targets(blueprint(tmp_path), torch.device("cuda"))
    assert not [name for name in choice.targets if ".experts." in name]
    reasons = {reason for name, reason in choice.left_out.items() if ".experts." in name}
    assert reasons == {"on a GPU experts' sizes have to be multiples of 16"}


def test_slots_of_experts_are_in_the_memory_plan(bases: dict[str, Path]) -> None:
    def need(**settings: Any) -> int:
        config = EngineConfig(model=str(bases["Mixtral"]), enable_lora=True, max_loras=3, **settings)
        files = resolve_model(str(bases["Mixtral"]), None, lambda *_: None)
        return memory_need(resolve_for_estimate(config, files), config).adapters

    hidden, inner, layers, experts, rank = SIZES["hidden_size"], SIZES["intermediate_size"], 3, 4, 16
    numbers = 2 * hidden + 2 * inner + inner + hidden
    attention = need(lora_target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate"])
    assert need() - attention == 3 * layers * experts * rank * numbers * torch.float32.itemsize
