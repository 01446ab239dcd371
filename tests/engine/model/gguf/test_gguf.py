"""GGUF files: read like the gguf library, loaded with transformers' weights, and refused if inconsistent."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
import pytest
import torch
from checkpoints import CONFIGURATIONS, LLAMA3_ROPE, destinations, reference_model
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf_writer import write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stepper import Sequence, Stepper

from octavo_engine.cli import main
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.start_engine import start_engine
from octavo_engine.errors import ModelLoadError
from octavo_engine.model import footprint
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.gguf import file as gguf_file
from octavo_engine.model.gguf.element_types import ELEMENT_TYPES, ElementType
from octavo_engine.model.gguf.file import GGUFTensor, has_header, headers_read_once, read_gguf
from octavo_engine.model.gguf.restored import Restored
from octavo_engine.model.gguf.rows import TensorFile, dequantize_rows, row_pieces
from octavo_engine.model.layers.embeddings.rope import inverse_frequencies
from octavo_engine.model.loader import load_model
from octavo_engine.model.model_file import open_file
from octavo_engine.model.source import ModelFiles, resolve_model
from tests.gguf_reading import quick_gguf

CPU = torch.device("cpu")


def load(path: Path):
    files = ModelFiles("test", gguf=path)
    return load_model(files, read_spec(files), CPU, torch.float32, lambda *_: None)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_gguf(reference_model(), tmp_path_factory.mktemp("gguf") / "small.gguf")


def test_the_header_is_what_the_library_reads():
    path = resolve_model("smollm2", None, lambda *_: None).gguf
    assert path is not None
    with quick_gguf():
        ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.type_name, mine.start, mine.num_bytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert mine.num_elements == tensor.n_elements


def test_the_element_types_are_those_of_the_library() -> None:
    assert {kind.value: ElementType(kind.name, *GGML_QUANT_SIZES[kind]) for kind in Kind} == ELEMENT_TYPES


def test_a_text_worker_imports_no_arithmetic_and_no_server() -> None:
    """There are two or more text workers. Numpy and `gguf` take 0.2 s each, Starlette and asyncio 0.04 s and 7 MiB."""
    check = (
        "import sys\nfrom octavo_engine.server import text_worker\n"
        "files = text_worker.resolve_model('smollm2', None, lambda *_: None, weights=False)\n"
        "assert files.gguf is not None and text_worker.load_tokenizer(files).encode('Hello')\n"
        "assert not {'numpy', 'gguf', 'torch', 'starlette', 'asyncio'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths of the files whose headers are read."""
    paths, read = list[Path](), gguf_file._read
    monkeypatch.setattr(gguf_file, "_read", lambda path: (paths.append(path), read(path))[1])
    return paths


def test_a_start_reads_the_header_once(small: Path, reads: list[Path]) -> None:
    config = EngineConfig(model=str(small), device="cpu", dtype="float32", num_kv_blocks=8, max_model_len=64)
    for starts in (1, 2):
        start_engine(config, lambda *_: None).close()
        assert reads == [small] * starts, "nothing is kept from one start to the next"


def test_a_plan_reads_the_header_once(small: Path, reads: list[Path]) -> None:
    for plans, where in enumerate(("--device=cpu", "--gpu-memory=1GiB"), 1):
        assert main(["plan", str(small), where]) == 0
        assert reads == [small] * plans


def test_a_header_that_is_kept_is_that_of_the_file_as_it_is(small: Path, tmp_path: Path, reads: list[Path]) -> None:
    path, raw = tmp_path / "model.gguf", small.read_bytes()
    path.write_bytes(raw)
    with headers_read_once():
        first = read_gguf(path)
        assert read_gguf(path) is first
        path.write_bytes(raw + b"\0" * 32)
        assert read_gguf(path) is not first
        path.unlink()
        with pytest.raises(ModelLoadError, match="cannot be read"):
            read_gguf(path)
    assert len(reads) == 3
    path.write_bytes(raw)
    assert read_gguf(path) is not read_gguf(path)


FAMILIES = {
    "qwen3": {"family": "Qwen3", "head_dim": 24, "tie_word_embeddings": True},
    "qwen2": {"family": "Qwen2", "tie_word_embeddings": True},
}
"""The architectures that are read besides Llama's."""


@pytest.mark.parametrize("changes", [*CONFIGURATIONS.values(), *FAMILIES.values()], ids=[*CONFIGURATIONS, *FAMILIES])
def test_weights_arrive_in_transformers_order(changes, tmp_path):
    changes = {k: v for k, v in changes.items() if k not in ("rope_parameters", "hidden_act")}  # elsewhere, impossible
    model = reference_model(**changes)
    decoder = load(write_gguf(model, tmp_path / "model.gguf"))
    state = model.state_dict()
    for name, target in destinations(decoder).items():
        assert torch.equal(target, state[name]), name
    assert decoder.spec.eos_token_ids == (2,)
    assert decoder.spec.head.tied == model.config.tie_word_embeddings
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    (logits,) = Stepper(decoder).step([(Sequence(tokens), len(tokens))])
    with torch.inference_mode():
        torch.testing.assert_close(logits, model(torch.tensor([tokens])).logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_0, Kind.Q5_1, Kind.Q4_0, Kind.Q4_1])
def test_quantized_weights(kind, tmp_path):
    model = reference_model()
    path = write_gguf(model, tmp_path / "model.gguf", kind)
    decoder = load(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    data = theirs["blk.1.ffn_down.weight"]
    expected = torch.from_numpy(gguf.quants.dequantize(np.array(data.data), data.tensor_type))
    assert torch.equal(decoder.layers[1].feed_forward.down.weight, expected)
    state = model.state_dict()
    for name, target in destinations(decoder).items():
        assert (target - state[name]).abs().mean() < 0.1 * state[name].abs().mean(), name
    expected_dtype = {Kind.F16: torch.float16}.get(kind, torch.bfloat16)
    assert decoder.spec.dtype == expected_dtype
    stored = footprint.checkpoint_bytes(ModelFiles("test", gguf=path))
    assert stored == sum(tensor.n_bytes for tensor in theirs.values())


def dequantizable() -> list[Kind]:
    kinds = []
    for kind in Kind:
        _, size = GGML_QUANT_SIZES[kind]
        try:
            gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        kinds.append(kind)
    return kinds


@pytest.mark.parametrize("kind", dequantizable())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pieces_are_what_the_library_makes_of_the_whole(kind, tmp_path, monkeypatch):
    """Every element type the library knows, over random bytes, cut into small pieces of rows."""
    monkeypatch.setattr("octavo_engine.model.gguf.rows._PIECE_ELEMENTS", 3000)
    elements, size = GGML_QUANT_SIZES[kind]
    columns = max(1, 512 // elements)
    raw = np.random.default_rng(0).integers(0, 256, (21, columns * size), np.uint8)
    (tmp_path / "data").write_bytes(raw.tobytes())
    data = TensorFile(tmp_path / "data")
    tensor = GGUFTensor("t", (21, columns * elements), kind.name, elements, size, 0, raw.nbytes)
    pieces = list(row_pieces(tensor))
    assert len(pieces) > 1
    ours = np.concatenate([dequantize_rows(data, tensor, first, last) for first, last in pieces])
    np.testing.assert_array_equal(ours, gguf.quants.dequantize(raw, kind))


def test_llama3_rope_from_the_frequencies_in_the_file(tmp_path):
    """llama.cpp stores Llama 3.1's scaling as one divisor for each frequency."""
    model = reference_model(rope_parameters=LLAMA3_ROPE)
    plain = 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = write_gguf(
        model, tmp_path / "model.gguf", changes=lambda writer: writer.add_tensor("rope_freqs.weight", factors)
    )
    spec = read_spec(ModelFiles("test", gguf=path))
    (rope,) = spec.ropes
    assert rope.kind == "factors" and max(rope.factors) == 8.0
    torch.testing.assert_close(inverse_frequencies(rope, 8), model.model.rotary_emb.inv_freq)
    decoder, tokens = load(path), list(range(100))
    (logits,) = Stepper(decoder).step([(Sequence(tokens), 100)])
    with torch.inference_mode():
        torch.testing.assert_close(logits, model(torch.tensor([tokens])).logits[0], rtol=1e-4, atol=1e-4)


def linear(writer):
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (linear, ("linear", 4.0)),
        (lambda writer: writer.add_rope_scaling_factor(4.0), ("linear", 4.0)),
        (lambda writer: writer.add_float32("llama.rope.scale_linear", 4.0), ("linear", 4.0)),
        (lambda writer: writer.add_rope_scaling_factor(0.0), ("default", 1.0)),
    ],
    ids=["with its type", "without a type, as llama.cpp reads it", "by the name of 2023", "zero, likewise"],
)
def test_linear_rope(changes, expected, tmp_path):
    spec = read_spec(ModelFiles("test", gguf=write_gguf(reference_model(), tmp_path / "model.gguf", changes=changes)))
    (rope,) = spec.ropes
    assert (rope.kind, rope.factor) == expected


SPEC_FAULTS = {
    "no layers": ({"drop": ("add_block_count",)}, "llama.block_count is missing"),
    "no heads": ({"drop": ("add_head_count",)}, "llama.attention.head_count is missing"),
    "no context": ({"drop": ("add_context_length",)}, "llama.context_length is missing"),
    "an unknown rope": (
        {"changes": lambda w: w.add_string("llama.rope.scaling.type", "spiral")},
        "'spiral' is not supported",
    ),
    "yarn without a factor": (
        {"changes": lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)},
        "llama.rope.scaling.factor is missing",
    ),
    "half turned": (
        {"drop": ("add_rope_dimension_count",), "changes": lambda w: w.add_rope_dimension_count(4)},
        "partial_rotary_factor 0.5 is not supported",
    ),
    "experts": ({"changes": lambda w: w.add_expert_count(8)}, "llama.expert_used_count is missing"),
    "experts that are not there": (
        {"changes": lambda w: (w.add_expert_count(2), w.add_expert_used_count(1))},
        "block_sparse_moe.experts.0.w1.weight",
    ),
    "a scale of another family": (
        {"changes": lambda w: w.add_float32("llama.residual_scale", 0.5)},
        "llama.residual_scale 0.5 changes answers",
    ),
    "attention to later tokens": (
        {"changes": lambda w: w.add_bool("llama.attention.causal", False)},
        "llama.attention.causal False changes answers",
    ),
    "a factor of rotated heads": (
        {"changes": lambda w: w.add_float32("llama.rope.scaling.attn_factor", 1.5)},
        "llama.rope.scaling.attn_factor 1.5 changes answers",
    ),
    "a part under another name": (
        {"changes": lambda w: w.add_uint16("split.count", 3)},
        "is one of 3 files of a model (split.count), and by its name one of 1",
    ),
    "head size in words": (
        {"drop": ("add_key_length",), "changes": lambda w: w.add_string("llama.attention.key_length", "wide")},
        "llama.attention.key_length 'wide' is not a whole number",
    ),
    "layers in words": (
        {"drop": ("add_block_count",), "changes": lambda w: w.add_string("llama.block_count", "many")},
        "llama.block_count 'many' is not a whole number",
    ),
    "more layers than there are": (
        {"drop": ("add_block_count",), "changes": lambda w: w.add_block_count(4)},
        "tensors are missing: model.layers.3",
    ),
    "many more layers than there are": (
        {"drop": ("add_block_count",), "changes": lambda w: w.add_block_count(4096)},
        "llama.block_count 4096 is more than the",
    ),
    "a rope that is scaled twice": (
        {"changes": lambda w: (linear(w), w.add_tensor("rope_freqs.weight", np.ones(4, np.float32)))},
        "llama.rope.scaling.type 'linear' is not supported beside",
    ),
    "fewer layers than there are": (
        {"drop": ("add_block_count",), "changes": lambda w: w.add_block_count(2)},
        "does not have",
    ),
    "another width": (
        {"drop": ("add_feed_forward_length",), "changes": lambda w: w.add_feed_forward_length(97)},
        "expected [97, 64]",
    ),
    "an unknown tensor": (
        {"changes": lambda w: w.add_tensor("blk.0.attn_q_norm.weight", np.ones(8, np.float32))},
        "attn_q_norm.weight",
    ),
}


@pytest.mark.parametrize(("how", "message"), SPEC_FAULTS.values(), ids=SPEC_FAULTS)
def test_headers_that_do_not_fit(how, message, tmp_path):
    with pytest.raises(ModelLoadError) as caught:
        load(write_gguf(reference_model(), tmp_path / "model.gguf", **how))
    assert message in str(caught.value)
    assert "model.gguf" in str(caught.value)


def header(tensors: int, keys: int, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ARRAY, STRING, UINT8, UINT32 = 9, 8, 0, 4
PADDING = bytes(4096)
FILE_FAULTS = {
    "empty": (b"", "does not begin with the letters GGUF"),
    "four bytes": (b"GGUF", "not a complete GGUF file"),
    "random": (bytes(i * 7919 % 251 for i in range(10_000)), "does not begin with the letters GGUF"),
    "a web page": (b"<!doctype html>" + PADDING, "does not begin with the letters GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 is not supported"),
    "version 1": (header(0, 0, version=1), "version 1 is not supported"),
    "tensors of the universe": (header(2**60, 0) + PADDING, "claims 1152921504606846976 tensors"),
    "keys of the universe": (header(0, 2**63) + PADDING, "metadata keys"),
    "a key of the universe": (header(0, 1, struct.pack("<Q", 2**62)) + PADDING, "bytes of text"),
    "a key that is not text": (header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe") + PADDING, "not a complete GGUF file"),
    "an unknown value": (header(0, 1, text("k") + struct.pack("<I", 77)) + PADDING, "value type 77"),
    "numbers of the universe": (
        header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, UINT8, 2**60)) + PADDING,
        "claims 1152921504606846976 array items",
    ),
    "strings of the universe": (
        header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**50)) + PADDING,
        "array items",
    ),
    "a string of the universe among others": (
        header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, 3) + text("a") + struct.pack("<Q", 2**62))
        + PADDING,
        "claims 4611686018427387904 bytes of text",
    ),
    "a string that is not text among others": (
        header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + text("a") + struct.pack("<Q", 1) + b"\xff")
        + PADDING,
        "not a complete GGUF file",
    ),
    "arrays in arrays": (
        header(0, 1, text("k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 50) + PADDING,
        "value type 9",
    ),
    "dimensions": (header(1, 0, text("t") + struct.pack("<I", 1000)) + PADDING, "claims 1000 dimensions"),
    "an unknown element": (header(1, 0, tensor("t", [32], 199)) + PADDING, "unknown element type 199"),
    "a tensor of the universe": (header(1, 0, tensor("t", [2**62, 2**62])) + PADDING, "cut short: tensor 't'"),
    "a tensor far away": (header(1, 0, tensor("t", [32], 0, 2**60)) + PADDING, "cut short: tensor 't'"),
    "an empty tensor": (header(1, 0, tensor("t", [0])) + PADDING, "cannot be made of F32"),
    "half a block": (header(1, 0, tensor("t", [33], 3)) + PADDING, "cannot be made of Q4_1 blocks of 32"),
    "twice": (header(2, 0, tensor("t", [8]) + tensor("t", [8], 0, 32)) + PADDING, "'t' appears twice"),
    "over one another": (header(2, 0, tensor("a", [8]) + tensor("b", [8], 0, 16)) + PADDING, "'a' and 'b' overlap"),
    "crooked alignment": (
        header(0, 1, text("general.alignment") + struct.pack("<II", UINT32, 3)) + PADDING,
        "general.alignment 3 is not a power of two",
    ),
    "no architecture": (
        header(0, 0) + PADDING,
        "architecture '' is not supported (supported: ",
    ),
    "another architecture": (
        header(0, 1, text("general.architecture") + struct.pack("<I", STRING) + text("rwkv7")) + PADDING,
        "architecture 'rwkv7' is not supported (supported: ",
    ),
}


@pytest.mark.parametrize(("content", "message"), FILE_FAULTS.values(), ids=FILE_FAULTS)
@pytest.mark.timeout(60)
def test_broken_files(content, message, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        read_spec(ModelFiles("test", gguf=path))
    assert message in str(caught.value)
    assert "model.gguf" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0.001, 0.01, 0.3, 0.9, 0.9999])
def test_a_cut_file(kept, small, tmp_path):
    path = tmp_path / "model.gguf"
    raw = small.read_bytes()
    path.write_bytes(raw[: int(len(raw) * kept)])
    with pytest.raises(ModelLoadError):
        load(path)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(small: Path, tmp_path: Path) -> None:
    """A file mapped into memory would end the process with SIGBUS instead."""
    path = tmp_path / "model.gguf"
    path.write_bytes(small.read_bytes())
    tensor = max(read_gguf(path).tensors.values(), key=lambda each: each.start)
    file = TensorFile(path)
    os.truncate(path, tensor.start + 10)
    for stored in (tensor, replace(tensor, restored=Restored(rows=np.arange(tensor.shape[0])[::-1]))):
        with pytest.raises(ModelLoadError, match=rf"model.gguf: was cut short while .* '{tensor.name}'"):
            dequantize_rows(file, stored, 0, tensor.shape[0])


def test_a_header_of_a_file_that_is_cut_while_it_is_read_is_an_error(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(small.read_bytes())

    def opened_and_cut(path: Path) -> BinaryIO:
        file = open_file(path)
        size = os.fstat(file.fileno())
        monkeypatch.setattr(gguf_file.os, "fstat", lambda _: size)
        os.truncate(path, 100)
        return file

    monkeypatch.setattr(gguf_file, "open_file", opened_and_cut)
    with pytest.raises(ModelLoadError, match=r"model.gguf: not a complete GGUF file"):
        read_gguf(path)


def test_a_header_larger_than_what_is_read_at_first(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_gguf(small)
    path = tmp_path / "model.gguf"
    path.write_bytes(small.read_bytes())
    monkeypatch.setattr(gguf_file, "_BEGINNINGS", (50, 500))
    assert read_gguf(path).tensors == whole.tensors


def test_strings_that_are_cut_anywhere_make_no_whole_header(tmp_path):
    """Of a file of which only the beginning is there, more is fetched."""
    words = ["", "a", "ü" * 40, " ", "end"]
    strings = b"".join(struct.pack("<Q", len(word.encode())) + word.encode() for word in words)
    whole = header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, len(words)) + strings)
    for cut in range(4, len(whole)):
        assert not has_header(whole[:cut], len(whole), "model.gguf")
    assert has_header(whole, len(whole), "model.gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    assert read_gguf(path).metadata == {"k": words}


def test_more_than_padding_after_the_last_tensor_is_damage(small, tmp_path):
    """Two programs that append to one file without a lock cause it."""
    raw, path = small.read_bytes(), tmp_path / "model.gguf"
    long = b"\0" * (3 << 20)
    for padding in (b"", b"\0" * 32, b"\0" * 4096, long):
        path.write_bytes(raw + padding)
        assert read_gguf(path).tensors == read_gguf(small).tensors
    end = max(tensor.start + tensor.num_bytes for tensor in read_gguf(small).tensors.values())
    path.write_bytes(raw[:end])
    assert read_gguf(path).tensors == read_gguf(small).tensors, "some writers do not pad the last one"
    for more in (raw[1000:5000], long + b"x", long[:-1] + b"x", long + b"x" + long):
        path.write_bytes(raw + more)
        with pytest.raises(ModelLoadError, match=rf"its last tensor ends at byte {end}, but there are \d+ bytes more"):
            read_gguf(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_damage_to_a_header_is_a_model_load_error_or_harmless(small, tmp_path, data):
    raw = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    try:
        file = read_gguf(path)
        read_spec(ModelFiles("test", gguf=path))
    except ModelLoadError:
        return
    assert sum(tensor.num_bytes for tensor in file.tensors.values()) <= len(raw)
