"""GGUF files of encoders, with the keys and tensors of llama.cpp's converter, give transformers' vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from encoders import LENGTHS, SETTINGS, WORDS, jina_bert, prompts_of, saved
from gguf_writer import permute
from safetensors.numpy import load_file
from without_head import close_to, pooled
from without_head import saved as saved_decoder

from octavo_engine import LLM
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.pooling import pooling_of
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.gguf.architectures.encoders import ENCODERS
from octavo_engine.model.source import ModelFiles

POOLS = {1: lambda hidden: hidden.mean(0), 2: lambda hidden: hidden[0], 3: lambda hidden: hidden[-1]}
"""The ways to pool by their numbers in a header; each case has one of them."""
PLAIN = {"norm_bias": False, "attention_bias": False, "mlp_bias": False}
MODERN_KEYS: dict[str, Any] = {
    "rope.freq_base_swa": 10000.0, "attention.sliding_window": 16, "attention.sliding_window_pattern": 2,
    "hidden_activation": "silu",
}  # fmt: skip


GEMMA_KEYS: dict[str, Any] = {
    "rope.freq_base_swa": 10000.0, "attention.sliding_window": 16, "attention.key_length": 16,
    "attention.head_count_kv": 1,
}  # fmt: skip


def permuted(name: str, array: np.ndarray) -> np.ndarray:
    """Rows of four heads of query, or two of key, as pairs that rotate together."""
    heads = 4 if ".q_proj." in name else 2 if ".k_proj." in name else 0
    return permute(array, heads) if heads else array


@dataclass(frozen=True)
class Case:
    """A class of transformers, and what is special in its files."""

    kind: str
    changes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    norm: str = "layer_norm_epsilon"
    convert: Callable[[str, np.ndarray], np.ndarray] = lambda name, array: array
    """Changes a tensor of the checkpoint as the converter does."""
    first: int = 0
    """The rows of the table of positions that the converter cuts."""
    rope: float | None = None


CASES = {
    "bert": Case("BertModel"),
    "bert, RoBERTa": Case("XLMRobertaModel", {"hidden_act": "gelu"}, first=2),
    "bert, DistilBERT": Case("DistilBertModel"),
    "nomic-bert": Case("NomicBertModel", rope=100.0),
    "jina-bert-v3": Case("JinaEmbeddingsV3Model", {"type_vocab_size": 1}, rope=100.0),
    "jina-bert-v2": Case("JinaBertModel"),
    "modern-bert": Case(
        "ModernBertModel", {**PLAIN, "hidden_activation": "silu"}, MODERN_KEYS, "layer_norm_rms_epsilon", rope=160000.0
    ),
    "llama-embed": Case(  # Llama's layers are EuroBERT's
        "EuroBertModel",
        {"attention_bias": False},
        {"attention.head_count_kv": 2},
        "layer_norm_rms_epsilon",
        permuted,
        rope=100.0,
    ),
    "gemma-embedding": Case(
        "Gemma3TextModel",
        {"num_hidden_layers": 6, "layer_types": None, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6},
        GEMMA_KEYS,
        "layer_norm_rms_epsilon",
        lambda name, array: array + 1 if "norm" in name else array,
        rope=1e6,
    ),
    "eurobert": Case(
        "EuroBertModel",
        {"attention_bias": False},
        {"attention.head_count_kv": 2},
        "layer_norm_rms_epsilon",
        rope=100.0,
    ),
}
ROBERTA = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}
OTHER_HEADS = {"pre_classifier": "cls", "classifier": "cls.output"}
"""The converter gives the last linear of BERT's and DistilBERT's heads the name of RoBERTa's."""


def _keys(config: Any, case: Case) -> dict[str, Any]:
    names = ("layer_norm_eps", "norm_eps", "rms_norm_eps")
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings - case.first,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None) or config.hidden_dim,
        "attention.head_count": config.num_attention_heads,
        "attention.causal": False,
        f"attention.{case.norm}": next((getattr(config, name) for name in names if hasattr(config, name)), 1e-12),
        **({} if case.rope is None else {"rope.freq_base": case.rope}),
        **case.keys,
    }


def _write(
    model: Any,
    path: Path,
    name: str,
    case: Case,
    names: dict[str, str] = ROBERTA,
    dense: dict[str, np.ndarray] | None = None,
    **keys: Any,
) -> Path:
    architecture = name.partition(",")[0]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_keys(model.config, case), **keys}.items():
        add: dict[type, Callable[..., Any]] = {bool: writer.add_bool, int: writer.add_uint32}
        add |= {float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](f"{architecture}.{key}", value)
    words = [f"▁w{number}" for number in range(WORDS - 5)]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    writer.add_token_types([3] * 5 + [1] * len(words))
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    kind = next(kind for kind, each in gguf.MODEL_ARCH_NAMES.items() if each == architecture)
    mapping = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    for key, array in load_file(path.parent / "model.safetensors").items():
        bare = key.removeprefix("roberta.").removeprefix("bert.").removeprefix("distilbert.").removeprefix("model.")
        if bare.startswith("pooler.") or bare == "embeddings.position_ids":
            continue
        stem, _, ending = bare.rpartition(".")
        stored = names.get(stem) or mapping.get_name(stem)
        assert stored is not None, key
        kept = case.convert(key, array)[case.first if stored == "position_embd" else 0 :]
        writer.add_tensor(f"{stored}.{ending}", np.ascontiguousarray(kept.squeeze(), np.float32))
    for stored, array in (dense or {}).items():
        writer.add_tensor(stored, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case, prompts = CASES[name], prompts_of(*LENGTHS)
    model = jina_bert(tmp_path) if case.kind == "JinaBertModel" else saved(case.kind, tmp_path, **case.changes)
    with torch.inference_mode():
        hidden = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    number = 1 + list(CASES).index(name) % len(POOLS)
    llm = LLM(str(_write(model, tmp_path / "model.gguf", name, case, pooling_type=number)), **SETTINGS)
    assert llm.info.embedding.normalize
    assert close_to(pooled(llm, prompts), torch.stack([POOLS[number](each) for each in hidden]))
    llm.close()


def test_linear_layers_after_pooling_are_read(tmp_path: Path) -> None:
    """EmbeddingGemma's, which the converter writes if it is asked to."""
    name, prompts = "gemma-embedding", prompts_of(*LENGTHS[:4])
    case, draw = CASES[name], np.random.default_rng(3)
    weights = [draw.normal(size=size).astype(np.float32) for size in ((96, 64), (64, 96))]
    model = saved(case.kind, tmp_path, **case.changes)
    with torch.inference_mode():
        hidden = torch.stack([model(torch.tensor([prompt])).last_hidden_state[0].mean(0) for prompt in prompts])
    dense = {f"dense_{number}.weight": weight for number, weight in zip((2, 3), weights, strict=True)}
    llm = LLM(str(_write(model, tmp_path / "model.gguf", name, case, dense=dense, pooling_type=1)), **SETTINGS)
    assert close_to(pooled(llm, prompts), hidden @ torch.tensor(weights[0]).T @ torch.tensor(weights[1]).T)
    llm.close()


def test_a_qwen3_reranker_scores_how_likely_its_answer_is_yes(tmp_path: Path) -> None:
    """The file has the rows of yes and no in place of a head; their difference is the head of one class."""
    case = Case("Qwen3ForCausalLM", norm="layer_norm_rms_epsilon", rope=10000.0)
    prompts = prompts_of(*LENGTHS[:4])
    model = saved_decoder("Qwen3ForCausalLM", tmp_path, head_dim=16, tie_word_embeddings=True)
    rows = model.lm_head.weight.detach()[[7, 11]]
    keys = {
        "attention.causal": True, "attention.key_length": 16, "attention.head_count_kv": 2, "pooling_type": 4,
        "classifier.output_labels": ["yes", "no"],
    }  # fmt: skip
    path = _write(model, tmp_path / "model.gguf", "qwen3", case, dense={"cls.output.weight": rows.numpy()}, **keys)
    llm = LLM(str(path), **SETTINGS)
    assert (llm.info.classifier.labels, llm.info.classifier.activation) == (("yes",), "sigmoid")
    with torch.inference_mode():
        yes, no = torch.stack([model(torch.tensor([prompt])).logits[0, -1, [7, 11]] for prompt in prompts]).T
    assert close_to(pooled(llm, prompts), (yes - no)[:, None])
    llm.close()


def test_each_encoder_that_is_read_is_tried() -> None:
    assert {name.partition(",")[0] for name in CASES} == {each.name for each in ENCODERS}


@pytest.mark.parametrize("labels", [1, 3])
def test_a_reranker_has_robertas_head(labels: int, tmp_path: Path) -> None:
    prompts, case = prompts_of(*LENGTHS[:4]), Case("", first=2)
    changes = {"hidden_act": "gelu", "id2label": {number: f"c{number}" for number in range(labels)}}
    model = saved("XLMRobertaForSequenceClassification", tmp_path, **changes)
    names = {} if labels == 1 else {"classifier.output_labels": ["c0", "c1", "c2"]}
    llm = LLM(str(_write(model, tmp_path / "model.gguf", "bert", case, **names)), **SETTINGS)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
    assert llm.info.classifier.labels == (("c0", "c1", "c2") if names else ("LABEL_0",))
    assert close_to(pooled(llm, prompts), expected)
    llm.close()


@pytest.mark.parametrize(
    ("kind", "keys", "says"),
    [
        ("BertForSequenceClassification", {}, "cls.output.weight, of a classification head, and not what"),
        ("DistilBertForSequenceClassification", {}, "cls.output.weight and cls.weight, of a classification head"),
        ("BertModel", {"attention.causal": True}, "bert.attention.causal True is not an encoder's"),
        ("RobertaForSequenceClassification", {"classifier.output_labels": ["a"]}, "does not name the 2 classes"),
        ("BertModel", {"pooling_type": 9}, "bert.pooling_type 9 is not"),
    ],
)
def test_what_a_file_cannot_tell_is_refused(kind: str, keys: dict[str, Any], says: str, tmp_path: Path) -> None:
    names = ROBERTA if kind.startswith("Roberta") else OTHER_HEADS
    path = _write(saved(kind, tmp_path), tmp_path / "model.gguf", "bert", Case(""), names, **keys)
    files = ModelFiles("test", gguf=path)
    with pytest.raises(ModelLoadError, match=says) as caught:
        pooling_of(files, read_spec(files))
    assert caught.value.exit_code == 3
