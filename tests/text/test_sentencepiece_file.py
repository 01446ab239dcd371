"""A directory with SentencePiece's tokenizer.model alone: token ids are transformers' ones, or the file is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, convert_slow_tokenizer
from transformers.utils import sentencepiece_model_pb2_new as protobuf

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.source import ModelFiles
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.probes import PROBES

UNKNOWN, CONTROL, OWN, BYTE = 2, 3, 4, 6
WORDS = ("▁", "e", "t", "h", "l", "o", "▁t", "he", "▁the", "ll", "▁h", "▁hello", "lo", "llo", "▁he", "hello", "▁▁")
LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
IM_START = {"content": "<|im_start|>", "special": True, "normalized": False, "rstrip": True}
TEXTS = (*PROBES, "hello the", " hello", "</s>hello", "<own>hello é", "<|im_start|> the hello", "hellothe\nhe", "▁the")


def write(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A Llama's vocabulary in the format of SentencePiece; `changes` are of how it treats text."""
    model = protobuf.ModelProto()
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    pieces = [*special, *((f"<0x{byte:02X}>", BYTE) for byte in range(256)), *((word, 1) for word in WORDS)]
    for rank, (text, kind) in enumerate([*pieces, ("<own>", OWN), *changes.get("more", ())]):
        model.pieces.add(piece=text, score=-float(max(0, rank - 259)), type=kind)
    model.trainer_spec.model_type = changes.get("model_type", 2)
    model.trainer_spec.byte_fallback = changes.get("byte_fallback", True)
    normaliser = model.normalizer_spec
    normaliser.name, normaliser.precompiled_charsmap = changes.get("normaliser", ("identity", b""))
    normaliser.remove_extra_whitespaces = changes.get("removes", False)
    normaliser.add_dummy_prefix = changes.get("prefix", True)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    (folder / "tokenizer_config.json").write_text(json.dumps(LLAMA if config is None else config))
    return folder


def load(folder: Path) -> Tokenizer:
    return load_tokenizer(ModelFiles("test", directory=folder))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"legacy": True},
        {"legacy": False, "add_prefix_space": False},
        {"add_bos_token": False, "add_eos_token": True, "eos_token": {"__type": "AddedToken", "content": "</s>"}},
        {"add_eos_token": True, "legacy": True, "added_tokens_decoder": {"277": IM_START}},
    ],
    ids=["plain", "legacy", "no-space", "ends", "own-tokens"],
)
def test_ids_are_those_of_transformers(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, LLAMA | changes)
    monkeypatch.setattr(convert_slow_tokenizer, "requires_backends", lambda *_: None)  # protobuf is enough for it
    theirs, ours = AutoTokenizer.from_pretrained(folder), load(folder)
    assert theirs.vocab_size > len(WORDS) + 256
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_text_begins_with_the_token_for_it_if_nothing_says_otherwise(tmp_path: Path) -> None:
    assert load(write(tmp_path, {"tokenizer_class": "LlamaTokenizerFast"})).encode("hello") == [1, 270]


@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        ({}, {}, "not for None"),
        ({"tokenizer_class": "T5Tokenizer"}, {}, "not for T5Tokenizer"),
        (None, {"model_type": 1}, "is no byte-pair encoding"),
        (None, {"byte_fallback": False}, "byte_fallback"),
        (None, {"normaliser": ("nmt_nfkc", b"rules")}, r"normalises text \(nmt_nfkc\)"),
        (None, {"removes": True}, "remove_extra_whitespaces"),
        (None, {"prefix": False}, "add_prefix_space"),
    ],
)
def test_other_files_are_refused_with_the_command_that_converts_them(
    config: dict[str, Any] | None, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=rf"{says}.*pip install transformers.*save_pretrained") as caught:
        load(write(tmp_path, config, **changes))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        ({"bos_token": "<begin>"}, {}, "no token '<begin>'"),
        ({"added_tokens_decoder": {"900": IM_START}}, {}, "is token 900, but it is 277"),
        ({"added_tokens_decoder": {"x": IM_START}}, {}, "does not name tokens by id"),
        ({"added_tokens_decoder": {"277": {}}}, {}, "277 has no text"),
        ({}, {"more": [("a" * 3000, 1)]}, "piece of 3000 bytes"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=says):
        load(write(tmp_path, LLAMA | config, **changes))


def test_a_broken_file_is_reported(tmp_path: Path) -> None:
    content = (write(tmp_path) / "tokenizer.model").read_bytes()
    for broken in (
        b"",
        b"\xff" * 40,
        b"\x0b",
        b"\x0a\xff\xff",
        content[:-3],
        b"\x0a\x02\x0a\xff",
        b"\x08\xff\xff\xff\xff\x0f",
        b"\x0a\x02\x08\x01",
        content + b"\x1a\x05\x08\x01\x12\x01a",  # a number for the name of the rules
    ):
        (tmp_path / "tokenizer.model").write_bytes(broken)
        with pytest.raises(ModelLoadError, match=r"tokenizer\.model"):
            load(tmp_path)
