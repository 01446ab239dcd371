"""Encoders give transformers' results, alone and beside other requests: BERT, RoBERTa, DistilBERT, ModernBERT and
others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import save_words
from encoders import CASES, LENGTHS, ROTATING, SETTINGS, VECTORS, WORDS, jina_bert, prompts_of, saved
from safetensors.torch import save_file
from without_head import close_to, pooled

from octavo_engine import LLM, SamplingParams
from octavo_engine.attention import bidirectional
from octavo_engine.config import EngineConfig
from octavo_engine.core.request import Request
from octavo_engine.engine.startup.resolved_config import resolve_config
from octavo_engine.engine.startup.sizing import size_engine
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.configuration.pooling import pooling_of
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.footprint import weight_bytes
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard

POOL = SamplingParams(max_tokens=0)


def say_pooling(directory: Path, field: str, *, normalize: bool = False) -> None:
    """The files of sentence-transformers."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *[("Normalize", "2_Normalize")] * normalize]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{field}": True}))


@pytest.mark.parametrize("family", VECTORS)
def test_vectors_alone_and_in_a_batch(family: str, tmp_path: Path) -> None:
    """The mean of all tokens and the first one's: the whole prompt in one step, whatever else is in it."""
    model, prompts = saved(f"{family}Model", tmp_path), prompts_of(*LENGTHS)
    with torch.inference_mode():
        hidden = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    for field in ("mean_tokens", "cls_token"):
        say_pooling(tmp_path, field)
        expected = torch.stack([each.mean(0) if field == "mean_tokens" else each[0] for each in hidden])
        llm = LLM(str(tmp_path), **SETTINGS)
        assert llm.info.max_model_len >= 128
        assert close_to(pooled(llm, prompts[:1]), expected[:1])
        for _ in range(2):
            assert close_to(pooled(llm, prompts), expected)
        assert llm.report().prefix_hit_tokens == 0
        assert "more than the" in str(llm.embed(prompts_of(161))[0].error)
        assert "does not generate" in str(llm.generate(prompts[:1], SamplingParams(max_tokens=2))[0].error)
        llm.close()


def test_jina_bert_attends_to_both_sides_with_alibi(tmp_path: Path) -> None:
    model, prompts = jina_bert(tmp_path), prompts_of(*LENGTHS)
    with torch.inference_mode():
        expected = torch.stack([model(torch.tensor([prompt])).last_hidden_state[0].mean(0) for prompt in prompts])
    say_pooling(tmp_path, "mean_tokens")
    llm = LLM(str(tmp_path), **SETTINGS)
    assert close_to(pooled(llm, prompts[:1]), expected[:1])
    assert close_to(pooled(llm, prompts), expected)
    llm.close()


def test_dense_modules_after_pooling_and_the_longest_text(tmp_path: Path) -> None:
    """EmbeddingGemma has two such modules. sentence-transformers' own limit of a text's tokens applies too."""
    model, prompts = saved("BertModel", tmp_path), prompts_of(9, 20, 33)
    say_pooling(tmp_path, "mean_tokens", normalize=True)
    modules = json.loads((tmp_path / "modules.json").read_text())
    with torch.inference_mode():
        vectors = torch.stack([model(torch.tensor([each])).last_hidden_state[0].mean(0) for each in prompts])
    activations = {"linear.Identity": torch.nn.Identity(), "activation.Tanh": torch.nn.Tanh()}
    sizes = ((64, 96), (96, 24))
    for (kind, activation), (inputs, outputs) in zip(activations.items(), sizes, strict=True):
        folder, weight = tmp_path / f"{inputs}_Dense", torch.randn(outputs, inputs) / 8
        folder.mkdir()
        config = {"in_features": inputs, "out_features": outputs, "bias": False}
        (folder / "config.json").write_text(json.dumps({**config, "activation_function": f"torch.nn.modules.{kind}"}))
        save_file({"linear.weight": weight}, folder / "model.safetensors")
        modules.insert(-1, {"type": "sentence_transformers.models.Dense", "path": folder.name})
        vectors = activation(vectors @ weight.T)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40}))
    llm = LLM(str(tmp_path), **SETTINGS)
    assert llm.info.max_model_len == 40 and llm.info.embedding.size == 24
    assert close_to(pooled(llm, prompts), vectors)
    assert llm.embed(prompts_of(41))[0].error
    llm.close()
    files = ModelFiles("test", directory=tmp_path)
    planned = resolve_config(EngineConfig(model="x", device="cpu"), files, Shard(0, 1)).blueprint
    without = sum(parameter.nbytes for parameter in planned.parameters())
    assert weight_bytes(planned) - without == 4 * sum(inputs * outputs for inputs, outputs in sizes)
    config = json.loads((tmp_path / "96_Dense" / "config.json").read_text())
    (tmp_path / "96_Dense" / "config.json").write_text(json.dumps({**config, "in_features": 95}))
    with pytest.raises(ModelLoadError, match="96_Dense: takes 95 numbers, and gets 96"):
        pooling_of(files, read_spec(files))  # at start, not in the step that computes the first vector
    (tmp_path / "96_Dense" / "config.json").write_text(json.dumps(config))
    (tmp_path / "64_Dense" / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="64_Dense"):
        LLM(str(tmp_path), **SETTINGS)


def test_a_model_that_sees_both_ways_does_not_generate(tmp_path: Path) -> None:
    saved("Gemma3TextModel", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Gemma3ForCausalLM"]}))
    with pytest.raises(ModelLoadError, match="each token also attends to later ones"):
        read_spec(ModelFiles("test", directory=tmp_path))


def test_llama_that_sees_both_ways(tmp_path: Path) -> None:
    """Llama Nemotron for ranks, whose class stands in its own repository: classes of the mean of all tokens."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(11)
    sizes = {**ROTATING, "num_key_value_heads": 2, "pad_token_id": 0}
    model = LlamaForSequenceClassification(LlamaConfig(**sizes, id2label={0: "only"})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path)
    save_words(tmp_path, WORDS)
    prompts, expected = prompts_of(*LENGTHS), []
    with torch.inference_mode():
        for prompt in prompts:
            everything = torch.zeros(1, 1, len(prompt), len(prompt))
            hidden = model.model(torch.tensor([prompt]), attention_mask=everything).last_hidden_state
            expected.append(model.score(hidden.mean(1)))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"architectures": ["LlamaBidirectionalForSequenceClassification"]}
    path.write_text(json.dumps({**config, "pooling": "avg", "temperature": 1.0}))
    llm = LLM(str(tmp_path), **SETTINGS)
    assert close_to(pooled(llm, prompts), torch.cat(expected))
    llm.close()
    for wrong in ({"pooling": "max"}, {"temperature": 0.5}):
        path.write_text(json.dumps({**config, **wrong}))
        with pytest.raises(ModelLoadError, match=next(iter(wrong))):
            read_spec(ModelFiles("test", directory=tmp_path))


def test_roberta_counts_no_position_for_padding(tmp_path: Path) -> None:
    """Tokens of padding within prompts, alone and in a batch."""
    model, prompts = saved("RobertaModel", tmp_path), prompts_of(9, 4, 20)
    prompts = [[1, *prompts[0]], [*prompts[1], 1, 1], [*prompts[2][:7], 1, *prompts[2][7:], 1, 5], prompts[2]]
    with torch.inference_mode():
        expected = torch.stack([model(torch.tensor([prompt])).last_hidden_state[0].mean(0) for prompt in prompts])
    say_pooling(tmp_path, "mean_tokens")
    llm = LLM(str(tmp_path), **SETTINGS)
    for index, prompt in enumerate(prompts):
        assert close_to(pooled(llm, [prompt]), expected[index : index + 1])
    assert close_to(pooled(llm, prompts), expected)
    llm.close()


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("labels", [1, 3])
def test_classes(family: str, labels: int, tmp_path: Path) -> None:
    """The first token's classes are computed through each family's own head; one class scores a pair."""
    name = f"{family}ForSequenceClassification"
    model = saved(name, tmp_path, id2label={index: f"c{index}" for index in range(labels)})
    prompts = prompts_of(*LENGTHS)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
    llm = LLM(str(tmp_path), **SETTINGS)
    assert close_to(pooled(llm, prompts[:1]), expected[:1]) and close_to(pooled(llm, prompts), expected)
    assert llm.info.classifier is not None and len(llm.info.classifier.labels) == labels
    llm.close()


def test_tokens_of_the_second_text_have_vectors_of_their_own(tmp_path: Path) -> None:
    """Pairs beside single texts in one step."""
    model, prompts = saved("BertForSequenceClassification", tmp_path), prompts_of(30, 41, 20, 7)
    seconds = (12, 0, 1, 6)
    types = [[int(0 < second <= place) for place in range(len(prompt))]
             for prompt, second in zip(prompts, seconds, strict=True)]  # fmt: skip
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt]), token_type_ids=torch.tensor([kinds])).logits
                              for prompt, kinds in zip(prompts, types, strict=True)])  # fmt: skip
    llm = LLM(str(tmp_path), **SETTINGS)
    for index, (prompt, second) in enumerate(zip(prompts, seconds, strict=True)):
        asked = Request(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=POOL, pooled=True,
                        second_text=second)  # fmt: skip
        llm._loop.add(asked)
    found: dict[str, bytes] = {}
    while llm._loop.has_work:
        found |= {out.request_id: out.prompt.pooled for out in llm._loop.step().each() if out.prompt is not None}
    logits = torch.stack([torch.frombuffer(bytearray(found[str(index)]), dtype=torch.float32) for index in range(4)])
    assert close_to(logits, expected) and not close_to(pooled(llm, prompts), expected)
    llm.close()


@pytest.mark.parametrize("pooling", ["late", "mean"])
def test_eurobert_may_transform_each_token_before_the_mean(pooling: str, tmp_path: Path) -> None:
    """`late`, its default, is the mean of all tokens' logits."""
    name, prompts = "EuroBertForSequenceClassification", prompts_of(*LENGTHS)
    model = saved(name, tmp_path, classifier_pooling=pooling)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
    llm = LLM(str(tmp_path), **SETTINGS)
    assert close_to(pooled(llm, prompts), expected)
    llm.close()


def test_modernbert_may_pool_the_mean_for_its_classes_and_see_windows_in_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bidirectional, "_TILE", 16)
    name, prompts = "ModernBertForSequenceClassification", prompts_of(*LENGTHS)
    model = saved(name, tmp_path, classifier_pooling="mean", classifier_bias=True)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
    llm = LLM(str(tmp_path), **SETTINGS)
    assert close_to(pooled(llm, prompts), expected)
    llm.close()


def test_models_that_guess_masked_tokens_embed_without_that_head(tmp_path: Path) -> None:
    """Without a pooling file it is the mean, of length 1. Old files call a norm's parts gamma and beta."""
    from safetensors.torch import load_file, save_file

    model, prompts = saved("BertForMaskedLM", tmp_path), prompts_of(30, 5)
    path = tmp_path / "model.safetensors"
    stored = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in load_file(path).items()
    }
    save_file(stored, path)
    llm = LLM(str(tmp_path), **SETTINGS)
    for prompt, found in zip(prompts, llm.embed(prompts), strict=True):
        with torch.inference_mode():
            mean = model.bert(torch.tensor([prompt])).last_hidden_state[0].mean(0)
        assert close_to(torch.tensor(found.vector), mean / mean.norm())
    llm.close()


def test_two_ranks_give_the_same(tmp_path: Path) -> None:
    model, prompts = saved("BertForSequenceClassification", tmp_path), prompts_of(*LENGTHS)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
    llm = LLM(str(tmp_path), tensor_parallel_size=2, **SETTINGS)
    assert close_to(pooled(llm, prompts), expected)
    llm.close()


def test_a_prompt_has_to_fit_into_a_step(tmp_path: Path) -> None:
    """Else the context is as long as a step; and nothing takes memory for a cache."""
    saved("BertModel", tmp_path)
    files = ModelFiles("x", directory=tmp_path)

    def sized(**settings: Any) -> Any:
        return size_engine(EngineConfig(model=str(tmp_path), device="cpu", max_num_seqs=4, **settings), files)

    short, long = sized(max_num_batched_tokens=64), sized()
    assert (short.plan.max_model_len, long.plan.max_model_len) == (64, 130)
    assert long.plan.kv_bytes == 0 == long.plan.need.kv_per_token
    with pytest.raises(ConfigurationError, match="in one step of at most 64 tokens"):
        sized(max_num_batched_tokens=64, max_model_len=100)
    with pytest.raises(ConfigurationError, match="attention in both directions"):
        sized(attention_backend="triton")


def test_what_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    saved("BertModel", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for field, value in (("is_decoder", True), ("position_embedding_type", "relative_key"), ("hidden_act", "what")):
        path.write_text(json.dumps({**config, field: value}))
        with pytest.raises(ModelLoadError, match=field):
            read_spec(ModelFiles("x", directory=tmp_path))


@pytest.mark.parametrize(("modes", "kind"), [(["step"], "step"), (["mean_tokens", "max_tokens"], "mean and max")])
def test_a_pooling_that_is_not_computed_is_refused_at_the_start(modes: list[str], kind: str, tmp_path: Path) -> None:
    """An encoder would start and refuse every request. A model that also generates starts."""
    saved("BertModel", tmp_path)
    say_pooling(tmp_path, modes[0])
    config = {f"pooling_mode_{mode}": True for mode in modes}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"embeddings by {kind} are not supported; supported: cls"):
        resolve_config(EngineConfig(model="x", device="cpu"), ModelFiles("x", directory=tmp_path), Shard(0, 1))


def test_an_encoder_pools_the_last_token_if_its_files_say_so(tmp_path: Path) -> None:
    """With vectors of length 1 this is a decoder's default, which was taken for files that say nothing: the mean."""
    saved("BertModel", tmp_path)
    files = ModelFiles("x", directory=tmp_path)
    assert pooling_of(files, read_spec(files)).kind == "mean"
    say_pooling(tmp_path, "lasttoken", normalize=True)
    assert pooling_of(files, read_spec(files)).kind == "last"
