"""Decoders without their head give transformers' results: as embedding models, and with a classification head."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SIZES
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification
from without_head import POOL, close_to, pooled, saved

from octavo_engine import LLM, SamplingParams
from octavo_engine.engine.startup.pooled_info import embedding_info
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.configuration.pooling import PoolingConfig
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.source import ModelFiles

SMALL: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 160, "max_num_batched_tokens": 48}
WEIGHTS = "model.safetensors"
FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "Phi3", "GPT2", "OPT")


def prompts_of(*lengths: int) -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in lengths]


def test_a_result_that_is_infinite_is_an_error_of_its_text_alone(tmp_path: Path) -> None:
    """JSON has no infinity. The weights are finite; only token 5 gives a large enough number after the last norm."""
    model = saved("LlamaForSequenceClassification", tmp_path)
    with torch.no_grad():
        model.model.norm.weight[0], model.score.weight[0] = 1e19, 1e19
        model.model.embed_tokens.weight[5, 0] = 1e6
    model.save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), **SMALL)
    good, wrong, other = llm.generate([[1, 2], [1, 5], [3, 4]], POOL, pooled=True)
    llm.close()
    assert good.error is None and other.error is None
    assert "no finite result for this request" in (wrong.error or "")


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_of_the_last_token(family: str, tmp_path: Path) -> None:
    """Alone, and in a batch of prompts that come in chunks."""
    model = saved(f"{family}ForSequenceClassification", tmp_path, id2label={0: "a", 1: "b", 2: "c"})
    prompts = prompts_of(40, 1, 150, 7, 48, 90)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
    llm = LLM(str(tmp_path), num_kv_blocks=24, **SMALL)
    assert close_to(pooled(llm, prompts[:1]), expected[:1]) and close_to(pooled(llm, prompts), expected)
    assert llm.info.classifier is not None and llm.info.classifier.labels == ("a", "b", "c")
    assert not llm.info.generates and llm.info.embedding is None
    llm.close()


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Mistral", "Gemma3Text", "GPT2", "OPT", "HrmText"])
def test_vectors_of_models_that_were_saved_without_a_head(family: str, tmp_path: Path) -> None:
    """Their tensors' names have no prefix; asked for text, they say that they have none."""
    model = saved(f"{family}Model", tmp_path)
    prompts = prompts_of(40, 5, 130)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).last_hidden_state[:, -1] for prompt in prompts])
    llm = LLM(str(tmp_path), num_kv_blocks=24, **SMALL)
    assert close_to(pooled(llm, prompts), expected)
    assert "does not generate" in str(llm.generate(prompts, SamplingParams(max_tokens=3))[0].error)
    llm.close()


def weighted_mean(hidden: torch.Tensor) -> torch.Tensor:
    """As sentence-transformers: the first token counts once, the second twice."""
    weights = torch.arange(1, len(hidden) + 1)[:, None]
    return (hidden * weights).sum(0) / weights.sum()


POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls_token": lambda hidden: hidden[0],
    "mean_tokens": lambda hidden: hidden.mean(0),
    "max_tokens": lambda hidden: hidden.max(0).values,
    "mean_sqrt_len_tokens": lambda hidden: hidden.sum(0) / len(hidden) ** 0.5,
    "weightedmean_tokens": weighted_mean,
}


@pytest.mark.parametrize("field", POOLINGS)
def test_decoders_that_pool_all_tokens(field: str, tmp_path: Path) -> None:
    """In chunks, and twice: a prefix cache would leave tokens out."""
    model = saved("Qwen3Model", tmp_path)
    names = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in names]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{field}": True}))
    prompts = prompts_of(40, 1, 130, 64)
    with torch.inference_mode():
        hidden = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    expected = torch.stack([POOLINGS[field](each) for each in hidden])
    llm = LLM(str(tmp_path), num_kv_blocks=12, swap_space=1 << 20, **SMALL)
    for _ in range(2):
        assert close_to(pooled(llm, prompts), expected)
    assert [len(each.vector) for each in llm.embed(prompts[:1])] == [64]
    assert llm.report().prefix_hit_tokens == 0
    llm.close()


def test_reward_models_have_heads_of_their_own(tmp_path: Path) -> None:
    """Of one layer in InternLM2's, which is checked by its names alone, and of two in Qwen2's."""
    model, prompts = saved("Qwen2ForCausalLM", tmp_path), prompts_of(40, 5, 130)
    hidden, inner = (torch.nn.Linear(SIZES["hidden_size"], size) for size in (SIZES["hidden_size"], 1))
    head = torch.nn.Sequential(hidden, torch.nn.ReLU(), inner)
    kept = {name: each.contiguous() for name, each in model.state_dict().items() if name != "lm_head.weight"}
    save_file({**kept, **{f"score.{name}": each for name, each in head.state_dict().items()}}, tmp_path / WEIGHTS)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["Qwen2ForRewardModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        expected = [head(model.model(torch.tensor([prompt])).last_hidden_state[:, -1]) for prompt in prompts]
    llm = LLM(str(tmp_path), num_kv_blocks=24, **SMALL)
    assert close_to(pooled(llm, prompts), torch.cat(expected))
    assert (llm.info.classifier.labels, llm.info.classifier.activation) == (("reward",), "identity")
    llm.close()
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "architectures": ["InternLM2ForRewardModel"]}))
    spec = read_spec(ModelFiles("test", directory=tmp_path))
    assert (spec.names.classifier, spec.names.embedding) == ("v_head", "model.tok_embeddings")
    assert spec.classifier is not None and spec.classifier.transform is None and not spec.classifier.bias


def test_what_config_json_says_of_classes(tmp_path: Path) -> None:
    saved("Qwen3ForSequenceClassification", tmp_path, id2label={0: "only"})
    path, files = tmp_path / "config.json", ModelFiles("x", directory=tmp_path)
    config = json.loads(path.read_text())

    def activation(**changes: Any) -> str:
        path.write_text(json.dumps({**config, **changes}))
        spec = read_spec(files)
        assert spec.classifier is not None
        return spec.classifier.activation

    assert activation() == "sigmoid"
    assert activation(id2label={"0": "a", "1": "b"}) == "softmax"
    assert activation(problem_type="regression") == "identity"
    assert activation(id2label={"0": "a", "1": "b"}, problem_type="multi_label_classification") == "sigmoid"
    assert activation(sbert_ce_default_activation_function="torch.nn.modules.linear.Identity") == "identity"
    noted = {"activation_fn": "torch.nn.modules.linear.Identity"}
    assert activation(sentence_transformers=noted) == "identity"
    for wrong in (
        {"problem_type": "what"},
        {"id2label": {"1": "a"}},
        {"id2label": {}},
        {"sbert_ce_default_activation_function": "os.system"},
    ):
        with pytest.raises(ModelLoadError, match=next(iter(wrong))):
            activation(**wrong)
    with pytest.raises(ConfigurationError, match="--enable-lora"):
        activation()
        LLM(str(tmp_path), enable_lora=True, **SMALL)


def test_qwen3_rerankers_are_not_compared_by_cosine(tiny_model: Path) -> None:
    """Their files are those of any Qwen3, so they are known by name."""
    spec, pooling = read_spec(ModelFiles("x", directory=tiny_model)), PoolingConfig()
    for name, refused in (("Qwen/Qwen3-Reranker-0.6B", True), ("/m/qwen3-reranker-4b", True), ("Qwen/Qwen3-8B", False)):
        info = embedding_info(ModelFiles(name, directory=tiny_model), spec, pooling)
        assert info is not None and bool(info.why_no_ranks) == refused


def test_the_score_of_transformers_is_found_by_its_own_name(tmp_path: Path) -> None:
    """AutoModelForSequenceClassification reads the file back without missing tensors."""
    model = saved("Qwen3ForSequenceClassification", tmp_path, id2label={0: "only"})
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32).eval()
    prompt = prompts_of(30)
    with torch.inference_mode():
        expected = again(torch.tensor(prompt)).logits
        assert torch.equal(expected, model(torch.tensor(prompt)).logits)
    llm = LLM(str(tmp_path), num_kv_blocks=24, **SMALL)
    assert close_to(pooled(llm, prompt), expected)
    llm.close()
