"""Token ids equal to those of the reference implementation; every broken file told in one message."""

import json
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.source import ModelFiles
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.probes import DIGITS, PROBES


@pytest.fixture(scope="session")
def reference(smollm2_file: Path) -> Backend:
    loaded = AutoTokenizer.from_pretrained(smollm2_file.parent, gguf_file=smollm2_file.name)
    backend: Backend = loaded.backend_tokenizer
    return backend


@pytest.mark.parametrize("text", PROBES)
def test_ids_equal_transformers(smollm2: Tokenizer, reference: Backend, text: str) -> None:
    assert smollm2.encode(text) == reference.encode(text).ids


@pytest.mark.parametrize("text", DIGITS)
def test_digits_stand_apart_as_in_the_models_own_tokenizer(smollm2: Tokenizer, reference: Backend, text: str) -> None:
    # transformers rebuilds SmolLM2's pre-tokenizer from GGUF without its Digits step; with it the ids are equal.
    complete = Backend.from_str(reference.to_str())
    complete.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert smollm2.encode(text) == complete.encode(text).ids


@pytest.mark.parametrize("text", PROBES + DIGITS)
def test_decode_inverts_encode(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    assert smollm2.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(smollm2.token_bytes, ids)).decode() == text


def test_special_tokens_of_the_demo_model(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_token_id, smollm2.eos_token_ids, smollm2.vocab_size) == (1, (2,), 49152)
    assert smollm2.is_special(2)
    assert smollm2.decode(smollm2.encode("Hi<|im_end|>")) == "Hi"
    assert smollm2.token_text(2) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_are_nothing(smollm2: Tokenizer) -> None:
    assert smollm2.token_bytes(49152) == b""
    assert smollm2.token_bytes(-1) == b""


def _sentencepiece_file(path: Path, **changes: object) -> Path:
    """A small SentencePiece vocabulary with byte fallback, as llama.cpp writes it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    words = ["▁", "e", "t", "h", "l", "o", "▁t", "he", "▁the", "ll", "▁h", "▁hello", "lo", "llo", "▁he", "hello"]
    scores = [0.0] * len(pieces) + [-float(i) for i in range(len(words))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(str(changes.get("model", "llama")))
    writer.add_token_list([*pieces, *words])
    writer.add_token_scores(scores)
    writer.add_token_types([*kinds, *[1] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("text", ["hello the", " hello", "the  hello", "é 東", "</s>hello", "hellothe\nhe"])
def test_sentencepiece_ids_equal_transformers(tmp_path: Path, text: str) -> None:
    path = _sentencepiece_file(tmp_path / "model.gguf")
    ours = load_tokenizer(ModelFiles("m", gguf=path))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


def test_unknown_gguf_tokenizer_is_named(tmp_path: Path) -> None:
    path = _sentencepiece_file(tmp_path / "model.gguf", model="bert")
    with pytest.raises(ModelLoadError, match=r"'bert'; this version knows 'gpt2' and 'llama'"):
        load_tokenizer(ModelFiles("m", gguf=path))


@pytest.fixture
def hf_directory(tmp_path: Path) -> Path:
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4, "<eot>": 5}, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<eot>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token }}old"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def _load(directory: Path) -> Tokenizer:
    return load_tokenizer(ModelFiles("m", directory=directory))


def test_directory_in_hugging_face_layout(hf_directory: Path) -> None:
    (hf_directory / "config.json").write_text('{"eos_token_id": 1}')
    (hf_directory / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    loaded = _load(hf_directory)
    assert loaded.encode("aabb</s>") == [0, 2, 1, 4]
    assert (loaded.bos_token_id, loaded.eos_token_ids) == (3, (4, 5))
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([]) == "<s>old"


def test_template_file_wins_over_the_configuration(hf_directory: Path) -> None:
    (hf_directory / "chat_template.jinja").write_text("new{{ eos_token }}")
    template = _load(hf_directory).chat_template
    assert template is not None
    assert template.render([]) == "new</s>"


def test_default_of_several_templates(hf_directory: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "plain"}]
    (hf_directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = _load(hf_directory).chat_template
    assert template is not None
    assert template.render([]) == "plain"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "there is no tokenizer.json"),
        ("tokenizer.json", b"", "tokenizer.json is broken"),
        ("tokenizer.json", b"[1, 2]", "tokenizer.json is broken"),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Nonsense"}}', "tokenizer.json is broken"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json is broken"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json is broken: it holds no object"),
        ("generation_config.json", b"\xff\xfe", "generation_config.json is broken"),
        ("special_tokens_map.json", b"[" * 100_000, "special_tokens_map.json is broken"),
        ("chat_template.jinja", b"{% for x %}", "chat template is broken"),
    ],
)
def test_broken_files_are_told_in_one_line(hf_directory: Path, name: str, content: bytes | None, says: str) -> None:
    if content is None:
        (hf_directory / name).unlink()
    else:
        (hf_directory / name).write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        _load(hf_directory)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_old_sentencepiece_file_alone_is_explained(hf_directory: Path) -> None:
    (hf_directory / "tokenizer.json").rename(hf_directory / "tokenizer.model")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model alone is not enough"):
        _load(hf_directory)
