"""A model's own sampling defaults in its generation_config.json."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import pytest

from octavo_engine import LLM
from octavo_engine.cli import main
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.generation_config import read_sampling_defaults
from octavo_engine.model.source import ModelFiles
from octavo_engine.sampling_params import LEAST_TOP_P, SamplingDefaults

NEUTRAL = SamplingDefaults()
QWEN3 = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}
"""As published."""


def defaults_of(directory: Path, config: dict[str, Any]) -> SamplingDefaults:
    (directory / "generation_config.json").write_text(json.dumps(config))
    return read_sampling_defaults(ModelFiles("test", directory=directory))


def test_a_published_configuration(tmp_path: Path) -> None:
    assert defaults_of(tmp_path, QWEN3) == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)


def test_a_model_that_says_nothing_is_neutral(tmp_path: Path) -> None:
    assert read_sampling_defaults(ModelFiles("test", directory=tmp_path)) == NEUTRAL
    assert defaults_of(tmp_path, {"temperature": None, "top_k": -1, "eos_token_id": 2}) == NEUTRAL


def test_numbers_of_another_type_and_a_greedy_top_p_do(tmp_path: Path) -> None:
    greedy = defaults_of(tmp_path, {"temperature": 0, "top_k": 20.0, "top_p": 0, "do_sample": False})
    assert greedy == SamplingDefaults(temperature=0.0, top_k=20, top_p=LEAST_TOP_P)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"generation_config.json: .*{name}.*; --generation-config vllm"):
        defaults_of(tmp_path, {name: value})


def gguf_with(path: Path, **keys: float) -> ModelFiles:
    """A GGUF file with these keys of the converter's."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in keys.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_int32
        add(f"general.sampling.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return ModelFiles("test", gguf=path)


def test_a_gguf_file_has_them_in_its_header(tmp_path: Path) -> None:
    """What llama.cpp's converter makes of a generation_config.json; Octavo has no sampler for the last of them."""
    keys = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "penalty_repeat": 1.05, "xtc_threshold": 0.1}
    found = read_sampling_defaults(gguf_with(tmp_path / "model.gguf", **keys))
    assert found == SamplingDefaults(0.6, 20, 0.95, 0.01, 1.05)
    assert read_sampling_defaults(gguf_with(tmp_path / "silent.gguf")) == NEUTRAL
    with pytest.raises(ModelLoadError, match=r"general\.sampling\.\*: .*top_p.*; --generation-config vllm"):
        read_sampling_defaults(gguf_with(tmp_path / "wrong.gguf", top_p=1.5))


@pytest.fixture
def cool_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model, greedy by itself."""
    copy = Path(shutil.copytree(tiny_model, tmp_path / "cool"))
    (copy / "generation_config.json").write_text('{"temperature": 0.0, "eos_token_id": 2}')
    return copy


@pytest.mark.parametrize(("asked", "temperature"), [("auto", 0.0), ("vllm", 1.0)])
def test_the_flag_decides_whether_the_models_sampling_defaults_apply(
    asked: str, temperature: float, cool_model: Path
) -> None:
    loaded = LLM(str(cool_model), device="cpu", num_kv_blocks=16, generation_config=asked)
    with closing(loaded):
        assert loaded.info.sampling == SamplingDefaults(temperature=temperature)


def test_lines_of_generate_begin_with_them(cool_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    plain = {"prompt": "w1 w2 w3", "max_tokens": 12, "ignore_eos": True}
    lines = [plain, plain, {**plain, "temperature": 0}, {**plain, "temperature": 9.0, "seed": 1}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--device=cpu", "--dtype=float32", "--num-kv-blocks=64"]
    assert main(["generate", str(cool_model), f"--input={source}", f"--output={target}", *flags]) == 0
    answers = sorted(map(json.loads, target.read_text().splitlines()), key=lambda answer: int(answer["index"]))
    first, again, greedy, hot = (answer["text"] for answer in answers)
    assert first == again == greedy
    assert hot != greedy
