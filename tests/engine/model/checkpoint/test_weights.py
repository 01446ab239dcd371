"""load_model from safetensors: everything is checked before memory is allocated, with one sentence for each error."""

from __future__ import annotations

import difflib
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from checkpoints import destinations, reference_model, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ModelLoadError
from octavo_engine.model import footprint, loader
from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.checkpoint.safetensors_file import read_header, read_headers
from octavo_engine.model.checkpoint.safetensors_source import SafetensorsSource
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard

CPU = torch.device("cpu")


def load(directory: Path, dtype: torch.dtype = torch.float32, progress=lambda *_: None):
    files = ModelFiles("test", directory=directory)
    return load_model(files, read_spec(files), CPU, dtype, progress)


@pytest.fixture
def checkpoint(tmp_path):
    return save(reference_model(), tmp_path / "model")


@pytest.fixture
def sharded(tmp_path):
    return save(reference_model(tie_word_embeddings=True), tmp_path / "sharded", shard_size="60KB")


def change_header(path: Path, change) -> None:
    """Rewrite a safetensors file's header, leaving its data alone."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def change_tensors(path: Path, change) -> None:
    """Load all tensors, change the dict, save."""
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def test_every_tensor_arrives_where_it_belongs(sharded):
    model = reference_model(tie_word_embeddings=True)
    decoder = load(sharded)
    state = model.state_dict()
    targets = destinations(decoder)
    assert set(targets) | {"lm_head.weight"} == set(state)
    for name, target in targets.items():
        assert torch.equal(target, state[name]), name
    assert decoder.head.weight is decoder.input.tokens.weight


def test_progress_goes_from_nothing_to_all_by_bytes(sharded):
    seen: list[tuple[str, float, str]] = []
    load(sharded, progress=lambda *news: seen.append(news))
    assert seen.pop() == ("warmup", 0.0, "arranging the weights for the kernels")
    ratios = [ratio for phase, ratio, _ in seen if phase == "loading"]
    assert ratios[0] == 0 and ratios[-1] == 1 and ratios == sorted(ratios) and len(set(ratios)) > 10
    assert {phase for phase, _, _ in seen} == {"loading"}
    assert " of " in seen[3][2]


def test_weights_are_cast_while_loading(checkpoint):
    decoder = load(checkpoint, torch.bfloat16)
    assert {parameter.dtype for parameter in decoder.parameters()} == {torch.bfloat16}
    assert decoder.ropes[0].inv_freq.dtype == torch.float32


def test_numbers_that_float16_does_not_have_are_refused_where_it_is_computed_in(checkpoint):
    change_tensors(checkpoint / "model.safetensors", lambda t: t[Q].view(-1)[:1].fill_(-1e5))
    load(checkpoint, torch.bfloat16)
    with pytest.raises(ModelLoadError, match=r"q_proj.*too large for float16: use --dtype bfloat16 or float32"):
        load(checkpoint, torch.float16)


def test_a_tied_copy_of_the_embedding_is_ignored(tmp_path):
    directory = save(reference_model(tie_word_embeddings=True), tmp_path)
    change_tensors(
        directory / "model.safetensors", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )
    load(directory)


def test_a_tensor_under_two_names_is_read_by_its_own_or_refused(checkpoint):
    """Whatever the order in the files: BERT's head has its bias twice, and transformers reads the decoder's."""
    file = checkpoint / "model.safetensors"
    change_tensors(file, lambda t: t.update({"norm.weight": torch.zeros(64)}))
    assert torch.equal(destinations(load(checkpoint))["model.norm.weight"], load_file(file)["model.norm.weight"])
    names = StoredNames(renamed=(("model.norm.", "last."), ("norm.", "last.")))
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight and norm\.weight are the same tensor"):
        SafetensorsSource(checkpoint, names)


def test_old_rotary_tables_are_ignored(checkpoint):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(checkpoint / "model.safetensors", lambda t: t.update({name: torch.ones(4)}))
    load(checkpoint)


def drop(*names):
    return lambda tensors: [tensors.pop(name) for name in names]


Q, NORM = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
TENSOR_FAULTS = {
    "missing": (drop(NORM, Q), ["2 of", "missing", NORM, Q]),
    "other names and shapes": (
        lambda t: t.update({NORM.replace("norm", "ln_f"): t.pop(NORM), Q: torch.zeros(3, 64)}),
        ["1 of", "missing", f"{NORM} (there is model.ln_f.weight)"],
    ),
    "no head": (drop("lm_head.weight"), ["missing", "lm_head.weight"]),
    "wrong shape": (lambda t: t.update({Q: torch.zeros(3, 64)}), [Q, "[3, 64]", "expected [64, 64]"]),
    "transposed": (
        lambda t: t.update({n: v.T.contiguous() for n, v in t.items() if "up_proj" in n}),
        ["up_proj", "[64, 96]", "expected [96, 64]"],
    ),
    "a bias too many": (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}),
        ["1 tensors that LlamaForCausalLM", "q_proj.bias (the nearest supported is model.layers.0.self_attn.q_proj.w"],
    ),
    "a layer too many": (
        lambda t: t.update({"model.layers.3.input_layernorm.weight": torch.zeros(64)}),
        ["model.layers.3.input_layernorm.weight"],
    ),
    "not a number": (lambda t: t[Q].view(-1)[-1:].fill_(torch.nan), [f"{Q!r} holds a number that is not finite"]),
    "infinite": (lambda t: t[NORM][:1].fill_(-torch.inf), [f"{NORM!r} holds a number that is not finite in float32"]),
    "whole numbers": (lambda t: t.update({NORM: torch.ones(64, dtype=torch.int32)}), [NORM, "I32", "not floating"]),
}


def test_a_name_is_compared_with_a_bounded_number_of_others(checkpoint, monkeypatch):
    """The nearest of a hostile header's million names would take minutes to find."""
    compared = []
    monkeypatch.setattr(loader, "_COMPARED", 3)
    monkeypatch.setattr(difflib, "get_close_matches", lambda name, others, n: compared.append(len(others)) or [])
    change_tensors(checkpoint / "model.safetensors", lambda t: t.update({f"more.{i}": torch.ones(1) for i in range(9)}))
    with pytest.raises(ModelLoadError, match="9 tensors that"):
        load(checkpoint)
    assert compared and max(compared) == 3


@pytest.mark.parametrize(("change", "parts"), TENSOR_FAULTS.values(), ids=TENSOR_FAULTS)
def test_wrong_tensors_are_named(checkpoint, change, parts):
    change_tensors(checkpoint / "model.safetensors", change)
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("family", "fields", "part"),
    [
        ("Cohere", {"use_qk_norm": True}, "q_norm.weight"),
        ("Ernie", {"use_task_id": True, "is_decoder": True}, "task_type_embeddings.weight"),
    ],
)
def test_nan_is_refused_in_tensors_that_are_not_copied_as_they_are(family, fields, part, tmp_path):
    """The norms of single heads, whose columns have another order, and the row that is added to another table."""
    directory = save(reference_model(family, **fields), tmp_path)
    change_tensors(
        directory / "model.safetensors",
        lambda t: [tensor[0].fill_(torch.nan) for name, tensor in t.items() if name.endswith(part)],
    )
    with pytest.raises(ModelLoadError, match=f"{part}' holds a number that is not finite"):
        load(directory)


def test_a_config_that_promises_more_than_the_files_hold_allocates_nothing(checkpoint, monkeypatch):
    config = json.loads((checkpoint / "config.json").read_text())
    config.update(hidden_size=1 << 18, intermediate_size=1 << 20, num_hidden_layers=1000, vocab_size=1 << 24)
    config["head_dim"] = 64
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="8973 of 9003 tensors are missing"):
        load(checkpoint)


def lie(change):
    return lambda path: change_header(path, change)


def set_length(value: int):
    return lambda path: path.write_bytes(struct.pack("<Q", value) + path.read_bytes()[8:])


def cut(keep: float):
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


FILE_FAULTS = {
    "empty file": (lambda p: p.write_bytes(b""), "too short"),
    "five bytes": (lambda p: p.write_bytes(b"abcde"), "too short"),
    "cut in the data": (cut(0.7), "cut short"),
    "cut in the header": (lambda p: p.write_bytes(p.read_bytes()[:200]), "cut short, or not a safetensors file"),
    "one byte short": (lambda p: p.write_bytes(p.read_bytes()[:-1]), "cut short"),
    "one byte too many": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "belong to no tensor"),
    "random": (
        lambda p: p.write_bytes(bytes(i * 7919 % 251 for i in range(10_000))),
        "cut short, or not a safetensors file",
    ),
    "header length of the universe": (set_length(2**63), "a header of 9223372036854775808 bytes in a file of"),
    "header length too small": (
        lambda p: set_length(struct.unpack("<Q", p.read_bytes()[:8])[0] - 40)(p),
        "not valid JSON",
    ),
    "header a list": (lambda p: p.write_bytes(struct.pack("<Q", 2) + b"[]"), "not an object"),
    "header nested without end": (
        lambda p: p.write_bytes(struct.pack("<Q", 400_000) + b"[" * 400_000),
        "not valid JSON",
    ),
    "no dtype": (lie(lambda h: h[NORM].pop("dtype")), "no valid dtype"),
    "dtype a list": (lie(lambda h: h[NORM].update(dtype=[])), "no valid dtype"),
    "unknown dtype": (lie(lambda h: h[NORM].update(dtype="F7")), "unknown dtype 'F7'"),
    "dtype too small": (lie(lambda h: h[NORM].update(dtype="F16")), "needs 128 bytes but has 256"),
    "negative shape": (lie(lambda h: h[NORM].update(shape=[-64])), "no valid dtype, shape"),
    "shape of 40,000 dimensions": (lie(lambda h: h[NORM].update(shape=[1 << 62] * 40_000)), "40000 dimensions"),
    "dimension beyond the file": (lie(lambda h: h[NORM].update(shape=[1 << 4000])), "larger than the file"),
    "shape a fraction": (lie(lambda h: h[NORM].update(shape=[64.0])), "no valid dtype, shape"),
    "shape of the universe": (lie(lambda h: h[NORM].update(shape=[1 << 40, 1 << 40])), "larger than the file"),
    "offsets backwards": (lie(lambda h: h[NORM].update(data_offsets=[512, 256])), "but has -256"),
    "offsets beyond the file": (lie(lambda h: h[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256])), "cut short"),
    "offsets of another": (
        lie(lambda h: h[NORM].update(data_offsets=h["model.layers.0.input_layernorm.weight"]["data_offsets"])),
        "overlaps another",
    ),
    "tensor a number": (lie(lambda h: h.update({NORM: 7})), "no valid dtype"),
}


@pytest.mark.parametrize(("fault", "message"), FILE_FAULTS.values(), ids=FILE_FAULTS)
def test_broken_safetensors(checkpoint, fault, message):
    path = checkpoint / "model.safetensors"
    fault(path)
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint)
    assert message in str(caught.value)
    assert "model.safetensors" in str(caught.value)


INDEX_FAULTS = {
    "shard missing": (lambda d: next(d.glob("*-00002-*")).unlink(), ["1 of", "00002"]),
    "not JSON": (lambda d: (d / "model.safetensors.index.json").write_text("{"), ["not a valid index"]),
    "large": (lambda d: os.truncate(d / "model.safetensors.index.json", 10**9), ["has more than 100000000 bytes"]),
    "very many files": (
        lambda d: (d / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {str(n): f"{n}.safetensors" for n in range(10_001)}})
        ),
        ["names 10001 files"],
    ),
    "no map": (lambda d: (d / "model.safetensors.index.json").write_text("{}"), ["weight_map"]),
    "map a list": (
        lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
        ["not a valid index"],
    ),
    "out of the folder": (
        lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}'),
        ["../secret.safetensors", "beside the index"],
    ),
    "a pickle": (
        lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.bin"}}'),
        ["model.bin"],
    ),
    "names of numbers": (
        lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": 7}}'),
        ["7"],
    ),
    "no index": (lambda d: (d / "model.safetensors.index.json").unlink(), ["safetensors files but no"]),
    "a tensor twice": (
        lambda d: save_file(load_file(next(d.glob("*-00001-*"))), next(d.glob("*-00002-*"))),
        ["is also in"],
    ),
}


@pytest.mark.parametrize(("fault", "parts"), INDEX_FAULTS.values(), ids=INDEX_FAULTS)
def test_broken_sets_of_files(sharded, fault, parts):
    fault(sharded)
    with pytest.raises(ModelLoadError) as caught:
        load(sharded)
    for part in parts:
        assert part in str(caught.value)


def test_pickled_weights_are_named_and_never_opened(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin, a pickle.*convert it to safetensors"):
        load(checkpoint)


def test_no_weights_at_all(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="no weights"):
        load(checkpoint)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_damage_to_a_header_is_a_model_load_error_or_harmless(checkpoint, data):
    """Bytes of the header changed at random: never another exception, and what loads has the right shapes."""
    original = (checkpoint / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", original[:8])
    raw = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 7 + length))] = data.draw(st.integers(0, 255))
    damaged = checkpoint.parent / "damaged.safetensors"
    damaged.write_bytes(raw)
    try:
        header = read_header(damaged)
    except ModelLoadError:
        return
    assert sum(tensor.num_bytes for tensor in header.tensors.values()) <= len(raw)


def test_footprint_is_what_the_weights_take(sharded, checkpoint):
    for directory in (sharded, checkpoint):
        files = ModelFiles("test", directory=directory)
        spec, decoder = read_spec(files), load(directory)
        parameters = {parameter.data_ptr(): parameter for parameter in decoder.parameters()}.values()
        planned = {dtype: make_blueprint(spec, dtype, Shard()) for dtype in (torch.float32, torch.bfloat16)}
        assert footprint.weight_bytes(planned[torch.float32]) == sum(p.nbytes for p in parameters)
        half, single = (footprint.weight_bytes(planned[dtype]) for dtype in (torch.bfloat16, torch.float32))
        assert half * 2 == single
        stored = sum(t.num_bytes for h in read_headers(directory) for t in h.tensors.values())
        assert footprint.checkpoint_bytes(files) == stored == sum(p.nbytes for p in parameters)
        assert footprint.kv_bytes_per_token(spec.kv_groups, torch.bfloat16) == 2 * 3 * 2 * 8 * 2


@pytest.mark.parametrize("changes", [{"attention_bias": True, "mlp_bias": True}, {"head_dim": 24}])
def test_footprint_counts_biases_and_head_sizes(changes, tmp_path):
    model = reference_model(**changes)
    spec = read_spec(ModelFiles("test", directory=save(model, tmp_path)))
    assert footprint.weight_bytes(make_blueprint(spec, torch.float32, Shard())) == 4 * model.num_parameters()
