"""Encoders behind the real server, with the kinds of tokenizers that are published with them: WordPiece and Unigram."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from octavo_engine.model.source import ModelFiles
from octavo_engine.text.tokenizer import load_tokenizer
from tests.api.real_server import RealServer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "##a", "##b", "fox", "crow", "cheese", "run", "##ning", "?"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
}
TEXTS = ["The fox runs", "A crow?", "cheese running fox", "fox", "j i h g f e d c b a"]


def save_word_piece(directory: Path) -> Any:
    """BERT's tokenizer with these words, which transformers reads as its own."""
    backend = Backend(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.save(str(directory / "tokenizer.json"))
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    path = str(directory / "tokenizer.json")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=path, model_input_names=names, **special)


def save_model(name: str, directory: Path, **changes: Any) -> Any:
    torch.manual_seed(5)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(directory)
    return model


def serving(folder: Path) -> Iterator[RealServer]:
    server = RealServer(folder / "log.txt", str(folder), "--served-model-name", "encoder")
    try:
        server.wait_until(server.is_ready)
        yield server
        assert server.end() == 0, server.log.read_text()
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealServer, Any, Any]]:
    """An encoder of sentence-transformers: the mean of all tokens, of length 1."""
    folder = tmp_path_factory.mktemp("embedding")
    model, tokenizer = save_model("BertModel", folder), save_word_piece(folder)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for server in serving(folder):
        yield server, model, tokenizer


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealServer, Any, Any]]:
    """One class of a pair."""
    folder = tmp_path_factory.mktemp("cross-encoder")
    model = save_model("BertForSequenceClassification", folder, id2label={0: "relevance"})
    tokenizer = save_word_piece(folder)
    for server in serving(folder):
        yield server, model, tokenizer


def mean_vector(model: Any, tokenizer: Any, text: str) -> list[float]:
    with torch.inference_mode():
        mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
    vector: list[float] = (mean / mean.norm()).tolist()
    return vector


def test_vectors_by_the_sdk(embedding: tuple[RealServer, Any, Any]) -> None:
    """Many at once, of texts with [CLS] and [SEP] around them."""
    server, model, tokenizer = embedding
    expected = [mean_vector(model, tokenizer, text) for text in TEXTS]
    answer = server.openai.embeddings.create(model="encoder", input=TEXTS)
    for each, vector in zip(answer.data, expected, strict=True):
        assert each.embedding == pytest.approx(vector, abs=1e-4)
    assert answer.usage.prompt_tokens == sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    with ThreadPoolExecutor(8) as pool:
        asked = [text for text in TEXTS for _ in range(8)]
        found = list(pool.map(lambda text: server.openai.embeddings.create(model="encoder", input=text), asked))
    for text, one in zip(asked, found, strict=True):
        assert one.data[0].embedding == pytest.approx(expected[TEXTS.index(text)], abs=1e-4)


def test_texts_of_word_pieces_are_put_together(tmp_path: Path) -> None:
    save_word_piece(tmp_path)
    tokenizer = load_tokenizer(ModelFiles("x", directory=tmp_path))
    ids = tokenizer.encode("crow running?", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" crow running ?"
    assert tokenizer.encode("fox") == [2, WORDS.index("fox"), 3]


def test_an_encoder_says_what_it_does_not_do(embedding: tuple[RealServer, Any, Any]) -> None:
    server, model, tokenizer = embedding
    with pytest.raises(openai.BadRequestError, match="does not generate text"):
        server.openai.chat.completions.create(model="encoder", messages=[{"role": "user", "content": "fox"}])
    with pytest.raises(openai.BadRequestError, match="does not generate text"):
        server.openai.completions.create(model="encoder", prompt="fox")
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.embeddings.create(model="encoder", input="fox " * 47)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="a text is empty"):
        server.openai.embeddings.create(model="encoder", input=["fox", ""])
    cut = server.http.post("/v1/embeddings", json={"input": "fox " * 60, "truncate_prompt_tokens": -1}).json()
    assert cut["data"][0]["embedding"] == pytest.approx(mean_vector(model, tokenizer, "fox " * 46), abs=1e-4)
    classes = server.http.post("/classify", json={"input": "fox"})
    assert classes.status_code == 400 and "no classes" in classes.json()["error"]["message"]


def test_many_characters_may_be_few_tokens(embedding: tuple[RealServer, Any, Any]) -> None:
    """Spaces are none, and a word of any length is one [UNK]: nothing is cut or refused by characters."""
    server, model, tokenizer = embedding
    for text in (f"fox{' ' * 2000}crow", f"{'x' * 2000} cheese"):
        for more in ({}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 4}):
            answer = server.http.post("/v1/embeddings", json={"input": text, **more}).json()
            assert answer["data"][0]["embedding"] == pytest.approx(mean_vector(model, tokenizer, text), abs=1e-4)
            assert answer["usage"]["prompt_tokens"] == 4
    cut = server.http.post("/v1/embeddings", json={"input": f"fox{' ' * 2000}crow", "truncate_prompt_tokens": 3}).json()
    assert cut["data"][0]["embedding"] == pytest.approx(mean_vector(model, tokenizer, "fox"), abs=1e-4)
    for more in ({}, {"truncate_prompt_tokens": -1}):
        refused = server.http.post("/v1/embeddings", json={"input": f"fox{' ' * (1 << 17)}", **more})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "at most 131072 are read" in refused.json()["error"]["message"]


def test_a_pair_of_many_characters_is_whole(cross_encoder: tuple[RealServer, Any, Any]) -> None:
    server, model, tokenizer = cross_encoder
    first, second = f"crow{' ' * 2000}fox", f"a{' ' * 2000}cheese"
    with torch.inference_mode():
        logit = model(**tokenizer(first, second, return_tensors="pt")).logits.item()
    for more in ({}, {"truncate_prompt_tokens": -1}):
        body = {"text_1": first, "text_2": second, "use_activation": False, **more}
        answer = server.http.post("/v1/score", json=body).json()
        assert answer["data"][0]["score"] == pytest.approx(logit, abs=1e-3)


def test_pairs_are_ranked_by_a_cross_encoder(cross_encoder: tuple[RealServer, Any, Any]) -> None:
    """Scores are transformers', whose tokenizer marks the second text; the best come first."""
    server, model, tokenizer = cross_encoder
    with torch.inference_mode():
        logits = [model(**tokenizer("crow", text, return_tensors="pt")).logits.item() for text in TEXTS]
        marked = tokenizer("crow", TEXTS[0], return_tensors="pt")
        unmarked = model(input_ids=marked["input_ids"]).logits.item()
    assert abs(unmarked - logits[0]) > 1e-2, "token types should matter"
    body = {"query": "crow", "documents": TEXTS}
    ranked = server.http.post("/v1/rerank", json={**body, "use_activation": False}).json()["results"]
    assert [each["index"] for each in ranked] == sorted(range(len(TEXTS)), key=lambda index: -logits[index])
    assert [each["relevance_score"] for each in ranked] == pytest.approx(sorted(logits, reverse=True), abs=1e-3)
    scores = server.http.post("/v1/score", json={"text_1": "crow", "text_2": TEXTS}).json()["data"]
    sigmoids = [torch.tensor(logit).sigmoid().item() for logit in logits]
    assert [each["score"] for each in scores] == pytest.approx(sigmoids, abs=1e-4)
    [label] = server.http.post("/classify", json={"input": "fox"}).json()["data"]
    with torch.inference_mode():
        alone = model(**tokenizer("fox", return_tensors="pt")).logits.sigmoid().item()
    assert (label["label"], label["num_classes"]) == ("relevance", 1)
    assert label["probs"] == pytest.approx([alone], abs=1e-4)


def test_unigram_pairs_are_joined_and_cut_as_roberta_has_them(tmp_path: Path) -> None:
    """Two separators between the texts, which are of one type; a long second text loses its end."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((f"\u2581{c}", -1.0) for c in "abcdefg")]
    backend = Backend(models.Unigram(pieces, unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    backend.decoder = decoders.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    tokenizer = load_tokenizer(ModelFiles("x", directory=tmp_path))
    whole = tokenizer.encode_pair("a b", "c d e f")
    assert (whole.ids, whole.second) == ([0, 4, 5, 2, 2, 6, 7, 8, 9, 2], 0)
    assert tokenizer.encode_pair("a b", "c d e f", keep=8).ids == [0, 4, 5, 2, 2, 6, 7, 2]
    with pytest.raises(ValueError, match="6 tokens"):
        tokenizer.encode_pair("a b", "c d e f", keep=5)
