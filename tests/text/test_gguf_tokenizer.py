"""Tokenizers in GGUF files of encoders, as llama.cpp's converter writes them, against transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import BertTokenizer, Qwen2Tokenizer, XLMRobertaTokenizer

from octavo_engine.model.source import ModelFiles
from octavo_engine.text.token_bytes import bytes_to_unicode
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5


def _file(path: Path, tokens: list[str], kinds: list[int], values: dict[str, Any], architecture: str = "bert") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, value in values.items():
        if key == "cls_token_id":  # of files made before 2025; later converters call it bos_token_id
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
        else:
            getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def _loaded(path: Path) -> Tokenizer:
    return load_tokenizer(ModelFiles("m", gguf=path))


@pytest.mark.parametrize("words", [["the", "cafe"], ["The", "the", "café"]], ids=["lowercases", "cased"])
def test_word_pieces_are_those_of_bert(tmp_path: Path, words: list[str]) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *words, "##s", "##ing", "run", "東", "!", ",", "▁", "##▁"]
    stored = [token.removeprefix("##") if token.startswith("##") else f"▁{token}" for token in vocabulary[5:]]
    begin = "bos_token_id" if "The" in words else "cls_token_id"
    ids = {"pad_token_id": 0, "unk_token_id": 1, begin: 2, "sep_token_id": 3, "mask_token_id": 4}
    kinds = [CONTROL] * 5 + [NORMAL] * len(stored)
    ours = _loaded(_file(tmp_path / "m.gguf", [*special, *stored], kinds, {"tokenizer_model": "bert", **ids}))
    theirs = BertTokenizer({token: number for number, token in enumerate(vocabulary)}, do_lower_case="The" not in words)
    for text in ("The cafés, running!", "the café", "東the ▁ [MASK]runs", "", "other", "a" * 101):
        assert ours.encode(text) == theirs.encode(text), text
    pair, second = theirs("the", "run!"), ours.encode_pair("the", "run!")
    assert second.ids == pair["input_ids"]
    assert second.second == pair["token_type_ids"].index(1)
    assert ours.decode(ours.encode("the runs")) == "the runs"


def test_unigrams_are_those_of_xlm_roberta(tmp_path: Path) -> None:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [("▁", -2.0), ("▁he", -3.0), ("llo", -3.5), ("▁hello", -4.0), ("l", -5.0), ("o", -5.1), ("▁th", -6.0)]
    vocabulary = [*((token, 0.0) for token in special), *pieces, ("<mask>", 0.0)]
    stored = [*vocabulary, ("[PAD12]", -10000.0), ("[PAD13]", -10000.0)]
    kinds = [CONTROL] * 3 + [UNKNOWN] + [NORMAL] * len(pieces) + [CONTROL, UNUSED, UNUSED]
    values = {
        "tokenizer_model": "t5", "tokenizer_pre": "default", "token_scores": [score for _, score in stored],
        "add_space_prefix": True, "bos_token_id": 0, "eos_token_id": 2, "unk_token_id": 3, "add_bos_token": True,
        "remove_extra_whitespaces": False, "sep_token_id": 2, "pad_token_id": 1, "mask_token_id": len(vocabulary) - 1,
    }  # fmt: skip
    ours = _loaded(_file(tmp_path / "m.gguf", [token for token, _ in stored], kinds, values))
    theirs = XLMRobertaTokenizer(vocabulary)
    for text in ("hello", " hello  hello ", "he\tllo \n", "th <mask> l", "qhello</s>o", "", "[PAD12]"):
        assert ours.encode(text) == theirs.encode(text), text
    assert ours.encode_pair("hello", "he").ids == theirs("hello", "he")["input_ids"]


def _bytes_file(path: Path, pre: str, extra: tuple[str, ...] = (), **values: Any) -> Tokenizer:
    special = ["<s>", "</s>", "<mask>"]
    tokens = [*special, *bytes_to_unicode().values(), "Ã©", *extra]
    values = {"bos_token_id": 0, "eos_token_id": 1, "sep_token_id": 1, **values}
    kinds = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    all_values = {"tokenizer_model": "gpt2", "tokenizer_pre": pre, "token_merges": ["Ã ©"], **values}
    return _loaded(_file(path, tokens, kinds, all_values))


@pytest.mark.parametrize(
    ("pre", "values", "single", "pair"),
    [
        ("qwen2", {"add_eos_token": True}, "a</s>", "a</s>b</s>"),
        ("qwen2", {}, "a", "ab"),
        ("roberta-bpe", {"add_bos_token": True, "add_eos_token": True}, "<s>a</s>", "<s>a</s></s>b</s>"),
        (
            "modern-bert",
            {"add_bos_token": True, "add_eos_token": True, "add_sep_token": True},
            "<s>a</s>",
            "<s>a</s>b</s>",
        ),
        ("gpt-2", {"add_sep_token": True}, "a", "a</s>b"),
    ],
)
def test_tokens_stand_around_texts_as_the_flags_say(
    tmp_path: Path, pre: str, values: dict[str, Any], single: str, pair: str
) -> None:
    tokenizer = _bytes_file(tmp_path / "m.gguf", pre, **values)
    assert tokenizer.decode(tokenizer.encode("a"), skip_special_tokens=False) == single
    continued = tokenizer.encode("a</s>", continued=True)
    assert tokenizer.decode(continued, skip_special_tokens=False) == single.removesuffix("</s>") + "</s>"
    assert tokenizer.decode(tokenizer.encode_pair("a", "b").ids, skip_special_tokens=False) == pair


def test_texts_are_composed_where_the_models_own_tokenizer_does(tmp_path: Path) -> None:
    assert Qwen2Tokenizer()._tokenizer.normalizer.normalize_str("e\u0301") == "\u00e9"
    assert len(_bytes_file(tmp_path / "qwen2.gguf", "qwen2").encode("e\u0301")) == 1
    assert len(_bytes_file(tmp_path / "llama.gguf", "gpt-4o").encode("e\u0301")) == 3


@pytest.mark.parametrize(("pre", "count"), [("glm5", 1), ("glm4", 1), ("chatglm-bpe", 2)])
def test_words_that_no_merges_make_are_tokens_where_llama_cpp_says_so(tmp_path: Path, pre: str, count: int) -> None:
    """`é` of two bytes has a token, and the file's only merge is of other letters."""
    tokenizer = _bytes_file(tmp_path / "m.gguf", pre, ("ab",), token_merges=["a b"])
    assert len(tokenizer.encode("\u00e9")) == count


def test_spaces_after_the_tokens_of_phi_3_belong_to_them(tmp_path: Path) -> None:
    letters = ["▁", "H", "i"]
    tokens = ["<unk>", "<s>", "</s>", "<|user|>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    kinds = [UNKNOWN, CONTROL, CONTROL, CONTROL, *[6] * 256, *[NORMAL] * len(letters)]
    values = {"tokenizer_model": "llama", "token_scores": [0.0] * len(tokens), "bos_token_id": 1, "unk_token_id": 0}
    ours = _loaded(_file(tmp_path / "m.gguf", tokens, kinds, values, "phi3"))
    assert ours.encode("<|user|>\nHi") == [1, 3, 260, 261, 262]
