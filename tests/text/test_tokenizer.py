"""Token ids equal those of the reference implementation; each broken file gets an error of one message."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.file import GGUFFile, read_gguf
from octavo_engine.model.source import ModelFiles
from octavo_engine.text.gguf import metadata as gguf_metadata
from octavo_engine.text.gguf.pre_tokenizers import pre_tokenizer
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer
from octavo_engine.text.tokenizer_parts import TokenizerParts
from tests.gguf_reading import quick_gguf
from tests.text.probes import DIGITS, PROBES


@pytest.fixture(scope="session")
def reference(smollm2_file: Path) -> Backend:
    with quick_gguf():
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
    assert (smollm2.bos_token_id, smollm2.vocab_size) == (1, 49152)
    assert smollm2.is_special(2)
    assert smollm2.decode(smollm2.encode("Hi<|im_end|>")) == "Hi"
    assert smollm2.token_text(2) == "<|im_end|>"


def test_what_a_token_can_stand_for(smollm2: Tokenizer) -> None:
    """Byte-level BPE has a limit; no other has, nor one that drops whitespace, words or bytes."""
    assert smollm2.most_characters is None and smollm2.encode("\x04" * 50) == []
    assert smollm2.encode_beginning("a b c", 2) == smollm2.encode("a b c")[:2]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = {letter: index for index, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}

    def most(steps: Any, model: Any = None, normalizer: Any = None, added: Any = ()) -> int | None:
        backend = Backend(model or models.BPE(letters, []))
        backend.pre_tokenizer, backend.decoder = steps, decoders.ByteLevel()
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.add_tokens(list(added))
        return Tokenizer(TokenizerParts(backend)).most_characters

    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(), level])
    assert most(level) == most(digits) == most(level, normalizer=normalizers.NFC()) == 2
    assert most(level, added=[AddedToken("<mask>")]) == 6
    removed = pre_tokenizers.Split(" ", behavior="removed")
    few = {letter: index for letter, index in letters.items() if letter != "a"}
    for found in (
        most(pre_tokenizers.Whitespace()),
        most(pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), level])),
        most(pre_tokenizers.Sequence([removed, level])),
        most(level, normalizer=normalizers.Strip()),
        most(level, added=[AddedToken("<mask>", lstrip=True)]),
        most(level, models.BPE({letter: index for index, letter in enumerate(few)}, [])),
        most(level, models.WordPiece({**letters, "[UNK]": 256}, unk_token="[UNK]")),
    ):
        assert found is None


def test_pieces_that_are_nearly_a_byte_are_text() -> None:
    """A vocabulary may hold any piece, and an answer any token."""
    pieces = ["<0x0a>", "<0xZZ>", "<0x 1>", "<0x_1>", "<0x٣٣>", "<0x1>", "<0x111>"]
    backend = Backend(models.WordLevel({piece: token for token, piece in enumerate(pieces)}, unk_token=pieces[0]))
    backend.decoder = decoders.ByteFallback()
    tokenizer = Tokenizer(TokenizerParts(backend))
    texts = [tokenizer.token_bytes(token) for token in range(len(pieces))]
    assert texts == [b"\n", *(piece.encode() for piece in pieces[1:])]


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


@pytest.mark.parametrize("text", ["hello the", "the  hello", "é 東", "hellothe\nhe"])
def test_sentencepiece_ids_equal_transformers(tmp_path: Path, text: str) -> None:
    path = _sentencepiece_file(tmp_path / "model.gguf")
    ours = load_tokenizer(ModelFiles("m", gguf=path))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (" hello", "<s> ▁ ▁hello"),
        ("</s>hello", "<s> </s> ▁hello"),
        ("the</s> he", "<s> ▁the </s> ▁he"),
        ("</s>  he", "<s> </s> ▁ ▁he"),
    ],
)
def test_each_text_between_control_tokens_begins_with_a_space(tmp_path: Path, text: str, pieces: str) -> None:
    """As mistral-common and SentencePiece do, a text's first space being the one that Mistral's templates write.

    Transformers reads GGUF files as `legacy: false`.
    """
    path = _sentencepiece_file(tmp_path / "model.gguf")
    vocabulary = {token: number for number, token in enumerate(read_gguf(path).metadata["tokenizer.ggml.tokens"])}
    assert load_tokenizer(ModelFiles("m", gguf=path)).encode(text) == [vocabulary[piece] for piece in pieces.split()]


_CUT = "I'M 12345 cats, don't!\n\nx=[y+1];Bar  (ok)"
_WORDS = {
    "deepseek-v3": "I|'M| |123|45| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "hunyuan-dense": "I|'M| |123|45| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "deepseek-coder": "I|'|M| |1|2|3|4|5| cats|,| don|'|t|!|\n|\n|x|=|[|y|+|1|];|Bar| | (|ok|)",
    "falcon": "I|'|M| |123|45| cats|,| don|'|t|!|\n|\n|x|=[|y|+|1|];|Bar|  |(|ok|)",
    "bloom": "I'M| 12345| cats|,| don't|!\n\n|x=[y+1];Bar|  (|ok|)",
    "seed-coder": "I|'M| |1|2|3|4|5| cats|,| don|'t|!|\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "stablelm2": "I|'M| |1|2|3|4|5| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "qwen35": "I|'M| |1|2|3|4|5| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "deepseek-llm": "I|'|M| |1|2|3|4|5| cats|,| don|'|t|!|\n|\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "kimi-k2": "I'M| |123|45| cats|,| don't|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "tiny_aya": "I'M| |12|345| cats|,| don't|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "afmoe": "I|'M| |12|345| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "superbpe": "I'M |12|345| cats, don't!\n\nx=[y+|1|];Bar  (ok)",
    "chameleon": "I|'|M| |1|2|3|4|5| cats|,| don|'|t|!|\n|\n|x|=|[|y|+|1|]|;|Bar|  |(|ok|)",
    "exaone-moe": "I|'M| |1|2|3|4|5| cats|,| don|'t|!\n|\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "bailingmoe2": "I|'M| |1|2|3|4|5| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "youtu": "I'M| |1|2|3|4|5| cats|,| don't|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "jais-2": "I|'M| |123|45| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "viking": "I'M| |1|2|3|4|5| cats|,| don't|!\n\n|x=[y+|1|];Bar|  (|ok|)",
    "minicpm5": "I|'M| |123|45| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "mellum2": "I|'|M| |1|2|3|4|5| cats|,| don|'t|!|\n|\n|x|=[|y|+|1|];|Bar| | (|ok|)",
    "chatglm-bpe": "I|'M| |123|45| cats|,| don|'t|!\n\n|x|=[|y|+|1|];|Bar| | (|ok|)",
}
"""How the words of `_CUT` begin and end, by llama.cpp's name of the way that they are cut."""


@pytest.mark.parametrize("pre", _WORDS)
def test_text_is_cut_as_the_file_says(pre: str) -> None:
    cuts = pre_tokenizer(pre).pre_tokenize_str(_CUT)
    assert "|".join(_CUT[first:last] for _, (first, last) in cuts) == _WORDS[pre]


def test_unknown_gguf_tokenizer_is_named(tmp_path: Path) -> None:
    path = _sentencepiece_file(tmp_path / "model.gguf", model="rwkv")
    with pytest.raises(ModelLoadError, match=r"'rwkv'; this version knows bert, gemma4, gpt2, llama, t5"):
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
    loaded = _load(hf_directory)
    assert loaded.encode("aabb</s>") == [0, 2, 1, 4]
    assert loaded.bos_token_id == 3
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
        ("tokenizer_config.json", b"[]", "tokenizer_config.json is broken: it does not hold a JSON object"),
        ("tokenizer_config.json", b"\xff\xfe", "tokenizer_config.json is broken"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "its chat_template is of type int"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": [], "template": 1}, {"name": "default", "template": []}]}',
            "its chat_template is of type list",
        ),
        ("tokenizer_config.json", b'{"chat_template": "{{ ' + b"9" * 5000 + b' }}"}', "cannot be used"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is broken"),
        ("special_tokens_map.json", b"[" * 100_000, "special_tokens_map.json is broken"),
        ("chat_template.jinja", b"{% for x %}", "chat template is broken"),
    ],
)
def test_broken_files_are_reported_in_one_line(hf_directory: Path, name: str, content: bytes | None, says: str) -> None:
    if content is None:
        (hf_directory / name).unlink()
    else:
        (hf_directory / name).write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        _load(hf_directory)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_files_that_cannot_be_read_are_reported(hf_directory: Path, name: str) -> None:
    (hf_directory / name).unlink(missing_ok=True)
    (hf_directory / name).symlink_to("/proc/self/mem")  # reading its beginning is an input/output error
    template = name == "chat_template.jinja"  # which clients could be shown
    reason = "is a link to /proc/.* out of the model's folder" if template else "cannot be read: Input/output error"
    with pytest.raises(ModelLoadError, match=f"{name}: {reason}") as caught:
        _load(hf_directory)
    assert caught.value.exit_code == 3


METADATA: dict[str, dict[str, object]] = {
    kind: {
        "ggml.model": kind, "ggml.pre": "default", "ggml.tokens": ["a", "b", "ab", "<s>", "</s>"],
        "ggml.scores": [0.0, 0.0, 1.0, 0.0, 0.0], "ggml.token_type": [1, 1, 1, 3, 4], "ggml.merges": ["a b"],
        "ggml.bos_token_id": 3, "ggml.eos_token_id": 4, "ggml.unknown_token_id": 0, "ggml.padding_token_id": 0,
        "ggml.add_bos_token": True, "ggml.add_space_prefix": True, "chat_template": "{{ messages }}",
    }
    for kind in ("gpt2", "llama", "gemma4", "bert", "t5")
}  # fmt: skip
WRONG: list[object] = [
    5, -1, 1 << 63, 0.5, math.nan, True, "x", "", "$A", "a b c", [1], [0.5] * 5, ["x"], ["a"] * 5, [""] * 5, [True] * 5,
    [math.inf] * 5, [[1, 2]] * 5, [["x"]] * 5, [], {}, None,
]  # fmt: skip


@pytest.mark.parametrize("kind", METADATA)
@pytest.mark.parametrize("without", [[], ["ggml.merges"]])
def test_metadata_of_any_type_loads_or_is_one_error(
    monkeypatch: pytest.MonkeyPatch, kind: str, without: list[str]
) -> None:
    """Each key with each wrong value: what read_gguf gives can be of any type that the format has."""
    whole = {key: value for key, value in METADATA[kind].items() if key not in without or kind in ("gpt2", "gemma4")}
    for key, value in itertools.product(whole, WRONG):
        metadata = {f"tokenizer.{name}": each for name, each in {**whole, key: value}.items()}
        monkeypatch.setattr(gguf_metadata, "read_gguf", lambda path, m=metadata: GGUFFile(path, m, {}))
        try:
            loaded = load_tokenizer(ModelFiles("m", gguf=Path("model.gguf")))
        except ModelLoadError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(loaded.encode("ab"), list)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokenizer.chat_template", 5, "chat_template of type int, which should be of type str"),
        ("tokenizer.ggml.pre", ["a"], "pre of type list, which should be of type str"),
        ("tokenizer.ggml.scores", [[1], [2]], "no number for each of the 275 tokens in tokenizer.ggml.scores"),
        ("tokenizer.ggml.token_type", 3, "token_type of type int, which should be of type list"),
    ],
)
def test_a_gguf_file_with_metadata_of_a_wrong_type_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object, says: str
) -> None:
    whole = read_gguf(_sentencepiece_file(tmp_path / "model.gguf"))
    whole.metadata[key] = value
    monkeypatch.setattr(gguf_metadata, "read_gguf", lambda _: whole)
    with pytest.raises(ModelLoadError, match=says) as caught:
        load_tokenizer(ModelFiles("m", gguf=tmp_path / "model.gguf"))
    assert caught.value.exit_code == 3


def test_text_of_sentence_transformers_is_lowercased_if_its_file_says_so(tmp_path: Path) -> None:
    words = Backend(models.WordLevel({"[UNK]": 0, "anna": 1, "Anna": 2}, unk_token="[UNK]"))
    words.normalizer = normalizers.Replace("x", "")
    words.save(str(tmp_path / "tokenizer.json"))
    for lowercases, expected in ((False, [2]), (True, [1])):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": lowercases}))
        assert load_tokenizer(ModelFiles("test", directory=tmp_path)).encode("Axnna") == expected


def test_old_sentencepiece_file_alone_is_explained(hf_directory: Path) -> None:
    (hf_directory / "tokenizer.json").rename(hf_directory / "tokenizer.model")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model is read for LlamaTokenizer"):
        _load(hf_directory)
