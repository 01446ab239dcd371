"""Prompts' outputs equal transformers': log probabilities and embeddings, in chunks, beside answers, and preempted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from reference import assert_prompts

from octavo_engine import LLM, SamplingParams
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.pooling import PoolingConfig, read_pooling
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.source import ModelFiles
from octavo_engine.runner.sampling import prompt_outputs

SCORE = SamplingParams(max_tokens=0, prompt_logprobs=3)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 400}


def test_prompts_in_chunks_beside_answers_and_after_preemptions(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest prompt fills the context; logits are computed for two places at a time."""
    monkeypatch.setattr(prompt_outputs, "_MOST_LOGITS", 2)
    llm = LLM(str(tiny_model), num_kv_blocks=26, max_num_batched_tokens=48, max_num_seqs=6, **SETTINGS)
    draw = random.Random(2)
    prompts = [[draw.randrange(64) for _ in range(length)] for length in (1, 2, 400, 47, 48, 49, 150)]
    answering = SamplingParams(max_tokens=60, temperature=0.0, prompt_logprobs=3)
    answers = llm.generate(prompts * 2, [SCORE] * 7 + [SCORE, SCORE, SCORE, *[answering] * 4])
    assert llm.report().preemptions > 0
    assert [len(answer.token_ids) for answer in answers] == [0] * 10 + [60] * 4
    assert {answer.finish_reason for answer in answers} == {"length"}
    llm.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    assert_prompts(model, answers, 3)


def test_a_last_chunk_of_one_token_computes_no_logits_of_its_prompt(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C kernels asked for the logits of no place at all read from address 0, which ended the engine."""
    asked, logits = [], Decoder.logits

    def noted(decoder: Decoder, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        asked.append(len(hidden))
        return logits(decoder, hidden, out)

    monkeypatch.setattr(Decoder, "logits", noted)
    llm = LLM(str(tiny_model), num_kv_blocks=26, max_num_batched_tokens=48, max_num_seqs=6, **SETTINGS)
    answers = llm.generate([list(range(2, 51)), [3] * 97], SCORE)
    assert [len(answer.prompt_logprobs) for answer in answers] == [48, 96]
    assert 0 not in asked
    llm.close()


def test_embeddings_are_the_last_hidden_states(tiny_model: Path) -> None:
    """At length 1; in chunks, and with beginnings from the prefix cache."""
    model = transformers.AutoModel.from_pretrained(tiny_model, dtype=torch.float32).eval()
    llm = LLM(str(tiny_model), num_kv_blocks=26, max_num_batched_tokens=48, max_num_seqs=6, **SETTINGS)
    draw = random.Random(2)
    prompts = [[draw.randrange(64) for _ in range(length)] for length in (1, 2, 400, 47, 48, 49, 150)]
    for _ in range(2):
        for prompt, found in zip(prompts, llm.embed(prompts), strict=True):
            with torch.inference_mode():
                expected = model(torch.tensor([prompt])).last_hidden_state[0, -1]
                difference = torch.tensor(found.vector) - expected / expected.norm()
            assert difference.abs().max() < 1e-4
    assert llm.report().prefix_hit_tokens > 0
    assert llm.embed([[64]])[0].error
    llm.close()


def test_how_vectors_are_made_is_read_from_the_files(tmp_path: Path) -> None:
    files = ModelFiles("x", directory=tmp_path)
    assert read_pooling(files) == PoolingConfig("last", normalize=True)
    kind = "sentence_transformers.models."
    modules = [{"type": f"{kind}Transformer", "path": ""}, {"type": f"{kind}Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    for field, expected in (("cls_token", "cls"), ("mean_tokens", "mean"), ("lasttoken", "last"), ("max", "max")):
        config = {"word_embedding_dimension": 4, "pooling_mode_cls_token": False, f"pooling_mode_{field}": True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({**config, "include_prompt": True}))
        assert read_pooling(files) == PoolingConfig(expected, normalize=False)
    of_mode = {"mean": "mean", "weightedmean": "weightedmean", ("cls", "mean_sqrt_len_tokens"): "cls and mean_sqrt_len"}
    for mode, expected in of_mode.items():  # newer versions; the fields of older ones do not count beside it
        newer = {"embedding_dimension": 4, "pooling_mode": mode, "pooling_mode_max_tokens": True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(newer))
        assert read_pooling(files).kind == expected
    (tmp_path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 4}')
    assert read_pooling(files).kind == "mean"
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"type": f"{kind}Normalize", "path": "2_Normalize"}]))
    assert read_pooling(files).normalize
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"type": f"{kind}LSTM", "path": "2_LSTM"}]))
    assert read_pooling(files).kind == "LSTM after the model"
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        read_pooling(files)
