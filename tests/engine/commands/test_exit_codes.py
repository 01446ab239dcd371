"""Failures at the start: the contract's exit code, one readable message, no traceback.

Each way from an error to the exit code is taken by a real process, at several seconds each: an error of the command
line, of the server, of the engine's process while it plans and while it loads. Other errors about a model or a command
line belong to the same classes, which are caught in this process.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from failed_starts import assert_fails
from safetensors.torch import load_file, save_file

from octavo_engine.cli import main
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.start_engine import start_engine
from octavo_engine.errors import DoesNotFitError, ModelLoadError
from octavo_engine.model.source import resolve_model
from octavo_engine.text.tokenizer import load_tokenizer


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4000])


def lie_about_length(folder: Path) -> None:
    """A header that claims to be 2^62 bytes long."""
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + path.read_bytes()[8:])


def lie_about_offsets(folder: Path) -> None:
    """A tensor that claims to lie beyond the end of the file."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    name = next(n for n in header if n != "__metadata__")
    first, last = header[name]["data_offsets"]
    header[name]["data_offsets"] = [first + (1 << 40), last + (1 << 40)]
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + size :])


def wrong_shape(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = torch.ones(33)
    save_file(tensors, path, metadata={"format": "pt"})


BROKEN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "config.json is no JSON": (lambda f: (f / "config.json").write_text('{"model_type": '), ("config.json",)),
    "config.json lacks a field": (lambda f: edit_config(f, hidden_size=None), ("config.json", "hidden_size")),
    "config.json has nonsense": (lambda f: edit_config(f, num_hidden_layers=-3), ("config.json", "num_hidden_layers")),
    "safetensors is cut": (cut, ("model.safetensors",)),
    "safetensors header lies about its length": (lie_about_length, ("model.safetensors", "header")),
    "safetensors header lies about offsets": (lie_about_offsets, ("model.safetensors",)),
    "a tensor has the wrong shape": (wrong_shape, ("model.norm.weight", "33")),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ("safetensors",)),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ("tokenizer.json",)),
    "tokenizer is broken": (lambda f: (f / "tokenizer.json").write_text("{}"), ("tokenizer.json",)),
    "architecture is unknown": (
        lambda f: edit_config(f, architectures=["LlamaForCausalLn"]),
        ("LlamaForCausalLn", "LlamaForCausalLM"),
    ),
}


IN_PROCESSES = ("safetensors header lies about offsets", "no tokenizer")
"""Found by the engine's process while it loads, and by the server."""


def assert_not_loaded(model: Path, *words: str) -> None:
    """Loading the model or its tokenizer ends with an error of exit code 3 and one line, which holds all `words`."""
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(resolve_model(str(model), None, lambda *_: None, weights=False))
        start_engine(EngineConfig(model=str(model), device="cpu"), lambda *_: None)
    assert caught.value.exit_code == 3
    said = str(caught.value)
    assert "\n" not in said
    assert all(word.lower() in said.lower() for word in words), f"expected {words} in: {said}"


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_model_is_reported(fault: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    break_it, words = BROKEN[fault]
    break_it(folder)
    assert_not_loaded(folder, *words)
    if fault in IN_PROCESSES:
        assert_fails([str(folder)], 3, *words)


def test_a_wrong_path_and_an_empty_folder_are_reported(tmp_path: Path) -> None:
    assert_fails([str(tmp_path / "nowhere")], 3, "no such file or directory")
    assert_not_loaded(tmp_path, "the directory is empty")


@pytest.mark.parametrize("kind", ["cut", "random"])
def test_a_cut_or_random_gguf_is_reported(kind: str, tmp_path: Path) -> None:
    demo = resolve_model("smollm2", None, lambda *_: None).gguf
    assert demo is not None
    path = tmp_path / "model.gguf"
    with demo.open("rb") as file:
        beginning = file.read(3_000_000)
    path.write_bytes(beginning if kind == "cut" else b"GGUF" + os.urandom(100_000))
    assert_not_loaded(path, "model.gguf")


def test_what_does_not_fit_is_reported_before_loading_with_exit_code_4() -> None:
    arguments = ["smollm2", "--gpu-memory-utilization=0.9", "--kv-cache-memory=900GiB"]
    assert_fails(arguments, 4, "does not fit", "needs", "there are", "--kv-cache-memory", "(fits)")
    with pytest.raises(DoesNotFitError, match=r"--num-kv-blocks 4.* raise --num-kv-blocks to 63"):
        start_engine(EngineConfig(model="smollm2", device="cpu", num_kv_blocks=4, max_model_len=1000), lambda *_: None)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--max-num-seq=4", ("--max-num-seq", "did you mean --max-num-seqs?")),
        ("--max-num-seqs=0", ("--max-num-seqs", "smallest allowed value, 1")),
        ("--max-model-len=100000000", ("--max-model-len", "largest allowed value, 16,777,216")),
        ("--max-num-seqs=many", ("--max-num-seqs", "whole number")),
        ("--dtype=int3", ("--dtype", "bfloat16")),
        ("--speculative-config={}", ("--speculative-config", "method", "ngram")),
        ("--lora-modules=a=b", ("--lora-modules", "--enable-lora")),
    ],
)
def test_usage_is_reported(
    argument: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_engine.server.run.serve", lambda *_: pytest.fail("it serves"))
    try:
        code = main(["serve", "smollm2", "--device=cpu", argument])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code == 2
    assert len(said.splitlines()) == 1 and said.startswith("octavo-engine")
    assert all(word.lower() in said.lower() for word in words), f"expected {words} in: {said}"


def test_usage_is_reported_with_exit_code_2(tmp_path: Path) -> None:
    """Errors come from argparse, from the settings, and from the engine once it knows the model."""
    config = tmp_path / "octavo.yaml"
    config.write_text("max-num-seq: 4\n")
    assert_fails(["smollm2", "--max-num-seq=4"], 2, "--max-num-seq", "did you mean --max-num-seqs?")
    assert_fails(["smollm2"], 2, "--kv-cache-memory", "size", env={"OCTAVO_KV_CACHE_MEMORY": "lots"})
    assert_fails(["smollm2", f"--config={config}"], 2, "max-num-seq", "did you mean max-num-seqs?")
    assert_fails(["smollm2", "--max-model-len=9000"], 2, "--max-model-len 9000", "8192")


def test_a_taken_port_is_reported_with_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_fails(["smollm2", f"--port={port}"], 2, f"{port}", "--port")
